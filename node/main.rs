//! `manifold`: a Kubernetes controller manager in which every replica works at once.

use std::{process::ExitCode, sync::Arc};

use node::{actors::host::LateFence, config_file, ending, run, termination};
use node_options::{
    Surroundings,
    args::{self, Parsed},
    config,
};

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    // A word before any flag is none of upstream's command lines.
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words
        .first()
        .is_some_and(|first| doctor::SUBCOMMANDS.contains(&first.as_str()))
    {
        return doctor::run(
            &words,
            env!("CARGO_PKG_VERSION"),
            &node_registry::descriptors(),
        );
    }
    if words
        .first()
        .is_some_and(|first| first == config::cli::WORD)
    {
        return config::cli::run(&words, &node_registry::descriptors());
    }
    match start(words) {
        Ok(code) => ExitCode::from(code),
        Err(why) => {
            let line = format!("manifold: {}", why.replace('\n', " "));
            termination::add(&line);
            eprintln!("{line}");
            ExitCode::FAILURE
        }
    }
}

fn start(words: Vec<String>) -> Result<u8, String> {
    let descriptors = node_registry::descriptors();
    let parsed = args::parse(args::flags(&descriptors), words);
    let flags = match parsed.map_err(|error| format!("{error}: see manifold --help"))? {
        Parsed::Run(flags) => flags,
        Parsed::Print(text) => {
            print!("{text}");
            return Ok(0);
        }
    };
    let surroundings = Surroundings::now();
    let maker = config_file::Maker::new(flags, descriptors, surroundings);
    let (options, content) = maker.start().map_err(|error| error.to_string())?;
    // The provider is set by nobody else: this is the first line that needs it.
    let _already = rustls::crypto::ring::default_provider().install_default();
    let fence = Arc::<LateFence>::default();
    ending::end_process_on_panic(Arc::clone(&fence));
    let system = actix::System::new();
    let (result, telemetry) = system.block_on(async {
        let telemetry = node_telemetry::start(&options)?;
        let result = run::run(options, &telemetry, fence, (maker, content)).await;
        Ok::<_, String>((result, telemetry))
    })?;
    telemetry.flush();
    result.map_err(|error| error.to_string())
}
