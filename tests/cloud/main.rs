//! Runs the conformance suite against a provider on a Unix socket, and says which rules it keeps.

use std::{path::PathBuf, process::ExitCode};

use clap::Parser;
use cloud_provider::{conformance, reference};

/// Checks whether a cloud provider keeps the rules of `manifold.cloud.v1`.
///
/// It creates and removes load balancers and routes: use a project of the cloud that is empty. A provider
/// behind TLS is reached by a proxy that offers a socket.
#[derive(Parser)]
struct Args {
    /// Path of the provider's Unix socket.
    socket: PathBuf,
    /// Name of a machine that exists; the checks of machines are left out without it.
    #[arg(long)]
    machine: Option<String>,
    /// providerID of that machine.
    #[arg(long, default_value = "")]
    provider_id: String,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let args = Args::parse();
    let channel = reference::connect(args.socket);
    let machine = args.machine.map(|name| conformance::Machine {
        name,
        provider_id: args.provider_id,
    });
    let mut failed = false;
    for (rule, result) in conformance::check(channel, machine).await {
        match result {
            Ok(conformance::Verdict::Kept) => println!("kept         {rule}"),
            Ok(conformance::Verdict::NotSupported) => println!("unsupported  {rule}"),
            Err(why) => {
                failed = true;
                println!("BROKEN       {rule}: {why:#}");
            }
        }
    }
    match failed {
        true => ExitCode::FAILURE,
        false => ExitCode::SUCCESS,
    }
}
