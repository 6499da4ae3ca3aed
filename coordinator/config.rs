//! What the flags say, and what they must not.

use std::{
    hash::{BuildHasher, Hasher},
    net::IpAddr,
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use coordinator_core::{Follows, Gone, MAX_RANGES, REPLICAS_MAX};

use crate::{Clock, InFlightMark, Pulse, ServerFence, ServerFenceMode, Tracer};

/// A client jitters its renewals by at most this factor; a deadline must leave room for one more try.
const RETRY_JITTER: f64 = 1.2;

/// A DNS label is at most this long, and so are our Lease names' parts.
const NAME_BYTES_MAX: usize = 200;

/// The Lease of the manager's own leader election, which the fleet holds as one: `--leader-elect-*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterlockOptions {
    /// `--leader-elect-resource-namespace`
    pub namespace: String,
    /// `--leader-elect-resource-name`
    pub name: String,
    /// `--leader-elect-lease-duration`
    pub lease_duration: Duration,
    /// `--leader-elect-renew-deadline`
    pub renew_deadline: Duration,
    /// `--leader-elect-retry-period`
    pub retry_period: Duration,
}

impl InterlockOptions {
    /// Checks the figures, where a write that was given up may still be executed for `late_write_max`.
    ///
    /// # Errors
    /// Naming the flag, what is wrong and the remedy.
    pub fn validate(&self, late_write_max: Duration) -> Result<(), ConfigError> {
        let refuse = |flag, problem: String| Err(ConfigError { flag, problem });
        let (duration, deadline, retry) =
            (self.lease_duration, self.renew_deadline, self.retry_period);
        if retry < Duration::from_millis(1) {
            return refuse(
                "leader-elect-retry-period",
                "must be greater than zero".to_owned(),
            );
        }
        if deadline <= retry.mul_f64(RETRY_JITTER) {
            return refuse(
                "leader-elect-renew-deadline",
                format!(
                    "{deadline:?} must be greater than {RETRY_JITTER} times --leader-elect-retry-period ({retry:?})"
                ),
            );
        }
        if duration <= deadline {
            return refuse(
                "leader-elect-lease-duration",
                format!(
                    "{duration:?} must be greater than --leader-elect-renew-deadline ({deadline:?})"
                ),
            );
        }
        // Whole seconds are what the Lease can say.
        let least = late_write_max + retry.mul_f64(RETRY_JITTER);
        if Duration::from_secs(duration.as_secs()) <= least {
            return refuse(
                "leader-elect-lease-duration",
                format!(
                    "{duration:?} must be more than {least:?} in whole seconds: {RETRY_JITTER} times \
                     --leader-elect-retry-period, and --lease-duration less --lease-renew-deadline, in which a write \
                     that was given up may still be executed"
                ),
            );
        }
        for (flag, text) in [
            ("leader-elect-resource-name", &self.name),
            ("leader-elect-resource-namespace", &self.namespace),
        ] {
            if text.is_empty() {
                return refuse(flag, "must not be empty".to_owned());
            }
        }
        Ok(())
    }
}

