//! The fleet: names, ranges, Leases, and how its replicas speak with each other.

use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use coordinator::{InterlockOptions, ServerFenceMode};

use crate::{Surroundings, args::Values};

/// The largest number of ranges: a range Lease is one object, and each replica watches all of them.
const RANGES_MAX: i64 = 4096;

/// The deadline to renew must exceed this many retry periods, as upstream asks of its leader election: the
/// period is drawn out by jitter.
const RETRY_JITTER: f64 = 1.2;

/// The longest name of a replica or fleet: Lease names are made of both, within the 253 characters of a name.
pub(super) const NAME_MAX: usize = 63;

/// How replicas speak with each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerTransport {
    /// Mutual TLS by keys that replica Leases name.
    Pins,
    /// Mutual TLS by certificates from files.
    Files {
        /// This replica's certificate.
        cert_file: PathBuf,
        /// Its key.
        key_file: PathBuf,
        /// Authorities of the others' certificates.
        ca_file: PathBuf,
        /// Keys that replica Leases name are accepted as well.
        pins: bool,
    },
    /// In the clear, on a loopback address.
    Insecure,
}

/// The fleet.
#[derive(Clone, Debug, PartialEq)]
pub struct FleetOptions {
    /// This replica's name, the same after a restart.
    pub replica: String,
    /// The fleet's name.
    pub fleet: String,
    /// Where its Leases are.
    pub namespace: String,
    /// Parts of the key space.
    pub ranges: u16,
    /// A replica that was not heard of for so long is dead.
    pub lease_duration: Duration,
    /// A replica that could not renew for so long stops writing.
    pub renew_deadline: Duration,
    /// How often a replica renews.
    pub retry_period: Duration,
    /// Begin as soon as this many are there.
    pub expected_replicas: Option<usize>,
    /// Begin when none has come or gone for so long.
    pub settle_time: Duration,
    /// After an end without leaving, the share doubles in so long.
    pub slow_start_period: Duration,
    /// Whether replicas are to have equal work, and not only equal numbers of ranges.
    pub load_aware_placement: bool,
    /// The pod that it runs in, `<namespace>/<name>`; empty where there is none.
    pub pod: String,
    /// Where the kubelet finds what is to be said of the end of its container.
    pub termination_message: PathBuf,
    /// Where a lock proves that the process before has ended.
    pub lock_dir: Option<PathBuf>,
    /// Where other replicas are heard.
    pub peer_address: SocketAddr,
    /// The port is the default's: another will do where it is taken.
    pub peer_port_is_default: bool,
    /// `host:port` at which others find this replica.
    pub peer_advertised: String,
    /// How they are spoken with.
    pub peer_transport: PeerTransport,
    /// Whether the number of a controller's workers grows beyond upstream's default while keys wait.
    pub adapts_workers: bool,
    /// Whether `--kube-api-qps` and `--kube-api-burst` are the fleet's and divided among its replicas; else
    /// each replica has them.
    pub divides_api_budget: bool,
    /// Whether the API server fences.
    pub server_fence: ServerFenceMode,
    /// The Lease that keeps other managers away; `None` with `--leader-elect=false`.
    pub interlock: Option<InterlockOptions>,
}

/// By the flags and the surroundings.
pub(super) fn of(
    values: &Values,
    surroundings: &Surroundings,
    wrong: &mut Vec<String>,
) -> FleetOptions {
    let replica = replica(values, surroundings, wrong);
    let ranges = ranges(values, wrong);
    let lease = LeaseTimes::of(values, wrong);
    let expected_replicas = expected_replicas(values, wrong);
    let peer_address = peer_address(values, wrong);
    let late_write_max = lease.duration.saturating_sub(lease.renew_deadline);
    FleetOptions {
        interlock: interlock(values, late_write_max, wrong),
        peer_advertised: advertised(values, surroundings, peer_address),
        peer_transport: peer_transport(values, peer_address.ip(), wrong),
        peer_address,
        peer_port_is_default: !values.given("peer-port"),
        adapts_workers: values.bool("adaptive-workers"),
        divides_api_budget: one_of(
            values,
            "kube-api-budget",
            &[("fleet", true), ("replica", false)],
            wrong,
        ),
        server_fence: one_of(
            values,
            "server-fence",
            &[
                ("auto", ServerFenceMode::Auto),
                ("on", ServerFenceMode::On),
                ("off", ServerFenceMode::Off),
            ],
            wrong,
        ),
        replica,
        fleet: values.text("fleet-name").to_owned(),
        namespace: values.text("fleet-namespace").to_owned(),
        ranges,
        lease_duration: lease.duration,
        renew_deadline: lease.renew_deadline,
        retry_period: lease.retry_period,
        expected_replicas,
        settle_time: values.duration("settle-time"),
        slow_start_period: values.duration("slow-start-period"),
        load_aware_placement: values.bool("load-aware-placement"),
        pod: pod(values, surroundings, wrong),
        termination_message: PathBuf::from(values.text("termination-message-path")),
        lock_dir: values.some("lock-dir").map(PathBuf::from),
    }
}

