//! How the API server is spoken with.

use std::path::PathBuf;

use crate::args::Values;

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

/// By the flags.
pub(super) fn of(values: &Values, wrong: &mut Vec<String>) -> ClientOptions {
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
