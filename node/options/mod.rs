//! What the flags mean: typed, checked, with defaults that depend on the surroundings filled in.

mod configz;

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use controllers_kit::{
    Descriptor, FlagDefault, FlagValue, Flags,
    selection::{self, Selection},
};
use coordinator::{InterlockOptions, ServerFenceMode};
use rustls::pki_types::{CertificateDer, pem::PemObject as _};

use crate::{
    args::{self, Values},
    time_zone::{self, HostZone},
};

/// The largest number of ranges: a range Lease is one object, and each replica watches all of them.
const RANGES_MAX: i64 = 4096;

/// The deadline to renew must exceed this many retry periods, as upstream asks of its leader election: the
/// period is drawn out by jitter.
const RETRY_JITTER: f64 = 1.2;

/// The longest name of a replica or fleet: Lease names are made of both, within the 253 characters of a name.
const NAME_MAX: usize = 63;

/// How to speak with the API server.
#[derive(Clone, Debug, PartialEq)]
pub struct ClientOptions {
    /// `--kubeconfig`; without it the pod's service account.
    pub kubeconfig: Option<PathBuf>,
    /// `--master`: goes before the kubeconfig's address.
    pub master: Option<String>,
    /// Requests a second on the long run; `None`: no limit.
    pub qps: Option<f64>,
    /// Requests at once beyond that.
    pub burst: u32,
    /// Encoding of requests.
    pub content_type: String,
}

/// One more certificate, chosen by the name that the client asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedCertificate {
    /// Certificate and chain.
    pub cert_file: PathBuf,
    /// Its key.
    pub key_file: PathBuf,
    /// Names that it is for; those of the certificate where empty.
    pub names: Vec<String>,
}

/// The secure port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServingOptions {
    /// Where to listen.
    pub address: SocketAddr,
    /// `--cert-dir`.
    pub cert_dir: Option<PathBuf>,
    /// Certificate and key; `None`: self-signed.
    pub certificate: Option<(PathBuf, PathBuf)>,
    /// `--tls-sni-cert-key`.
    pub named: Vec<NamedCertificate>,
    /// IANA names; empty: all that are offered.
    pub cipher_suites: Vec<String>,
    /// Numbers of key exchanges; empty: all that are offered.
    pub curves: Vec<u16>,
    /// TLS 1.3 alone.
    pub only_tls13: bool,
    /// `--disable-http2-serving`.
    pub http2: bool,
    /// Requests at once on one HTTP/2 connection.
    pub http2_streams_max: u32,
    /// SO_REUSEADDR.
    pub address_sharing: bool,
    /// SO_REUSEPORT.
    pub port_sharing: bool,
    /// The node's addresses, for which places are kept as for this host itself.
    pub own_addresses: Vec<IpAddr>,
}

/// Who somebody is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthenticationOptions {
    /// With the right to create TokenReviews.
    pub kubeconfig: Option<PathBuf>,
    /// Do not read client CAs from the cluster.
    pub skip_lookup: bool,
    /// Start also where the lookup fails.
    pub tolerate_lookup_failure: bool,
    /// How long an answer about a token is remembered.
    pub token_ttl: Duration,
    /// Authorities of client certificates.
    pub client_ca_file: Option<PathBuf>,
    /// Authorities of proxies that name users in headers.
    pub proxy_ca_file: Option<PathBuf>,
    /// Common names of such proxies; all where empty.
    pub proxy_names: Vec<String>,
    /// Headers with a user's name.
    pub user_headers: Vec<String>,
    /// Headers with a user's groups.
    pub group_headers: Vec<String>,
    /// Headers with a user's UID.
    pub uid_headers: Vec<String>,
    /// Whether a client's certificate may name a UID.
    pub certificate_uids: bool,
    /// Prefixes of headers with extra fields.
    pub extra_prefixes: Vec<String>,
}

/// What somebody may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthorizationOptions {
    /// With the right to create SubjectAccessReviews.
    pub kubeconfig: Option<PathBuf>,
    /// Paths that everybody may get.
    pub always_allow_paths: Vec<String>,
    /// How long a yes is remembered.
    pub allow_ttl: Duration,
    /// How long a no is remembered.
    pub deny_ttl: Duration,
}

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

/// What the name of each shadow's fleet ends with, and of no other's.
pub const SHADOW_ENDING: &str = "-shadow";

/// A shadow beside the manager in charge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShadowOptions {
    /// How long the manager in charge may take.
    pub patience: Duration,
    /// When the process ends by itself, and reports; never where it is `None`.
    pub ends_after: Option<Duration>,
    /// Namespace and name of the Lease that names who is in charge; `None` with `--leader-elect=false`:
    /// somebody is.
    pub manager: Option<(String, String)>,
}