/// The replica's name; its, the fleet's and the namespace's are parts of names of Leases.
fn replica(values: &Values, surroundings: &Surroundings, wrong: &mut Vec<String>) -> String {
    let replica = values
        .some("replica-name")
        .map(str::to_owned)
        .or_else(|| surroundings.pod_name.clone())
        // Host names may hold capitals; names of objects may not.
        .unwrap_or_else(|| surroundings.host_name.to_ascii_lowercase());
    for (flag, name) in [
        ("replica-name", replica.as_str()),
        ("fleet-name", values.text("fleet-name")),
        ("fleet-namespace", values.text("fleet-namespace")),
    ] {
        if !is_name(name, flag == "replica-name") {
            wrong.push(format!(
                "--{flag} {name:?} must be of lower case letters, digits and - (begin and end without -), \
                 at most {NAME_MAX} long: it is part of Lease names"
            ));
        }
    }
    replica
}

fn ranges(values: &Values, wrong: &mut Vec<String>) -> u16 {
    let ranges = values.int("ranges");
    let is_right = (1..=RANGES_MAX).contains(&ranges) && (ranges & (ranges - 1)) == 0;
    if !is_right {
        wrong.push(format!(
            "--ranges must be a power of two from 1 to {RANGES_MAX}, but is {ranges}"
        ));
    }
    u16::try_from(ranges).unwrap_or_default()
}

/// The times of replica Leases.
struct LeaseTimes {
    duration: Duration,
    renew_deadline: Duration,
    retry_period: Duration,
}

impl LeaseTimes {
    fn of(values: &Values, wrong: &mut Vec<String>) -> Self {
        let times = Self {
            duration: values.duration("lease-duration"),
            renew_deadline: values.duration("lease-renew-deadline"),
            retry_period: values.duration("lease-retry-period"),
        };
        let shown = |name| values.show(name);
        if times.duration <= times.renew_deadline {
            wrong.push(format!(
                "--lease-duration ({}) must be greater than --lease-renew-deadline ({})",
                shown("lease-duration"),
                shown("lease-renew-deadline")
            ));
        }
        if times.renew_deadline.as_secs_f64() <= RETRY_JITTER * times.retry_period.as_secs_f64() {
            wrong.push(format!(
                "--lease-renew-deadline ({}) must be greater than --lease-retry-period ({}) times {RETRY_JITTER}",
                shown("lease-renew-deadline"),
                shown("lease-retry-period")
            ));
        }
        // A Lease says its duration in whole seconds.
        if times.duration < Duration::from_secs(1) {
            wrong.push(format!(
                "--lease-duration must be at least 1s, but is {}",
                shown("lease-duration")
            ));
        }
        if times.retry_period.is_zero() {
            wrong.push("--lease-retry-period must be greater than 0".to_owned());
        }
        times
    }
}

fn expected_replicas(values: &Values, wrong: &mut Vec<String>) -> Option<usize> {
    let expected = values.int("expected-replicas");
    if expected < 0 {
        wrong.push(format!(
            "--expected-replicas must not be negative, but is {expected}"
        ));
    }
    let most = i64::try_from(coordinator::REPLICAS_MAX).unwrap_or(i64::MAX);
    if expected > most {
        wrong.push(format!(
            "--expected-replicas {expected} is more than the {most} replicas that a fleet may have"
        ));
    }
    usize::try_from(expected).ok().filter(|count| *count > 0)
}

fn peer_address(values: &Values, wrong: &mut Vec<String>) -> SocketAddr {
    let port = values.int("peer-port");
    if !(1..=65535).contains(&port) {
        wrong.push(format!("--peer-port {port} must be between 1 and 65535"));
    }
    let port = u16::try_from(port).unwrap_or_default();
    SocketAddr::new(values.ip("peer-bind-address"), port)
}

/// The Lease by which managers take turns, where there is one.
fn interlock(
    values: &Values,
    late_write_max: Duration,
    wrong: &mut Vec<String>,
) -> Option<InterlockOptions> {
    let interlock = values.bool("leader-elect").then(|| InterlockOptions {
        namespace: values.text("leader-elect-resource-namespace").to_owned(),
        name: values.text("leader-elect-resource-name").to_owned(),
        lease_duration: values.duration("leader-elect-lease-duration"),
        renew_deadline: values.duration("leader-elect-renew-deadline"),
        retry_period: values.duration("leader-elect-retry-period"),
    })?;
    if let Err(why) = interlock.validate(late_write_max) {
        wrong.push(why.to_string());
    }
    Some(interlock)
}

