use std::{sync::Arc, time::Duration};

use crate::{
    ApiError, Settings, Status,
    slot::{Failing, Order},
    watch::{Ask, Course, End},
};

const LONG: Duration = Duration::from_secs(300);

fn status(code: u16, reason: &str, retry_after: Option<u64>) -> End {
    End::Failed(ApiError::Status(Box::new(Status {
        code,
        reason: reason.to_owned(),
        retry_after: retry_after.map(Duration::from_secs),
        ..Status::default()
    })))
}

fn lost() -> End {
    End::Failed(ApiError::Transport {
        server: Arc::from("s"),
        reason: "broken".to_owned(),
        before_sending: false,
    })
}

fn garbage() -> End {
    End::Failed(ApiError::Garbage {
        server: Arc::from("s"),
        reason: "odd".to_owned(),
    })
}

struct Run {
    course: Course,
    version: u64,
}

impl Run {
    fn at(version: u64) -> Self {
        Self {
            course: Course::default(),
            version,
        }
    }

    /// Ends what is asked next; what comes after, and how many milliseconds later.
    fn end(&mut self, end: &End, progressed: bool, lived: Duration) -> (Ask, u128) {
        let ask = self.course.ask(self.version);
        let wait = self
            .course
            .ended(ask, end, progressed, lived, &Settings::default(), 0.0);
        (self.course.ask(self.version), wait.as_millis())
    }
}

#[test]
fn what_is_asked_after_what() {
    let watch = Ask::Watch { from: 7 };
    let pages = Ask::Pages { whole: false };
    // How far it has come, how the request ended, whether anything was heard: what is asked next, how much
    // later.
    let table = [
        (7, End::Closed, true, watch, 0),
        (7, End::Silent, false, watch, 0),
        (7, End::Ordered(Order::Reopen), false, watch, 0),
        (7, End::Ordered(Order::List), true, Ask::Stream, 0),
        (7, lost(), false, watch, 800),
        (7, garbage(), false, watch, 800),
        (7, status(410, "Expired", None), true, Ask::Stream, 0),
        (7, status(403, "Forbidden", None), false, watch, 800),
        (7, status(404, "NotFound", None), false, watch, 800),
        (
            7,
            status(429, "TooManyRequests", Some(2)),
            false,
            watch,
            2000,
        ),
        (7, status(422, "Invalid", None), false, watch, 800),
        (0, lost(), false, Ask::Stream, 800),
        (0, End::Silent, false, Ask::Stream, 0),
        (0, status(403, "Forbidden", None), false, Ask::Stream, 800),
        (0, status(404, "NotFound", None), false, Ask::Stream, 800),
        (0, status(410, "Expired", None), false, Ask::Stream, 800),
        (0, status(422, "Invalid", None), false, pages, 0),
        (0, status(400, "BadRequest", None), false, pages, 0),
    ];
    for (version, end, progressed, next, wait) in table {
        assert_eq!(
            Run::at(version).end(&end, progressed, LONG),
            (next, wait),
            "from {version} after {end:?}"
        );
    }
}

#[test]
fn a_watch_that_the_server_ends_at_once_is_not_asked_in_a_tight_loop() {
    let mut run = Run::at(7);
    let short = Duration::from_millis(10);
    assert_eq!(
        run.end(&End::Closed, false, short),
        (Ask::Watch { from: 7 }, 800)
    );
    assert_eq!(run.end(&End::Closed, false, short).1, 1600);
    assert_eq!(run.end(&End::Closed, true, short).1, 0);
    assert_eq!(run.end(&End::Closed, false, LONG).1, 0);
}

#[test]
fn waits_double_up_to_the_bound_and_start_again_after_a_success() {
    let mut run = Run::at(7);
    let forbidden = status(403, "Forbidden", None);
    let waits: Vec<u128> = (0..8).map(|_| run.end(&forbidden, false, LONG).1).collect();
    assert_eq!(
        waits,
        [800, 1600, 3200, 6400, 12_800, 25_600, 30_000, 30_000]
    );
    assert_eq!(run.end(&forbidden, true, LONG).1, 800);
    run.course.listed();
    assert_eq!(run.end(&forbidden, false, LONG).1, 800);
    let mut jittered = Course::default();
    let wait = jittered.ended(Ask::Stream, &lost(), false, LONG, &Settings::default(), 0.5);
    assert_eq!(wait.as_millis(), 1200);
}

