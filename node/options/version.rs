//! Which version and platform this is, in upstream's words.

/// The version that is reported to dashboards which compare the control plane's parts: the Kubernetes minor
/// whose behaviour this is, then our own version.
pub const GIT_VERSION: &str = concat!("v1.36.3+manifold.", env!("CARGO_PKG_VERSION"));

/// Operating system and architecture, called as upstream calls them.
pub fn platform() -> String {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    format!("{}/{architecture}", std::env::consts::OS)
}
