//! The whole process, from options to the end: what is started in which order, and how it is taken down.

use std::{
    collections::{HashMap, HashSet},
    path::Path,
    sync::{
        Arc, Mutex, OnceLock, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use ::http as http_types;
use controllers_kit::{Descriptor, Factory, FlagValue, Flags, Runs};
use coordinator::{
    Config, Gone, Handle, HoldState, Holds, InFlightMark, InterlockOptions, Pulse, RangeHost,
    ServerFence, ServerFenceMode, View,
};
use node_cache::{Api, Cache, Purpose, State};
use node_options::{FleetOptions, InForce, Options, PeerTransport, args};
use node_telemetry::{Telemetry, Verbosity, metrics::Metrics, trace::OfPeers};
use rustls::pki_types::{CertificateDer, pem::PemObject as _};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::mpsc,
};
use tokio_util::sync::CancellationToken;

use crate::{
    actors::host::LateFence,
    agreement::{self, Agreement, Fingerprints},
    api_server::ApiServer,
    auth::Auth,
    budget,
    clock::SystemClock,
    cloud::{Cloud, NoCloud, Provider, ReadOnly},
    components::{self, Source, causes},
    config_file,
    credentials::Credentials,
    currency,
    debug::{self, Inside},
    gate::Fence,
    http::{self, Health, Kind},
    keys::{self, FileKeys},
    lock::{self, Note, Taken},
    node::{Node, Parts, Threads},
    ownership, pod_events,
    rotation::{self, Followed},
    server::Server,
    shadowing, steer,
    termination::{self, Pods},
};

/// What is held is measured at most so often: one that scrapes must not pay for a check of hundreds of
/// objects each time.
const SIZES_EVERY: Duration = Duration::from_secs(15);
/// A thread that has not run for so long is taken for dead.
const NO_LIFE_AFTER: Duration = Duration::from_secs(30);
/// The API server may refuse this process for so long before it is restarted.
const REFUSED_MAX: Duration = Duration::from_secs(600);
/// Of the FlexVolume drivers that a warning names.
const FLEX_DRIVERS_MAX: usize = 10;
/// How often it is checked whether all caches are complete.
const READY_POLL: Duration = Duration::from_millis(10);

/// Why the process ends with an error: what, and the remedy, in one line.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Error(pub String);

fn wrong(error: &(dyn std::error::Error + 'static)) -> Error {
    Error(causes(error))
}

/// What a user of FlexVolume drivers must know: the drivers of a folder, each in one of its own, are not run.
fn flex_drivers(folder: &Path) -> Option<String> {
    let entries = std::fs::read_dir(folder).ok()?.flatten();
    let folders = entries.filter(|entry| entry.path().is_dir());
    let mut names: Vec<String> = folders
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| !name.starts_with('.'))
        .take(FLEX_DRIVERS_MAX)
        .collect();
    names.sort();
    (!names.is_empty()).then(|| {
        format!(
            "the FlexVolume drivers in {} ({}) are not run: their volumes are bound, and neither attached nor expanded; use a CSI driver",
            folder.display(),
            names.join(", ")
        )
    })
}

/// Runs until SIGTERM or SIGINT (then hands everything over first) or a fatal error. To be called within an
/// actix system. What is written waits for `fence`, which is set once this replica has joined its fleet.
///
/// # Errors
/// With one line that says what is wrong and what to do. Nothing is left half-started.
pub async fn run(
    options: Options,
    telemetry: &Telemetry,
    fence: Arc<LateFence>,
    (maker, content): (config_file::Maker, Option<Vec<u8>>),
) -> Result<u8, Error> {
    if options.shadow.is_some() {
        // Before the first connection.
        node_cache::refuse_all_but(node_cache::Writes {
            namespace: options.fleet.namespace.clone(),
            leases: format!("{}-", options.fleet.fleet),
            config_map: options.fleet.fleet.clone(),
        });
    }
    let options = Arc::new(options);
    let in_force = Arc::new(InForce::new(Arc::clone(&options)));
    for warning in options.values().deprecations() {
        tracing::warn!("{warning}");
    }
    if let Some(warning) = &options.warning {
        tracing::warn!("{warning}");
    }
    let overriding = options.values().overriding();
    if !overriding.is_empty() {
        tracing::info!(
            "these flags go before what the configuration file says: --{}",
            overriding.join(", --")
        );
    }
    if let Some(shadow) = &options.shadow {
        tracing::info!(
            fleet = options.fleet.fleet,
            patience = ?shadow.patience,
            "a shadow: nothing is written but this fleet's Leases and its report; what is planned is compared with what \
             the manager in charge does"
        );
    } else if options.fleet.interlock.is_none() {
        tracing::warn!(
            "--leader-elect=false: nothing keeps kube-controller-manager or another fleet from writing at the same time"
        );
    }
    if let Some(warning) = flex_drivers(Path::new(options.flags.text("flex-volume-plugin-dir"))) {
        tracing::warn!("{warning}");
    }
    if let Some(zone) = &options.time_zone {
        tracing::info!(
            zone = zone.source,
            "schedules of CronJobs without a time zone are read in the zone of this host, not in UTC"
        );
    }
    let mut signals = Signals::listen()?;
    let coordination = coordination(&options.fleet);

    // Everything that can be wrong with files and flags comes before anything is started.
    let source = Source {
        flag: "kubeconfig",
        kubeconfig: options.client.kubeconfig.clone(),
        master: options.client.master.clone(),
    };
    let followed = Followed::load(source, Some(user_agent(&options.fleet.replica)))
        .await
        .map_err(|error| wrong(&error))?;
    let config = followed.config();
    let flags = flags_with_root_ca(&options.flags, &config)?;
    let controllers = enabled(&options, &flags)?;
    let running = names(&controllers);
    let keys = FileKeys::open(&flags, &running).map_err(Error)?;
    let cloud: Arc<dyn Cloud> = match Provider::open(&flags).map_err(Error)? {
        Some(provider) => Arc::new(provider),
        None => Arc::new(NoCloud),
    };
    let cloud: Arc<dyn Cloud> = match options.shadow.is_some() {
        true => Arc::new(ReadOnly(cloud)),
        false => cloud,
    };
    tracing::info!(
        count = running.len() as u64,
        controllers = running.join(" "),
        "the controllers that run"
    );
    let mut published = published(&flags, &running);
    // Keys of a controller in the ranges of a replica that does not run it are reconciled by nobody.
    published.insert(
        "controllers".to_owned(),
        selected(&options.controllers, &running),
    );
    let metrics = Metrics::new(&measured(&running));
    metrics.started_with(
        args::gate_states(&options.feature_gates),
        &running,
        options.disabled_metrics.len(),
    );
    let apis = Apis::connect(&followed, &metrics)?;
    let leases = LeaseApis::connect(&followed, &options.fleet, &metrics)?;
    let port = http::Server::bind(&options.serving).map_err(|error| wrong(&error))?;

    // The API server must answer; afterwards losing it never ends the process.
    let client = apis.rare.kube();
    components::wait_for_server(&client, &config.cluster_url.to_string())
        .await
        .map_err(|error| wrong(&error))?;
    let auth = Auth::new(&options.authentication, &options.authorization, &metrics)
        .await
        .map_err(|error| wrong(&error))?;
    let all_followed: Vec<Arc<Followed>> = [&followed]
        .into_iter()
        .chain(auth.followed())
        .cloned()
        .collect();
    for one in &all_followed {
        tokio::spawn(Arc::clone(one).keep_fresh(options.fleet.lease_duration));
    }

    let credentials = options
        .use_service_account_credentials
        .then(|| Arc::new(Credentials::new(client)));
    let server_fence = match options.use_service_account_credentials {
        true => ServerFence::new(options.fleet.server_fence),
        // Writes go in the manager's own name then, which may not be impersonated.
        false if options.fleet.server_fence != ServerFenceMode::Off => ServerFence::unavailable(
            "--use-service-account-credentials=false: writes carry no incarnation",
        ),
        false => ServerFence::new(ServerFenceMode::Off),
    };
    for api in [&apis.writes, &apis.anonymous] {
        api.guard(Arc::clone(&fence) as Arc<dyn node_cache::Guard>);
    }
    let node = Arc::new(Node::start(Parts {
        replica: options.fleet.replica.clone(),
        ranges: options.fleet.ranges,
        controllers,
        flags,
        adapts: Box::new({
            let options = Arc::clone(&options);
            move |flag| options.adapts(flag)
        }),
        keys: Arc::new(keys),
        cloud,
        watches: apis.watches.clone(),
        server: Arc::new(ApiServer::new(
            apis.writes.clone(),
            apis.anonymous.clone(),
            credentials,
            Arc::clone(&server_fence),
        )) as Arc<dyn Server>,
        host: components::host_of(&config),
        rate: rate(&options),
        fence: Arc::clone(&fence) as Arc<dyn Fence>,
        metrics: Arc::clone(&metrics),
        clock: Arc::new(SystemClock::default()),
        watching: watching(&options),
        threads: Threads::Many,
        traces: telemetry.traces.clone(),
        shadow: options.shadow.clone(),
    }));

    let connection = (apis.watches.clone(), Arc::clone(&followed));

    // The port answers before anything is owned: probes and people see how the start goes.
    let health = Health::new(Arc::clone(&metrics));
    let draining = Arc::new(AtomicBool::new(false));
    check_node(&health, &node, &draining);
    let threads = node.pulses();
    check_life(&health, threads.clone());
    check_credentials(&health, &followed);
    let fenced = Arc::clone(&server_fence);
    health.describe(
        "server-fence",
        Box::new(move || fenced.summary()),
        &[Kind::Readyz],
    );
    let inside = Inside::new(Arc::clone(&node.shared));
    let stop = CancellationToken::new();
    let sources = http::Sources {
        metrics: Arc::clone(&metrics),
        health: Arc::clone(&health),
        options: Arc::clone(&in_force),
        verbosity: Arc::clone(&telemetry.verbosity),
        debug: Arc::clone(&inside) as Arc<dyn http::Debug>,
        auth,
    };
    if options.shadow.is_some() {
        let report = (options.fleet.namespace.clone(), options.fleet.fleet.clone());
        let (shared, inside) = (Arc::clone(&node.shared), Arc::clone(&inside));
        actix::spawn(shadowing::publish(apis.rare.kube(), shared, inside, report));
        let note = || vec!["a shadow: it compares what it plans, and writes nothing".to_owned()];
        health.note(Kind::Readyz, Box::new(note));
    }
    check_orders(&health, &node.shared.steering);
    let pod = options.pod.clone().map(|pod| {
        let (notices, waiting) = mpsc::channel(pod_events::WAITING_MAX);
        actix::spawn(pod_events::send(apis.rare.kube(), pod, waiting));
        notices
    });
    let file_state = Arc::<config_file::FileState>::default();
    let file = Arc::clone(&file_state);
    health.note(Kind::Readyz, Box::new(move || file.lines()));
    if let Some(content) = content {
        actix::spawn(config_file::follow(config_file::Parts {
            maker: Arc::new(maker),
            content,
            in_force: Arc::clone(&in_force),
            state: file_state,
            metrics: Arc::clone(&metrics),
            notices: pod.clone(),
            apply: changes(&node, &telemetry.verbosity),
        }));
    }
    check_before_joining(&health, options.fleet.interlock.is_some());
    let serving = tokio::spawn(port.serve(sources, stop.clone()));
    let looking = Arc::clone(&node);
    actix::spawn(async move {
        while !(looking.shared.steering.is_known() && looking.is_ready_now()) {
            tokio::time::sleep(READY_POLL).await;
        }
    });

    let result = own(
        &in_force,
        coordination,
        leases,
        all_followed,
        apis.rare.kube(),
        &node,
        &fence,
        &inside,
        &health,
        &draining,
        server_fence,
        threads,
        connection,
        published,
        pod,
        &mut signals,
    )
    .await;
    stop.cancel();
    match serving.await {
        Ok(Err(error)) => {
            tracing::warn!(error = %causes(&error), "the secure port could not be served");
        }
        Ok(Ok(())) => {}
        Err(error) => tracing::warn!(%error, "the secure port's task has panicked"),
    }
    result
}

/// Takes part in the fleet until the end.
#[allow(clippy::too_many_arguments)] // The parts of one process, handed on once.
async fn own(
    in_force: &InForce,
    mut coordination: Config,
    leases: LeaseApis,
    followed: Vec<Arc<Followed>>,
    client: kube::Client,
    node: &Arc<Node>,
    fence: &LateFence,
    inside: &Inside,
    health: &Arc<Health>,
    draining: &AtomicBool,
    server_fence: Arc<ServerFence>,
    threads: Vec<(String, Pulse)>,
    (watches, watched): (Api, Arc<Followed>),
    published: Fingerprints,
    pod: Option<mpsc::Sender<pod_events::Notice>>,
    signals: &mut Signals,
) -> Result<u8, Error> {
    let options = in_force.load_full();
    let clients = Arc::new(move || leases.client());
    let host = Arc::clone(&node.host) as Arc<dyn RangeHost>;
    let pods = Pods::new(client.clone());
    let ask_pods = move |pod: &str, process: &str| pods.prove_end(pod, process);
    node.host.ask_pods(Box::new(ask_pods));
    coordination.server_fence = Arc::clone(&server_fence);
    coordination.threads = threads;
    let traces = node.shared.traces.clone();
    coordination.tracer = traces.clone().map(OfPeers::shared);
    let starting = coordinator::start(coordination, host, clients);
    let handle = tokio::select! {
        handle = starting => handle.map_err(|error| wrong(&error))?,
        () = signals.next() => return Ok(0),
    };
    fence.set(handle.fence());
    check_fence(health, &handle);
    if let Some(lease) = &options.fleet.interlock {
        check_hold(health, &handle, lease);
    }
    let pulses = handle
        .pulses()
        .map(|(name, pulse)| (name.to_owned(), pulse));
    check_life(health, pulses.to_vec());
    let ends = handle.clone();
    let ending = move || ends.ending().map_or(Ok(()), Err);
    health.register("threads", Box::new(ending), &[Kind::Livez]);
    inside.set(handle.clone(), pod.clone());
    let notices = pod.clone();
    actix::spawn(steer::follow(steer::Parts {
        client,
        namespace: options.fleet.namespace.clone(),
        fleet: options.fleet.fleet.clone(),
        shared: Arc::clone(&node.shared),
        handle: handle.clone(),
        notices,
    }));
    actix::spawn(ownership::follow(
        handle.clone(),
        Arc::clone(&node.shared.metrics),
        pod,
        traces,
    ));
    let sees = Arc::<currency::Said>::default();
    check_currency(health, &sees);
    let lease = format!("{}-replica-{}", options.fleet.fleet, options.fleet.replica);
    let connect = watches.clone();
    actix::spawn(currency::follow(currency::Parts {
        cache: Arc::clone(&node.cache),
        api: watches,
        connect: Box::new(move || {
            let made = connect.replace(&watched.config());
            made.map_err(|error| causes(&error))
        }),
        others: Arc::clone(&node.host.others),
        lease: (options.fleet.namespace.clone(), lease),
        fence: handle.fence(),
        handle: handle.clone(),
        said: Arc::clone(&sees),
        steering: Arc::clone(&node.shared.steering),
    }));
    actix::spawn(debug::live::record(
        Arc::downgrade(&node.shared),
        handle.clone(),
    ));
    let agreement = Arc::new(Agreement::default());
    let said = Arc::clone(&agreement);
    health.note(Kind::Readyz, Box::new(move || said.lines()));
    actix::spawn(agreement::follow(
        agreement,
        handle.clone(),
        Arc::clone(&node.shared.keys),
        published,
        Arc::clone(&node.shared.metrics),
    ));
    actix::spawn(budget::follow(budget::Parts {
        shared: Arc::clone(&node.shared),
        handle: handle.clone(),
        divides: options.fleet.divides_api_budget,
    }));
    let asked = handle.clone();
    health.note(Kind::Readyz, Box::new(move || unreachable_line(&asked)));
    let gauges = Gauges {
        handle: handle.clone(),
        node: Arc::downgrade(node),
        fence: handle.fence(),
        leads: options
            .fleet
            .interlock
            .as_ref()
            .map(|lease| lease.name.clone()),
        server_fence,
        followed,
        sees,
        measured: Mutex::default(),
    };
    node.shared
        .metrics
        .refresh_with(move |metrics| gauges.refresh(metrics));

    let mut code = 0;
    tokio::select! {
        fatal = handle.fatal() => {
            draining.store(true, Ordering::Release);
            let error = wrong(&fatal);
            tokio::select! {
                _released = handle.end(error.to_string()) => {}
                () = signals.next() => {}
            }
            return Err(error);
        }
        () = signals.next() => {}
        () = comparison_ends(&options) => {
            let report = inside.whole_shadow().await;
            print!("{}", report.text());
            code = report.exit_code();
        }
    }
    draining.store(true, Ordering::Release);
    tracing::info!("asked to end: handing over");
    tokio::select! {
        drained = handle.drain(in_force.load().controller_shutdown_timeout) => {
            tracing::info!(released = drained.released, dropped = drained.dropped.len(), "handed over");
        }
        () = signals.next() => {
            tracing::warn!("asked to end a second time: ending at once");
            tokio::select! {
                _released = handle.end("asked to end a second time".to_owned()) => {}
                () = signals.next() => {}
            }
        }
    }
    Ok(code)
}

/// Resolves at the end of `--shadow-for`; never without.
async fn comparison_ends(options: &Options) {
    match options.shadow.as_ref().and_then(|shadow| shadow.ends_after) {
        Some(after) => tokio::time::sleep(after).await,
        None => std::future::pending().await,
    }
}

/// Has options take effect that have changed while the process runs.
fn changes(node: &Arc<Node>, verbosity: &Arc<Verbosity>) -> Box<config_file::Apply> {
    let (node, verbosity) = (Arc::clone(node), Arc::clone(verbosity));
    Box::new(move |before, now| {
        let mut without = Vec::new();
        if before.logging.verbosity != now.logging.verbosity
            && let Err(why) = verbosity.set(now.logging.verbosity)
        {
            without.push(format!("logging.verbosity has no effect: {why}"));
        }
        if before.logging.modules != now.logging.modules
            && let Err(why) = verbosity.set_modules(now.logging.modules.clone())
        {
            without.push(format!("logging.vmodule has no effect: {why}"));
        }
        if rate(before) != rate(now) {
            node.shared.writer.configure_rate(rate(now));
        }
        for unit in &node.shared.units {
            if let Some((flag, _)) = unit.controller.descriptor().workers {
                let count =
                    |options: &Options| usize::try_from(options.flags.int(flag)).unwrap_or(0);
                let is_default = now.adapts(flag);
                if count(before) != count(now)
                    && let Some(ordered) = unit.workers.configure(count(now), is_default)
                {
                    without.push(format!(
                        "the workers of {} stay {ordered} while an order says so; afterwards they are {}",
                        unit.name(),
                        count(now)
                    ));
                }
            }
        }
        without
    })
}

/// Requests to the API server, a second and at once; 0 a second where there is no limit.
fn rate(options: &Options) -> (f64, u32) {
    (options.client.qps.unwrap_or(0.0), options.client.burst)
}

/// How the API server is watched. Where nodes' heartbeats are judged, the watch of Leases rests only a little
/// between two catch-ups, and never for a notable part of the grace period.
fn watching(options: &Options) -> node_cache::Settings {
    /// Between two catch-ups where heartbeats are judged.
    const REST_MAX: Duration = Duration::from_secs(2);
    /// Renewals of this replica's own Lease without which the watch of Leases does not count as live.
    const RENEWALS: u32 = 3;
    let default = node_cache::Settings::default();
    if !options.controllers.contains(&"node-lifecycle-controller") {
        return default;
    }
    let grace = options.values().duration("node-monitor-grace-period");
    let rest = (grace / 20).min(REST_MAX);
    let renewals = options.values().duration("lease-retry-period") * RENEWALS;
    node_cache::Settings {
        heartbeat_rest: rest,
        pulse_max: rest + renewals.max(Duration::from_secs(3)),
        ..default
    }
}

/// The controllers that the options name and that run with the flags. All others are logged with the reason.
fn enabled(options: &Options, flags: &Flags) -> Result<Vec<Factory>, Error> {
    let mut enabled = Vec::new();
    for factory in node_registry::all() {
        let descriptor = (factory.describe)();
        let selected = descriptor.runs_unlisted || options.controllers.contains(&descriptor.name);
        let runs = match (selected, descriptor.on_by_default) {
            (true, _) => (descriptor.runs)(flags),
            (false, true) => Runs::No("--controllers does not select it"),
            (false, false) => Runs::No("it is off by default, and --controllers does not name it"),
        };
        match runs {
            Runs::Yes => enabled.push(factory),
            Runs::No(why) => {
                tracing::info!(
                    controller = descriptor.name,
                    "the controller does not run: {why}"
                );
            }
            Runs::Wrong(why) => return Err(Error(why)),
        }
    }
    Ok(enabled)
}

/// The controllers that this replica's `--controllers` selects, and of those that no list selects the ones
/// that run: as the shortest list, with blanks between its entries. Replicas must agree on it, and `manifold
/// doctor` compares it with what runs elsewhere.
fn selected(listed: &[&str], running: &[&str]) -> String {
    let descriptors = node_registry::descriptors();
    let names = descriptors
        .iter()
        .filter(|one| match one.runs_unlisted {
            true => running.contains(&one.name),
            false => listed.contains(&one.name),
        })
        .map(|one| one.name)
        .collect();
    controllers_kit::selection::shortest(&names, &descriptors).join(" ")
}

fn names(controllers: &[Factory]) -> Vec<&'static str> {
    controllers
        .iter()
        .map(|factory| (factory.describe)().name)
        .collect()
}