/// The coordinator's configuration.
#[derive(Clone)]
pub struct Config {
    /// `--replica-name`
    pub replica_name: String,
    /// `--fleet-name`
    pub fleet_name: String,
    /// `--fleet-namespace`
    pub fleet_namespace: String,
    /// `--ranges`
    pub ranges: u16,
    /// `--lease-duration`
    pub lease_duration: Duration,
    /// `--lease-renew-deadline`
    pub lease_renew_deadline: Duration,
    /// `--lease-retry-period`
    pub lease_retry_period: Duration,
    /// At a fleet's cold start no range is taken before membership has been still for so long …
    pub settle_time: Duration,
    /// … or this number of replicas is ready.
    pub expected_replicas: Option<u16>,
    /// `--slow-start-period`: after a life that ended without leaving, the share of ranges doubles in so
    /// long, from one on; zero gives a full share at once.
    pub slow_start_period: Duration,
    /// `--load-aware-placement`
    pub load_aware_placement: bool,
    /// `--peer-bind-address`
    pub peer_bind_address: IpAddr,
    /// `--peer-port`; 0 takes a free one.
    pub peer_port: u16,
    /// Nobody has asked for that port: where it is taken, another is found, and the Lease names it.
    pub peer_port_is_default: bool,
    /// `--peer-advertise-address`: a host, or host and port; empty: the bind address.
    pub peer_advertise_address: String,
    /// Whether peers are known by the keys that their Leases name: always without certificate files, and with
    /// them while a fleet moves from one to the other (`--peer-trust`).
    pub peer_pins: bool,
    /// `--peer-tls-cert-file`
    pub peer_tls_cert_file: Option<PathBuf>,
    /// `--peer-tls-private-key-file`
    pub peer_tls_private_key_file: Option<PathBuf>,
    /// `--peer-ca-file`
    pub peer_ca_file: Option<PathBuf>,
    /// `--peer-insecure`
    pub peer_insecure: bool,
    /// `--server-fence`, and its state: shared with all that write.
    pub server_fence: Arc<ServerFence>,
    /// `None` with `--leader-elect=false`: nothing keeps two managers apart.
    pub interlock: Option<InterlockOptions>,
    /// Threads of the process, each with its name, without which the replica cannot do what it owns: it ends
    /// where one of them hangs. The coordinator's own is added.
    pub threads: Vec<(String, Pulse)>,
    /// How such a replica ends: the process, in the product.
    pub abort: fn(),
    /// This process: the incarnation that it begins with.
    pub process: String,
    /// The pod that it runs in, `<namespace>/<name>`, whose status shows others its end; empty where there
    /// is none.
    pub pod: String,
    /// The processes of this name that have ended for certain; `None` where nothing shows it.
    pub gone: Option<Gone>,
    /// Where this process notes, for its successor, whether anything of it is in flight; `None` where nothing
    /// outlives it.
    pub mark: Option<InFlightMark>,
    /// By which clock the fence closes.
    pub clock: Clock,
    /// The build, as in `0.1.0`.
    pub version: String,
    /// Records calls between peers; `None` where nothing is traced.
    pub tracer: Option<Arc<dyn Tracer>>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            replica_name: String::new(),
            fleet_name: "manifold".to_owned(),
            fleet_namespace: "manifold-system".to_owned(),
            ranges: 256,
            lease_duration: Duration::from_secs(5),
            lease_renew_deadline: Duration::from_secs(3),
            lease_retry_period: Duration::from_secs(1),
            settle_time: Duration::from_secs(1),
            expected_replicas: None,
            slow_start_period: Duration::ZERO,
            load_aware_placement: true,
            peer_bind_address: IpAddr::from([0, 0, 0, 0]),
            peer_port: 10258,
            peer_port_is_default: false,
            peer_advertise_address: String::new(),
            peer_pins: true,
            peer_tls_cert_file: None,
            peer_tls_private_key_file: None,
            peer_ca_file: None,
            peer_insecure: false,
            server_fence: ServerFence::new(ServerFenceMode::Off),
            interlock: None,
            threads: Vec::new(),
            abort: || std::process::abort(),
            process: random_id(),
            pod: String::new(),
            gone: None,
            mark: None,
            clock: Clock::boot(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            tracer: None,
        }
    }
}

/// 64 random bits: std seeds its hashers from the system's randomness.
fn random_id() -> String {
    let mut hasher = std::hash::RandomState::new().build_hasher();
    hasher.write_u32(std::process::id());
    format!("{:016x}", hasher.finish())
}

/// A flag with a value that cannot work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("--{flag}: {problem}")]
pub struct ConfigError {
    /// Which flag, without dashes.
    pub flag: &'static str,
    /// What is wrong, and the remedy.
    pub problem: String,
}

impl Config {
    /// What its placement depends on, as its Lease says.
    pub(crate) fn follows(&self) -> Follows {
        Follows {
            pins: true,
            plans: self.load_aware_placement,
        }
    }

    /// The Unix second at the origin of the fence's clock, where starts may be slow; `None` elsewhere.
    pub(crate) fn slow_start_from(&self, epoch_second: i64) -> Option<i64> {
        (!self.slow_start_period.is_zero()).then_some(epoch_second)
    }

    /// How long a request may still be in the server's hands after the fence closed over it: a range's next
    /// owner comes a lease duration after the last renewal began, the fence closes after the deadline.
    pub fn late_write_max(&self) -> Duration {
        self.lease_duration
            .saturating_sub(self.lease_renew_deadline)
    }

    /// The holder identity under which the whole fleet holds the manager's Lease.
    pub fn fleet_identity(&self) -> String {
        format!("manifold:{}/{}", self.fleet_namespace, self.fleet_name)
    }