/// How logs are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoggingOptions {
    /// JSON, one object a line, instead of text.
    pub json: bool,
    /// `-v`.
    pub verbosity: i64,
    /// `--vmodule`.
    pub modules: Vec<(String, i64)>,
}

/// What the surroundings say, for the defaults that depend on them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Surroundings {
    /// `$POD_NAME`.
    pub pod_name: Option<String>,
    /// `$POD_NAMESPACE`.
    pub pod_namespace: Option<String>,
    /// `$POD_IP`, or the first of `$POD_IPS`.
    pub pod_ip: Option<String>,
    /// The address from which this host speaks to others by its default route.
    pub route_ip: Option<IpAddr>,
    /// `$HOST_IPS`: the addresses of the pod's node, from where a kubelet probes.
    pub host_ips: Option<String>,
    /// The host's name.
    pub host_name: String,
    /// The host's time zone; `None` for UTC.
    pub time_zone: Option<HostZone>,
    /// The options are another host's: files that they name are not read.
    pub elsewhere: bool,
}

impl Surroundings {
    /// Those of this process.
    pub fn now() -> Self {
        let set = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        let host_name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        Self {
            pod_name: set("POD_NAME"),
            pod_namespace: set("POD_NAMESPACE"),
            pod_ip: set("POD_IP").or_else(|| {
                let all = set("POD_IPS")?;
                let first = all.split(',').map(str::trim).find(|ip| !ip.is_empty())?;
                Some(first.to_owned())
            }),
            route_ip: route_ip(),
            host_ips: set("HOST_IPS"),
            host_name: host_name.trim().to_owned(),
            time_zone: time_zone::host_zone(),
            elsewhere: false,
        }
    }
}

/// The source address of the default route, of IPv4 before IPv6; nothing is sent for it.
fn route_ip() -> Option<IpAddr> {
    // Addresses that documentation alone may use: whatever they stand for is behind the default route.
    let routes = [("0.0.0.0:0", "192.0.2.1:9"), ("[::]:0", "[2001:db8::1]:9")];
    routes.into_iter().find_map(|(from, to)| {
        let socket = std::net::UdpSocket::bind(from).ok()?;
        socket.connect(to).ok()?;
        let ip = socket.local_addr().ok()?.ip();
        (!ip.is_unspecified() && !ip.is_loopback()).then_some(ip)
    })
}

/// The node's configuration.
#[derive(Clone, Debug)]
pub struct Options {
    /// How to speak with the API server.
    pub client: ClientOptions,
    /// The secure port.
    pub serving: ServingOptions,
    /// Who somebody is.
    pub authentication: AuthenticationOptions,
    /// What somebody may do.
    pub authorization: AuthorizationOptions,
    /// Canonical names of the controllers to run, in the order of their descriptors.
    pub controllers: Vec<&'static str>,
    /// The values of the flags that controllers declare.
    pub flags: Flags,
    /// The host's time zone, which the flags hand to controllers; `None` for UTC.
    pub time_zone: Option<HostZone>,
    /// The fleet.
    pub fleet: FleetOptions,
    /// Whether nothing is written, and what is planned is compared.
    pub shadow: Option<ShadowOptions>,
    /// Namespace and name of the Pod that this process runs in, as far as it is known.
    pub pod: Option<(String, String)>,
    /// Logs.
    pub logging: LoggingOptions,
    /// A TracingConfiguration.
    pub tracing_config_file: Option<PathBuf>,
    /// Each controller acts as a service account of its own.
    pub use_service_account_credentials: bool,
    /// Every object is examined again after a random time between this and its double.
    pub min_resync_period: Duration,
    /// Pause between the starts of two controllers.
    pub controller_start_interval: Duration,
    /// How long the handing over of work may take at the end.
    pub controller_shutdown_timeout: Duration,
    /// Answer below /debug/pprof/.
    pub profiling: bool,
    /// Metrics that are not shown.
    pub disabled_metrics: Vec<String>,
    /// Feature gates that were set.
    pub feature_gates: BTreeMap<&'static str, bool>,
    /// What was accepted and has no effect: one line to be logged, if any.
    pub warning: Option<String>,
    values: Values,
}

/// The options in force: those of the start, and of what a change of the configuration file has changed
/// since.
pub type InForce = arc_swap::ArcSwap<Options>;

/// Everything that is wrong with the options, each a sentence that names the flag.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.join("; "))]
pub struct Invalid(pub Vec<String>);