/// The controllers whose metrics are exported. Those of clouds that do not run have none, as in
/// kube-controller-manager, which never runs them.
fn measured(running: &[&str]) -> Vec<Descriptor> {
    let clouds: Vec<_> = controllers_clouds::REGISTRY
        .iter()
        .map(|factory| (factory.describe)().name)
        .collect();
    let mut descriptors = node_registry::descriptors();
    descriptors.retain(|one| !clouds.contains(&one.name) || running.contains(&one.name));
    descriptors
}

/// Without `--root-ca-file` pods are given the authorities that this process itself knows the API server by.
fn flags_with_root_ca(given: &Flags, config: &kube::Config) -> Result<Flags, Error> {
    const FLAG: &str = "root-ca-file";
    let mut flags = given.clone();
    match given.file(FLAG) {
        Some(pem) => {
            let found = CertificateDer::pem_slice_iter(pem)
                .filter_map(Result::ok)
                .count();
            if found == 0 {
                return Err(Error(format!(
                    "--{FLAG}: no certificate in it: give a PEM file with the API server's authorities"
                )));
            }
        }
        None => {
            let authorities: String = config
                .root_cert
                .iter()
                .flatten()
                .map(|der| certificate_pem(der))
                .collect();
            flags.set(FLAG, FlagValue::File(Some(authorities.into_bytes())));
        }
    }
    Ok(flags)
}

