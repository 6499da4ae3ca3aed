//! The threads that actors run on: how many there are, and when they go to sleep.
//!
//! What a replica does comes in small pieces, a change of a pod, an answer to a write, and each of them alone
//! would wake a thread, read from a connection, and put the thread to sleep again. That took a third of the
//! processor time. So there are few threads, where one piece of work leads to the next without waking another
//! thread, and a thread that is busy sleeps a little longer and takes together what has come meanwhile. That
//! holds up the workers that wait for an answer, so a thread with little to do does not gather: of a fleet,
//! each replica hears of what all do, and would answer its own keys the later the more replicas there are.
//! Nor does it while ranges move: there one short step waits for the other, and keys wait for them all.

use std::{
    cell::Cell,
    sync::LazyLock,
    time::{Duration, Instant},
};

use actix::{Arbiter, ArbiterHandle};
use coordinator::Pulse;

/// Range actors of one replica are spread over this many threads at most.
const FOR_RANGES_MAX: usize = 8;

/// How long a busy thread gathers what comes before it reads.
const GATHER: Duration = Duration::from_millis(16);

/// A thread is busy that goes to sleep so often within [`BUSY_WITHIN`]: it is woken more than three hundred
/// times a second.
const BUSY_FROM: u32 = 10;
const BUSY_WITHIN: Duration = Duration::from_millis(32);

/// Whether it still is can't be known while it gathers: after so long it is counted again.
const BUSY_FOR: Duration = Duration::from_millis(500);

/// A thread that has gathered, and then still waits so long, has gathered nothing and is not busy any more.
const IDLE_FROM: Duration = Duration::from_millis(16);

/// After the last step of a handoff a thread gathers nothing for so long: the next steps come from other
/// replicas.
const HURRIES_FOR: Duration = Duration::from_millis(250);

/// The arbiters of one node.
pub(crate) struct Arbiters {
    for_ranges: Vec<Arbiter>,
    /// Where ranges have several: what one of them plans holds up no change.
    for_watches: Option<Arbiter>,
}

impl Arbiters {
    /// Starts as many as are fit for this many cores. To be called within an actix system.
    pub(crate) fn start(cores: usize) -> Self {
        let (ranges, watches_apart) = how_many(cores);
        Self {
            for_ranges: (0..ranges).map(|_| gathering()).collect(),
            for_watches: watches_apart.then(gathering),
        }
    }

    /// Where range actors go.
    pub(crate) fn for_ranges(&self) -> Vec<ArbiterHandle> {
        self.for_ranges.iter().map(Arbiter::handle).collect()
    }

    /// Where watches go, and what the whole node does in the background.
    pub(crate) fn for_watches(&self) -> ArbiterHandle {
        self.for_watches
            .as_ref()
            .unwrap_or(&self.for_ranges[0])
            .handle()
    }

    /// Has each show that it runs.
    pub(crate) fn pulses(&self) -> Vec<(String, Pulse)> {
        let watches = self
            .for_watches
            .iter()
            .map(|arbiter| ("watches".to_owned(), arbiter));
        let ranges = self.for_ranges.iter().enumerate();
        ranges
            .map(|(index, arbiter)| (format!("ranges-{index}"), arbiter))
            .chain(watches)
            .map(|(name, arbiter)| {
                let pulse = Pulse::default();
                // Before the arbiter has come to it: one that never does is late, too.
                pulse.beat();
                arbiter.spawn(pulse.clone().keep());
                (name, pulse)
            })
            .collect()
    }

    /// Stops them. What is under way is dropped.
    pub(crate) fn stop(self) {
        let all = || self.for_ranges.iter().chain(&self.for_watches);
        all().for_each(|arbiter| {
            arbiter.stop();
        });
        for arbiter in self.for_ranges.into_iter().chain(self.for_watches) {
            let _panicked = arbiter.join();
        }
    }
}

/// How many arbiters ranges have, and whether watches have one of their own. Half of the cores: one thread
/// plans and writes for thousands of keys a second, and the others are the API server's where they are on the
/// same machine.
fn how_many(cores: usize) -> (usize, bool) {
    let ranges = (cores / 2).clamp(1, FOR_RANGES_MAX);
    (ranges, ranges > 1)
}

/// How busy a thread is, by when it goes to sleep and wakes: time runs from any instant that does not change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Rhythm {
    busy: bool,
    /// Since when sleeps are counted, or since when it is busy.
    since: Duration,
    sleeps: u32,
    /// When it went to sleep.
    asleep: Duration,
    /// Until then nothing is gathered.
    hurries_until: Duration,
}

impl Rhythm {
    /// Nothing is left to do: whether to gather before sleeping.
    fn gathers(&mut self, now: Duration) -> bool {
        let counts_for = if self.busy { BUSY_FOR } else { BUSY_WITHIN };
        if now.saturating_sub(self.since) > counts_for {
            (self.busy, self.since, self.sleeps) = (false, now, 0);
        }
        self.sleeps += 1;
        if !self.busy && self.sleeps >= BUSY_FROM {
            (self.busy, self.since) = (true, now);
        }
        self.busy && now >= self.hurries_until
    }

    fn sleeps(&mut self, now: Duration) {
        self.asleep = now;
    }

    fn wakes(&mut self, now: Duration) {
        if self.busy && now.saturating_sub(self.asleep) >= IDLE_FROM {
            (self.busy, self.since, self.sleeps) = (false, now, 0);
        }
    }

