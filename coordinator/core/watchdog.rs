//! Whether this process still does what its Lease says: has a thread stopped, did the whole process or its
//! machine stop. The renewal thread asks at each of its checks; nothing here reads a clock.

use crate::{lease::Time, mutation::broken};

/// Between two checks of a renewal thread that runs lies less than this. After a longer gap nothing is taken
/// to be as it was: the process was stopped, its machine was suspended, or no processor was to be had.
pub const GAP_MAX: Time = Time::from_secs(1);

/// What is seen of a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sign {
    /// Changes with each beat; `None` where no beat is to be expected.
    pub beat: Option<u64>,
    /// How long in all the thread has waited for a processor: it is no sign of a hang.
    pub waited: Time,
}

/// A thread that does not run any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hung {
    /// Which, by its place in what is checked.
    pub thread: usize,
    /// For how long it had the chance to beat and did not.
    pub still: Time,
}

/// What a check has found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// This process did not run for so long.
    pub gap: Option<Time>,
    /// Whether a thread may hang: nothing is to be sent, so that nothing is in flight once that is certain.
    pub suspected: bool,
    /// The thread that has been still longest, if that is too long.
    pub hung: Option<Hung>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Stillness {
    sign: Sign,
    still: Time,
}

/// Compares what it sees with what it saw.
#[derive(Clone, Debug)]
pub struct Watchdog {
    suspected_from: Time,
    limit: Time,
    checked: Option<Time>,
    threads: Vec<Stillness>,
}

impl Watchdog {
    /// For this number of threads, each of which may be still for less than `limit`, and is suspected `late`
    /// before: how long a request that was sent may still be executed.
    pub fn new(limit: Time, late: Time, threads: usize) -> Self {
        Self {
            suspected_from: limit.saturating_sub(late),
            limit,
            checked: None,
            threads: vec![Stillness::default(); threads],
        }
    }

