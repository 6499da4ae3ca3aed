//! The node: cache, writer, controllers and their actors, without ownership, which the coordinator brings.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
};

use actix::Actor;
use arc_swap::ArcSwapOption;
use controllers_kit::{Factory, Flags};
use coordinator::Pulse;
use node_cache::{Api, Cache};
use node_options::ShadowOptions;
use node_telemetry::{metrics::Metrics, trace::Traces};

use crate::{
    actors::{controller::Controller, host::Host, watch::Watch},
    apply::Writer,
    arbiters::Arbiters,
    clock::Clock,
    cloud::Cloud,
    discovery::{self, Discovery},
    gate::Fence,
    history::History,
    keys::Keys,
    server::Server,
    shadowing::{self, Shadow},
    shared::{Aside, Shared, Unit, Unwoken},
    view::View,
    workers::Workers,
};

/// What a node is made of.
pub struct Parts {
    /// This replica's name.
    pub replica: String,
    /// The fleet's number of ranges.
    pub ranges: u16,
    /// The enabled controllers.
    pub controllers: Vec<Factory>,
    /// The flags' values.
    pub flags: Flags,
    /// Whether the number of workers by this flag may grow: see [`node_options::Options::adapts`].
    pub adapts: Box<dyn Fn(&str) -> bool>,
    /// For watches.
    pub watches: Api,
    /// For everything else.
    pub server: Arc<dyn Server>,
    /// What signs certificates and tokens.
    pub keys: Arc<dyn Keys>,
    /// The cloud provider.
    pub cloud: Arc<dyn Cloud>,
    /// The API server's host and port, for metrics.
    pub host: String,
    /// `--kube-api-qps` and `--kube-api-burst`.
    pub rate: (f64, u32),
    /// The replica's fence.
    pub fence: Arc<dyn Fence>,
    /// Where all is counted.
    pub metrics: Arc<Metrics>,
    /// The clocks.
    pub clock: Arc<dyn Clock>,
    /// Figures of the watches.
    pub watching: node_cache::Settings,
    /// Where all of it runs.
    pub threads: Threads,
    /// Traces, where an endpoint for them is set.
    pub traces: Option<Arc<Traces>>,
    /// Whether plans are compared in the place of being carried out.
    pub shadow: Option<ShadowOptions>,
}

/// Where a node's actors run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threads {
    /// On arbiters of their own, scans on the runtime's blocking threads.
    Many,
    /// All on the caller's: a simulation that can be repeated decides by itself what runs when.
    One,
}

/// A running node.
pub struct Node {
    /// What its actors share.
    pub shared: Arc<Shared>,
    /// Its side of ownership.
    pub host: Arc<Host>,
    /// Its cache.
    pub cache: Arc<Cache>,
    /// Whether it may own ranges.
    pub ready: Arc<AtomicBool>,
    /// The state of discovery.
    pub discovery: Arc<Discovery>,
    arbiters: Option<Arbiters>,
}

