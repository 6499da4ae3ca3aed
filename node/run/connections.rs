//! The connections to the API server.

use std::sync::{Arc, Mutex, PoisonError};

use http::HeaderValue;
use node_cache::{Api, Purpose};
use node_connection::{components, rotation::Followed};
use node_options::FleetOptions;
use node_telemetry::metrics::Metrics;

use super::{Error, wrong};

/// What every request is sent as that is made for no range: Leases, watches, tokens.
pub(super) fn user_agent(replica: &str) -> HeaderValue {
    let text = format!("manifold/{} (replica={replica})", env!("CARGO_PKG_VERSION"));
    // A replica's name is a DNS label.
    HeaderValue::from_str(&text).unwrap_or_else(|_| HeaderValue::from_static("manifold"))
}

/// The connections to the API server, watches apart from writes.
pub(super) struct Apis {
    /// What the process asks on its own account, on the thread that runs it.
    pub(super) rare: Api,
    /// What is done for keys: the connection lives on their thread, so that an answer wakes no other first.
    pub(super) writes: Api,
    pub(super) anonymous: Api,
    pub(super) watches: Api,
}

impl Apis {
    pub(super) fn connect(followed: &Followed, metrics: &Metrics) -> Result<Self, Error> {
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
pub(super) struct LeaseApis {
    /// Those that no thread has yet.
    free: Mutex<Vec<Api>>,
    last: Api,
}

impl LeaseApis {
    pub(super) fn connect(
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
    pub(super) fn client(&self) -> kube::Client {
        let free = self
            .free
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop();
        free.unwrap_or_else(|| self.last.clone()).kube_here()
    }
}