/// Fingerprints of the authorities that some controller publishes; constant while the process lives.
fn published(flags: &Flags, controllers: &[&str]) -> Fingerprints {
    const PUBLISHERS: [&str; 3] = [
        "root-ca-certificate-publisher-controller",
        "serviceaccount-token-controller",
        "kube-apiserver-serving-clustertrustbundle-publisher-controller",
    ];
    let publishes = PUBLISHERS.iter().any(|name| controllers.contains(name));
    let root = flags
        .file("root-ca-file")
        .filter(|_| publishes)
        .map(|pem| ("root-ca".to_owned(), keys::fingerprint(pem)));
    root.into_iter().collect()
}

/// As Go writes it: lines of 64 characters that end with a line feed.
fn certificate_pem(der: &[u8]) -> String {
    let config = pem::EncodeConfig::new().set_line_ending(pem::LineEnding::LF);
    pem::encode_config(&pem::Pem::new("CERTIFICATE", der), config)
}

/// How this process takes part, and what others and its successor will know it by: its container's
/// termination message, and the lock.
fn coordination(fleet: &FleetOptions) -> Config {
    let mut config = coordinator_config(fleet);
    let path = &fleet.termination_message;
    if let Err(error) = termination::begin(path, std::process::id(), &config.process) {
        tracing::warn!(
            path = %path.display(), %error,
            "no termination message can be written: should this process crash, others wait for --lease-duration"
        );
    }
    if let Some(directory) = &fleet.lock_dir {
        match lock::take(directory, &fleet.fleet, &fleet.replica, &config.process) {
            Ok(Some(Taken { left, note })) => {
                config.gone = Some(Gone {
                    processes: left.processes,
                    by: config.clock.now(),
                    still: left.still,
                });
                config.mark = note.map(mark);
            }
            Err(why) => tracing::warn!(
                "{why}; until then, should this process crash, the next one waits for --lease-duration"
            ),
            Ok(None) => tracing::warn!(
                replica = fleet.replica,
                directory = %directory.display(),
                "another process has this replica's lock: if it ends, its Lease is waited for as any other"
            ),
        }
    }
    config
}

