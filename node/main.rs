//! `manifold`: a Kubernetes controller manager in which every replica works at once.

use std::process::ExitCode;

use node::{
    args::{self, Parsed},
    options::{Options, Surroundings},
    registry, run, telemetry,
};

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    match start() {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("manifold: {}", why.replace('\n', " "));
            ExitCode::FAILURE
        }
    }
}

fn start() -> Result<(), String> {
    let descriptors = registry::descriptors();
    let parsed = args::parse(args::flags(&descriptors), std::env::args().skip(1));
    let values = match parsed.map_err(|error| format!("{error}: see manifold --help"))? {
        Parsed::Run(values) => values,
        Parsed::Print(text) => {
            print!("{text}");
            return Ok(());
        }
    };
    let surroundings = Surroundings::now();
    let options =
        Options::new(values, &descriptors, &surroundings).map_err(|error| error.to_string())?;
    // The provider is set by nobody else: this is the first line that needs it.
    let _already = rustls::crypto::ring::default_provider().install_default();
    let system = actix::System::new();
    let (result, telemetry) = system.block_on(async {
        let telemetry = telemetry::start(&options.logging, &options.fleet.replica)?;
        let result = run::run(options, &telemetry).await;
        Ok::<_, String>((result, telemetry))
    })?;
    telemetry.flush();
    result.map_err(|error| error.to_string())
}
