use std::time::Duration;

use harness::run_test;

use crate::chaos::{Settings, run};
use crate::support::alone;

/// Another seed each time; a failure reports it.
#[test]
fn every_kind_of_fault_once_and_the_promises_hold() {
    let _alone = alone();
    let seed = std::env::var("SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or_else(rand::random::<u64>);
    run_test(async {
        let settings = Settings {
            seed,
            faults: 20,
            only: Vec::new(),
            limit: Duration::from_secs(360),
            // `cargo chaos` holds to what was promised, latencies included.
            slack: 3.0,
            latencies: false,
            frozen: Duration::from_secs(20),
        };
        run(&settings).await
    });
}
