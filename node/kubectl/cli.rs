//! The command line.

mod audit;

use std::{
    fs::File,
    io::{IsTerminal as _, Write as _},
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, Instant},
};

use clap::{Args, CommandFactory as _, Parser, Subcommand, ValueEnum};
use doctor::duration;
use inspect::{Explanation, FleetShards, Shadow, Top, UNDECIDED, Unhappy};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::{Serialize, de::DeserializeOwned};

use audit::audit;

use crate::{
    archive,
    complete::complete,
    dashboard, moves,
    object::named,
    reach::{Replica, Trouble, Way},
    render,
    steer::{self, Given},
    verdict,
};

/// Exit code: something is wrong.
const WRONG: u8 = 1;
/// Exit code: the command line is wrong, or nobody could be asked.
const UNUSABLE: u8 = 2;
/// Between two questions of `status --wait`.
const WAIT_PAUSE: Duration = Duration::from_secs(1);
/// Between two pictures of `top --watch`.
const WATCH_PAUSE: Duration = Duration::from_secs(2);
/// Above each picture: the cursor to the top left, and all below cleared.
const CLEAR: &str = "\u{1b}[H\u{1b}[J";

/// See why controllers do what they do, and steer a Manifold fleet.
#[derive(Debug, Parser)]
#[command(
    name = "kubectl-manifold",
    bin_name = "kubectl manifold",
    version,
    disable_help_subcommand = true,
    after_help = "Exit codes: 0, 1 something is wrong (status, audit, doctor), 2 the command line is wrong or nobody answers."
)]
pub struct Cli {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Args)]
struct Common {
    /// Kubeconfig; without it $KUBECONFIG or ~/.kube/config.
    #[arg(long, value_name = "FILE", global = true)]
    kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig.
    #[arg(long, global = true)]
    context: Option<String>,
    /// A replica's own secure port, where no pod is to be reached through the API server; of several with
    /// commas between them `dashboard` asks the first that answers.
    #[arg(long, value_name = "HOST:PORT[,...]", global = true)]
    server: Option<String>,
    /// Authorities of the certificate at --server.
    #[arg(
        long,
        value_name = "FILE",
        global = true,
        conflicts_with = "insecure_skip_tls_verify"
    )]
    certificate_authority: Option<PathBuf>,
    /// Don't check the certificate at --server: any program that answers there gets your credentials.
    #[arg(long, global = true)]
    insecure_skip_tls_verify: bool,
    /// The pod that is asked; without it a ready one.
    #[arg(long, value_name = "POD", global = true, conflicts_with = "server")]
    replica: Option<String>,
    /// The fleet's namespace.
    #[arg(
        long,
        value_name = "NAMESPACE",
        global = true,
        default_value = "manifold-system"
    )]
    fleet_namespace: String,
    /// Namespace of the object; without it the context's.
    #[arg(short, long, global = true, conflicts_with = "all_namespaces")]
    namespace: Option<String>,
    /// All namespaces.
    #[arg(short = 'A', long, global = true)]
    all_namespaces: bool,
    /// Output.
    #[arg(short, long, value_enum, global = true, default_value = "table")]
    output: Output,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Output {
    Table,
    Wide,
    Json,
    Yaml,
}

/// What is given with an order.
#[derive(Debug, Args)]
struct Order {
    /// How long it holds, 168h at most.
    #[arg(long = "for", value_name = "DURATION", value_parser = duration, default_value = "1h")]
    holds: Duration,
    /// Why, for all who ask.
    #[arg(long, value_name = "TEXT", default_value = "")]
    reason: String,
}

impl From<Order> for Given {
    fn from(Order { holds, reason }: Order) -> Self {
        Self { holds, reason }
    }
}

/// What `set` sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Setting {
    Workers,
    Qps,
}

impl From<Setting> for steering::Setting {
    fn from(setting: Setting) -> Self {
        match setting {
            Setting::Workers => Self::Workers,
            Setting::Qps => Self::Qps,
        }
    }
}

