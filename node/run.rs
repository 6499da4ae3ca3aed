//! The whole process, from options to the end: what is started in which order, and how it is taken down.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use ::http as http_types;
use controllers_kit::{Factory, FlagValue, Flags};
use coordinator::{Config, Handle, RangeHost, ServerFence};
use node_cache::{Api, Cache, Exchange, Observe, Purpose, State};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::mpsc,
};
use tokio_util::sync::CancellationToken;

use crate::{
    actors::host::LateFence,
    api_server::ApiServer,
    auth::Auth,
    clock::SystemClock,
    components::{self, causes},
    credentials::Credentials,
    debug::Inside,
    gate::Fence,
    http::{self, Health, Kind},
    metrics::{ClientMetrics, Metrics},
    node::{Node, Parts, Threads},
    options::{FleetOptions, Options, PeerTransport},
    ownership, pod_events, registry,
    server::Server,
    telemetry::Telemetry,
};

/// What is held is measured at most so often: whoever scrapes shall not pay for a look at hundreds of objects each time.
const SIZES_EVERY: Duration = Duration::from_secs(15);
/// How often it is looked whether all caches are complete.
const READY_POLL: Duration = Duration::from_millis(10);
/// A certificate's PEM has lines of this length.
const PEM_LINE: usize = 64;

/// Why the process ends with an error: what, and the remedy, in one line.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Error(pub String);

