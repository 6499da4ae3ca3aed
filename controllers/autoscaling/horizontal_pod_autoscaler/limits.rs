//! From what the metrics ask for to what is applied: stabilization, policies, least and most.

use controllers_kit::{SignedDuration, Timestamp};
use kubernetes_proto::autoscaling::{
    HorizontalPodAutoscalerBehavior, HpaScalingPolicy, HpaScalingRules,
};

use super::history::{Event, History, changed_within};

/// Without a behavior, a scale-up is limited to this many times the present size …
const UP_FACTOR: i64 = 2;
/// … or to this many, whichever is more.
const UP_LEAST: i64 = 4;

/// A decision, and the conditions that report it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limited {
    /// The desired number of replicas.
    pub replicas: i32,
    /// Reason and message of AbleToScale, which is true.
    pub able: (&'static str, &'static str),
    /// Whether ScalingLimited is true, its reason and message.
    pub limited: (bool, &'static str, &'static str),
}

const READY: (&str, &str) = ("ReadyForNewScale", "recommended size matches current size");
const DOWN_STABILIZED: (&str, &str) = (
    "ScaleDownStabilized",
    "recent recommendations were higher than current one, applying the highest recent recommendation",
);
const UP_STABILIZED: (&str, &str) = (
    "ScaleUpStabilized",
    "recent recommendations were lower than current one, applying the lowest recent recommendation",
);
const WITHIN: (&str, &str) = (
    "DesiredWithinRange",
    "the desired count is within the acceptable range",
);
const TOO_MANY: (&str, &str) = (
    "TooManyReplicas",
    "the desired replica count is more than the maximum replica count",
);
const TOO_FEW: (&str, &str) = (
    "TooFewReplicas",
    "the desired replica count is less than the minimum replica count",
);
const UP_LIMIT: (&str, &str) = (
    "ScaleUpLimit",
    "the desired replica count is increasing faster than the maximum scale rate",
);
const DOWN_LIMIT: (&str, &str) = (
    "ScaleDownLimit",
    "the desired replica count is decreasing faster than the maximum scale rate",
);

/// A desired size and its bounds.
#[derive(Clone, Copy, Debug)]
pub struct Wish {
    /// The target's present size.
    pub current: i32,
    /// The size that the metrics propose.
    pub desired: i32,
    /// `minReplicas`.
    pub min: i32,
    /// `maxReplicas`.
    pub max: i32,
    /// The present.
    pub now: Timestamp,
}

/// Limits a wish, and records it. `window` is the flag's.
pub fn apply(
    wish: Wish,
    behavior: Option<&HorizontalPodAutoscalerBehavior>,
    window: SignedDuration,
    history: &mut History,
) -> Limited {
    match behavior {
        None => by_flag(wish, window, history),
        Some(behavior) => by_behavior(wish, behavior, window, history),
    }
}

fn judged(
    stabilized: i32,
    able: (&'static str, &'static str),
    (replicas, why): (i32, (&'static str, &'static str)),
) -> Limited {
    Limited {
        replicas,
        able,
        limited: (replicas != stabilized, why.0, why.1),
    }
}

// ---- without a behavior ----

fn by_flag(wish: Wish, window: SignedDuration, history: &mut History) -> Limited {
    let cutoff = wish.now - window;
    let stabilized = history
        .recommendations
        .iter()
        .filter(|one| one.at >= cutoff)
        .map(|one| one.replicas)
        .fold(wish.desired, i32::max);
    history.recommend(wish.desired, wish.now, window);
    let able = if stabilized == wish.desired {
        READY
    } else {
        DOWN_STABILIZED
    };
    judged(stabilized, able, in_range(wish, stabilized))
}

fn in_range(wish: Wish, desired: i32) -> (i32, (&'static str, &'static str)) {
    let limit = (i64::from(wish.current) * UP_FACTOR).max(UP_LEAST);
    let limit = i32::try_from(limit).unwrap_or(i32::MAX);
    let (most, why) = if wish.max > limit {
        (limit, UP_LIMIT)
    } else {
        (wish.max, TOO_MANY)
    };
    if desired < wish.min {
        (wish.min, TOO_FEW)
    } else if desired > most {
        (most, why)
    } else {
        (desired, WITHIN)
    }
}

// ---- with a behavior ----

/// One direction's rules, with the API's defaults.
struct Rules<'a> {
    policies: Vec<(&'a str, i32, i32)>,
    select: &'a str,
    window: SignedDuration,
}