#[derive(Debug, Args)]
struct OfFleet {
    /// The fleet's name.
    #[arg(long, value_name = "NAME", default_value = "manifold")]
    fleet_name: String,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Shows whether the fleet is well, its replicas, and the keys that fail.
    Status {
        /// Ask again until the fleet is well, for so long at most, as in 90s or 5m.
        #[arg(long, value_name = "DURATION", value_parser = duration)]
        wait: Option<Duration>,
    },
    /// Shows who owns the ranges; -o wide shows each range.
    Shards,
    /// Shows why an object does not change: the keys of all its controllers, and what blocks them.
    #[command(after_help = "Example: kubectl manifold explain deployment/web -n shop")]
    Explain {
        /// The object, as KIND/NAME.
        #[arg(required = true, num_args = 1..=2, value_name = "KIND/NAME")]
        object: Vec<String>,
    },
    /// Shows what is busy: controllers, ranges and keys, by the rates of the last minutes.
    Top {
        /// Show it again every two seconds.
        #[arg(short, long)]
        watch: bool,
    },
    /// Shows the last attempts of an object's keys; without an object, the keys that failed lately.
    #[command(
        after_help = "Examples:\n  kubectl manifold history job/pi -n shop\n  kubectl manifold history --controller job-controller --key shop/pi"
    )]
    History {
        /// The object, as KIND/NAME.
        #[arg(num_args = 0..=2, value_name = "KIND/NAME", conflicts_with = "key")]
        object: Vec<String>,
        /// A controller, for a key that is no object.
        #[arg(long, value_name = "NAME", requires = "key")]
        controller: Option<String>,
        /// Its key.
        #[arg(long, value_name = "NAMESPACE/NAME", requires = "controller")]
        key: Option<String>,
    },
    /// Shows how the writes that a shadow plans compare with those of the manager in charge.
    #[command(
        after_help = "Exit codes: 0 they agree, 1 they differ, 2 undecided: nobody is in charge, nothing was \
        compared, or a replica does not answer.\nExample: kubectl manifold shadow --fleet-namespace manifold-shadow --wait 5m"
    )]
    Shadow {
        /// Ask again until nothing is waited for, for so long at most, as in 90s or 5m.
        #[arg(long, value_name = "DURATION", value_parser = duration)]
        wait: Option<Duration>,
    },
    /// Serves the live page at a port of this machine: ranges over the last hour, replicas, keys.
    #[command(
        after_help = "Nobody but this machine reaches the port, and nothing but the page is forwarded, with your credentials.\n\
        Example: kubectl manifold dashboard --port 8100"
    )]
    Dashboard {
        /// The port; 0 takes a free one.
        #[arg(long, default_value_t = 0)]
        port: u16,
        /// Print the URL, and open no browser.
        #[arg(long)]
        no_open: bool,
    },
    /// Writes all of it into one archive: ranges, rates, failures, flags, health, metrics. No Secrets.
    Dump {
        /// The archive; `-` for the standard output.
        #[arg(
            short,
            long,
            value_name = "FILE",
            default_value = "manifold-dump.tar.gz"
        )]
        file: PathBuf,
    },
    /// Has a range owned by another replica for a while: its keys are reconciled there.
    #[command(
        after_help = "It ends by itself (--for) and by `unmove`; then the range goes home. No restart or failover ends it; while the \
        replica is not there, the range is where it would be without it.\n\
        Examples:\n  kubectl manifold move 17 --to manifold-1 --for 30m\n  \
        kubectl manifold move deployment/web -n shop --to manifold-1 --reason 'incident 7'"
    )]
    Move {
        /// The range's number, or an object: the range of its keys.
        #[arg(required = true, num_args = 1..=2, value_name = "RANGE|KIND/NAME")]
        target: Vec<String>,
        /// The replica that is to own it.
        #[arg(long, value_name = "REPLICA")]
        to: String,
        #[command(flatten)]
        given: Order,
        #[command(flatten)]
        fleet: OfFleet,
    },
    /// Has a range that was moved go home.
    Unmove {
        /// As given to `move`.
        #[arg(required = true, num_args = 1..=2, value_name = "RANGE|KIND/NAME")]
        target: Vec<String>,
        #[command(flatten)]
        fleet: OfFleet,
    },
    /// Pauses a controller, or one of its keys: what happens to it waits until the pause ends.
    #[command(
        after_help = "It ends by itself (--for), by `resume`, and by nothing else: no restart or failover ends it.\n\
        Examples:\n  kubectl manifold pause deployment-controller --for 30m --reason 'incident 7'\n  \
        kubectl manifold pause job-controller/shop/pi"
    )]
    Pause {
        /// A controller, or a key of one as CONTROLLER/NAMESPACE/NAME (with -n: CONTROLLER/NAME).
        #[arg(value_name = "CONTROLLER[/KEY]")]
        target: String,
        #[command(flatten)]
        given: Order,
        #[command(flatten)]
        fleet: OfFleet,
    },
    /// Ends the pause of a controller, or of one of its keys: what waits is reconciled at once.
    Resume {
        /// As given to `pause`.
        #[arg(value_name = "CONTROLLER[/KEY]")]
        target: String,
        #[command(flatten)]
        fleet: OfFleet,
    },
    /// Has a replica hand its ranges over and take none until `undrain`; its process stays alive.
    #[command(
        after_help = "It also ends by itself (--for), and with a restart of the replica.\n\
        Example: kubectl manifold drain manifold-1 --wait 60s"
    )]
    Drain {
        /// The replica.
        #[arg(value_name = "REPLICA")]
        replica_name: String,
        /// Wait until it owns no range, for so long at most, as in 60s.
        #[arg(long, value_name = "DURATION", value_parser = duration)]
        wait: Option<Duration>,
        #[command(flatten)]
        given: Order,
        #[command(flatten)]
        fleet: OfFleet,
    },
    /// Has a drained replica own ranges again.
    Undrain {
        /// The replica.
        #[arg(value_name = "REPLICA")]
        replica_name: String,
        #[command(flatten)]
        fleet: OfFleet,
    },
    /// Sets workers or the rate of writes of a controller in each replica, for a while.
    #[command(
        after_help = "It ends by itself (--for) and by `unset`; then the flags hold again.\n\
        Examples:\n  kubectl manifold set workers job-controller 20 --for 30m\n  \
        kubectl manifold set qps garbage-collector-controller 2 --reason 'the API server is slow'"
    )]
    Set {
        /// What is set.
        setting: Setting,
        /// A controller.
        controller: String,
        /// Workers: keys that are reconciled at once, 1 to 1000. Qps: writes a second, 0.1 to 10000.
        #[arg(allow_negative_numbers = true)]
        value: String,
        #[command(flatten)]
        given: Order,
        #[command(flatten)]
        fleet: OfFleet,
    },
    /// Has a controller the workers or the rate of writes of the flags again.
    Unset {
        /// What was set.
        setting: Setting,
        /// A controller.
        controller: String,
        #[command(flatten)]
        fleet: OfFleet,
    },
    /// Judges an API server's audit log: whether each range had one writer at a time.
    #[command(
        after_help = "Exit codes: 0 nothing to complain of, 1 complaints, 2 the log can't be judged.\n\
        The log must have the bodies of the fleet's Leases: --print-policy shows how."
    )]
    Audit {
        /// The audit logs, a JSON object a line: of each API server, and the files that were rotated.
        #[arg(value_name = "LOG", required_unless_present = "print_policy")]
        logs: Vec<PathBuf>,
        /// Prints an audit policy that logs what is needed.
        #[arg(long)]
        print_policy: bool,
        #[command(flatten)]
        fleet: OfFleet,
        /// How long a range may be without an owner.
        #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "8s")]
        unowned: Duration,
    },
    /// Examines the cluster and the fleet, as `manifold doctor`; the words after it are its own.
    #[command(disable_help_flag = true)]
    Doctor {
        /// As of `manifold doctor --help`.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<String>,
    },
    /// For kubectl's completion.
    #[command(name = "__complete", hide = true, disable_help_flag = true)]
    Complete {
        /// The words so far.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<String>,
    },
}