/// Notes in the lock file whether anything of this process is in flight.
fn mark(note: Note) -> InFlightMark {
    let failed = OnceLock::new();
    InFlightMark::new(move |in_flight| {
        let noted = note.set(in_flight);
        if let Err(error) = &noted
            && failed.set(()).is_ok()
        {
            tracing::error!(%error, "--lock-dir: the lock file cannot be written any more");
        }
        noted.is_ok()
    })
}

fn coordinator_config(fleet: &FleetOptions) -> Config {
    let mut config = Config {
        replica_name: fleet.replica.clone(),
        fleet_name: fleet.fleet.clone(),
        fleet_namespace: fleet.namespace.clone(),
        ranges: fleet.ranges,
        lease_duration: fleet.lease_duration,
        lease_renew_deadline: fleet.renew_deadline,
        lease_retry_period: fleet.retry_period,
        settle_time: fleet.settle_time,
        slow_start_period: fleet.slow_start_period,
        load_aware_placement: fleet.load_aware_placement,
        pod: fleet.pod.clone(),
        interlock: fleet.interlock.clone(),
        expected_replicas: fleet
            .expected_replicas
            .map(|count| u16::try_from(count).unwrap_or(u16::MAX)),
        peer_bind_address: fleet.peer_address.ip(),
        peer_port: fleet.peer_address.port(),
        peer_port_is_default: fleet.peer_port_is_default,
        peer_advertise_address: fleet.peer_advertised.clone(),
        ..Config::default()
    };
    match &fleet.peer_transport {
        PeerTransport::Pins => {}
        PeerTransport::Files {
            cert_file,
            key_file,
            ca_file,
            pins,
        } => {
            config.peer_pins = *pins;
            config.peer_tls_cert_file = Some(cert_file.clone());
            config.peer_tls_private_key_file = Some(key_file.clone());
            config.peer_ca_file = Some(ca_file.clone());
        }
        PeerTransport::Insecure => config.peer_insecure = true,
    }
    config
}

