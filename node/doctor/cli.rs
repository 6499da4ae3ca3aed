//! The command lines of the subcommands.

use std::{
    ffi::OsString,
    process::ExitCode,
    time::{Duration, Instant},
};

use clap::{Args, Parser, Subcommand, ValueEnum, error::ErrorKind};
use controllers_kit::Descriptor;

use crate::{
    checks,
    companion::{self, Form},
    facts::{Asked, PeerFiles},
    gather::{self, Access},
    report::{self, Summary},
};

/// The first words of a command line that are not kube-controller-manager's flags.
pub const SUBCOMMANDS: &[&str] = &["doctor", "companion"];

/// Exit code: a check failed, or lists were refused.
const FAILED: u8 = 1;
/// Exit code: nothing could be examined, the command line or the kubeconfig is wrong.
const UNUSABLE: u8 = 2;
/// Between two examinations while `--wait` lasts.
const WAIT_PAUSE: Duration = Duration::from_secs(2);

#[derive(Parser)]
#[command(
    name = "manifold",
    bin_name = "manifold",
    disable_help_subcommand = true
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Examines a cluster and its fleet, and names the command that repairs what is broken.
    #[command(
        after_help = "Exit codes: 0 no check failed (warnings may be there), 1 a check failed, 2 nothing could be examined.\n\
        docs/doctor.md lists the checks and describes the JSON report."
    )]
    Doctor(Box<DoctorArgs>),
    /// Prints what kube-controller-manager runs beside a fleet that runs only some controllers.
    #[command(
        after_help = "Exit codes: 0, 1 the lists contradict each other, 2 the command line is wrong."
    )]
    Companion(CompanionArgs),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Output {
    Text,
    Json,
}

#[derive(Args)]
struct DoctorArgs {
    /// Before the installation: only what can be checked then, and whether you may install.
    #[arg(long)]
    pre: bool,
    /// Kubeconfig; without it $KUBECONFIG, ~/.kube/config, or the pod's service account.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<std::path::PathBuf>,
    /// Context of the kubeconfig.
    #[arg(long)]
    context: Option<String>,
    /// Output.
    #[arg(short, long, value_enum, default_value = "text")]
    output: Output,
    /// Examine again until no check fails, for so long at most, as in 90s or 5m.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    wait: Option<Duration>,
    /// The fleet's name, where there are several.
    #[arg(long, value_name = "NAME")]
    fleet_name: Option<String>,
    /// The namespace of the fleet's Leases, where there are several fleets.
    #[arg(long, value_name = "NAMESPACE")]
    fleet_namespace: Option<String>,
    /// How many members are wanted; without it what the StatefulSet and the static pods say.
    #[arg(long, value_name = "COUNT")]
    expected_replicas: Option<usize>,
    /// --controllers of the kube-controller-manager beside the fleet; without it what its pods say.
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        allow_hyphen_values = true
    )]
    kcm_controllers: Option<Vec<String>>,
    /// A replica's certificate for its peers, to be examined together with its key and authority.
    #[arg(
        long,
        value_name = "FILE",
        requires = "peer_tls_private_key_file",
        requires = "peer_ca_file"
    )]
    peer_tls_cert_file: Option<String>,
    /// Its key.
    #[arg(long, value_name = "FILE", requires = "peer_tls_cert_file")]
    peer_tls_private_key_file: Option<String>,
    /// Authorities of the replicas' certificates.
    #[arg(long, value_name = "FILE", requires = "peer_tls_cert_file")]
    peer_ca_file: Option<String>,
}

#[derive(Args)]
struct CompanionArgs {
    /// What Manifold runs, as its own --controllers.
    #[arg(
        long,
        value_name = "LIST",
        required = true,
        value_delimiter = ',',
        allow_hyphen_values = true
    )]
    controllers: Vec<String>,
    /// What kube-controller-manager is to run of what Manifold does not; without it what kubeadm has it run.
    /// What is named here must not be Manifold's.
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        allow_hyphen_values = true
    )]
    kcm_controllers: Option<Vec<String>>,
    /// Output: flags of kube-controller-manager, a kubeadm configuration, or JSON with both sides.
    #[arg(short, long, value_enum, default_value = "flags")]
    output: Form,
}