impl Options {
    /// From the flags' values. Reads the files that controllers' flags name, and no others.
    ///
    /// # Errors
    /// With everything that is wrong, not just the first.
    pub fn new(
        values: Values,
        descriptors: &[Descriptor],
        surroundings: &Surroundings,
    ) -> Result<Self, Invalid> {
        let mut wrong = Vec::new();
        let mut idle: Vec<String> = values
            .without_effect()
            .map(|(flag, why)| format!("--{flag} ({why})"))
            .collect();
        let feature_gates =
            args::feature_gates(values.map("feature-gates")).unwrap_or_else(|why| {
                wrong.push(why);
                BTreeMap::new()
            });
        idle.extend(
            feature_gates
                .iter()
                .filter(|(name, on)| {
                    let is_asked_for = descriptors
                        .iter()
                        .flat_map(|descriptor| &descriptor.gates)
                        .any(|(asked, _)| asked == *name);
                    !is_asked_for && **on != args::gate(name, &BTreeMap::new())
                })
                .map(|(name, on)| {
                    format!("--feature-gates={name}={on} (no built controller asks for it)")
                }),
        );
        let time_zone = surroundings.time_zone.clone();
        let mut flags = flags(
            &values,
            descriptors,
            &feature_gates,
            surroundings,
            &mut wrong,
        );
        if let Some(HostZone { zone, .. }) = &time_zone {
            flags.set_local_zone(zone.clone());
        }
        let mut fleet = fleet(&values, surroundings, &mut wrong);
        let shadow = shadow(&values, &mut fleet, &mut wrong, &mut idle);
        let options = Self {
            client: client(&values, &mut wrong),
            serving: serving(&values, surroundings, &mut wrong, &mut idle),
            authentication: authentication(&values, &feature_gates, &mut wrong),
            authorization: authorization(&values, &mut wrong),
            controllers: controllers(&values, descriptors, &mut wrong, &mut idle),
            flags,
            time_zone,
            fleet,
            pod: surroundings
                .pod_namespace
                .clone()
                .zip(surroundings.pod_name.clone())
                // An event at it would be a write.
                .filter(|_| shadow.is_none()),
            logging: logging(&values, &mut wrong),
            tracing_config_file: values.some("tracing-config-file").map(PathBuf::from),
            use_service_account_credentials: values.bool("use-service-account-credentials")
                && shadow.is_none(),
            shadow,
            min_resync_period: values.duration("min-resync-period"),
            controller_start_interval: values.duration("controller-start-interval"),
            controller_shutdown_timeout: values.duration("controller-shutdown-timeout"),
            profiling: values.bool("profiling"),
            disabled_metrics: values.list("disabled-metrics").to_vec(),
            feature_gates,
            warning: None,
            values,
        };
        options.validate(&mut wrong, &mut idle);
        if !wrong.is_empty() {
            return Err(Invalid(wrong));
        }
        let warning = (!idle.is_empty()).then(|| {
            format!(
                "accepted, but without effect in this build: {}",
                idle.join(", ")
            )
        });
        Ok(Self { warning, ..options })
    }

    /// What concerns no one group.
    fn validate(&self, wrong: &mut Vec<String>, idle: &mut Vec<String>) {
        let values = &self.values;
        match values.text("cloud-provider") {
            "" => {}
            "external" => {}
            other => wrong.push(format!(
                "cloud provider {other:?} was specified, but built-in cloud providers are disabled: \
                 set --cloud-provider=external and run a cloud controller manager"
            )),
        }
        match values.text("cidr-allocator-type") {
            "" | "RangeAllocator" => {}
            other => wrong.push(format!(
                "--cidr-allocator-type {other:?}: only RangeAllocator is available without built-in cloud providers"
            )),
        }
        if self.fleet.server_fence == ServerFenceMode::On && !self.use_service_account_credentials {
            wrong.push(
                "--server-fence=on needs --use-service-account-credentials=true: only a write in the name of a service \
                 account can carry the incarnation by which it is refused"
                    .to_owned(),
            );
        }
        if values.bool("leader-elect") && values.text("leader-elect-resource-lock") != "leases" {
            wrong.push("--leader-elect-resource-lock must be \"leases\"".to_owned());
        }
        for flag in ["emulated-version", "min-compatibility-version"] {
            for text in values.list(flag) {
                match emulated(text) {
                    Some((1, 36)) => {}
                    Some((1, 33..36)) => {
                        idle.push(format!("--{flag}={text} (only 1.36 is built)"));
                    }
                    _ => wrong.push(format!(
                        "--{flag} {text:?} must be a version from 1.33 to 1.36, as in 1.36 or kube=1.36"
                    )),
                }
            }
        }
        for flag in [
            "min-resync-period",
            "controller-start-interval",
            "controller-shutdown-timeout",
        ] {
            if values.show(flag).starts_with('-') {
                wrong.push(format!(
                    "--{flag} must not be negative, but is {}",
                    values.show(flag)
                ));
            }
        }
    }