/// Runs a command line, without the program's name.
pub fn run(words: impl Iterator<Item = String>) -> ExitCode {
    let words = std::iter::once("kubectl-manifold".to_owned()).chain(words);
    let cli: Cli = match doctor::parsed(words) {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    let Cli { common, command } = cli;
    match command {
        Command::Complete { words } => {
            for line in complete(&Cli::command(), &words) {
                println!("{line}");
            }
            return ExitCode::SUCCESS;
        }
        Command::Doctor { words } => return doctor(&common, words),
        Command::Audit {
            print_policy: true, ..
        } => {
            print!("{}", audit_log::POLICY);
            return ExitCode::SUCCESS;
        }
        Command::Audit {
            logs,
            fleet,
            unowned,
            ..
        } => return ended(audit(&common, &logs, &fleet.fleet_name, unowned)),
        _ => {}
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    if let (Ok(runtime), Command::Shadow { wait }) = (&runtime, &command) {
        let code = runtime.block_on(shadow(&common, wait.unwrap_or_default()));
        return match code {
            Ok(code) => ExitCode::from(code),
            Err(trouble) => ended(Err(trouble)),
        };
    }
    ended(match runtime {
        Ok(runtime) => runtime.block_on(ask(&common, command)),
        Err(why) => Err(format!("can't start: {why}").into()),
    })
}

fn ended(ended: Result<bool, Trouble>) -> ExitCode {
    match ended {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(WRONG),
        Err(trouble) => {
            eprintln!("kubectl manifold: {}", trouble.why);
            ExitCode::from(UNUSABLE)
        }
    }
}

fn doctor(common: &Common, words: Vec<String>) -> ExitCode {
    let mut all = vec!["doctor".to_owned()];
    let given = [
        (
            "--kubeconfig",
            common
                .kubeconfig
                .as_ref()
                .map(|path| path.display().to_string()),
        ),
        ("--context", common.context.clone()),
    ];
    for (flag, value) in given {
        if let Some(value) = value {
            all.extend([flag.to_owned(), value]);
        }
    }
    match common.output {
        Output::Json => all.extend(["-o".to_owned(), "json".to_owned()]),
        Output::Yaml => {
            eprintln!("kubectl manifold: doctor prints text or JSON: give -o json");
            return ExitCode::from(UNUSABLE);
        }
        Output::Table | Output::Wide => {}
    }
    all.extend(words);
    doctor::run(
        &all,
        env!("CARGO_PKG_VERSION"),
        &node_registry::descriptors(),
    )
}

impl Common {
    fn way(&self) -> Way {
        Way {
            kubeconfig: self.kubeconfig.clone(),
            context: self.context.clone(),
            server: self.server.clone(),
            authority: self.certificate_authority.clone(),
            insecure: self.insecure_skip_tls_verify,
            replica: self.replica.clone(),
            fleet_namespace: self.fleet_namespace.clone(),
        }
    }

    /// The namespace of an object: the one given, else the context's.
    fn of_object<'a>(&'a self, replica: &'a Replica) -> &'a str {
        self.namespace.as_deref().unwrap_or(&replica.namespace)
    }

    /// What the command line alone shows to be wrong with an object's name.
    fn check_object(&self, words: &[String]) -> Result<(), Trouble> {
        named(words)?;
        match self.all_namespaces {
            true => Err(
                "one object has one namespace: give it with -n instead of -A"
                    .to_owned()
                    .into(),
            ),
            false => Ok(()),
        }
    }

    /// The namespace of a list: the one given, else all.
    fn of_list(&self) -> &str {
        self.namespace.as_deref().unwrap_or_default()
    }

    fn print<T: Serialize>(
        &self,
        answer: &T,
        text: impl FnOnce(&T, bool) -> String,
    ) -> Result<(), Trouble> {
        let text = match self.output {
            Output::Table => text(answer, false),
            Output::Wide => text(answer, true),
            Output::Json => {
                serde_json::to_string_pretty(answer).map_err(|why| why.to_string())? + "\n"
            }
            Output::Yaml => serde_yaml::to_string(answer).map_err(|why| why.to_string())?,
        };
        // A reader that has seen enough, as `head`, is none of our troubles.
        let _closed = std::io::stdout().write_all(text.as_bytes());
        Ok(())
    }
}

/// A path with its query.
fn path(path: &str, query: &[(&str, &str)]) -> String {
    let mut text = path.to_owned();
    for (at, (name, value)) in query
        .iter()
        .filter(|(_, value)| !value.is_empty())
        .enumerate()
    {
        text.push(if at == 0 { '?' } else { '&' });
        text.push_str(name);
        text.push('=');
        text.extend(utf8_percent_encode(value, NON_ALPHANUMERIC));
    }
    text
}

async fn read<T: DeserializeOwned>(replica: &Replica, path: &str) -> Result<T, Trouble> {
    let answer = replica.get(path).await?;
    serde_json::from_slice(&answer)
        .map_err(|why| format!("{path}: the answer can't be read: {why}").into())
}

async fn explained(
    common: &Common,
    replica: &Replica,
    words: &[String],
) -> Result<Explanation, Trouble> {
    let object = named(words)?;
    let namespace = common.of_object(replica);
    let path = path(
        "/debug/explain",
        &[
            ("kind", &object.kind),
            ("name", &object.name),
            ("namespace", namespace),
        ],
    );
    read(replica, &path).await
}

/// What `status` prints.
#[derive(Serialize)]
struct Status {
    schema: &'static str,
    well: bool,
    problems: Vec<String>,
    failing: usize,
    fleet: FleetShards,
    unhappy: Unhappy,
}

/// Of [`Status`].
const STATUS_SCHEMA: &str = "manifold.dev/status/v1";

async fn status(common: &Common, replica: &Replica) -> Result<Status, Trouble> {
    let unhappy = path("/debug/unhappy", &[("namespace", common.of_list())]);
    let fleet: FleetShards = read(replica, "/debug/shards?scope=fleet").await?;
    let unhappy: Unhappy = read(replica, &unhappy).await?;
    let problems = verdict::problems(&fleet);
    Ok(Status {
        schema: STATUS_SCHEMA,
        well: problems.is_empty(),
        problems,
        failing: verdict::failing(&unhappy),
        fleet,
        unhappy,
    })
}

/// Shows what a shadow has found, and gives its exit code.
async fn shadow(common: &Common, wait: Duration) -> Result<u8, Trouble> {
    let began = Instant::now();
    loop {
        let replica = common.way().open().await?;
        let found: Shadow = read(&replica, "/debug/shadow").await?;
        let is_settled = !found.is_pending() && found.exit_code() != UNDECIDED;
        if is_settled || began.elapsed() >= wait {
            common.print(&found, |found, _| found.text())?;
            return Ok(found.exit_code());
        }
        tokio::time::sleep(WAIT_PAUSE).await;
    }
}

/// Whether all is well.
async fn ask(common: &Common, command: Command) -> Result<bool, Trouble> {
    match command {
        Command::Status { wait: Some(wait) } => return waited(common, wait).await,
        Command::Dashboard { port, no_open } => {
            dashboard::serve(common.way(), port, !no_open).await?;
            return Ok(true);
        }
        _ => {}
    }
    let command = match steered(common, command).await? {
        Some(command) => command,
        None => return Ok(true),
    };
    match &command {
        Command::Explain { object } => common.check_object(object)?,
        Command::History { object, .. } if !object.is_empty() => common.check_object(object)?,
        _ => {}
    }
    let replica = common.way().open().await?;
    match command {
        Command::Status { .. } => {
            let status = status(common, &replica).await?;
            show_status(common, &status)?;
            return Ok(status.well);
        }
        Command::Shards => {
            let fleet: FleetShards = read(&replica, "/debug/shards?scope=fleet").await?;
            common.print(&fleet, render::shards)?;
        }
        Command::Explain { object } => {
            let explanation = explained(common, &replica, &object).await?;
            common.print(&explanation, render::explain)?;
        }
        Command::Top { watch } => {
            let path = path("/debug/top", &[("namespace", common.of_list())]);
            loop {
                let top: Top = read(&replica, &path).await?;
                if watch && std::io::stdout().is_terminal() {
                    print!("{CLEAR}");
                }
                common.print(&top, render::top)?;
                if !watch {
                    break;
                }
                tokio::time::sleep(WATCH_PAUSE).await;
            }
        }
        Command::History {
            object,
            controller: Some(controller),
            key: Some(key),
        } if object.is_empty() => {
            let path = path(
                "/debug/explain",
                &[
                    ("controller", &controller),
                    ("key", &key),
                    ("scope", "fleet"),
                ],
            );
            let explanation: Explanation = read(&replica, &path).await?;
            common.print(&explanation, |answer, _| render::history(answer))?;
        }
        Command::History { object, .. } if object.is_empty() => {
            let path = path("/debug/unhappy", &[("namespace", common.of_list())]);
            let unhappy: Unhappy = read(&replica, &path).await?;
            common.print(&unhappy, |answer, _| render::unhappy(answer))?;
        }
        Command::History { object, .. } => {
            let explanation = explained(common, &replica, &object).await?;
            common.print(&explanation, |answer, _| render::history(answer))?;
        }
        Command::Dump { file } => dump(common, &replica, &file).await?,
        // Answered without a replica.
        Command::Audit { .. }
        | Command::Shadow { .. }
        | Command::Doctor { .. }
        | Command::Complete { .. }
        | Command::Dashboard { .. }
        | Command::Pause { .. }
        | Command::Resume { .. }
        | Command::Drain { .. }
        | Command::Undrain { .. }
        | Command::Set { .. }
        | Command::Unset { .. }
        | Command::Move { .. }
        | Command::Unmove { .. } => {}
    }
    Ok(true)
}

/// The range that is given, or that of an object that is: of that a replica is asked.
async fn range_of(common: &Common, words: &[String]) -> Result<u16, Trouble> {
    if let Some(range) = moves::range(words)? {
        return Ok(range);
    }
    common.check_object(words)?;
    let replica = common.way().open().await?;
    let explanation = explained(common, &replica, words).await?;
    Ok(moves::range_of(&explanation)?)
}

/// Carries out a command that steers the fleet, by the API server alone; gives back any other.
async fn steered(common: &Common, command: Command) -> Result<Option<Command>, Trouble> {
    let fleet =
        |of: OfFleet| async move { steer::Fleet::open(&common.way(), &of.fleet_name).await };
    let target = |text: &str| {
        let descriptors = node_registry::descriptors();
        steer::target(text, common.namespace.as_deref(), &descriptors)
    };
    let steered = match command {
        Command::Pause {
            target: text,
            given,
            fleet: of,
        } => {
            let target = target(&text)?;
            fleet(of).await?.pause(target, &given.into()).await?
        }
        Command::Resume {
            target: text,
            fleet: of,
        } => {
            let target = target(&text)?;
            fleet(of).await?.resume(&target).await?
        }
        Command::Drain {
            replica_name,
            wait,
            given,
            fleet: of,
        } => {
            let fleet = fleet(of).await?;
            fleet.drain(&replica_name, &given.into(), wait).await?
        }
        Command::Undrain {
            replica_name,
            fleet: of,
        } => fleet(of).await?.undrain(&replica_name).await?,
        Command::Set {
            setting,
            controller,
            value,
            given,
            fleet: of,
        } => {
            let descriptors = node_registry::descriptors();
            let target = steer::setting(&controller, setting.into(), &descriptors)?;
            let amount = steer::amount(setting.into(), &value)?;
            fleet(of).await?.set(target, amount, &given.into()).await?
        }
        Command::Unset {
            setting,
            controller,
            fleet: of,
        } => {
            let descriptors = node_registry::descriptors();
            let target = steer::setting(&controller, setting.into(), &descriptors)?;
            fleet(of).await?.unset(&target).await?
        }
        Command::Move {
            target,
            to,
            given,
            fleet: of,
        } => {
            let range = range_of(common, &target).await?;
            fleet(of)
                .await?
                .move_range(range, &to, &given.into())
                .await?
        }
        Command::Unmove { target, fleet: of } => {
            let range = range_of(common, &target).await?;
            fleet(of).await?.unmove(range).await?
        }
        other => return Ok(Some(other)),
    };
    common.print(&steered, |steered, _| steered.text())?;
    Ok(None)
}

fn show_status(common: &Common, status: &Status) -> Result<(), Trouble> {
    common.print(status, |status, wide| {
        render::status(&status.fleet, &status.unhappy, wide)
    })
}

/// Asks until the fleet is well; the way is opened again each time, since the replica that was asked may be
/// the one that is gone.
async fn waited(common: &Common, wait: Duration) -> Result<bool, Trouble> {
    let until = Instant::now() + wait;
    loop {
        let found = match common.way().open().await {
            Ok(replica) => status(common, &replica).await,
            Err(why) => Err(why.into()),
        };
        let is_over = Instant::now() >= until;
        match found {
            Ok(status) if status.well || is_over => {
                show_status(common, &status)?;
                return Ok(status.well);
            }
            Err(trouble) if is_over => return Err(trouble),
            Ok(_) | Err(_) => tokio::time::sleep(WAIT_PAUSE).await,
        }
    }
}

/// What goes into an archive: name, path. What the caller may not get is left out, and named.
const DUMPED: &[(&str, &str)] = &[
    ("shards.json", "/debug/shards?scope=fleet"),
    ("top.json", "/debug/top"),
    ("unhappy.json", "/debug/unhappy"),
    ("replica/shards.json", "/debug/shards"),
    ("replica/statusz.txt", "/statusz"),
    ("replica/flagz.txt", "/flagz"),
    ("replica/configz.json", "/configz"),
    ("replica/readyz.txt", "/readyz?verbose"),
    ("replica/metrics.txt", "/metrics"),
];

async fn dump(common: &Common, replica: &Replica, file: &Path) -> Result<(), Trouble> {
    let mut files = Vec::new();
    let mut left_out = String::new();
    for (name, path) in DUMPED {
        match replica.get(path).await {
            Ok(content) => files.push(((*name).to_owned(), content)),
            Err(trouble) => {
                left_out += &format!("{name} ({path}): {}\n", trouble.why);
            }
        }
    }
    if files.is_empty() {
        return Err(left_out.replace('\n', " ").into());
    }
    let count = files.len();
    if let Ok(status) = status(common, replica).await {
        let text = render::status(&status.fleet, &status.unhappy, true);
        files.push(("status.txt".to_owned(), text.into_bytes()));
    }
    if !left_out.is_empty() {
        files.push(("left-out.txt".to_owned(), left_out.clone().into_bytes()));
    }
    let wrong = |why: std::io::Error| format!("{}: {why}: choose another --file", file.display());
    let folder = "manifold-dump";
    let second = u64::try_from(jiff::Timestamp::now().as_second()).unwrap_or(0);
    if file == Path::new("-") {
        archive::write(std::io::stdout().lock(), folder, second, &files).map_err(wrong)?;
        return Ok(());
    }
    let to = File::create(file).map_err(wrong)?;
    archive::write(to, folder, second, &files).map_err(wrong)?;
    eprintln!("{count} answers are in {}", file.display());
    if !left_out.is_empty() {
        eprint!("left out:\n{left_out}");
    }
    Ok(())
}

#[cfg(test)]
mod tests;
