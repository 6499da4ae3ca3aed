//! The replica's part in its fleet, from joining to the handing over.

use std::sync::{Arc, Mutex, atomic::Ordering};

use coordinator::{Config, Handle, RangeHost};
use node_connection::components::causes;
use node_options::Options;
use node_serving::http::Kind;

use super::{
    Error, Process,
    checks::{check_currency, check_fence, check_hold, check_life, unreachable_line},
    connections::LeaseApis,
    gauges::Gauges,
    signals::Signals,
    wrong,
};

use crate::{
    agreement::{self, Agreement},
    budget, currency, debug, ownership, steer,
    termination::Pods,
};

impl Process {
    /// Takes part in the fleet until the end.
    pub(super) async fn own(
        &self,
        coordination: Config,
        leases: LeaseApis,
        signals: &mut Signals,
    ) -> Result<u8, Error> {
        let options = self.in_force.load_full();
        let clients = Arc::new(move || leases.client());
        let host = Arc::clone(&self.node.host) as Arc<dyn RangeHost>;
        let pods = Pods::new(self.client.clone());
        let ask_pods = move |pod: &str, process: &str| pods.prove_end(pod, process);
        self.node.host.ask_pods(Box::new(ask_pods));
        let starting = coordinator::start(coordination, host, clients);
        let handle = tokio::select! {
            handle = starting => handle.map_err(|error| wrong(&error))?,
            () = signals.next() => return Ok(0),
        };
        self.fence.set(handle.fence());
        self.check_membership(&options, &handle);
        self.accompany(&options, &handle);
        self.until_the_end(&options, &handle, signals).await
    }

    /// Registers what can be checked of a member.
    fn check_membership(&self, options: &Options, handle: &Handle) {
        let health = &self.health;
        check_fence(health, handle);
        if let Some(lease) = &options.fleet.interlock {
            check_hold(health, handle, lease);
        }
        let pulses = handle
            .pulses()
            .map(|(name, pulse)| (name.to_owned(), pulse));
        check_life(health, pulses.to_vec());
        let ends = handle.clone();
        let ending = move || ends.ending().map_or(Ok(()), Err);
        health.register("threads", Box::new(ending), &[Kind::Livez]);
    }

    /// Starts what runs beside the work of a member.
    fn accompany(&self, options: &Options, handle: &Handle) {
        let (node, health, pod) = (&self.node, &self.health, &self.pod);
        self.inside.set(handle.clone(), pod.clone());
        actix::spawn(steer::follow(steer::Parts {
            client: self.client.clone(),
            namespace: options.fleet.namespace.clone(),
            fleet: options.fleet.fleet.clone(),
            shared: Arc::clone(&node.shared),
            handle: handle.clone(),
            notices: pod.clone(),
        }));
        actix::spawn(ownership::follow(
            handle.clone(),
            Arc::clone(&node.shared.metrics),
            pod.clone(),
            node.shared.traces.clone(),
        ));
        let sees = Arc::<currency::Said>::default();
        check_currency(health, &sees);
        let lease = format!("{}-replica-{}", options.fleet.fleet, options.fleet.replica);
        let (connect, watched) = (self.watches.clone(), Arc::clone(&self.credentials));
        actix::spawn(currency::follow(currency::Parts {
            cache: Arc::clone(&node.cache),
            api: self.watches.clone(),
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
            self.published.clone(),
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
            server_fence: Arc::clone(&self.server_fence),
            followed: self.followed.clone(),
            sees,
            measured: Mutex::default(),
        };
        node.shared
            .metrics
            .refresh_with(move |metrics| gauges.refresh(metrics));
    }

    /// Works until something ends the process, and hands over where there is time for it.
    async fn until_the_end(
        &self,
        options: &Options,
        handle: &Handle,
        signals: &mut Signals,
    ) -> Result<u8, Error> {
        let mut code = 0;
        tokio::select! {
            fatal = handle.fatal() => {
                self.draining.store(true, Ordering::Release);
                let error = wrong(&fatal);
                tokio::select! {
                    _released = handle.end(error.to_string()) => {}
                    () = signals.next() => {}
                }
                return Err(error);
            }
            () = signals.next() => {}
            () = comparison_ends(options) => {
                let report = self.inside.whole_shadow().await;
                print!("{}", report.text());
                code = report.exit_code();
            }
        }
        self.draining.store(true, Ordering::Release);
        tracing::info!("asked to end: handing over");
        tokio::select! {
            drained = handle.drain(self.in_force.load().controller_shutdown_timeout) => {
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
}

/// Resolves at the end of `--shadow-for`; never without.
async fn comparison_ends(options: &Options) {
    match options.shadow.as_ref().and_then(|shadow| shadow.ends_after) {
        Some(after) => tokio::time::sleep(after).await,
        None => std::future::pending().await,
    }
}