    /// Whether a feature gate is on.
    pub fn gate(&self, name: &str) -> bool {
        args::gate(name, &self.feature_gates)
    }

    /// Whether the number of workers by this flag is the default's and may grow.
    pub fn adapts(&self, flag: &str) -> bool {
        self.fleet.adapts_workers && !self.values.given(flag)
    }

    /// The flags' values as given.
    pub fn values(&self) -> &Values {
        &self.values
    }

    /// `/configz`.
    pub fn configz(&self) -> serde_json::Value {
        configz::configz(self)
    }
}

/// Major and minor of `1.36` or `kube=1.36`.
fn emulated(text: &str) -> Option<(u32, u32)> {
    let version = text.strip_prefix("kube=").unwrap_or(text);
    let (major, minor) = version.trim_start_matches('v').split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

fn client(values: &Values, wrong: &mut Vec<String>) -> ClientOptions {
    /// What a client of upstream's does without figures.
    const QPS_UNSET: f64 = 5.0;
    const BURST_UNSET: u32 = 10;
    let content_type = values.text("kube-api-content-type");
    let qps = values.float("kube-api-qps");
    let burst = values.int("kube-api-burst");
    if burst < 0 && qps >= 0.0 {
        wrong.push(format!(
            "--kube-api-burst must not be negative, but is {burst}"
        ));
    }
    let path = |name| values.some(name).map(PathBuf::from);
    ClientOptions {
        kubeconfig: path("kubeconfig"),
        master: values.some("master").map(str::to_owned),
        qps: match qps {
            qps if qps < 0.0 => None,
            0.0 => Some(QPS_UNSET),
            qps => Some(qps),
        },
        burst: match u32::try_from(burst) {
            Ok(0) | Err(_) => BURST_UNSET,
            Ok(burst) => burst,
        },
        content_type: content_type.to_owned(),
    }
}

fn serving(
    values: &Values,
    surroundings: &Surroundings,
    wrong: &mut Vec<String>,
    idle: &mut Vec<String>,
) -> ServingOptions {
    /// What upstream's server takes where the flag is 0: its clients begin with as many.
    const HTTP2_STREAMS_UNSET: u32 = 100;
    let port = values.int("secure-port");
    if !(1..=65535).contains(&port) {
        wrong.push(format!(
            "--secure-port {port} must be between 1 and 65535, inclusive. It cannot be turned off with 0"
        ));
    }
    let certificate = match (
        values.some("tls-cert-file"),
        values.some("tls-private-key-file"),
    ) {
        (Some(cert), Some(key)) => Some((PathBuf::from(cert), PathBuf::from(key))),
        (None, None) => None,
        (Some(_), None) => {
            wrong.push(
                "--tls-cert-file is given without --tls-private-key-file: give both".to_owned(),
            );
            None
        }
        (None, Some(_)) => {
            wrong.push(
                "--tls-private-key-file is given without --tls-cert-file: give both".to_owned(),
            );
            None
        }
    };
    let only_tls13 = match values.text("tls-min-version") {
        "" | "VersionTLS12" => false,
        "VersionTLS13" => true,
        old @ ("VersionTLS10" | "VersionTLS11") => {
            idle.push(format!(
                "--tls-min-version={old} (TLS 1.2 is the oldest that is spoken)"
            ));
            false
        }
        other => {
            wrong.push(format!(
                "unknown tls version {other:?}: --tls-min-version must be VersionTLS12 or VersionTLS13"
            ));
            false
        }
    };
    let cipher_suites = cipher_suites(values.list("tls-cipher-suites"), wrong, idle);
    let curves = curves(values.list("tls-curve-preferences"), wrong, idle);
    let streams = values.int("http2-max-streams-per-connection");
    ServingOptions {
        address: SocketAddr::new(
            values.ip("bind-address"),
            u16::try_from(port).unwrap_or_default(),
        ),
        cert_dir: values.some("cert-dir").map(PathBuf::from),
        certificate,
        named: values
            .list("tls-sni-cert-key")
            .iter()
            .map(|text| named_certificate(text))
            .collect(),
        cipher_suites,
        curves,
        only_tls13,
        http2: !values.bool("disable-http2-serving"),
        http2_streams_max: match u32::try_from(streams) {
            Ok(0) => HTTP2_STREAMS_UNSET,
            Ok(streams) => streams,
            Err(_) => {
                wrong.push(format!(
                    "--http2-max-streams-per-connection must be from 0 to {}, but is {streams}",
                    u32::MAX
                ));
                HTTP2_STREAMS_UNSET
            }
        },
        address_sharing: values.bool("permit-address-sharing"),
        port_sharing: values.bool("permit-port-sharing"),
        own_addresses: surroundings
            .host_ips
            .iter()
            .flat_map(|text| text.split(','))
            .filter_map(|text| text.trim().parse().ok())
            .collect(),
    }
}

/// `cert,key:name,name`, which the parser has checked.
fn named_certificate(text: &str) -> NamedCertificate {
    let (cert, key, names) = args::named_cert(text);
    NamedCertificate {
        cert_file: cert.into(),
        key_file: key.into(),
        names: names.into_iter().map(str::to_ascii_lowercase).collect(),
    }
}

/// Names that upstream knows, and whether this build speaks them.
const CIPHER_SUITES: &[(&str, bool)] = &[
    ("TLS_AES_128_GCM_SHA256", true),
    ("TLS_AES_256_GCM_SHA384", true),
    ("TLS_CHACHA20_POLY1305_SHA256", true),
    ("TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", true),
    ("TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", true),
    ("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305", true),
    ("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256", true),
    ("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", true),
    ("TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", true),
    ("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305", true),
    ("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256", true),
    ("TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA", false),
    ("TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256", false),
    ("TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA", false),
    ("TLS_ECDHE_ECDSA_WITH_RC4_128_SHA", false),
    ("TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA", false),
    ("TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA", false),
    ("TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256", false),
    ("TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA", false),
    ("TLS_ECDHE_RSA_WITH_RC4_128_SHA", false),
    ("TLS_RSA_WITH_3DES_EDE_CBC_SHA", false),
    ("TLS_RSA_WITH_AES_128_CBC_SHA", false),
    ("TLS_RSA_WITH_AES_128_CBC_SHA256", false),
    ("TLS_RSA_WITH_AES_128_GCM_SHA256", false),
    ("TLS_RSA_WITH_AES_256_CBC_SHA", false),
    ("TLS_RSA_WITH_AES_256_GCM_SHA384", false),
    ("TLS_RSA_WITH_RC4_128_SHA", false),
];

fn cipher_suites(given: &[String], wrong: &mut Vec<String>, idle: &mut Vec<String>) -> Vec<String> {
    let mut spoken = Vec::new();
    for name in given {
        match CIPHER_SUITES.iter().find(|(known, _)| known == name) {
            Some((_, true)) => spoken.push(name.clone()),
            Some((_, false)) => {
                idle.push(format!("--tls-cipher-suites={name} (not spoken: it lacks forward secrecy or an AEAD)"));
            }
            None => wrong.push(format!(
                "Cipher suite {name} not supported or doesn't exist: --tls-cipher-suites takes IANA names, see --help"
            )),
        }
    }
    if !given.is_empty() && spoken.is_empty() && wrong.is_empty() {
        wrong.push(format!(
            "none of --tls-cipher-suites {} is spoken by this build: add TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256 or \
             another with ECDHE and GCM or CHACHA20",
            given.join(",")
        ));
    }
    spoken
}

fn curves(given: &[String], wrong: &mut Vec<String>, idle: &mut Vec<String>) -> Vec<u16> {
    /// P-256, P-384 and X25519: what ring offers.
    const SPOKEN: [u16; 3] = [23, 24, 29];
    /// P-521 and the post-quantum hybrids, which upstream knows.
    const KNOWN: [u16; 4] = [25, 4587, 4588, 4589];
    let mut spoken = Vec::new();
    for text in given {
        match text.parse::<u16>() {
            Ok(number) if SPOKEN.contains(&number) => spoken.push(number),
            Ok(number) if KNOWN.contains(&number) => {
                idle.push(format!("--tls-curve-preferences={number} (not offered)"));
            }
            _ => wrong.push(format!(
                "--tls-curve-preferences {text}: there is no such key exchange; 23 is P-256, 24 is P-384, 29 is X25519"
            )),
        }
    }
    if !given.is_empty() && spoken.is_empty() && wrong.is_empty() {
        wrong.push("none of --tls-curve-preferences is offered by this build: add 29 (X25519) or 23 (P-256)".to_owned());
    }
    spoken
}

/// The gate of UIDs in headers.
const HEADER_UIDS: &str = "RemoteRequestHeaderUID";
/// The gate of UIDs in certificates.
const CERTIFICATE_UIDS: &str = "AllowParsingUserUIDFromCertAuth";

fn authentication(
    values: &Values,
    gates: &BTreeMap<&'static str, bool>,
    wrong: &mut Vec<String>,
) -> AuthenticationOptions {
    let path = |name| values.some(name).map(PathBuf::from);
    // Header names are compared without regard to case.
    let headers = |name: &'static str| -> Vec<String> {
        values
            .list(name)
            .iter()
            .map(|text| text.trim().to_ascii_lowercase())
            .collect()
    };
    for flag in [
        "requestheader-username-headers",
        "requestheader-group-headers",
        "requestheader-uid-headers",
        "requestheader-extra-headers-prefix",
    ] {
        for name in headers(flag) {
            if http::HeaderName::try_from(name.as_str()).is_err() {
                wrong.push(format!("--{flag}: {name:?} is no header's name"));
            }
        }
    }
    let uid_headers = headers("requestheader-uid-headers");
    if !uid_headers.is_empty() && !args::gate(HEADER_UIDS, gates) {
        wrong.push(format!(
            "--requestheader-uid-headers requires the \"{HEADER_UIDS}\" feature to be enabled"
        ));
    } else if !uid_headers.is_empty() && !uid_headers.iter().any(|name| name == "x-remote-uid") {
        wrong.push(
            "--requestheader-uid-headers is set without specifying the standard X-Remote-Uid header - API \
             aggregation will not work"
                .to_owned(),
        );
    }
    AuthenticationOptions {
        kubeconfig: path("authentication-kubeconfig"),
        skip_lookup: values.bool("authentication-skip-lookup"),
        tolerate_lookup_failure: values.bool("authentication-tolerate-lookup-failure"),
        token_ttl: values.duration("authentication-token-webhook-cache-ttl"),
        client_ca_file: path("client-ca-file"),
        proxy_ca_file: path("requestheader-client-ca-file"),
        proxy_names: values.list("requestheader-allowed-names").to_vec(),
        user_headers: headers("requestheader-username-headers"),
        group_headers: headers("requestheader-group-headers"),
        uid_headers,
        certificate_uids: args::gate(CERTIFICATE_UIDS, gates),
        extra_prefixes: headers("requestheader-extra-headers-prefix"),
    }
}