/// A duration as kubectl takes it: whole numbers with h, m, s or ms.
///
/// # Errors
/// With a sentence for the user.
pub fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is no duration: give one as 90s or 5m");
    let mut rest = text;
    let mut sum = Duration::ZERO;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
        let number: u64 = rest[..digits].parse().map_err(|_| wrong())?;
        let unit_end = rest[digits..]
            .find(|c: char| c.is_ascii_digit())
            .map_or(rest.len(), |at| digits + at);
        let unit = match &rest[digits..unit_end] {
            "h" => Duration::from_secs(3600),
            "m" => Duration::from_secs(60),
            "s" => Duration::from_secs(1),
            "ms" => Duration::from_millis(1),
            _ => return Err(wrong()),
        };
        let count = u32::try_from(number).map_err(|_| wrong())?;
        let part = unit.checked_mul(count).ok_or_else(wrong)?;
        sum = sum.checked_add(part).ok_or_else(wrong)?;
        rest = &rest[unit_end..];
    }
    match text.is_empty() {
        true => Err(wrong()),
        false => Ok(sum),
    }
}

/// Reads a command line, the program's name first.
///
/// # Errors
/// With the exit code once what there is to say was printed: help and version are a success, and a line that
/// can't be understood has 2.
pub fn parsed<C: Parser>(
    words: impl IntoIterator<Item = impl Into<OsString> + Clone>,
) -> Result<C, ExitCode> {
    C::try_parse_from(words).map_err(|error| {
        let _printed = error.print();
        match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => ExitCode::SUCCESS,
            _ => ExitCode::from(UNUSABLE),
        }
    })
}

/// Runs a subcommand; `words` begin with its name. `version` is this program's.
pub fn run(words: &[String], version: &str, descriptors: &[Descriptor]) -> ExitCode {
    let words = std::iter::once("manifold").chain(words.iter().map(String::as_str));
    let cli: Cli = match parsed(words) {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    match cli.command {
        Command::Companion(args) => {
            match companion::divide(
                &args.controllers,
                args.kcm_controllers.as_deref(),
                descriptors,
            ) {
                Ok(division) => {
                    print!("{}", division.print(args.output));
                    for note in division.notes() {
                        eprintln!("manifold companion: {note}");
                    }
                    ExitCode::SUCCESS
                }
                Err(why) => {
                    eprintln!("manifold companion: {why}");
                    ExitCode::from(FAILED)
                }
            }
        }
        Command::Doctor(args) => match examine(*args, version, descriptors) {
            Ok(code) => code,
            Err(why) => {
                eprintln!("manifold doctor: {why}");
                ExitCode::from(UNUSABLE)
            }
        },
    }
}

fn examine(
    args: DoctorArgs,
    version: &str,
    descriptors: &[Descriptor],
) -> Result<ExitCode, String> {
    let peer_files = args
        .peer_tls_cert_file
        .zip(args.peer_tls_private_key_file)
        .zip(args.peer_ca_file)
        .map(|((certificate, key), authority)| PeerFiles {
            certificate,
            key,
            authority,
        });
    let asked = Asked {
        pre: args.pre,
        fleet: args.fleet_name,
        namespace: args.fleet_namespace,
        expected: args.expected_replicas,
        kcm_controllers: args.kcm_controllers,
        peer_files,
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|why| format!("can't start: {why}"))?;
    runtime.block_on(async {
        let access = Access::load(args.kubeconfig.as_deref(), args.context.as_deref()).await?;
        let until = args.wait.map(|wait| Instant::now() + wait);
        loop {
            let facts = Box::pin(gather::facts(&access, asked.clone(), version, descriptors)).await;
            let verdicts = checks::examine(&facts);
            let failed = Summary::of(&verdicts).failed;
            if failed > 0 && until.is_some_and(|until| Instant::now() < until) {
                if args.output == Output::Text {
                    eprintln!("manifold doctor: {failed} checks fail, examining again");
                }
                tokio::time::sleep(WAIT_PAUSE).await;
                continue;
            }
            match args.output {
                Output::Text => print!("{}", report::text(&verdicts)),
                Output::Json => println!("{:#}", report::json(&facts, &verdicts)),
            }
            return Ok(match failed {
                0 => ExitCode::SUCCESS,
                _ => ExitCode::from(FAILED),
            });
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_kubectl_reads_them() {
        let table = [
            ("90s", Some(90_000)),
            ("5m", Some(300_000)),
            ("1m30s", Some(90_000)),
            ("250ms", Some(250)),
            ("1h", Some(3_600_000)),
            ("", None),
            ("5", None),
            ("5 m", None),
            ("m", None),
            ("99999999999999999999s", None),
        ];
        for (text, expected) in table {
            let read = duration(text).ok().map(|read| read.as_millis());
            assert_eq!(read, expected, "{text:?}");
        }
    }

    #[test]
    fn the_subcommands_are_those_that_are_announced() {
        use clap::CommandFactory;
        let command = Cli::command();
        let names: Vec<&str> = command
            .get_subcommands()
            .map(|one| one.get_name())
            .collect();
        assert_eq!(names, SUBCOMMANDS);
        command.debug_assert();
    }
}
