//! How long a key waits.
//!
//! A probe is a Deployment without pods whose spec is changed in turn; it is served when its
//! `status.observedGeneration` has caught up. With many of them every owner has some, so whatever
//! keeps an owner's keys waiting shows in the longest wait. The clock is an argument throughout.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Waits that are remembered: half an hour of touching 50 probes a second; what is measured lasts
/// minutes.
const REMEMBERED: usize = 100_000;

/// A change on its way.
#[derive(Debug, Clone, Copy)]
struct Touch {
    at: Instant,
    /// The generation that the server gave it, once it has answered.
    generation: Option<i64>,
}

#[derive(Debug, Clone, Default)]
struct Probe {
    touch: Option<Touch>,
    /// Newest generation seen served, and when that was first seen.
    observed: i64,
    observed_at: Option<Instant>,
}

#[derive(Debug, Clone, Copy)]
struct Wait {
    probe: usize,
    begin: Instant,
    end: Instant,
}

/// How long one change waited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waited {
    /// Which probe.
    pub probe: usize,
    /// Until it was served, or until now.
    pub lasted: Duration,
    /// Whether it was.
    pub served: bool,
}

/// All probes.
#[derive(Debug)]
pub struct Probes {
    probes: Vec<Probe>,
    waits: VecDeque<Wait>,
    next: usize,
}

impl Probes {
    /// None touched yet.
    pub fn new(count: usize) -> Self {
        Self {
            probes: vec![Probe::default(); count],
            waits: VecDeque::new(),
            next: 0,
        }
    }

    /// The next probe to change, if any is not still waiting to be served.
    pub fn touch(&mut self, now: Instant) -> Option<usize> {
        let count = self.probes.len();
        let index = (0..count)
            .map(|step| (self.next + step) % count)
            .find(|index| self.probes[*index].touch.is_none())?;
        self.next = (index + 1) % count;
        self.probes[index].touch = Some(Touch {
            at: now,
            generation: None,
        });
        Some(index)
    }

    /// The server has taken the change. Its being served may have been seen before this answer.
    pub fn accepted(&mut self, index: usize, generation: i64) {
        let probe = &mut self.probes[index];
        if let Some(touch) = &mut probe.touch {
            touch.generation = Some(generation);
        }
        if let Some(at) = probe.observed_at {
            self.served(index, at);
        }
    }

    /// The server has not taken it: nobody can serve it.
    pub fn refused(&mut self, index: usize) {
        self.probes[index].touch = None;
    }

    /// The controller has reported this generation.
    pub fn observed(&mut self, index: usize, generation: i64, now: Instant) {
        let Some(probe) = self.probes.get_mut(index) else {
            return;
        };
        if generation > probe.observed {
            probe.observed = generation;
            probe.observed_at = Some(now);
            self.served(index, now);
        }
    }

    fn served(&mut self, index: usize, at: Instant) {
        let probe = &mut self.probes[index];
        let Some(touch) = probe.touch else { return };
        if touch
            .generation
            .is_some_and(|generation| generation <= probe.observed)
        {
            probe.touch = None;
            if self.waits.len() == REMEMBERED {
                self.waits.pop_front();
            }
            self.waits.push_back(Wait {
                probe: index,
                begin: touch.at,
                end: at.max(touch.at),
            });
        }
    }

    /// The longest wait that reaches into the time since `from`; those that still last included.
    pub fn longest_since(&self, from: Instant, now: Instant) -> Duration {
        let over = self
            .waits
            .iter()
            .filter(|wait| wait.end >= from)
            .map(|wait| wait.end - wait.begin);
        over.chain(self.lasting(now)).max().unwrap_or_default()
    }

    /// Every change made since `from`, those that still wait included.
    pub fn waits_since(&self, from: Instant, now: Instant) -> Vec<Waited> {
        let over = self.waits.iter().filter(|wait| wait.begin >= from);
        let over = over.map(|wait| Waited {
            probe: wait.probe,
            lasted: wait.end - wait.begin,
            served: true,
        });
        let lasting = self.probes.iter().enumerate().filter_map(|(index, probe)| {
            let touch = probe.touch.filter(|touch| touch.at >= from)?;
            Some(Waited {
                probe: index,
                lasted: now.saturating_duration_since(touch.at),
                served: false,
            })
        });
        over.chain(lasting).collect()
    }

    /// Changes that were served in this time, whenever they were made.
    pub fn served_between(&self, from: Instant, to: Instant) -> usize {
        let within = |wait: &&Wait| (from..to).contains(&wait.end);
        self.waits.iter().filter(within).count()
    }

    /// Probes that still wait.
    pub fn waiting(&self) -> usize {
        let waiting = |probe: &&Probe| probe.touch.is_some();
        self.probes.iter().filter(waiting).count()
    }

    /// Changes that the server has not answered count no more: one that sent them has gone.
    pub fn forget_unanswered(&mut self) {
        for probe in &mut self.probes {
            probe.touch = probe.touch.filter(|touch| touch.generation.is_some());
        }
    }

    /// The longest wait that still lasts.
    pub fn longest_lasting(&self, now: Instant) -> Duration {
        self.lasting(now).max().unwrap_or_default()
    }

    fn lasting(&self, now: Instant) -> impl Iterator<Item = Duration> {
        self.probes
            .iter()
            .filter_map(move |probe| Some(now.saturating_duration_since(probe.touch?.at)))
    }

    /// Probes that have been served at least once.
    pub fn ever_served(&self) -> usize {
        self.probes
            .iter()
            .filter(|probe| probe.observed > 0)
            .count()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.probes.is_empty()
    }

    /// Probes.
    pub fn len(&self) -> usize {
        self.probes.len()
    }
}