fn authorization(values: &Values, wrong: &mut Vec<String>) -> AuthorizationOptions {
    let paths = values.list("authorization-always-allow-paths");
    for path in paths {
        let body = path.strip_suffix('*').unwrap_or(path);
        if body.contains('*') {
            wrong.push(format!(
                "--authorization-always-allow-paths: only trailing * allowed in {path:?}"
            ));
        }
    }
    AuthorizationOptions {
        kubeconfig: values.some("authorization-kubeconfig").map(PathBuf::from),
        // As upstream: a missing slash in front is put there.
        always_allow_paths: paths
            .iter()
            .map(|path| format!("/{}", path.trim_start_matches('/')))
            .collect(),
        allow_ttl: values.duration("authorization-webhook-cache-authorized-ttl"),
        deny_ttl: values.duration("authorization-webhook-cache-unauthorized-ttl"),
    }
}

/// Which of the built controllers run. The first entry that names one decides; without one, `*` does.
fn controllers(
    values: &Values,
    descriptors: &[Descriptor],
    wrong: &mut Vec<String>,
    idle: &mut Vec<String>,
) -> Vec<&'static str> {
    let entries = || values.list("controllers").iter().map(String::as_str);
    let known = |name: &str| args::canonical(name, descriptors).is_some();
    for entry in entries().filter(|entry| *entry != "*") {
        let name = entry.strip_prefix('-').unwrap_or(entry);
        if !known(name) {
            let hint = args::like_controller(name)
                .map(|known| format!(" (did you mean {known}?)"))
                .unwrap_or_default();
            wrong.push(format!(
                "{name:?} is not in the list of known controllers{hint}: --controllers takes the names that --help shows"
            ));
            continue;
        }
        let built = selection::canonical(name, descriptors).is_some();
        if name == entry && !built {
            idle.push(format!("--controllers={entry} (not built yet)"));
        }
    }
    let built = entries().filter(|entry| {
        let name = entry.strip_prefix('-').unwrap_or(entry);
        *entry == "*" || selection::canonical(name, descriptors).is_some()
    });
    let selection = Selection::of(built, descriptors).unwrap_or_default();
    descriptors
        .iter()
        .filter(|one| selection.selects(one))
        .map(|one| one.name)
        .collect()
}