/// What every request is sent as that is made for no range: Leases, watches, tokens.
fn user_agent(replica: &str) -> http_types::HeaderValue {
    let text = format!("manifold/{} (replica={replica})", env!("CARGO_PKG_VERSION"));
    // A replica's name is a DNS label.
    http_types::HeaderValue::from_str(&text)
        .unwrap_or_else(|_| http_types::HeaderValue::from_static("manifold"))
}

/// The connections to the API server, watches apart from writes.
struct Apis {
    /// What the process asks on its own account, on the thread that runs it.
    rare: Api,
    /// What is done for keys: the connection lives on their thread, so that an answer wakes no other first.
    writes: Api,
    anonymous: Api,
    watches: Api,
}

impl Apis {
    fn connect(followed: &Followed, metrics: &Metrics) -> Result<Self, Error> {
        let observe = components::observed(&followed.config(), metrics);
        let connect = |purpose| {
            let connected = followed.connect(purpose, Some(Arc::clone(&observe)));
            connected.map_err(|error| wrong(&error))
        };
        Ok(Self {
            rare: connect(Purpose::Writes)?,
            writes: connect(Purpose::Writes)?,
            watches: connect(Purpose::Watches)?,
            anonymous: followed
                .connect_anonymous(Purpose::Writes, Some(Arc::clone(&observe)))
                .map_err(|error| wrong(&error))?,
        })
    }
}

/// The connections for Leases: one for the coordinator's thread and one for that of the renewal.
struct LeaseApis {
    /// Those that no thread has yet.
    free: Mutex<Vec<Api>>,
    last: Api,
}

impl LeaseApis {
    fn connect(
        followed: &Followed,
        fleet: &FleetOptions,
        metrics: &Metrics,
    ) -> Result<Self, Error> {
        let purpose = Purpose::Leases {
            period: fleet.retry_period,
            deadline: fleet.renew_deadline,
        };
        let observe = components::observed(&followed.config(), metrics);
        let connect = || {
            followed
                .connect(purpose, Some(Arc::clone(&observe)))
                .map_err(|error| wrong(&error))
        };
        Ok(Self {
            free: Mutex::new(vec![connect()?]),
            last: connect()?,
        })
    }

    /// A client for the runtime in which this is called.
    fn client(&self) -> kube::Client {
        let free = self
            .free
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop();
        free.unwrap_or_else(|| self.last.clone()).kube_here()
    }
}