    /// Checks, at a time that continues while the machine is suspended.
    ///
    /// Only time in which this checked counts against a thread, and no gap: after a pause of the whole
    /// process all beats are old at once, and each thread gets the chance to beat.
    pub fn check(&mut self, now: Time, signs: &[Sign]) -> Findings {
        let passed = now.saturating_sub(self.checked.unwrap_or(now));
        self.checked = Some(now);
        let gap = (passed > GAP_MAX && !broken!(GapsAreIgnored)).then_some(passed);
        let counts = match gap {
            Some(_) if !broken!(GapsCountAsHung) => Time::ZERO,
            _ => passed,
        };
        for (thread, sign) in self.threads.iter_mut().zip(signs) {
            let same = sign.beat.is_some() && sign.beat == thread.sign.beat;
            let mut waited = sign.waited.saturating_sub(thread.sign.waited);
            if broken!(WaitingCountsAsHung) {
                waited = Time::ZERO;
            }
            thread.still = match same {
                true => thread.still + counts.saturating_sub(waited),
                false => Time::ZERO,
            };
            thread.sign = *sign;
        }
        let longest = self.threads.iter().enumerate().rev();
        let longest = longest.max_by_key(|(_, thread)| thread.still);
        let suspected = longest.is_some_and(|(_, thread)| thread.still >= self.suspected_from);
        let hung = longest
            .filter(|(_, thread)| thread.still >= self.limit)
            .map(|(thread, stillness)| Hung {
                thread,
                still: stillness.still,
            });
        Findings {
            gap,
            suspected,
            hung,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutation::{self, Mutation};

    const LIMIT: Time = Time::from_secs(5);
    const LATE: Time = Time::from_secs(2);
    const EVERY: u64 = 250;

    fn ms(ms: u64) -> Time {
        Time::from_millis(ms)
    }

    /// What a thread does from a time on, in milliseconds.
    #[derive(Clone, Copy)]
    enum Does {
        Beats,
        /// Spins, or waits for what never comes.
        Hangs,
        /// Is ready to run, and gets this share of a processor in percent; it beats once that is a second.
        Starves(u64),
        Rests,
    }

    struct Case {
        name: &'static str,
        thread: fn(u64) -> Does,
        /// Checks fall out within these, in milliseconds.
        stopped: fn(u64) -> bool,
        hung: Option<u64>,
        gaps: &'static [u64],
    }

    /// The first verdict and all gaps within a minute.
    fn run(case: &Case) -> (Option<u64>, Vec<u64>) {
        let mut watchdog = Watchdog::new(LIMIT, LATE, 2);
        let (mut beat, mut waited, mut worked) = (0, 0, 0);
        let (mut hung, mut gaps) = (None, Vec::new());
        for now in (0..60_000).step_by(EVERY as usize) {
            let other = now;
            if (case.stopped)(now) {
                continue;
            }
            let resting = match (case.thread)(now) {
                Does::Beats => {
                    beat = now;
                    false
                }
                Does::Hangs => false,
                Does::Starves(percent) => {
                    worked += EVERY * percent / 100;
                    waited += EVERY * (100 - percent) / 100;
                    if worked >= 1_000 {
                        (beat, worked) = (now, 0);
                    }
                    false
                }
                Does::Rests => true,
            };
            let sign = Sign {
                beat: (!resting).then_some(beat),
                waited: ms(waited),
            };
            let other = Sign {
                beat: Some(other),
                waited: Time::ZERO,
            };
            let found = watchdog.check(ms(now), &[other, sign]);
            if let Some(found) = found.hung {
                assert_eq!(found.thread, 1, "{}", case.name);
                hung.get_or_insert(now);
            }
            gaps.extend(found.gap.map(|gap| u64::try_from(gap.as_millis()).unwrap()));
        }
        (hung, gaps)
    }

    const NEVER: fn(u64) -> bool = |_| false;

    fn cases() -> Vec<Case> {
        vec![
            Case {
                name: "all is well",
                thread: |_| Does::Beats,
                stopped: NEVER,
                hung: None,
                gaps: &[],
            },
            Case {
                name: "a thread hangs for good",
                thread: |now| {
                    if now < 10_000 {
                        Does::Beats
                    } else {
                        Does::Hangs
                    }
                },
                stopped: NEVER,
                hung: Some(14_750),
                gaps: &[],
            },
            Case {
                name: "a thread that is long at one thing",
                thread: |now| {
                    if now % 10_000 < 4_500 {
                        Does::Hangs
                    } else {
                        Does::Beats
                    }
                },
                stopped: NEVER,
                hung: None,
                gaps: &[],
            },
            Case {
                name: "it rests: nothing is to be expected",
                thread: |now| {
                    if now < 10_000 {
                        Does::Beats
                    } else {
                        Does::Rests
                    }
                },
                stopped: NEVER,
                hung: None,
                gaps: &[],
            },
            Case {
                name: "the process is stopped, or its machine suspended, for half a minute",
                thread: |_| Does::Beats,
                stopped: |now| (10_000..40_000).contains(&now),
                hung: None,
                gaps: &[30_250],
            },
            Case {
                name: "after it the thread is slow to run again",
                thread: |now| match now {
                    10_000..44_000 => Does::Hangs,
                    _ => Does::Beats,
                },
                stopped: |now| (10_000..40_000).contains(&now),
                hung: None,
                gaps: &[30_250],
            },
            Case {
                name: "it hung before the process was stopped, and after",
                thread: |now| {
                    if now < 7_000 {
                        Does::Beats
                    } else {
                        Does::Hangs
                    }
                },
                stopped: |now| (10_000..40_000).contains(&now),
                hung: Some(42_000),
                gaps: &[30_250],
            },
            Case {
                name: "the process is stopped again and again",
                thread: |now| {
                    if now % 4_000 == 0 {
                        Does::Beats
                    } else {
                        Does::Hangs
                    }
                },
                stopped: |now| now % 4_000 >= 2_000,
                hung: None,
                gaps: &[
                    2_250, 2_250, 2_250, 2_250, 2_250, 2_250, 2_250, 2_250, 2_250, 2_250, 2_250,
                    2_250, 2_250, 2_250,
                ],
            },
            Case {
                name: "a machine with ten times more to do than it can",
                thread: |_| Does::Starves(10),
                stopped: NEVER,
                hung: None,
                gaps: &[],
            },
            Case {
                name: "a short stop is no gap",
                thread: |_| Does::Beats,
                stopped: |now| (10_000..10_750).contains(&now),
                hung: None,
                gaps: &[],
            },
        ]
    }

    #[test]
    fn a_thread_hangs_that_had_the_chance_to_beat_and_did_not() {
        for case in cases() {
            let (hung, gaps) = run(&case);
            assert_eq!(hung, case.hung, "{}", case.name);
            assert_eq!(gaps, case.gaps, "{}", case.name);
        }
    }

    #[test]
    fn of_several_the_longest_still_is_named() {
        let mut watchdog = Watchdog::new(LIMIT, LATE, 3);
        let sign = |beat| Sign {
            beat: Some(beat),
            waited: Time::ZERO,
        };
        let mut found = Findings::default();
        for now in 0..8 {
            let signs = [sign(now), sign(1.min(now)), sign(2.min(now))];
            found = watchdog.check(Time::from_secs(now), &signs);
        }
        assert_eq!(
            found.hung,
            Some(Hung {
                thread: 1,
                still: Time::from_secs(6)
            })
        );
    }

    #[test]
    fn nothing_is_sent_in_the_last_seconds_before_a_hang_is_certain() {
        let mut watchdog = Watchdog::new(LIMIT, LATE, 1);
        let mut found = |now, beat| {
            let sign = Sign {
                beat: Some(beat),
                waited: Time::ZERO,
            };
            let found = watchdog.check(ms(now), &[sign]);
            (found.suspected, found.hung.is_some())
        };
        for (now, beat, expected) in [
            (0, 1, (false, false)),
            (1_000, 1, (false, false)),
            (2_000, 1, (false, false)),
            (2_900, 1, (false, false)),
            (3_000, 1, (true, false)),
            (4_000, 1, (true, false)),
            // A long plan is over.
            (4_900, 2, (false, false)),
            (5_900, 2, (false, false)),
            (6_900, 2, (false, false)),
            (7_900, 2, (true, false)),
            (8_900, 2, (true, false)),
            (9_900, 2, (true, true)),
        ] {
            assert_eq!(found(now, beat), expected, "at {now} ms");
        }
    }

    #[test]
    fn each_rule_is_missed_where_it_is_left_out() {
        for mutant in [
            Mutation::GapsAreIgnored,
            Mutation::GapsCountAsHung,
            Mutation::WaitingCountsAsHung,
        ] {
            mutation::set(Some(mutant));
            let caught = cases()
                .iter()
                .any(|case| run(case) != (case.hung, case.gaps.to_vec()));
            mutation::set(None);
            assert!(caught, "{mutant:?}");
        }
    }
}