impl<'a> Rules<'a> {
    fn of(
        rules: Option<&'a HpaScalingRules>,
        defaults: &[(&'a str, i32, i32)],
        window: SignedDuration,
    ) -> Self {
        let policies: Vec<_> = rules
            .iter()
            .flat_map(|rules| &rules.policies)
            .map(
                |HpaScalingPolicy {
                     r#type,
                     value,
                     period_seconds,
                 }| { (r#type.as_str(), *value, *period_seconds) },
            )
            .collect();
        Self {
            policies: if policies.is_empty() {
                defaults.to_vec()
            } else {
                policies
            },
            select: rules
                .and_then(|rules| rules.select_policy.as_deref())
                .unwrap_or("Max"),
            window: rules
                .and_then(|rules| rules.stabilization_window_seconds)
                .map_or(window, |seconds| SignedDuration::from_secs(seconds.into())),
        }
    }
}

fn by_behavior(
    wish: Wish,
    behavior: &HorizontalPodAutoscalerBehavior,
    window: SignedDuration,
    history: &mut History,
) -> Limited {
    let ups = Rules::of(
        behavior.scale_up.as_ref(),
        &[("Pods", 4, 15), ("Percent", 100, 15)],
        SignedDuration::ZERO,
    );
    let downs = Rules::of(
        behavior.scale_down.as_ref(),
        &[("Percent", 100, 15)],
        // The flag counts in whole seconds here.
        SignedDuration::from_secs(window.as_secs()),
    );
    let (stabilized, able) = stabilize(wish, ups.window, downs.window, history);
    let desired = Wish {
        desired: stabilized,
        ..wish
    };
    judged(stabilized, able, at_rate(desired, &ups, &downs, history))
}

/// Between the lowest recommendation of the scale-up window and the highest of the scale-down window, as
/// near to the present size as possible.
fn stabilize(
    wish: Wish,
    up_window: SignedDuration,
    down_window: SignedDuration,
    history: &mut History,
) -> (i32, (&'static str, &'static str)) {
    let (up_cutoff, down_cutoff) = (wish.now - up_window, wish.now - down_window);
    let (mut lowest, mut highest) = (wish.desired, wish.desired);
    for one in &history.recommendations {
        if one.at > up_cutoff {
            lowest = lowest.min(one.replicas);
        }
        if one.at > down_cutoff {
            highest = highest.max(one.replicas);
        }
    }
    let stabilized = wish.current.max(lowest).min(highest);
    history.recommend(wish.desired, wish.now, up_window.max(down_window));
    let able = if stabilized == wish.desired {
        READY
    } else if wish.desired >= wish.current {
        UP_STABILIZED
    } else {
        DOWN_STABILIZED
    };
    (stabilized, able)
}

fn at_rate(
    wish: Wish,
    ups: &Rules<'_>,
    downs: &Rules<'_>,
    history: &History,
) -> (i32, (&'static str, &'static str)) {
    let Wish {
        current, desired, ..
    } = wish;
    if desired > current {
        let limit = limit(wish, ups, history, true).max(current);
        let (most, why) = if wish.max > limit {
            (limit, UP_LIMIT)
        } else {
            (wish.max, TOO_MANY)
        };
        if desired > most {
            return (most, why);
        }
    } else if desired < current {
        let limit = limit(wish, downs, history, false).min(current);
        let (least, why) = if wish.min < limit {
            (limit, DOWN_LIMIT)
        } else {
            (wish.min, TOO_FEW)
        };
        if desired < least {
            return (least, why);
        }
    }
    (desired, WITHIN)
}

/// The size that the policies of a direction permit now.
fn limit(wish: Wish, rules: &Rules<'_>, history: &History, up: bool) -> i32 {
    if rules.select == "Disabled" {
        return wish.current;
    }
    let within = |events: &[Event], period| changed_within(events, period, wish.now);
    let reached = rules.policies.iter().map(|(kind, value, period)| {
        let start = i64::from(wish.current) - within(&history.ups, *period)
            + within(&history.downs, *period);
        let value = i64::from(*value);
        let reached = match (*kind, up) {
            ("Pods", true) => start + value,
            ("Pods", false) => start - value,
            // Rounded so that something changes: up when scaling up, down when scaling down.
            (_, true) => (start as f64 * (1.0 + value as f64 / 100.0)).ceil() as i64,
            (_, false) => (start as f64 * (1.0 - value as f64 / 100.0)) as i64,
        };
        i32::try_from(reached).unwrap_or(if reached > 0 { i32::MAX } else { i32::MIN })
    });
    // The policy that changes most, unless the least is asked for.
    let limit = if (rules.select == "Min") == up {
        reached.min()
    } else {
        reached.max()
    };
    limit.unwrap_or(wish.current)
}
