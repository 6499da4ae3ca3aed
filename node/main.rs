//! `manifold`: a Kubernetes controller manager in which every replica works at once.

use std::{process::ExitCode, sync::Arc};

use node::{actors::host::LateFence, config_file, ending, run, termination};
use node_options::{
    Options, Surroundings,
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
    let started = match words.first() {
        Some(first) if first == run::witness::WORD => witness(words[1..].to_vec()),
        _ => start(words),
    };
    match started {
        Ok(code) => ExitCode::from(code),
        Err(why) => {
            let line = format!("manifold: {}", why.replace('\n', " "));
            termination::add(&line);
            eprintln!("{line}");
            ExitCode::FAILURE
        }
    }
}

/// What a command line asks for.
struct Asked {
    maker: config_file::Maker,
    options: Options,
    /// What the file of `--config` held.
    content: Option<Vec<u8>>,
}

impl Asked {
    /// By these flags of a program; `None` where they ask for something that is printed, and it was.
    fn of(program: &str, words: Vec<String>) -> Result<Option<Self>, String> {
        let descriptors = node_registry::descriptors();
        let parsed = args::parse(args::flags(&descriptors), words);
        let flags = match parsed.map_err(|error| format!("{error}: see {program} --help"))? {
            Parsed::Run(flags) => flags,
            Parsed::Print(text) => {
                print!("{text}");
                return Ok(None);
            }
        };
        let maker = config_file::Maker::new(flags, descriptors, Surroundings::now());
        let (options, content) = maker.start().map_err(|error| error.to_string())?;
        // The provider is set by nobody else, and nothing before this needs it.
        let _already = rustls::crypto::ring::default_provider().install_default();
        Ok(Some(Self {
            maker,
            options,
            content,
        }))
    }
}

/// A replica.
fn start(words: Vec<String>) -> Result<u8, String> {
    let Some(asked) = Asked::of("manifold", words)? else {
        return Ok(0);
    };
    let fence = Arc::<LateFence>::default();
    ending::end_process_on_panic(Arc::clone(&fence));
    let system = actix::System::new();
    let (result, telemetry) = system.block_on(async {
        let telemetry = node_telemetry::start(&asked.options)?;
        let file = (asked.maker, asked.content);
        let result = run::run(asked.options, &telemetry, fence, file).await;
        Ok::<_, String>((result, telemetry))
    })?;
    telemetry.flush();
    result.map_err(|error| error.to_string())
}

/// A witness of one.
fn witness(words: Vec<String>) -> Result<u8, String> {
    if words
        .iter()
        .any(|word| matches!(word.as_str(), "--help" | "-h"))
    {
        print!("{}", run::witness::HELP);
        return Ok(0);
    }
    let Some(asked) = Asked::of("manifold witness", words)? else {
        return Ok(0);
    };
    let system = actix::System::new();
    let result = system.block_on(async {
        let _telemetry = node_telemetry::start(&asked.options)?;
        let result = run::witness::run(&asked.options).await;
        result.map_err(|error| error.to_string())
    });
    result.map(|()| 0)
}
