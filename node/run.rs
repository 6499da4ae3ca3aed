//! The whole process, from options to the end: what is started in which order, and how it is taken down.

mod checks;
mod connections;
mod coordination;
mod gauges;
mod in_force;
mod member;
mod setup;
mod signals;
pub mod witness;

use std::{
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use coordinator::{Pulse, ServerFence, ServerFenceMode};
use node_cache::Api;
use node_connection::{
    components::{self, causes},
    rotation::Followed,
};
use node_options::{InForce, Options, args};
use node_serving::{
    auth::Auth,
    http::{self, Health, Kind},
};
use node_telemetry::{Telemetry, metrics::Metrics, trace::OfPeers};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::{
    actors::host::LateFence,
    agreement::Fingerprints,
    clock::SystemClock,
    config_file,
    credentials::Credentials,
    debug::Inside,
    gate::Fence,
    node::{Node, Parts, Threads},
    pod_events,
    server::Server,
    server::api_server::ApiServer,
    shadowing,
};
use checks::{check_before_joining, check_credentials, check_life, check_node, check_orders};
use connections::{Apis, LeaseApis};
use setup::Setup;
use signals::Signals;

/// How often it is checked whether all caches are complete.
const READY_POLL: Duration = Duration::from_millis(10);

/// Why the process ends with an error: what, and the remedy, in one line.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Error(pub String);

fn wrong(error: &(dyn std::error::Error + 'static)) -> Error {
    Error(causes(error))
}

/// What the node is started with.
struct Needs<'a> {
    options: &'a Arc<Options>,
    telemetry: &'a Telemetry,
    metrics: &'a Arc<Metrics>,
    apis: &'a Apis,
    /// For what is asked with the process's own credentials.
    client: kube::Client,
    fence: &'a Arc<LateFence>,
    server_fence: &'a Arc<ServerFence>,
}

/// What has been started before the replica joins its fleet.
struct Process {
    in_force: Arc<InForce>,
    node: Arc<Node>,
    /// Opens once the replica has joined.
    fence: Arc<LateFence>,
    server_fence: Arc<ServerFence>,
    health: Arc<Health>,
    inside: Arc<Inside>,
    /// Whether the process was asked to end.
    draining: Arc<AtomicBool>,
    /// The credentials that the process itself has.
    credentials: Arc<Followed>,
    /// All that are read again and again, those included.
    followed: Vec<Arc<Followed>>,
    /// For what the process asks on its own account.
    client: kube::Client,
    watches: Api,
    /// What the members of the fleet must agree on.
    published: Fingerprints,
    /// Where events at the own Pod go, if there is one.
    pod: Option<mpsc::Sender<pod_events::Notice>>,
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
    setup::announce(&options);
    let mut signals = Signals::listen()?;
    let mut coordination = coordination::coordination(&options.fleet);

    // Everything that can be wrong with files and flags comes before anything is started.
    let setup = Setup::read(&options).await?;
    let metrics = Metrics::new(&setup::measured(&setup.running));
    metrics.started_with(
        args::gate_states(&options.feature_gates),
        &setup.running,
        options.disabled_metrics.len(),
    );
    let credentials = Arc::clone(&setup.followed);
    let apis = Apis::connect(&credentials, &metrics)?;
    let leases = LeaseApis::connect(&credentials, &options.fleet, &metrics)?;
    let port = http::Server::bind(&options.serving).map_err(|error| wrong(&error))?;

    // The API server must answer; afterwards losing it never ends the process.
    let client = apis.rare.kube();
    components::wait_for_server(&client, &setup.config.cluster_url.to_string())
        .await
        .map_err(|error| wrong(&error))?;
    let auth = Auth::new(&options.authentication, &options.authorization, &metrics)
        .await
        .map_err(|error| wrong(&error))?;
    let followed: Vec<Arc<Followed>> = [&credentials]
        .into_iter()
        .chain(auth.followed())
        .cloned()
        .collect();
    for one in &followed {
        tokio::spawn(Arc::clone(one).keep_fresh(options.fleet.lease_duration));
    }

    let server_fence = server_fence(&options);
    for api in [&apis.writes, &apis.anonymous] {
        api.guard(Arc::clone(&fence) as Arc<dyn node_cache::Guard>);
    }
    let published = setup.published.clone();
    let node = Arc::new(start_node(
        setup,
        Needs {
            options: &options,
            telemetry,
            metrics: &metrics,
            apis: &apis,
            client,
            fence: &fence,
            server_fence: &server_fence,
        },
    ));
    let threads = node.pulses();
    coordination.server_fence = Arc::clone(&server_fence);
    coordination.threads = threads.clone();
    coordination.tracer = node.shared.traces.clone().map(OfPeers::shared);

    let pod = options.pod.clone().map(|pod| {
        let (notices, waiting) = mpsc::channel(pod_events::WAITING_MAX);
        actix::spawn(pod_events::send(apis.rare.kube(), pod, waiting));
        notices
    });
    let process = Process {
        in_force,
        fence,
        server_fence,
        health: Health::new(Arc::clone(&metrics)),
        inside: Inside::new(Arc::clone(&node.shared)),
        node,
        draining: Arc::default(),
        credentials,
        followed,
        client: apis.rare.kube(),
        watches: apis.watches.clone(),
        published,
        pod,
    };
    // The port answers before anything is owned: probes and people see how the start goes.
    process.check(&options, threads);
    if options.shadow.is_some() {
        process.publish_comparison(&options);
    }
    process.follow_file((maker, content), telemetry);
    check_before_joining(&process.health, options.fleet.interlock.is_some());
    let stop = CancellationToken::new();
    let sources = process.sources(auth, telemetry);
    let serving = tokio::spawn(port.serve(sources, stop.clone()));
    process.await_readiness();

    let result = process.own(coordination, leases, &mut signals).await;
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

/// Whether and how the API server is to fence.
fn server_fence(options: &Options) -> Arc<ServerFence> {
    match options.use_service_account_credentials {
        true => ServerFence::new(options.fleet.server_fence),
        // Writes go in the manager's own name then, which may not be impersonated.
        false if options.fleet.server_fence != ServerFenceMode::Off => ServerFence::unavailable(
            "--use-service-account-credentials=false: writes carry no incarnation",
        ),
        false => ServerFence::new(ServerFenceMode::Off),
    }
}

/// Starts watches, caches and controllers; nothing is owned yet.
fn start_node(setup: Setup, needs: Needs<'_>) -> Node {
    let Needs {
        options,
        telemetry,
        metrics,
        apis,
        client,
        fence,
        server_fence,
    } = needs;
    let credentials = options
        .use_service_account_credentials
        .then(|| Arc::new(Credentials::new(client)));
    Node::start(Parts {
        replica: options.fleet.replica.clone(),
        ranges: options.fleet.ranges,
        controllers: setup.controllers,
        flags: setup.flags,
        adapts: Box::new({
            let options = Arc::clone(options);
            move |flag| options.adapts(flag)
        }),
        keys: Arc::new(setup.keys),
        cloud: setup.cloud,
        watches: apis.watches.clone(),
        server: Arc::new(ApiServer::new(
            apis.writes.clone(),
            apis.anonymous.clone(),
            credentials,
            Arc::clone(server_fence),
        )) as Arc<dyn Server>,
        host: components::host_of(&setup.config),
        rate: in_force::rate(options),
        fence: Arc::clone(fence) as Arc<dyn Fence>,
        metrics: Arc::clone(metrics),
        clock: Arc::new(SystemClock::default()),
        watching: in_force::watching(options),
        threads: Threads::Many,
        traces: telemetry.traces.clone(),
        shadow: options.shadow.clone(),
    })
}

impl Process {
    /// Registers what can be checked before the replica has joined its fleet.
    fn check(&self, options: &Options, threads: Vec<(String, Pulse)>) {
        let health = &self.health;
        check_node(health, &self.node, &self.draining);
        check_life(health, threads);
        check_credentials(health, &self.credentials);
        let fenced = Arc::clone(&self.server_fence);
        health.describe(
            "server-fence",
            Box::new(move || fenced.summary()),
            &[Kind::Readyz],
        );
        if options.shadow.is_some() {
            let note =
                || vec!["a shadow: it compares what it plans, and writes nothing".to_owned()];
            health.note(Kind::Readyz, Box::new(note));
        }
        check_orders(health, &self.node.shared.steering);
    }

    /// What the secure port answers from.
    fn sources(&self, auth: Arc<Auth>, telemetry: &Telemetry) -> http::Sources {
        http::Sources {
            metrics: Arc::clone(&self.node.shared.metrics),
            health: Arc::clone(&self.health),
            options: Arc::clone(&self.in_force),
            verbosity: Arc::clone(&telemetry.verbosity),
            debug: Arc::clone(&self.inside) as Arc<dyn http::Debug>,
            auth,
        }
    }

    /// Has the report of a shadow kept where others find it.
    fn publish_comparison(&self, options: &Options) {
        let report = (options.fleet.namespace.clone(), options.fleet.fleet.clone());
        let (shared, inside) = (Arc::clone(&self.node.shared), Arc::clone(&self.inside));
        actix::spawn(shadowing::publish(
            self.client.clone(),
            shared,
            inside,
            report,
        ));
    }

    /// Has the configuration file, if there is one, take effect when it changes.
    fn follow_file(
        &self,
        (maker, content): (config_file::Maker, Option<Vec<u8>>),
        telemetry: &Telemetry,
    ) {
        let state = Arc::<config_file::FileState>::default();
        let file = Arc::clone(&state);
        self.health
            .note(Kind::Readyz, Box::new(move || file.lines()));
        if let Some(content) = content {
            actix::spawn(config_file::follow(config_file::Parts {
                maker: Arc::new(maker),
                content,
                in_force: Arc::clone(&self.in_force),
                state,
                metrics: Arc::clone(&self.node.shared.metrics),
                notices: self.pod.clone(),
                apply: in_force::changes(&self.node, &telemetry.verbosity),
            }));
        }
    }

    /// Has the node begin as soon as the orders are known and all caches are complete.
    fn await_readiness(&self) {
        let looking = Arc::clone(&self.node);
        actix::spawn(async move {
            while !(looking.shared.steering.is_known() && looking.is_ready_now()) {
                tokio::time::sleep(READY_POLL).await;
            }
        });
    }
}

#[cfg(test)]
mod tests;