#[test]
fn a_server_that_is_away_is_asked_each_second_and_its_absence_does_not_count_afterwards() {
    let mut run = Run::at(7);
    for _ in 0..50 {
        assert_eq!(run.end(&lost(), false, LONG), (Ask::Watch { from: 7 }, 800));
    }
    // It is back and has not read its roles yet.
    assert_eq!(run.end(&status(403, "Forbidden", None), false, LONG).1, 800);
    let mut jittered = Course::default();
    let watch = Ask::Watch { from: 7 };
    let wait = jittered.ended(watch, &lost(), false, LONG, &Settings::default(), 0.5);
    assert_eq!(wait.as_millis(), 1000);
    // It may have broken under the list.
    let mut run = Run::at(0);
    let waits: Vec<u128> = (0..3).map(|_| run.end(&lost(), false, LONG).1).collect();
    assert_eq!(waits, [800, 1600, 3200]);
}

#[test]
fn the_server_s_word_on_when_to_come_again_is_taken_ten_times() {
    let mut run = Run::at(7);
    for _ in 0..3 {
        run.end(&status(403, "Forbidden", None), false, LONG);
    }
    let throttled = status(429, "TooManyRequests", Some(1));
    for _ in 0..10 {
        assert_eq!(run.end(&throttled, false, LONG).1, 1000);
    }
    assert_eq!(run.end(&throttled, false, LONG).1, 6400);
}

#[test]
fn a_list_whose_pages_were_forgotten_is_asked_for_whole_and_the_next_is_streamed_again() {
    let mut run = Run::at(0);
    assert_eq!(
        run.end(&status(422, "Invalid", None), false, LONG).0,
        Ask::Pages { whole: false }
    );
    assert_eq!(
        run.end(&status(410, "Expired", None), false, LONG),
        (Ask::Pages { whole: true }, 0)
    );
    assert_eq!(run.end(&status(410, "Expired", None), false, LONG).1, 800);
    run.course.listed();
    run.version = 9;
    assert_eq!(run.end(&End::Closed, true, LONG).0, Ask::Watch { from: 9 });
    assert_eq!(
        run.end(&status(410, "Gone", None), true, LONG).0,
        Ask::Stream
    );
}

#[test]
fn a_watch_that_brings_garbage_again_and_again_is_listed_again() {
    let mut run = Run::at(7);
    assert_eq!(run.end(&garbage(), false, LONG).0, Ask::Watch { from: 7 });
    assert_eq!(run.end(&garbage(), false, LONG).0, Ask::Watch { from: 7 });
    assert_eq!(run.end(&garbage(), false, LONG).0, Ask::Stream);
}

#[test]
fn a_version_that_the_server_does_not_know_yet_is_listed_again() {
    let mut too_large = Status {
        code: 504,
        reason: "Timeout".to_owned(),
        ..Status::default()
    };
    too_large
        .details
        .causes
        .push(kubernetes_proto::meta::StatusCause {
            reason: "ResourceVersionTooLarge".to_owned(),
            ..Default::default()
        });
    let end = End::Failed(ApiError::Status(Box::new(too_large)));
    assert_eq!(Run::at(7).end(&end, false, LONG), (Ask::Stream, 800));
}

/// Who waits for a resource gives up after half a minute without answers, or two seconds of errors on end.
#[tokio::test(start_paused = true)]
async fn what_fails_for_long_is_hopeless() {
    /// Seconds at which a request failed, whether the server had answered; an instant, and whether there is
    /// no hope then.
    type Case = (&'static [(u64, bool)], u64, bool);
    let table: [Case; 8] = [
        (&[(0, true)], 1, false),
        (&[(0, true)], 2, true),
        (&[(0, true), (1, false)], 3, false),
        (&[(0, true), (1, false), (2, true)], 3, false),
        (&[(0, true), (1, false), (2, true)], 4, true),
        (&[(0, false)], 29, false),
        (&[(0, false)], 30, true),
        (&[(0, false), (29, true)], 30, true),
    ];
    let start = tokio::time::Instant::now();
    for (failures, at, hopeless) in table {
        let failing = failures.iter().fold(None, |before, (second, answered)| {
            let now = start + Duration::from_secs(*second);
            Some(Failing::again(before, *answered, now))
        });
        assert_eq!(
            failing
                .unwrap()
                .is_hopeless(start + Duration::from_secs(at)),
            hopeless,
            "{failures:?} at {at}"
        );
    }
}