/// Numbers of workers that upstream wants to be at least 1. With any other a controller without workers is
/// accepted, and does nothing.
const WORKERS_AT_LEAST_ONE: [&str; 5] = [
    "concurrent-cron-job-syncs",
    "concurrent-daemonset-syncs",
    "concurrent-horizontal-pod-autoscaler-syncs",
    "concurrent-job-syncs",
    "concurrent-statefulset-syncs",
];

fn flags(
    values: &Values,
    descriptors: &[Descriptor],
    gates: &BTreeMap<&'static str, bool>,
    surroundings: &Surroundings,
    wrong: &mut Vec<String>,
) -> Flags {
    let mut flags = Flags::defaults(descriptors);
    for descriptor in descriptors {
        for (name, _) in &descriptor.gates {
            flags.set(name, FlagValue::Bool(args::gate(name, gates)));
        }
        for flag in &descriptor.flags {
            let name = flag.name;
            let value = match &flag.default {
                FlagDefault::Int(_) => FlagValue::Int(values.int(name)),
                FlagDefault::Float(_) => FlagValue::Float(values.float(name)),
                FlagDefault::Bool(_) => FlagValue::Bool(values.bool(name)),
                FlagDefault::Duration(_) => FlagValue::Duration(values.duration(name)),
                FlagDefault::Text(_) => FlagValue::Text(values.text(name).to_owned()),
                FlagDefault::File if surroundings.elsewhere => FlagValue::File(None),
                FlagDefault::File => FlagValue::File(file(name, values, wrong)),
            };
            flags.set(name, value);
        }
        for (name, least, most) in &descriptor.bounds {
            let value = values.int(name);
            if value < *least {
                wrong.push(format!(
                    "{name} must not be less than {least}, but got {value}"
                ));
            } else if value > *most {
                wrong.push(format!(
                    "{name} must not be more than {most}, but got {value}"
                ));
            }
        }
        if let Some((name, _)) = descriptor.workers
            && WORKERS_AT_LEAST_ONE.contains(&name)
            && values.int(name) < 1
        {
            wrong.push(format!(
                "{name} must be greater than 0, but got {}",
                values.int(name)
            ));
        }
    }
    flags
}

