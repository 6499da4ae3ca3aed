//! The end of a replica that ends by itself: a panic, a thread that hangs, an error that it cannot live with.
//! In which order it stops sending, closes its fence, releases its Lease and is gone.
//!
//! Kept true: the Lease is released behind a closed fence, and only once nothing that was sent can still be
//! executed. So the next owners may act at once.

use crate::{lease::Time, mutation::broken, renewal::OwnPhase};

/// How long what is in flight may take to be answered before it is given up. What is answered is known to be
/// over; what is given up is waited for as long as the server may still execute it.
pub const LAST_ANSWERS_MAX: Time = Time::from_millis(300);

/// How long the release of the Lease may take. Without it others wait until the Lease expires.
pub const LAST_RELEASE_MAX: Time = Time::from_secs(2);

/// What is to be done next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndingStep {
    /// Nothing yet.
    Waits,
    /// Close the fence, for good.
    Closes,
    /// Release the Lease.
    Releases,
    /// The process is to end.
    Ends,
}

/// An end under way. From its beginning nothing new is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ending {
    late: Time,
    /// What is in flight is given up then.
    close_at: Time,
    closed: Option<Time>,
    release_until: Option<Time>,
}

impl Ending {
    /// Begins now; `late` is for how long a request that was given up may still be executed.
    pub fn begun(now: Time, late: Time) -> Self {
        Self {
            late,
            close_at: now + LAST_ANSWERS_MAX,
            closed: None,
            release_until: None,
        }
    }

    /// The same for a replica whose fence is closed since `closed`: what was in flight was given up then.
    pub fn behind_a_closed_fence(closed: Time, late: Time) -> Self {
        Self {
            close_at: closed,
            closed: Some(closed),
            ..Self::begun(closed, late)
        }
    }

    /// How long it takes at most.
    pub fn longest(late: Time) -> Time {
        LAST_ANSWERS_MAX + late + LAST_RELEASE_MAX
    }

