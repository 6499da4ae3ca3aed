use std::time::Duration;

use super::{Bucket, PAUSE_MAX, burst_for, times};

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

#[test]
fn a_burst_is_free_and_then_requests_come_at_the_rate() {
    let mut bucket = Bucket::new(20.0, 30);
    assert!((0..30).all(|_| bucket.take(ms(0)).is_zero()));
    let waits: Vec<_> = (0..3).map(|_| bucket.take(ms(0)).as_millis()).collect();
    assert_eq!(waits, [50, 100, 150]);
    assert!(
        bucket.take(ms(1000)).is_zero(),
        "a second brings 20 tokens, 3 were owed"
    );
}

#[test]
fn no_limit_means_none() {
    for qps in [0.0, -1.0] {
        let mut bucket = Bucket::new(qps, 1);
        assert!((0..10_000).all(|_| bucket.take(ms(0)).is_zero()));
    }
}

#[test]
fn a_token_not_used_goes_back() {
    let mut bucket = Bucket::new(1.0, 1);
    assert!(bucket.take(ms(0)).is_zero());
    assert_eq!(bucket.take(ms(0)), ms(1000));
    bucket.give_back();
    assert_eq!(bucket.take(ms(0)), ms(1000));
}

#[test]
fn a_pause_holds_everything_and_is_bounded() {
    let mut bucket = Bucket::new(-1.0, 1);
    bucket.pause(ms(100), ms(500));
    assert_eq!(bucket.take(ms(200)), ms(400));
    assert!(bucket.take(ms(700)).is_zero());
    bucket.pause(ms(0), Duration::from_secs(3600));
    assert_eq!(bucket.take(ms(0)), PAUSE_MAX);
}

#[test]
fn an_own_allowance_is_a_multiple_of_that_of_all() {
    for (all, factor, expected) in [
        ((20.0, 30), (20, 100), (400.0, 3000)),
        ((20.0, 30), (1, 1), (20.0, 30)),
        ((-1.0, 30), (20, 100), (-20.0, 3000)),
        ((20.0, u32::MAX), (20, 100), (400.0, u32::MAX)),
    ] {
        assert_eq!(times(all, factor), expected);
    }
    let mut unlimited = Bucket::new(-20.0, 1);
    for _ in 0..100 {
        assert_eq!(unlimited.take(Duration::ZERO), Duration::ZERO);
    }
}

#[test]
fn an_allowance_that_is_set_has_the_burst_of_that_of_all() {
    for (qps, all, expected) in [
        (20.0, (20.0, 30), 30),
        (5.0, (20.0, 30), 8),
        (0.1, (20.0, 30), 1),
        (100.0, (20.0, 30), 150),
        // All others have no limit.
        (5.0, (0.0, 1), 5),
        (0.5, (-1.0, 30), 1),
        (10_000.0, (0.001, u32::MAX), u32::MAX),
    ] {
        assert_eq!(burst_for(qps, all), expected, "{qps} of {all:?}");
    }
}