    /// Checks everything that can be checked without files or network.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let refuse = |flag, problem: String| Err(ConfigError { flag, problem });
        for (flag, name) in [
            ("replica-name", &self.replica_name),
            ("fleet-name", &self.fleet_name),
        ] {
            let fits =
                |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.';
            let edge = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
            if !(name.chars().all(fits) && name.starts_with(edge) && name.ends_with(edge))
                || name.len() > NAME_BYTES_MAX
            {
                return refuse(
                    flag,
                    format!(
                        "{name:?} must be lower-case letters, digits, '-' and '.', as in a Pod's name"
                    ),
                );
            }
        }
        if self.fleet_namespace.is_empty() {
            return refuse(
                "fleet-namespace",
                "must name a namespace, as in manifold-system".to_owned(),
            );
        }
        if !self.ranges.is_power_of_two() || self.ranges > MAX_RANGES {
            return refuse(
                "ranges",
                format!(
                    "{} must be a power of two between 1 and {MAX_RANGES}",
                    self.ranges
                ),
            );
        }
        if let Some(expected) = self.expected_replicas
            && usize::from(expected) > REPLICAS_MAX
        {
            return refuse(
                "expected-replicas",
                format!(
                    "{expected} is more than the {REPLICAS_MAX} replicas that a fleet may have"
                ),
            );
        }
        let (duration, deadline, retry) = (
            self.lease_duration,
            self.lease_renew_deadline,
            self.lease_retry_period,
        );
        if retry.is_zero() {
            return refuse("lease-retry-period", "must be greater than zero".to_owned());
        }
        if deadline <= retry.mul_f64(RETRY_JITTER) {
            return refuse(
                "lease-renew-deadline",
                format!(
                    "{deadline:?} must be greater than {RETRY_JITTER} times --lease-retry-period ({retry:?})"
                ),
            );
        }
        if duration <= deadline {
            return refuse(
                "lease-duration",
                format!("{duration:?} must be greater than --lease-renew-deadline ({deadline:?})"),
            );
        }
        if duration < Duration::from_secs(1) {
            return refuse(
                "lease-duration",
                format!("{duration:?} must be at least 1s"),
            );
        }
        if let Some(interlock) = &self.interlock {
            interlock.validate(self.late_write_max())?;
        }
        self.validate_peers()
    }

    fn validate_peers(&self) -> Result<(), ConfigError> {
        let refuse = |flag, problem: String| Err(ConfigError { flag, problem });
        if self.peer_advertise_address.is_empty() && self.peer_bind_address.is_unspecified() {
            return refuse(
                "peer-advertise-address",
                format!(
                    "must be given where --peer-bind-address is {}: peers need an address to reach",
                    self.peer_bind_address
                ),
            );
        }
        if self.peer_insecure {
            let advertised = self.advertised(self.peer_port);
            let loopback = advertised
                .rsplit_once(':')
                .and_then(|(host, _)| host.trim_matches(['[', ']']).parse::<IpAddr>().ok())
                .is_some_and(|address| address.is_loopback());
            if !self.peer_bind_address.is_loopback() || !loopback {
                return refuse(
                    "peer-insecure",
                    format!(
                        "is accepted only on loopback addresses, not on {} and {advertised}; without it peers speak TLS, \
                         for which nothing has to be given",
                        self.peer_bind_address
                    ),
                );
            }
            return Ok(());
        }
        let given = self.peer_tls_cert_file.is_some()
            || self.peer_tls_private_key_file.is_some()
            || self.peer_ca_file.is_some();
        for (flag, file) in [
            ("peer-tls-cert-file", &self.peer_tls_cert_file),
            ("peer-tls-private-key-file", &self.peer_tls_private_key_file),
            ("peer-ca-file", &self.peer_ca_file),
        ] {
            if file.is_none() && (given || !self.peer_pins) {
                return refuse(
                    flag,
                    "must be given: the three files go together, and --peer-trust=files needs them"
                        .to_owned(),
                );
            }
        }
        Ok(())
    }

    /// What peers are given, with the port that was bound.
    pub(crate) fn advertised(&self, port: u16) -> String {
        let given = self.peer_advertise_address.as_str();
        // What was made from the default says where it turned out to be.
        let given = match given.strip_suffix(&format!(":{}", self.peer_port)) {
            Some(host) if self.peer_port_is_default => host.trim_matches(['[', ']']),
            _ => given,
        };
        let bare = |address: &IpAddr| match address {
            IpAddr::V4(address) => format!("{address}:{port}"),
            IpAddr::V6(address) => format!("[{address}]:{port}"),
        };
        if given.is_empty() {
            return bare(&self.peer_bind_address);
        }
        if let Ok(address) = given.parse::<IpAddr>() {
            return bare(&address);
        }
        let has_port = given
            .rsplit_once(':')
            .is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        if has_port {
            given.to_owned()
        } else {
            format!("{given}:{port}")
        }
    }
}