/// What `/healthz`, `/livez` and `/readyz` say of the caches and controllers.
fn check_node(health: &Health, node: &Arc<Node>, draining: &Arc<AtomicBool>) {
    // As upstream: one check a controller, always passed; a controller's trouble is its own.
    for unit in &node.shared.units {
        health.register(unit.name(), Box::new(|| Ok(())), &[Kind::Healthz]);
    }
    health.register(
        "ping",
        Box::new(|| Ok(())),
        &[Kind::Healthz, Kind::Livez, Kind::Readyz],
    );
    let leaving = Arc::clone(draining);
    let shutdown = move || match leaving.load(Ordering::Acquire) {
        true => Err("asked to end: ranges are being handed over".to_owned()),
        false => Ok(()),
    };
    health.register("shutdown", Box::new(shutdown), &[Kind::Readyz]);
    let noted = Arc::clone(node);
    let note = move || noted.discovery.troubles(&noted.cache);
    health.note(Kind::Readyz, Box::new(note));
    for resource in node.cache.resources() {
        let cache = Arc::clone(&node.cache);
        let check = move || caches(&cache, resource);
        health.register(
            format!("watch-{}", resource.id()),
            Box::new(check),
            &[Kind::Readyz],
        );
    }
}

fn caches(cache: &Cache, resource: &'static controllers_kit::Resource) -> Result<(), String> {
    let Some(stats) = cache.stats(resource) else {
        return Ok(());
    };
    match stats.state {
        State::Blocked { verb, reason } => {
            Err(format!("{verb} {} is refused: {reason}", resource.id()))
        }
        _ if stats.listed => Ok(()),
        _ => Err(match stats.trouble {
            Some(trouble) => format!("{} are not listed yet: {trouble}", resource.id()),
            None => format!("{} are not listed yet", resource.id()),
        }),
    }
}

/// `/livez` fails where a thread or an actor has shown no sign of life for long: only a restart helps. The
/// replica ends itself long before, unless it is the thread that hangs which would see to it.
fn check_life(health: &Health, pulses: Vec<(String, Pulse)>) {
    for (name, pulse) in pulses {
        let check = move || match pulse.age() {
            age if age > NO_LIFE_AFTER => Err(format!("no sign of life for {}s", age.as_secs())),
            _ => Ok(()),
        };
        health.register(format!("alive-{name}"), Box::new(check), &[Kind::Livez]);
    }
}

/// `/readyz` fails where watches stand still, so that the next replica of a rollout waits for this one.
fn check_currency(health: &Health, said: &Arc<currency::Said>) {
    let said = Arc::clone(said);
    let check = move || said.stale().map_or(Ok(()), Err);
    health.register("currency", Box::new(check), &[Kind::Readyz]);
}

/// `/livez` fails where the API server does nothing but refuse the credentials, though they are read again
/// and again.
fn check_credentials(health: &Health, followed: &Arc<Followed>) {
    let followed = Arc::clone(followed);
    let check = move || {
        let refusals = followed.refusals(Instant::now());
        rotation::check(refusals.as_ref(), REFUSED_MAX)
    };
    health.register("credentials", Box::new(check), &[Kind::Livez]);
}

/// What [`check_fence`] and [`check_hold`] check fails until they are there: the secure port answers
/// before the replica has joined its fleet, and caches may be complete by then.
fn check_before_joining(health: &Health, holds: bool) {
    let lease = holds.then_some("leaderElection");
    for name in ["fence", "membership"].into_iter().chain(lease) {
        let check = || Err("the replica has not joined its fleet yet".to_owned());
        health.register(name, Box::new(check), &[Kind::Readyz]);
    }
}

/// What they say of ownership: a fenced replica is distinguished from a broken one.
fn check_fence(health: &Health, handle: &Handle) {
    let fenced = handle.clone();
    let fence = move || match fenced.fence().is_renewed() {
        true => Ok(()),
        false => Err(
            "fenced: the own Lease was not renewed in time; nothing is written until it is"
                .to_owned(),
        ),
    };
    health.register("fence", Box::new(fence), &[Kind::Readyz]);
    let member = handle.clone();
    let membership = move || {
        let view = member.view();
        let own = view.members.iter().find(|one| one.name == view.replica);
        match own {
            Some(own) if own.ready => Ok(()),
            Some(_) => Err("not ready to own ranges: caches are not complete".to_owned()),
            None => Err("not a member of the fleet: no replica Lease".to_owned()),
        }
    };
    health.register("membership", Box::new(membership), &[Kind::Readyz]);
}

/// The members that do not answer this replica, as it publishes them.
fn unreachable(handle: &Handle) -> Vec<String> {
    let view = handle.view();
    let own = view.members.iter().find(|one| one.name == view.replica);
    own.map(|own| own.unreachable.split(','))
        .into_iter()
        .flatten()
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect()
}

/// How many of all ranges no member owns by their Leases.
fn unowned(all: usize, view: &View) -> usize {
    let live: HashSet<&str> = view.members.iter().map(|member| &*member.name).collect();
    let owned = view.ranges.iter().filter(|range| {
        let owner = range.owner.as_deref();
        owner.is_some_and(|owner| live.contains(owner))
    });
    all.saturating_sub(owned.count())
}