/// What lies in the file that a controller's flag names.
fn file(flag: &str, values: &Values, wrong: &mut Vec<String>) -> Option<Vec<u8>> {
    let path = values.some(flag)?;
    let content = match std::fs::read(path) {
        Ok(content) => content,
        Err(why) => {
            wrong.push(format!("--{flag}: can't read {path}: {why}"));
            return None;
        }
    };
    if flag.ends_with("ca-file") {
        let certificates = CertificateDer::pem_slice_iter(&content).collect::<Result<Vec<_>, _>>();
        match certificates {
            Ok(certificates) if !certificates.is_empty() => {}
            _ => wrong.push(format!("--{flag}: {path} holds no certificate in PEM form")),
        }
    }
    Some(content)
}

fn fleet(values: &Values, surroundings: &Surroundings, wrong: &mut Vec<String>) -> FleetOptions {
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
    let ranges = values.int("ranges");
    let ranges_right = (1..=RANGES_MAX).contains(&ranges) && (ranges & (ranges - 1)) == 0;
    if !ranges_right {
        wrong.push(format!(
            "--ranges must be a power of two from 1 to {RANGES_MAX}, but is {ranges}"
        ));
    }
    let lease_duration = values.duration("lease-duration");
    let renew_deadline = values.duration("lease-renew-deadline");
    let retry_period = values.duration("lease-retry-period");
    let shown = |name| values.show(name);
    if lease_duration <= renew_deadline {
        wrong.push(format!(
            "--lease-duration ({}) must be greater than --lease-renew-deadline ({})",
            shown("lease-duration"),
            shown("lease-renew-deadline")
        ));
    }
    if renew_deadline.as_secs_f64() <= RETRY_JITTER * retry_period.as_secs_f64() {
        wrong.push(format!(
            "--lease-renew-deadline ({}) must be greater than --lease-retry-period ({}) times {RETRY_JITTER}",
            shown("lease-renew-deadline"),
            shown("lease-retry-period")
        ));
    }
    // A Lease says its duration in whole seconds.
    if lease_duration < Duration::from_secs(1) {
        wrong.push(format!(
            "--lease-duration must be at least 1s, but is {}",
            shown("lease-duration")
        ));
    }
    if retry_period.is_zero() {
        wrong.push("--lease-retry-period must be greater than 0".to_owned());
    }
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
    let port = values.int("peer-port");
    if !(1..=65535).contains(&port) {
        wrong.push(format!("--peer-port {port} must be between 1 and 65535"));
    }
    let peer_address = SocketAddr::new(
        values.ip("peer-bind-address"),
        u16::try_from(port).unwrap_or_default(),
    );
    let interlock = values.bool("leader-elect").then(|| InterlockOptions {
        namespace: values.text("leader-elect-resource-namespace").to_owned(),
        name: values.text("leader-elect-resource-name").to_owned(),
        lease_duration: values.duration("leader-elect-lease-duration"),
        renew_deadline: values.duration("leader-elect-renew-deadline"),
        retry_period: values.duration("leader-elect-retry-period"),
    });
    let late_write_max = lease_duration.saturating_sub(renew_deadline);
    if let Some(Err(why)) = interlock
        .as_ref()
        .map(|lease| lease.validate(late_write_max))
    {
        wrong.push(why.to_string());
    }
    FleetOptions {
        interlock,
        peer_advertised: advertised(values, surroundings, peer_address),
        peer_transport: peer_transport(values, peer_address.ip(), wrong),
        peer_address,
        peer_port_is_default: !values.given("peer-port"),
        adapts_workers: values.bool("adaptive-workers"),
        divides_api_budget: match values.text("kube-api-budget") {
            "fleet" => true,
            "replica" => false,
            other => {
                wrong.push(format!(
                    "--kube-api-budget {other:?} must be fleet or replica"
                ));
                true
            }
        },
        server_fence: match values.text("server-fence") {
            "auto" => ServerFenceMode::Auto,
            "on" => ServerFenceMode::On,
            "off" => ServerFenceMode::Off,
            other => {
                wrong.push(format!("--server-fence {other:?} must be auto, on or off"));
                ServerFenceMode::Auto
            }
        },
        replica,
        fleet: values.text("fleet-name").to_owned(),
        namespace: values.text("fleet-namespace").to_owned(),
        ranges: u16::try_from(ranges).unwrap_or_default(),
        lease_duration,
        renew_deadline,
        retry_period,
        expected_replicas: usize::try_from(expected).ok().filter(|count| *count > 0),
        settle_time: values.duration("settle-time"),
        slow_start_period: values.duration("slow-start-period"),
        load_aware_placement: values.bool("load-aware-placement"),
        pod: pod(values, surroundings, wrong),
        termination_message: PathBuf::from(values.text("termination-message-path")),
        lock_dir: values.some("lock-dir").map(PathBuf::from),
    }
}

