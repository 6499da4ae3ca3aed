//! What the surroundings say, for the defaults that depend on them.

use std::net::IpAddr;

use crate::time_zone::{self, HostZone};

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