/// What a flag means that takes one of a few words, the default first.
fn one_of<T: Copy>(values: &Values, flag: &str, words: &[(&str, T)], wrong: &mut Vec<String>) -> T {
    let given = values.text(flag);
    if let Some((_, meaning)) = words.iter().find(|(word, _)| *word == given) {
        return *meaning;
    }
    let mut names: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
    let last = names.pop().unwrap_or_default();
    wrong.push(format!(
        "--{flag} {given:?} must be {} or {last}",
        names.join(", ")
    ));
    words[0].1
}

/// The pod of this replica, as others find it.
fn pod(values: &Values, surroundings: &Surroundings, wrong: &mut Vec<String>) -> String {
    let Some(given) = values.some("replica-pod") else {
        let (namespace, name) = (&surroundings.pod_namespace, &surroundings.pod_name);
        return match (namespace, name) {
            (Some(namespace), Some(name)) => format!("{namespace}/{name}"),
            _ => String::new(),
        };
    };
    let named = given
        .split_once('/')
        .is_some_and(|(namespace, name)| is_name(namespace, false) && is_name(name, true));
    if !named {
        wrong.push(format!(
            "--replica-pod {given:?} must be a namespace and a pod's name, as in manifold-system/manifold-0"
        ));
    }
    given.to_owned()
}

/// Whether a text may be part of a Lease's name. A replica's may hold dots, for hosts' names do.
fn is_name(text: &str, dots: bool) -> bool {
    let edge = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    !text.is_empty()
        && text.len() <= NAME_MAX
        && text.starts_with(edge)
        && text.ends_with(edge)
        && text
            .chars()
            .all(|c| edge(c) || c == '-' || (dots && c == '.'))
}

/// `host:port` at which others find this replica.
fn advertised(values: &Values, surroundings: &Surroundings, bound: SocketAddr) -> String {
    let port = bound.port();
    let host = match values.some("peer-advertise-address") {
        Some(given) => given.to_owned(),
        None if !bound.ip().is_unspecified() => bound.ip().to_string(),
        None => surroundings
            .pod_ip
            .clone()
            .or_else(|| surroundings.route_ip.map(|ip| ip.to_string()))
            .unwrap_or_else(|| surroundings.host_name.clone()),
    };
    match host.parse::<IpAddr>() {
        Ok(IpAddr::V6(address)) => format!("[{address}]:{port}"),
        Ok(IpAddr::V4(address)) => format!("{address}:{port}"),
        Err(_) if host.contains(':') => host,
        Err(_) => format!("{host}:{port}"),
    }
}

fn peer_transport(values: &Values, address: IpAddr, wrong: &mut Vec<String>) -> PeerTransport {
    const FILES: [&str; 3] = [
        "peer-tls-cert-file",
        "peer-tls-private-key-file",
        "peer-ca-file",
    ];
    let given: Vec<&str> = FILES
        .into_iter()
        .filter(|name| values.some(name).is_some())
        .collect();
    let insecure = values.bool("peer-insecure");
    if insecure && !given.is_empty() {
        wrong.push(format!(
            "--peer-insecure and --{} exclude each other",
            given[0]
        ));
    }
    if insecure && !address.is_loopback() {
        wrong.push(format!(
            "--peer-insecure is accepted on a loopback address only, but --peer-bind-address is {address}: \
             give --peer-bind-address=127.0.0.1, or nothing: peers speak TLS by themselves"
        ));
    }
    let trust = values.text("peer-trust");
    let pins = match trust {
        "" => None,
        "pins" | "both" => Some(true),
        "files" => Some(false),
        other => {
            wrong.push(format!(
                "--peer-trust {other:?} must be pins, files or both"
            ));
            None
        }
    };
    if insecure && !trust.is_empty() {
        wrong.push("--peer-insecure and --peer-trust exclude each other".to_owned());
    }
    match given.len() {
        0 if insecure => PeerTransport::Insecure,
        0 => {
            if pins == Some(false) || trust == "both" {
                wrong.push(format!(
                    "--peer-trust={trust} needs --{}: give the files, or leave the flag out",
                    FILES.join(", --")
                ));
            }
            PeerTransport::Pins
        }
        3 => {
            if trust == "pins" {
                wrong.push(
                    "--peer-trust=pins and certificate files exclude each other: give --peer-trust=both while a fleet \
                     moves from files to pins, and no files afterwards"
                        .to_owned(),
                );
            }
            PeerTransport::Files {
                cert_file: values.text(FILES[0]).into(),
                key_file: values.text(FILES[1]).into(),
                ca_file: values.text(FILES[2]).into(),
                pins: pins == Some(true),
            }
        }
        _ => {
            let missing: Vec<String> = FILES
                .into_iter()
                .filter(|name| values.some(name).is_none())
                .map(|name| format!("--{name}"))
                .collect();
            wrong.push(format!(
                "--{} is given without {}",
                given[0],
                missing.join(" and ")
            ));
            PeerTransport::Pins
        }
    }
}
