//! `kubectl manifold`: see and steer a fleet.

use std::process::ExitCode;

fn main() -> ExitCode {
    kubectl_manifold::run(std::env::args().skip(1))
}