/// How many members are in which state.
fn states(view: &View) -> [(&'static str, usize); 3] {
    let mut states = [("ready", 0), ("not_ready", 0), ("draining", 0)];
    for member in &view.members {
        let at = match (member.draining, member.ready) {
            (true, _) => 2,
            (false, false) => 1,
            (false, true) => 0,
        };
        states[at].1 += 1;
    }
    states
}

/// For `/readyz?verbose`: ranges move to and from them as after a crash.
fn unreachable_line(handle: &Handle) -> Vec<String> {
    match unreachable(handle) {
        names if names.is_empty() => Vec::new(),
        names => vec![format!("members do not answer: {}", names.join(", "))],
    }
}

/// What the fleet's orders say of `/readyz`: before they are known a replica owns nothing; a drained one is
/// well.
fn check_orders(health: &Health, steering: &Arc<steer::Steering>) {
    steering.wait_for_first();
    let first = Arc::clone(steering);
    let known = move || match first.is_known() {
        true => Ok(()),
        false => Err("it is not known yet what is paused: the fleet's orders are read".to_owned()),
    };
    health.register("orders", Box::new(known), &[Kind::Readyz]);
    let steering = Arc::clone(steering);
    let note = move || {
        let drained = steering.has_stepped_back().then(|| {
            "drained: it hands its ranges over and takes none, see kubectl manifold status"
                .to_owned()
        });
        let unread = steering
            .unread()
            .map(|why| format!("orders can't be read, those that were read before hold: {why}"));
        drained.into_iter().chain(unread).collect()
    };
    health.note(Kind::Readyz, Box::new(note));
}

/// What they say of the manager's Lease. On standby a replica is as healthy as a candidate of
/// upstream is; a note says whom it waits for. One that should work and may not fails `/readyz`.
fn check_hold(health: &Health, handle: &Handle, lease: &InterlockOptions) {
    let name = format!("{}/{}", lease.namespace, lease.name);
    let holding = handle.clone();
    let lease = name.clone();
    let check = move || match holding.hold() {
        Some(state) => held(&lease, &state),
        None => Ok(()),
    };
    health.register("leaderElection", Box::new(check), &[Kind::Readyz]);
    // As upstream has it: standing by is well.
    health.register("leaderElection", Box::new(|| Ok(())), &[Kind::Healthz]);
    let waiting = handle.clone();
    let note = move || {
        let state = waiting.hold().unwrap_or_default();
        let standing = match state.hold.holds {
            Holds::Other(holder) => Some(format!(
                "leaderElection: standing by: {holder} holds the Lease {name}; nothing is written until it is released \
                 or expires"
            )),
            Holds::Unknown | Holds::Nobody | Holds::Fleet => None,
        };
        let trouble = state
            .trouble
            .map(|why| format!("leaderElection: the Lease {name}: {why}"));
        standing.into_iter().chain(trouble).collect::<Vec<String>>()
    };
    health.note(Kind::Readyz, Box::new(note));
}

fn held(lease: &str, state: &HoldState) -> Result<(), String> {
    let why = match (&state.hold.holds, state.hold.open_until) {
        (Holds::Other(_), _) | (Holds::Fleet, Some(_)) => return Ok(()),
        (Holds::Fleet, None) => "no renewal of it was seen within the deadline",
        (Holds::Nobody, _) => "the fleet does not hold it yet",
        (Holds::Unknown, _) => "it was not read yet",
    };
    Err(format!("the Lease {lease}: {why}; nothing is written"))
}

/// The gauges that nobody pushes.
struct Gauges {
    handle: Handle,
    node: Weak<Node>,
    fence: Arc<coordinator::Fence>,
    /// The name of the Lease that the fleet holds while it works.
    leads: Option<String>,
    server_fence: Arc<ServerFence>,
    followed: Vec<Arc<Followed>>,
    sees: Arc<currency::Said>,
    measured: Mutex<Measured>,
}

/// As of the last time.
#[derive(Default)]
struct Measured {
    /// When what is held was measured.
    sizes: Option<Instant>,
    /// Decode errors that are counted already. Bound: as many as there are resources.
    errors: HashMap<String, u64>,
}

impl Gauges {
    fn refresh(&self, metrics: &Metrics) {
        let Some(node) = self.node.upgrade() else {
            return;
        };
        let mut measured = self.measured.lock().unwrap_or_else(PoisonError::into_inner);
        let remaining = self.fence.remaining();
        metrics.fence(remaining);
        if let Some(lease) = &self.leads {
            metrics.leads(lease, !remaining.is_zero());
            let hold = self.handle.hold().unwrap_or_default().hold;
            metrics.slow_renewals(lease, hold.slow_renewals);
            metrics.standby(matches!(hold.holds, Holds::Other(_)));
        }
        let view = self.handle.view();
        let all = usize::from(node.shared.ranges);
        metrics.ranges(all, unowned(all, &view));
        metrics.members(&states(&view));
        for followed in &self.followed {
            let ends = followed.certificate().map(|certificate| certificate.ends);
            metrics.client_certificate_ends(followed.flag(), ends);
        }
        metrics.server_fence(self.server_fence.is_on(), self.server_fence.proofs());
        metrics.members_unreachable(unreachable(&self.handle).len());
        metrics.current(self.sees.stale().is_none());
        metrics.drained(node.shared.steering.has_stepped_back());
        metrics.placement(&view.planned);
        metrics.peer_refusals(&self.handle.peer_refusals());
        metrics.discovery_failing(&node.discovery.failing(&node.cache));
        let measures = measured.sizes.is_none_or(|at| at.elapsed() >= SIZES_EVERY);
        if measures {
            measured.sizes = Some(Instant::now());
        }
        let mut stats = node.cache.all_stats();
        stats.extend(node.cache.found_stats());
        for (resource, stats) in stats {
            let cache = metrics.cache(&resource.id());
            cache.objects(stats.objects);
            if measures {
                cache.bytes(node.cache.approximate_bytes(resource));
            }
            if let Some(age) = stats.age {
                cache.lag(age);
            }
            let known = measured.errors.entry(resource.id()).or_default();
            for _ in *known..stats.decode_errors {
                cache.decode_error();
            }
            *known = stats.decode_errors;
        }
        if let Some(traces) = &node.shared.traces {
            let (exported, dropped) = traces.new_counts();
            metrics.trace_spans(exported, &dropped);
        }
    }
}

/// SIGTERM and SIGINT.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn listen() -> Result<Self, Error> {
        let listen = |kind| {
            signal(kind).map_err(|error| Error(format!("signals can't be listened to: {error}")))
        };
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flex_volume_drivers_are_named_where_there_are_any() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(flex_drivers(&folder.path().join("missing")), None);
        std::fs::write(folder.path().join("README"), "").unwrap();
        std::fs::create_dir(folder.path().join(".cache")).unwrap();
        assert_eq!(flex_drivers(folder.path()), None);
        std::fs::create_dir(folder.path().join("vendor~disk")).unwrap();
        let warning = flex_drivers(folder.path()).unwrap();
        assert!(warning.contains("(vendor~disk) are not run"), "{warning}");
    }

    #[test]
    fn ranges_of_the_dead_and_those_without_a_lease_are_unowned_and_members_counted_by_state() {
        let member = |name: &str, ready, draining| coordinator::Member {
            name: name.to_owned(),
            incarnation: "1".to_owned(),
            ready,
            draining,
            ..coordinator::Member::default()
        };
        let owned = |range, owner: Option<&str>| coordinator::RangeOwner {
            range,
            owner: owner.map(str::to_owned),
            epoch: 1,
        };
        let view = View {
            members: vec![
                member("a", true, false),
                member("b", false, false),
                member("c", true, true),
                member("d", false, true),
            ],
            ranges: [
                owned(0, Some("a")),
                owned(1, Some("dead")),
                owned(2, None),
                owned(3, Some("c")),
            ]
            .into(),
            ..View::default()
        };
        assert_eq!(unowned(4, &view), 2);
        assert_eq!(unowned(8, &view), 6, "four have no Lease");
        assert_eq!(unowned(8, &View::default()), 8);
        let wanted = [("ready", 1), ("not_ready", 1), ("draining", 2)];
        assert_eq!(states(&view), wanted);
    }

    #[test]
    fn readyz_fails_where_a_replica_should_work_and_may_not_and_passes_on_standby() {
        let now = Some(Duration::from_secs(1));
        for (holds, open_until, well) in [
            (Holds::Unknown, None, false),
            (Holds::Nobody, None, false),
            (Holds::Other("kcm_1".to_owned()), None, true),
            (Holds::Fleet, None, false),
            (Holds::Fleet, now, true),
        ] {
            let mut state = HoldState::default();
            state.hold.holds = holds;
            state.hold.open_until = open_until;
            assert_eq!(held("a/b", &state).is_ok(), well, "{state:?}");
        }
    }

    #[test]
    fn a_certificate_is_written_in_pem_as_go_writes_it() {
        let text = certificate_pem(&[7; 100]);
        let lines: Vec<&str> = text.split('\n').collect();
        assert_eq!(lines.first(), Some(&"-----BEGIN CERTIFICATE-----"));
        assert_eq!(lines[lines.len() - 2..], ["-----END CERTIFICATE-----", ""]);
        let body = &lines[1..lines.len() - 2];
        assert_eq!(
            body.iter().map(|line| line.len()).collect::<Vec<_>>(),
            [64, 64, 8]
        );
        assert!(!text.contains('\r'));
    }

    /// Upstream builds the controller of tokens without a check of `--controllers`.
    #[test]
    fn the_controller_of_tokens_runs_with_a_key_whatever_is_listed() {
        const TOKENS: &str = "serviceaccount-token-controller";
        let descriptors = node_registry::descriptors();
        let run = |words: &[&str]| {
            let specs = args::flags(&descriptors);
            let args::Parsed::Run(values) = args::parse(specs, words.iter().copied()).unwrap()
            else {
                panic!("nothing is to be printed");
            };
            let surroundings = node_options::Surroundings {
                host_name: "one".to_owned(),
                ..Default::default()
            };
            let options = Options::new(values, &descriptors, &surroundings).unwrap();
            names(&enabled(&options, &options.flags).unwrap())
        };
        let key = "--service-account-private-key-file=/sa.key";
        let mut both = run(&["--controllers=ttl", key]);
        both.sort_unstable();
        assert_eq!(both, [TOKENS, "ttl-controller"]);
        assert_eq!(run(&["--controllers=ttl"]), ["ttl-controller"]);
        assert!(run(&["--controllers=*,-serviceaccount-token", key]).contains(&TOKENS));
    }

    #[test]
    fn the_selection_is_published_as_the_shortest_list() {
        const TOKENS: &str = "serviceaccount-token-controller";
        let all: Vec<&str> = node_registry::descriptors()
            .iter()
            .filter(|one| one.on_by_default)
            .map(|one| one.name)
            .collect();
        assert_eq!(selected(&all, &all), format!("* {TOKENS}"));
        assert_eq!(selected(&all, &[]), "*");
        assert_eq!(
            selected(&["ttl-controller"], &["ttl-controller"]),
            "ttl-controller"
        );
        let but_one: Vec<&str> = all
            .iter()
            .copied()
            .filter(|name| *name != "ttl-controller")
            .collect();
        assert_eq!(
            selected(&but_one, &but_one),
            format!("* {TOKENS} -ttl-controller")
        );
    }

    #[test]
    fn cloud_controllers_that_do_not_run_export_no_metrics() {
        let has = |running: &[&str], family: &str| {
            let text = Metrics::new(&measured(running)).encode();
            text.contains(&format!("# TYPE {family} "))
        };
        let family = "service_controller_loadbalancer_sync_total";
        assert!(!has(&[], family));
        assert!(has(&["service-lb-controller"], family));
        assert!(has(&[], "ephemeral_volume_controller_create_total"));
    }

    #[tokio::test(start_paused = true)]
    async fn livez_fails_where_something_has_shown_no_sign_of_life_for_half_a_minute() {
        let health = Health::new(Metrics::new(&[]));
        let (working, dead) = (Pulse::default(), Pulse::default());
        let pulses = [("ranges-0", &working), ("renewal", &dead)];
        check_life(
            &health,
            pulses
                .map(|(name, pulse)| (name.to_owned(), pulse.clone()))
                .to_vec(),
        );
        dead.beat();
        let kept = tokio::spawn(working.keep());
        tokio::time::sleep(Duration::from_secs(29)).await;
        assert!(health.failing(Kind::Livez).is_empty());
        tokio::time::sleep(Duration::from_secs(2)).await;
        let wanted = (
            "alive-renewal".to_owned(),
            "no sign of life for 31s".to_owned(),
        );
        assert_eq!(health.failing(Kind::Livez), [wanted]);
        assert!(
            health.failing(Kind::Readyz).is_empty(),
            "that is for a restart to mend"
        );
        dead.beat();
        assert!(health.failing(Kind::Livez).is_empty());
        kept.abort();
    }
}
