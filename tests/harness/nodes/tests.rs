use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::{Network, can_run, run};
use crate::wait::until;

const SOON: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(50);

#[tokio::test]
#[ignore = "runs until it is killed; started by another test"]
async fn starts_a_node_and_waits_to_be_killed() -> Result<()> {
    let network = Network::start().await?;
    let mut node = network.node(0, "doomed", &[])?;
    node.wait_for_containers().await?;
    let cgroups = node._cgroups.paths().replace('\n', " ");
    let files = network.dir().path().display().to_string();
    println!("NODE {} {files} {cgroups}", network.gateway());
    std::thread::sleep(Duration::from_secs(600));
    Ok(())
}

async fn addresses() -> Result<String> {
    run("ip", &["-4", "-o", "address"]).await
}

#[tokio::test]
async fn nothing_of_a_node_is_left_when_the_process_that_made_it_is_killed() -> Result<()> {
    if !can_run("nodes: nothing is left of a node whose maker is killed") {
        return Ok(());
    }
    let mut victim = Command::new(std::env::current_exe()?)
        .args(["--ignored", "--exact", "--nocapture"])
        .arg("nodes::tests::starts_a_node_and_waits_to_be_killed")
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let lines = BufReader::new(victim.stdout.take().context("its output")?).lines();
    let reported = lines
        .map_while(Result::ok)
        .find_map(|line| line.split_once("NODE ").map(|(_, rest)| rest.to_owned()))
        .context("the process did not report its node")?;
    let mut words = reported.split(' ');
    let gateway = words.next().context("an address")?;
    let paths: Vec<&Path> = words.map(Path::new).collect();
    let here = addresses().await?;
    assert!(paths.len() > 1 && paths.iter().all(|path| path.exists()) && here.contains(gateway));

    victim.kill()?;
    victim.wait()?;
    until(
        "files, cgroups and network are gone",
        SOON,
        POLL,
        || async {
            let left: Vec<_> = paths.iter().filter(|path| path.exists()).collect();
            ensure!(left.is_empty(), "{left:?}");
            let here = addresses().await?;
            ensure!(!here.contains(gateway), "{here}");
            Ok(Some(()))
        },
    )
    .await
}