    /// `in_flight` writes wait for their answers; `is_still` says that there are none, and that none may be
    /// executed which was given up.
    pub fn step(
        &mut self,
        now: Time,
        in_flight: usize,
        is_still: bool,
        phase: &OwnPhase,
    ) -> EndingStep {
        // Released, or never held.
        let gone = matches!(
            phase,
            OwnPhase::Idle | OwnPhase::Released | OwnPhase::NameTaken(_)
        );
        if gone || self.release_until.is_some_and(|until| now >= until) {
            return EndingStep::Ends;
        }
        let Some(closed) = self.closed else {
            if in_flight > 0 && now < self.close_at {
                return EndingStep::Waits;
            }
            self.closed = Some(now);
            return EndingStep::Closes;
        };
        if self.release_until.is_some() {
            return EndingStep::Waits;
        }
        if is_still || now >= closed + self.late || broken!(EndsWithLateWrites) {
            self.release_until = Some(now + LAST_RELEASE_MAX);
            return EndingStep::Releases;
        }
        EndingStep::Waits
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutation::{self, Mutation};

    const LATE: Time = Time::from_secs(2);

    struct Case {
        name: &'static str,
        ending: Ending,
        /// When each write in flight is answered, in milliseconds; `None` is never. What is not answered when
        /// the fence closes is given up.
        answers: &'static [Option<u64>],
        /// How long the release takes; `None` is for ever.
        release: Option<u64>,
        phase: OwnPhase,
        steps: &'static [(u64, EndingStep)],
    }

    fn ms(ms: u64) -> Time {
        Time::from_millis(ms)
    }

    /// The steps of an end that begins at 10 s, and when it comes to them.
    fn run(case: &Case) -> Vec<(u64, EndingStep)> {
        let mut ending = case.ending;
        let (mut closed, mut released) = (ending.closed, None);
        let mut steps = Vec::new();
        for at in 10_000..20_000 {
            let now = ms(at);
            loop {
                let waits = |answer: &&Option<u64>| answer.is_none_or(|answer| at < answer);
                let open = case.answers.iter().filter(waits).count();
                let in_flight = match closed {
                    Some(_) => 0,
                    None => open,
                };
                let executed = closed.is_some_and(|closed| {
                    let given_up =
                        |answer: &&Option<u64>| answer.is_none_or(|answer| ms(answer) > closed);
                    case.answers.iter().any(|answer| given_up(&answer)) && now < closed + LATE
                });
                let phase = match released {
                    Some(released) if now >= released => OwnPhase::Released,
                    _ => case.phase.clone(),
                };
                let step = ending.step(now, in_flight, in_flight == 0 && !executed, &phase);
                match step {
                    EndingStep::Waits => break,
                    EndingStep::Closes => closed = Some(now),
                    EndingStep::Releases => released = case.release.map(|took| now + ms(took)),
                    EndingStep::Ends => {}
                }
                steps.push((at, step));
                if step == EndingStep::Ends {
                    return steps;
                }
            }
        }
        steps
    }

    fn cases() -> Vec<Case> {
        use EndingStep::{Closes, Ends, Releases};
        let begun = Ending::begun(ms(10_000), LATE);
        vec![
            Case {
                name: "nothing is in flight",
                ending: begun,
                answers: &[],
                release: Some(5),
                phase: OwnPhase::Held,
                steps: &[(10_000, Closes), (10_000, Releases), (10_005, Ends)],
            },
            Case {
                name: "what is in flight is answered",
                ending: begun,
                answers: &[Some(10_020), Some(10_090)],
                release: Some(5),
                phase: OwnPhase::Held,
                steps: &[(10_090, Closes), (10_090, Releases), (10_095, Ends)],
            },
            Case {
                name: "a webhook holds a creation",
                ending: begun,
                answers: &[Some(10_020), None],
                release: Some(5),
                phase: OwnPhase::Held,
                steps: &[(10_300, Closes), (12_300, Releases), (12_305, Ends)],
            },
            Case {
                name: "nor does the server answer the release",
                ending: begun,
                answers: &[None],
                release: None,
                phase: OwnPhase::Held,
                steps: &[(10_300, Closes), (12_300, Releases), (14_300, Ends)],
            },
            Case {
                name: "a thread hangs, and what it had sent is over",
                ending: Ending::behind_a_closed_fence(ms(8_000), LATE),
                answers: &[],
                release: Some(5),
                phase: OwnPhase::Held,
                steps: &[(10_000, Releases), (10_005, Ends)],
            },
            Case {
                name: "a thread hangs with a write whose answer nobody reads",
                ending: Ending::behind_a_closed_fence(ms(9_000), LATE),
                answers: &[None],
                release: Some(5),
                phase: OwnPhase::Held,
                steps: &[(11_000, Releases), (11_005, Ends)],
            },
            Case {
                name: "somebody has its name",
                ending: begun,
                answers: &[None],
                release: None,
                phase: OwnPhase::NameTaken("b1".to_owned()),
                steps: &[(10_000, Ends)],
            },
            Case {
                name: "it has not joined",
                ending: begun,
                answers: &[],
                release: None,
                phase: OwnPhase::Idle,
                steps: &[(10_000, Ends)],
            },
        ]
    }

    #[test]
    fn a_lease_is_released_when_nothing_of_its_holder_can_be_executed() {
        for case in cases() {
            assert_eq!(run(&case), case.steps, "{}", case.name);
            let took = case.steps.last().unwrap().0 - 10_000;
            assert!(ms(took) <= Ending::longest(LATE), "{}", case.name);
        }
    }

    #[test]
    fn an_end_that_does_not_wait_for_its_last_writes_is_caught() {
        mutation::set(Some(Mutation::EndsWithLateWrites));
        let caught = cases().iter().any(|case| run(case) != case.steps);
        mutation::set(None);
        assert!(caught);
    }
}