fn wrong(error: &(dyn std::error::Error + 'static)) -> Error {
    Error(causes(error))
}

/// Runs until SIGTERM or SIGINT (then hands everything over first) or a fatal error. To be called within an actix
/// system.
///
/// # Errors
/// With one line that says what is wrong and what to do. Nothing is left half-started.
pub async fn run(options: Options, telemetry: &Telemetry) -> Result<(), Error> {
    let options = Arc::new(options);
    if let Some(warning) = &options.warning {
        tracing::warn!("{warning}");
    }
    let mut signals = Signals::listen()?;

    // Everything that can be wrong with files and flags comes before anything is started.
    let mut config = components::config(
        options.client.kubeconfig.as_deref(),
        options.client.master.as_deref(),
    )
    .await
    .map_err(|error| wrong(&error))?;
    config.headers.push((
        http_types::header::USER_AGENT,
        user_agent(&options.fleet.replica),
    ));
    let flags = flags_with_root_ca(&options.flags, &config)?;
    let metrics = Metrics::new(&registry::descriptors());
    let apis = Apis::connect(&config, &metrics)?;
    let port = http::Server::bind(&options.serving).map_err(|error| wrong(&error))?;

    // The API server must answer; afterwards losing it never ends the process.
    let client = apis.rare.kube();
    components::wait_for_server(&client, &config.cluster_url.to_string())
        .await
        .map_err(|error| wrong(&error))?;
    let auth = Auth::new(&options.authentication, &options.authorization)
        .await
        .map_err(|error| wrong(&error))?;

    let credentials = options
        .use_service_account_credentials
        .then(|| Arc::new(Credentials::new(client)));
    let server_fence = ServerFence::new(options.fleet.server_fence);
    let fence = Arc::new(LateFence::default());
    for api in [&apis.writes, &apis.anonymous] {
        api.guard(Arc::clone(&fence) as Arc<dyn node_cache::Guard>);
    }
    let node = Arc::new(Node::start(Parts {
        replica: options.fleet.replica.clone(),
        ranges: options.fleet.ranges,
        controllers: enabled(&options),
        flags,
        watches: apis.watches.clone(),
        server: Arc::new(ApiServer::new(
            apis.writes.clone(),
            apis.anonymous.clone(),
            credentials,
            Arc::clone(&server_fence),
        )) as Arc<dyn Server>,
        host: host_of(&config),
        rate: (options.client.qps.unwrap_or(0.0), options.client.burst),
        fence: Arc::clone(&fence) as Arc<dyn Fence>,
        metrics: Arc::clone(&metrics),
        clock: Arc::new(SystemClock::default()),
        watching: watching(&options),
        threads: Threads::Many,
    }));

    // The port answers before anything is owned: probes and people see how the start goes.
    let health = Health::new(Arc::clone(&metrics));
    let draining = Arc::new(AtomicBool::new(false));
    check_node(&health, &node, &draining);
    let told = Arc::clone(&server_fence);
    health.tell(
        "server-fence",
        Box::new(move || told.tell()),
        &[Kind::Readyz],
    );
    let inside = Inside::new(Arc::clone(&node.shared));
    let stop = CancellationToken::new();
    let sources = http::Sources {
        metrics: Arc::clone(&metrics),
        health: Arc::clone(&health),
        options: Arc::clone(&options),
        verbosity: Arc::clone(&telemetry.verbosity),
        debug: Arc::clone(&inside) as Arc<dyn http::Debug>,
        auth,
    };
    let serving = tokio::spawn(port.serve(sources, stop.clone()));
    let looking = Arc::clone(&node);
    actix::spawn(async move {
        while !looking.look_if_ready() {
            tokio::time::sleep(READY_POLL).await;
        }
    });

    let result = own(
        &options,
        &config,
        apis.rare.kube(),
        &node,
        &fence,
        &inside,
        &health,
        &draining,
        server_fence,
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
    options: &Options,
    config: &kube::Config,
    client: kube::Client,
    node: &Arc<Node>,
    fence: &LateFence,
    inside: &Inside,
    health: &Arc<Health>,
    draining: &AtomicBool,
    server_fence: Arc<ServerFence>,
    signals: &mut Signals,
) -> Result<(), Error> {
    if options.fleet.peer_transport == PeerTransport::Off {
        tracing::warn!(
            "no --peer-tls-cert-file, --peer-tls-private-key-file and --peer-ca-file: ranges move to another replica \
             only when this one has ended, and without their queues"
        );
    }
    let leases = config.clone();
    let purpose = Purpose::Leases {
        period: options.fleet.retry_period,
        deadline: options.fleet.renew_deadline,
    };
    let clients = Arc::new(move || {
        Api::connect(&leases, purpose, None)
            .expect("this configuration has connected before")
            .kube()
    });
    let host = Arc::clone(&node.host) as Arc<dyn RangeHost>;
    let mut coordination = coordinator_config(&options.fleet);
    coordination.server_fence = Arc::clone(&server_fence);
    let starting = coordinator::start(coordination, host, clients);
    let handle = tokio::select! {
        handle = starting => handle.map_err(|error| wrong(&error))?,
        () = signals.next() => return Ok(()),
    };
    fence.set(handle.fence());
    inside.set(handle.clone());
    check_fence(health, &handle);
    let pod = options.pod.clone().map(|pod| {
        let (notices, waiting) = mpsc::channel(pod_events::WAITING_MAX);
        actix::spawn(pod_events::send(client, pod, waiting));
        notices
    });
    actix::spawn(ownership::follow(
        handle.clone(),
        Arc::clone(&node.shared.metrics),
        pod,
    ));
    let gauges = Gauges {
        node: Arc::downgrade(node),
        fence: handle.fence(),
        server_fence,
        looked: Mutex::default(),
    };
    node.shared
        .metrics
        .look_with(move |metrics| gauges.look(metrics));

    tokio::select! {
        fatal = handle.fatal() => return Err(wrong(&fatal)),
        () = signals.next() => {}
    }
    draining.store(true, Ordering::Release);
    tracing::info!("asked to end: handing over");
    tokio::select! {
        drained = handle.drain(options.controller_shutdown_timeout) => {
            tracing::info!(released = drained.released, dropped = drained.dropped.len(), "handed over");
        }
        () = signals.next() => tracing::warn!("asked to end a second time: ending at once"),
    }
    Ok(())
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

/// The controllers that the options name.
fn enabled(options: &Options) -> Vec<Factory> {
    registry::all()
        .into_iter()
        .filter(|factory| options.controllers.contains(&(factory.describe)().name))
        .collect()
}

/// Without `--root-ca-file` pods are given the authorities that this process itself knows the API server by.
fn flags_with_root_ca(given: &Flags, config: &kube::Config) -> Result<Flags, Error> {
    const FLAG: &str = "root-ca-file";
    let mut flags = given.clone();
    match given.file(FLAG) {
        Some(pem) => {
            let found = rustls_pemfile::certs(&mut &*pem)
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
                .map(|der| pem(der))
                .collect();
            flags.set(FLAG, FlagValue::File(Some(authorities.into_bytes())));
        }
    }
    Ok(flags)
}

fn pem(der: &[u8]) -> String {
    use base64::Engine as _;
    let text = base64::engine::general_purpose::STANDARD.encode(der);
    let lines: Vec<&str> = (0..text.len())
        .step_by(PEM_LINE)
        .map(|start| &text[start..text.len().min(start + PEM_LINE)])
        .collect();
    format!(
        "-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n",
        lines.join("\n")
    )
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
        expected_replicas: fleet
            .expected_replicas
            .map(|count| u16::try_from(count).unwrap_or(u16::MAX)),
        peer_bind_address: fleet.peer_address.ip(),
        peer_port: fleet.peer_address.port(),
        peer_advertise_address: fleet.peer_advertised.clone(),
        ..Config::default()
    };
    match &fleet.peer_transport {
        PeerTransport::Tls {
            cert_file,
            key_file,
            ca_file,
        } => {
            config.peer_tls_cert_file = Some(cert_file.clone());
            config.peer_tls_private_key_file = Some(key_file.clone());
            config.peer_ca_file = Some(ca_file.clone());
        }
        PeerTransport::Insecure => config.peer_insecure = true,
        PeerTransport::Off => {
            // Nobody is to reach this replica: it listens to itself alone, and handoffs to it fail.
            config.peer_insecure = true;
            config.peer_bind_address = std::net::Ipv4Addr::LOCALHOST.into();
            config.peer_port = 0;
            config.peer_advertise_address = String::new();
        }
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

fn host_of(config: &kube::Config) -> String {
    config
        .cluster_url
        .authority()
        .map_or_else(String::new, ToString::to_string)
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
    fn connect(config: &kube::Config, metrics: &Metrics) -> Result<Self, Error> {
        let host = host_of(config);
        let observe: Arc<dyn Observe> = Arc::new(Observed(metrics.client(&host)));
        let connect = |purpose| {
            Api::connect(config, purpose, Some(Arc::clone(&observe))).map_err(|error| wrong(&error))
        };
        Ok(Self {
            rare: connect(Purpose::Writes)?,
            writes: connect(Purpose::Writes)?,
            watches: connect(Purpose::Watches)?,
            anonymous: Api::connect_anonymous(config, Purpose::Writes, Some(Arc::clone(&observe)))
                .map_err(|error| wrong(&error))?,
        })
    }
}

/// Counts requests under upstream's names.
struct Observed(Arc<ClientMetrics>);

impl Observe for Observed {
    fn observe(&self, exchange: &Exchange<'_>) {
        let verb = match exchange.method {
            "GET" => "GET",
            "POST" => "POST",
            "PUT" => "PUT",
            "PATCH" => "PATCH",
            "DELETE" => "DELETE",
            _ => "OTHER",
        };
        self.0.answered(
            verb,
            exchange.code,
            exchange.duration,
            exchange.request_bytes as u64,
            (exchange.response_bytes > 0).then_some(exchange.response_bytes as u64),
        );
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

/// What they say of ownership: a fenced replica is told from a broken one.
fn check_fence(health: &Health, handle: &Handle) {
    let fenced = handle.clone();
    let fence = move || match fenced.fence().is_open() {
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

/// The gauges that nobody pushes.
struct Gauges {
    node: Weak<Node>,
    fence: Arc<coordinator::Fence>,
    server_fence: Arc<ServerFence>,
    looked: Mutex<Looked>,
}

/// As of the last time.
#[derive(Default)]
struct Looked {
    /// When what is held was measured.
    sizes: Option<Instant>,
    /// Decode errors that are counted already. Bound: as many as there are resources.
    errors: HashMap<String, u64>,
}

impl Gauges {
    fn look(&self, metrics: &Metrics) {
        let Some(node) = self.node.upgrade() else {
            return;
        };
        let mut looked = self.looked.lock().unwrap_or_else(PoisonError::into_inner);
        metrics.fence_open(self.fence.is_open());
        metrics.server_fence(self.server_fence.is_on(), self.server_fence.proofs());
        metrics.discovery_failing(&node.discovery.failing(&node.cache));
        let measures = looked.sizes.is_none_or(|at| at.elapsed() >= SIZES_EVERY);
        if measures {
            looked.sizes = Some(Instant::now());
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
            let known = looked.errors.entry(resource.id()).or_default();
            for _ in *known..stats.decode_errors {
                cache.decode_error();
            }
            *known = stats.decode_errors;
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
