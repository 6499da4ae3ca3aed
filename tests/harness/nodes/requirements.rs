//! What a machine must have for real nodes, and what of it this one lacks.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::toolchain::on_path;

/// Programs of the distribution that a node is made of, and the Debian package of each.
const PROGRAMS: [(&str, &str); 7] = [
    ("ip", "iproute2"),
    ("mount", "mount"),
    ("nsenter", "util-linux"),
    ("unshare", "util-linux"),
    ("sleep", "coreutils"),
    ("runc", "runc"),
    ("busybox", "busybox-static"),
];
/// Where Debian keeps the plugins that give pods their network.
pub(super) const PLUGINS: &str = "/usr/lib/cni";
const PLUGINS_NEEDED: [&str; 3] = ["ptp", "host-local", "loopback"];
/// The kubelet reads the kernel's messages.
const KERNEL_MESSAGES: &str = "/dev/kmsg";

/// Why no real node can run on this machine, one reason each with its remedy; empty where one can.
pub fn lacking() -> Vec<String> {
    let mut lacking = Vec::new();
    if !rustix::process::geteuid().is_root() {
        lacking.push("this process is not root".to_owned());
    }
    for (program, package) in PROGRAMS {
        if on_path(program).is_none() {
            lacking.push(format!(
                "no program `{program}` (`apt-get install {package}`)"
            ));
        }
    }
    for plugin in PLUGINS_NEEDED {
        if !Path::new(PLUGINS).join(plugin).is_file() {
            lacking.push(format!(
                "no {PLUGINS}/{plugin} (`apt-get install containernetworking-plugins`)"
            ));
        }
    }
    if !Path::new(KERNEL_MESSAGES).exists() {
        lacking.push(format!("no {KERNEL_MESSAGES}, which the kubelet reads"));
    }
    if super::cgroups::hierarchies().is_ok_and(|hierarchies| hierarchies.is_empty()) {
        lacking.push("no cgroup v1 hierarchies: the rig does not know cgroup v2".to_owned());
    }
    // Only asked where it can succeed: the complaint of a user who is not root would repeat the first one.
    if lacking.is_empty() && !namespaces_are_allowed() {
        lacking.push(
            "namespaces are refused (`unshare --net --mount --uts --cgroup --pid --fork` fails)"
                .to_owned(),
        );
    }
    lacking
}

fn namespaces_are_allowed() -> bool {
    let script = "mount -t proc proc /proc && mount -t tmpfs tmpfs /run && ip link add test0 type veth peer name test1";
    let status = Command::new("unshare")
        .args(["--net", "--mount", "--uts", "--cgroup", "--pid", "--fork"])
        .args(["--kill-child", "--propagation", "private", "--"])
        .args(["/bin/sh", "-ec", script])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    status.is_ok_and(|status| status.success())
}
