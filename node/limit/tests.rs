use std::time::Duration;

use controllers_kit::Timestamp;

use super::{Bucket, Limiters, PAUSE_MAX, Whose, burst_for, times};
use crate::{clock::Clock, queue::Monotonic};

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

#[test]
fn a_rate_that_changes_keeps_what_was_taken_and_a_pause() {
    // Nothing is left of the burst; half a second of the old rate comes, then the new one.
    let mut bucket = Bucket::new(20.0, 30);
    assert!((0..30).all(|_| bucket.take(ms(0)).is_zero()));
    bucket = bucket.with_rate(ms(500), 100.0, 200);
    assert!((0..10).all(|_| bucket.take(ms(500)).is_zero()));
    assert_eq!(bucket.take(ms(500)), ms(10));
    // No more than the new burst is left of the old one.
    let mut bucket = Bucket::new(20.0, 30);
    bucket = bucket.with_rate(ms(0), 1.0, 2);
    assert!((0..2).all(|_| bucket.take(ms(0)).is_zero()));
    assert_eq!(bucket.take(ms(0)), ms(1000));
    // From and to no limit.
    bucket = bucket.with_rate(ms(0), 0.0, 1);
    assert!((0..100).all(|_| bucket.take(ms(0)).is_zero()));
    bucket = bucket.with_rate(ms(0), 1.0, 3);
    assert!((0..3).all(|_| bucket.take(ms(0)).is_zero()));
    assert_eq!(bucket.take(ms(0)), ms(1000));
    bucket.pause(ms(0), ms(700));
    bucket = bucket.with_rate(ms(0), 1000.0, 1000);
    assert_eq!(
        bucket.take(ms(100)),
        ms(600),
        "the server's pause is not over"
    );
}

const SLOW: Whose = Whose::Controller("slow", (1, 1));
const OWN: Whose = Whose::Controller("own", (2, 3));

/// How many requests go at once.
fn at_once(limiters: &Limiters, whose: Whose) -> usize {
    let limiter = limiters.of(whose);
    let taken = (0..1000).take_while(|_| limiter.with(|bucket| bucket.take(ms(0)).is_zero()));
    taken.count()
}

#[test]
fn an_order_goes_before_the_configured_rate_and_its_end_brings_back_what_is_configured_by_then() {
    enum Do {
        Configure(f64, u32),
        Order(Option<f64>),
    }
    use Do::{Configure, Order};
    for (steps, slow, all, own, events) in [
        (&[][..], 30, 0, 90, 30),
        // What was there stays; it grows to the new burst at the new rate.
        (&[Configure(40.0, 50)], 30, 0, 90, 30),
        (&[Order(Some(2.0))], 3, 30, 90, 30),
        // What goes at once is as much less of the new burst.
        (&[Order(Some(2.0)), Configure(4.0, 4)], 2, 4, 12, 4),
        (
            &[Order(Some(2.0)), Configure(4.0, 4), Order(None)],
            4,
            0,
            12,
            4,
        ),
        (
            &[Configure(4.0, 4), Order(Some(40.0)), Order(None)],
            4,
            0,
            12,
            4,
        ),
        (&[Order(Some(2.0)), Order(Some(20.0))], 30, 30, 90, 30),
    ] {
        let limiters = Limiters::new((20.0, 30));
        let [_, _] = [SLOW, OWN].map(|whose| limiters.of(whose));
        for step in steps {
            match step {
                Configure(qps, burst) => limiters.configure(ms(0), (*qps, *burst)),
                Order(qps) => {
                    limiters.order(&qps.iter().map(|qps| ("slow", *qps)).collect());
                }
            }
        }
        let found = [
            SLOW,
            Whose::Controller("another", (1, 1)),
            OWN,
            Whose::Events,
        ]
        .map(|whose| at_once(&limiters, whose));
        assert_eq!(found, [slow, all, own, events]);
    }
}

/// The clock of a runtime whose time is paused.
struct Paused(tokio::time::Instant);

impl Clock for Paused {
    fn monotonic(&self) -> Monotonic {
        self.0.elapsed()
    }

    fn now(&self) -> Timestamp {
        Timestamp::UNIX_EPOCH
    }
}

#[tokio::test(start_paused = true)]
async fn who_waits_at_a_rate_that_is_no_more_has_another_turn_and_takes_one_token() {
    let limiters = Limiters::new((0.01, 1));
    let clock = Paused(tokio::time::Instant::now());
    let turn = |whose| limiters.turn(whose, &clock, std::future::pending::<()>());
    for whose in [SLOW, Whose::Events] {
        turn(whose).await.unwrap();
    }
    // Each would wait for minutes.
    let (waiting, events) = (
        vec![turn(SLOW), turn(SLOW), turn(SLOW)],
        turn(Whose::Events),
    );
    let change = async {
        tokio::time::sleep(ms(1000)).await;
        limiters.configure(clock.monotonic(), (10.0, 10));
    };
    let (writes, event, ()) = futures::join!(futures::future::join_all(waiting), events, change);
    assert!(writes.iter().all(Result::is_ok) && event.is_ok());
    // A second for the change, then ten a second.
    let is_at = |millis| {
        let took = clock.monotonic();
        assert!(took.abs_diff(ms(millis)) <= ms(10), "{took:?}, {millis}");
    };
    is_at(1300);
    turn(SLOW).await.unwrap();
    is_at(1400);
    // A wait that ends otherwise gives its token back.
    let stopped = limiters.turn(SLOW, &clock, std::future::ready("stopped"));
    assert_eq!(stopped.await.unwrap_err(), "stopped");
    turn(SLOW).await.unwrap();
    is_at(1500);
}

#[test]
fn a_part_and_answers_429_scale_all_but_what_an_order_has_set() {
    let limiters = Limiters::new((20.0, 40));
    limiters.order(&[("slow", 2.0)].into_iter().collect());
    limiters.divide(ms(0), 0.5);
    let all = [
        SLOW,
        Whose::Controller("another", (1, 1)),
        OWN,
        Whose::Events,
    ];
    let found = all.map(|whose| at_once(&limiters, whose));
    assert_eq!(found, [4, 20, 60, 20]);
    limiters.throttled(ms(0));
    assert!(limiters.was_throttled() && !limiters.was_throttled());
    assert_eq!(limiters.scale(ms(0)), (0.25, 0.5));
    // What back-pressure took comes back with the next divisions.
    limiters.divide(ms(60_000), 1.0);
    assert_eq!(limiters.scale(ms(60_000)), (1.0, 1.0));
    // Without a limit there is nothing to divide.
    let unlimited = Limiters::new((-1.0, 10));
    unlimited.divide(ms(0), 0.1);
    assert_eq!(unlimited.scale(ms(0)).0, 1.0);
}

#[tokio::test(start_paused = true)]
async fn what_waits_because_of_an_order_is_no_demand() {
    let limiters = Limiters::new((1.0, 1));
    limiters.order(&[("slow", 0.01)].into_iter().collect());
    let clock = Paused(tokio::time::Instant::now());
    let never = std::future::pending::<()>;
    let mut waiting = Vec::new();
    for whose in [SLOW, SLOW, SLOW, OWN, Whose::Events, Whose::Events] {
        let mut turn = Box::pin(limiters.turn(whose, &clock, never()));
        let _ = futures::poll!(&mut turn);
        waiting.push(turn);
    }
    assert_eq!(limiters.counts(), (3, 1), "one event waits for its turn");
    drop(waiting);
    assert_eq!(limiters.counts(), (3, 0));
}