impl Node {
    /// Starts it: watches begin, controllers wait for their caches, no range is owned. To be called within an
    /// actix system.
    pub fn start(parts: Parts) -> Self {
        let metrics = parts.metrics;
        let clock = parts.clock;
        let (writer, events) = Writer::new(
            parts.server,
            &parts.host,
            parts.rate,
            Arc::clone(&clock),
            Arc::clone(&metrics),
            parts.shadow.is_some(),
        );
        let controllers: Vec<_> = parts
            .controllers
            .iter()
            .map(|factory| (factory.build)(&parts.flags))
            .collect();
        let catalogued = controllers
            .iter()
            .any(|controller| controller.watches().catalogued);
        let fence = Arc::clone(&parts.fence);
        let watching = node_cache::Settings {
            renewed: node_cache::Renewed::by(move || fence.renewed()),
            ..parts.watching
        };
        let cache = controllers
            .iter()
            .fold(
                Cache::builder().settings(watching),
                |builder, controller| builder.watches(&controller.watches()),
            )
            .build();
        let units = controllers
            .into_iter()
            .enumerate()
            .map(|(index, controller)| {
                let descriptor = controller.descriptor();
                let workers = descriptor
                    .workers
                    .map_or(descriptor.workers_fixed, |(flag, _)| {
                        usize::try_from(parts.flags.int(flag)).unwrap_or(0)
                    });
                if workers == 0 {
                    tracing::warn!(
                        controller = descriptor.name,
                        "the controller has no workers and does nothing: its --concurrent-...-syncs is not positive"
                    );
                }
                let is_default = descriptor
                    .workers
                    .is_some_and(|(flag, _)| (parts.adapts)(flag));
                let watches = controller.watches();
                Unit {
                    index: u16::try_from(index).expect("there are few controllers"),
                    subscriptions: watches.subscriptions,
                    discovered: watches.discovered,
                    workers: Arc::new(Workers::new(workers, is_default)),
                    backoff: descriptor.backoff_with(&parts.flags),
                    queue_metrics: metrics.queue(descriptor.queue),
                    metrics: metrics.controller(descriptor.name),
                    ready: AtomicBool::new(false),
                    working: AtomicUsize::new(0),
                    reconciles: AtomicU64::new(0),
                    paused: AtomicUsize::new(0),
                    controller,
                }
            })
            .collect();
        let units: Vec<Unit> = units;
        if let Some(traces) = &parts.traces {
            traces.know(units.iter().flat_map(Unit::resources));
        }
        let shadow = parts.shadow.map(|options| {
            let since = clock.now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
            Shadow::new(
                options,
                &units,
                cache.resources(),
                since,
                Arc::clone(&metrics),
            )
        });
        let shared = Arc::new(Shared {
            replica: parts.replica,
            ranges: parts.ranges,
            view: Arc::clone(&cache) as Arc<dyn View>,
            writer,
            keys: parts.keys,
            cloud: parts.cloud,
            clock,
            metrics,
            fence: parts.fence,
            units,
            writes: AtomicU64::new(0),
            table: (0..parts.ranges).map(|_| ArcSwapOption::empty()).collect(),
            unwoken: Unwoken::default(),
            watchlist: Arc::default(),
            steering: Arc::default(),
            attempts: std::sync::Mutex::default(),
            history: History::new(parts.ranges).into(),
            aside: match parts.threads {
                Threads::Many => Aside::Blocking(tokio::runtime::Handle::current()),
                Threads::One => Aside::Here,
            },
            traces: parts.traces,
            shadow,
        });

        for resource in cache.resources() {
            shared.follow(&cache, resource);
        }
        let ready = Arc::<AtomicBool>::default();
        let discovery = Arc::new(Discovery::default());
        let discovering = catalogued.then(|| {
            discovery::follow(
                Arc::clone(&discovery),
                Arc::clone(&shared),
                Arc::clone(&cache),
                parts.watches.clone(),
            )
        });
        let comparing = shadowing::follow(Arc::clone(&shared));
        let background = async move {
            let discovering = async {
                if let Some(discovering) = discovering {
                    discovering.await;
                }
            };
            futures::join!(events, discovering, comparing);
        };
        let arbiters = match parts.threads {
            Threads::Many => Some(spread(&shared, &cache, &parts.watches, background)),
            Threads::One => {
                actix::spawn(background);
                for resource in cache.resources() {
                    Watch::new(Arc::clone(&cache), resource, parts.watches.clone()).start();
                }
                for unit in 0..shared.units.len() {
                    Controller::new(Arc::clone(&shared), unit).start();
                }
                None
            }
        };
        let host = Arc::new(Host::new(
            Arc::clone(&shared),
            arbiters
                .as_ref()
                .map_or_else(Vec::new, Arbiters::for_ranges),
            Arc::clone(&ready),
        ));
        host.others.set_own(Arc::clone(&cache));
        Self {
            shared,
            host,
            cache,
            ready,
            discovery,
            arbiters,
        }
    }

    /// Ready once every resource has been listed or is refused by the server: a refused one holds back only
    /// the controllers that need it.
    pub fn is_ready_now(&self) -> bool {
        let ready = self.cache.all_stats().iter().all(|(_, stats)| {
            stats.listed || matches!(stats.state, node_cache::State::Blocked { .. })
        });
        if ready {
            self.ready.store(true, Ordering::Release);
        }
        ready
    }

    /// Signs of life of the threads on which its actors run; none where they run on the caller's.
    pub fn pulses(&self) -> Vec<(String, Pulse)> {
        self.arbiters
            .as_ref()
            .map_or_else(Vec::new, Arbiters::pulses)
    }

    /// Stops all actors. What is under way is dropped.
    pub fn stop(self) {
        if let Some(arbiters) = self.arbiters {
            arbiters.stop();
        }
    }
}

/// Starts the actors on arbiters.
fn spread(
    shared: &Arc<Shared>,
    cache: &Arc<Cache>,
    watches: &Api,
    background: impl Future<Output = ()> + Send + 'static,
) -> Arbiters {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let arbiters = Arbiters::start(cores);
    let watching = arbiters.for_watches();
    watching.spawn(background);
    for resource in cache.resources() {
        let (cache, api) = (Arc::clone(cache), watches.clone());
        Watch::start_in_arbiter(&watching, move |_| Watch::new(cache, resource, api));
    }
    let working = arbiters.for_ranges();
    for unit in 0..shared.units.len() {
        let its = Arc::clone(shared);
        Controller::start_in_arbiter(&working[unit % working.len()], move |_| {
            Controller::new(its, unit)
        });
    }
    arbiters
}