/// The shadow, where it is asked for; the fleet is made one that no fleet at work can be.
fn shadow(
    values: &Values,
    fleet: &mut FleetOptions,
    wrong: &mut Vec<String>,
    idle: &mut Vec<String>,
) -> Option<ShadowOptions> {
    if !values.bool("shadow") {
        for flag in ["shadow-patience", "shadow-for"] {
            // A file that lists every field with its default asks for nothing.
            let spec = values.specs().iter().find(|spec| spec.name == flag);
            if values.given(flag) && spec.is_some_and(|spec| *values.get(flag) != spec.default) {
                wrong.push(format!(
                    "--{flag} needs --shadow: without it nothing is compared"
                ));
            }
        }
        if fleet.fleet.ends_with(SHADOW_ENDING) {
            wrong.push(format!(
                "--fleet-name {:?} ends with {SHADOW_ENDING}, as the names of shadows alone do: give another name, or \
                 --shadow",
                fleet.fleet
            ));
        }
        return None;
    }
    if fleet.server_fence == ServerFenceMode::On {
        wrong.push(
            "--shadow contradicts --server-fence=on: a shadow sends no write that could be fenced; leave one of them out"
                .to_owned(),
        );
    }
    fleet.server_fence = ServerFenceMode::Off;
    if values.bool("use-service-account-credentials") {
        idle.push(
            "--use-service-account-credentials (a shadow makes no tokens and reads in its own name)".to_owned(),
        );
    }
    if !fleet.fleet.ends_with(SHADOW_ENDING) {
        fleet.fleet.push_str(SHADOW_ENDING);
    }
    if fleet.fleet.len() > NAME_MAX {
        wrong.push(format!(
            "--fleet-name {:?} is longer than {NAME_MAX}: give a shorter one, the ending {SHADOW_ENDING} included",
            fleet.fleet
        ));
    }
    let patience = values.duration("shadow-patience");
    if patience < Duration::from_secs(1) {
        wrong.push(format!(
            "--shadow-patience must be at least 1s, but is {}",
            values.show("shadow-patience")
        ));
    }
    // It never holds the Lease of the managers, and waits for nobody who does.
    let manager = fleet
        .interlock
        .take()
        .map(|lease| (lease.namespace, lease.name));
    Some(ShadowOptions {
        patience,
        ends_after: Some(values.duration("shadow-for")).filter(|after| !after.is_zero()),
        manager,
    })
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

fn logging(values: &Values, wrong: &mut Vec<String>) -> LoggingOptions {
    let format = values.text("logging-format");
    if !["text", "json"].contains(&format) {
        wrong.push(format!(
            "format: Invalid value: {format:?}: --logging-format must be text or json"
        ));
    }
    let modules = args::module_levels(values.text("vmodule"));
    if format == "json" && !modules.is_empty() {
        wrong.push("--vmodule works with --logging-format=text only".to_owned());
    }
    LoggingOptions {
        json: format == "json",
        verbosity: values.int("v"),
        modules,
    }
}

#[cfg(test)]
mod tests;