    fn hurries(&mut self, now: Duration) {
        self.hurries_until = now + HURRIES_FOR;
    }
}

thread_local! {
    static RHYTHM: Cell<Rhythm> = Cell::default();
}

/// Something happens to this thread's rhythm, now.
fn happens<T>(what: impl FnOnce(&mut Rhythm, Duration) -> T) -> T {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    let mut rhythm = RHYTHM.get();
    let result = what(&mut rhythm, START.elapsed());
    RHYTHM.set(rhythm);
    result
}

/// A range of this thread moves.
pub(crate) fn hurry() {
    happens(Rhythm::hurries);
}

/// A thread that gathers while it is busy.
fn gathering() -> Arbiter {
    Arbiter::with_tokio_rt(|| {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .on_thread_park(|| {
                if happens(Rhythm::gathers) {
                    std::thread::sleep(GATHER);
                }
                happens(Rhythm::sleeps);
            })
            .on_thread_unpark(|| happens(Rhythm::wakes))
            .build()
            .expect("the system has room for an event queue")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_the_cores_work_for_ranges_and_watches_are_apart_from_several() {
        for (cores, expected) in [
            (1, (1, false)),
            (2, (1, false)),
            (3, (1, false)),
            (4, (2, true)),
            (16, (8, true)),
            (256, (FOR_RANGES_MAX, true)),
        ] {
            assert_eq!(how_many(cores), expected, "{cores} cores");
        }
    }

    /// Goes to sleep and wakes at these instants, in microseconds; whether it gathered each time.
    fn gathered(instants: &[(u64, u64)]) -> Vec<bool> {
        let mut rhythm = Rhythm::default();
        let at = Duration::from_micros;
        let sleep = |(asleep, awake): &(u64, u64)| {
            let gathers = rhythm.gathers(at(*asleep));
            rhythm.sleeps(at(*asleep) + if gathers { GATHER } else { Duration::ZERO });
            rhythm.wakes(at(*awake));
            gathers
        };
        instants.iter().map(sleep).collect()
    }

    /// Goes to sleep each time this many microseconds have passed and is woken at once.
    fn every(period: u64, times: u64) -> Vec<(u64, u64)> {
        (0..times)
            .map(|turn| (turn * period, (turn + 1) * period - 100))
            .collect()
    }

    #[test]
    fn a_thread_that_has_little_to_do_gathers_nothing() {
        for milliseconds in [4, 11, 17] {
            let gathered = gathered(&every(milliseconds * 1_000, 1_000));
            assert!(!gathered.contains(&true), "every {milliseconds} ms");
        }
    }

    #[test]
    fn a_thread_that_is_woken_all_the_time_gathers_until_nothing_comes() {
        let busy = every(3_000, 10);
        let mut expected = vec![false; 9];
        expected.push(true);
        assert_eq!(gathered(&busy), expected);
        // What had come lay there when it read; then nothing came for a while.
        let calm = [
            &busy[..9],
            &[(27_000, 43_010), (43_100, 59_110), (59_200, 93_000)],
            &[(93_100, 110_000), (110_100, 120_000)],
        ]
        .concat();
        expected.extend([true, true, false, false]);
        assert_eq!(gathered(&calm), expected);
    }

    #[test]
    fn whether_a_thread_that_gathers_is_still_busy_is_asked_now_and_then() {
        let gathers = gathered(&every(1_000, 10)).iter().filter(|it| **it).count();
        assert_eq!(gathers, 1);
        // From here on each sleep gathers, and is over when it ends: more comes all the time, or little.
        let busy: Vec<(u64, u64)> = (0..100)
            .map(|turn| (9_000 + turn * 17_000, 9_000 + turn * 17_000 + 16_900))
            .collect();
        let all = [&every(1_000, 9)[..], &busy].concat();
        let after = gathered(&all);
        // 500 ms are 29 sleeps and a bit; then sixteen milliseconds and one lie between two, which is little.
        assert!(after[9..39].iter().all(|gathers| *gathers));
        assert!(!after[40..].contains(&true));
    }

    #[test]
    fn nothing_is_gathered_while_ranges_move() {
        let at = Duration::from_millis;
        let mut rhythm = Rhythm {
            busy: true,
            since: at(1_000),
            ..Rhythm::default()
        };
        rhythm.hurries(at(1_000));
        assert!(!rhythm.gathers(at(1_001)));
        rhythm.sleeps(at(1_001));
        // A long wait for a peer's answer does not end it.
        rhythm.wakes(at(1_200));
        for now in 1_201..1_250 {
            assert!(!rhythm.gathers(at(now)), "{now}");
        }
        assert!(rhythm.gathers(at(1_000) + HURRIES_FOR));
    }

    #[test]
    fn what_comes_while_a_thread_gathers_is_taken_when_it_reads() {
        actix::System::new().block_on(async {
            let arbiters = Arbiters::start(2);
            let (sender, mut received) = tokio::sync::mpsc::unbounded_channel();
            for number in 0..200 {
                let sender = sender.clone();
                assert!(arbiters.for_watches().spawn(async move {
                    sender.send(number).unwrap();
                }));
                // Each wakes the thread, which has nothing else to do.
                tokio::task::yield_now().await;
                if number % 50 == 0 {
                    tokio::time::sleep(BUSY_WITHIN).await;
                }
            }
            for number in 0..200 {
                assert_eq!(received.recv().await, Some(number));
            }
            arbiters.stop();
        });
    }
}
