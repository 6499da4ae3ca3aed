//! What is applied of a wish, a case a line: `size > wish -> result reason`, with what was recommended and
//! scaled before as `size@seconds ago`.

use controllers_kit::{SignedDuration, testing::at};
use kubernetes_proto::autoscaling::{
    HorizontalPodAutoscalerBehavior, HpaScalingPolicy, HpaScalingRules,
};

use super::super::{
    history::{EVENTS_MAX, Event, History, RECOMMENDATIONS_MAX, Recommendation},
    limits::{Wish, apply},
};

const NOW: &str = "12:00:00";
/// The flag's default.
const WINDOW: SignedDuration = SignedDuration::from_secs(300);

fn ago(seconds: &str) -> controllers_kit::Timestamp {
    at(NOW) - SignedDuration::from_secs(seconds.parse().unwrap())
}

/// From words as in `recs 5@60 3@30 ups 2@10 downs 1@5`.
fn history(text: &str) -> History {
    let (mut history, mut list) = (History::default(), "");
    for word in text.split_whitespace() {
        let Some((count, since)) = word.split_once('@') else {
            list = word;
            continue;
        };
        let (count, at) = (count.parse().unwrap(), ago(since));
        match list {
            "recs" => history.recommendations.push(Recommendation {
                replicas: count,
                at,
            }),
            "ups" => history.ups.push(Event { change: count, at }),
            "downs" => history.downs.push(Event { change: count, at }),
            other => panic!("{other:?} is no list"),
        }
    }
    history
}

/// From words as in `Min Pods:4/60 Percent:10/60 window:30`.
fn rules(text: &str) -> HpaScalingRules {
    let mut rules = HpaScalingRules::default();
    for word in text.split_whitespace() {
        if let Some((kind, rest)) = word.split_once(':') {
            match rest.split_once('/') {
                Some((value, period)) => rules.policies.push(HpaScalingPolicy {
                    r#type: kind.to_owned(),
                    value: value.parse().unwrap(),
                    period_seconds: period.parse().unwrap(),
                }),
                None => rules.stabilization_window_seconds = Some(rest.parse().unwrap()),
            }
        } else {
            rules.select_policy = Some(word.to_owned());
        }
    }
    rules
}

/// `4 > 9 in 1-10`, the size, the wish and the bounds.
fn wish(text: &str) -> Wish {
    let words: Vec<&str> = text.split_whitespace().collect();
    let [current, ">", desired, "in", bounds] = words[..] else {
        panic!("{text:?} is not as in 4 > 9 in 1-10");
    };
    let (min, max) = bounds.split_once('-').unwrap();
    Wish {
        current: current.parse().unwrap(),
        desired: desired.parse().unwrap(),
        min: min.parse().unwrap(),
        max: max.parse().unwrap(),
        now: at(NOW),
    }
}

fn outcome(wish: Wish, behavior: Option<&HorizontalPodAutoscalerBehavior>, past: &str) -> String {
    let limited = apply(wish, behavior, WINDOW, &mut history(past));
    let is_limited = if limited.limited.0 { " limited" } else { "" };
    format!(
        "{} {} {}{is_limited}",
        limited.replicas, limited.able.0, limited.limited.1
    )
}

#[rustfmt::skip]
const WITHOUT_BEHAVIOR: &[(&str, &str, &str)] = &[
    ("3 > 3 in 1-10",  "",                  "3 ReadyForNewScale DesiredWithinRange"),
    ("3 > 5 in 1-10",  "",                  "5 ReadyForNewScale DesiredWithinRange"),
    ("3 > 2 in 1-10",  "",                  "2 ReadyForNewScale DesiredWithinRange"),
    // The bounds.
    ("3 > 12 in 1-5",  "",                  "5 ReadyForNewScale TooManyReplicas limited"),
    ("3 > 1 in 2-10",  "",                  "2 ReadyForNewScale TooFewReplicas limited"),
    ("3 > 0 in 1-10",  "",                  "1 ReadyForNewScale TooFewReplicas limited"),
    ("3 > 0 in 0-10",  "",                  "0 ReadyForNewScale DesiredWithinRange"),
    // Twice the size, or four.
    ("3 > 12 in 1-20", "",                  "6 ReadyForNewScale ScaleUpLimit limited"),
    ("1 > 12 in 1-20", "",                  "4 ReadyForNewScale ScaleUpLimit limited"),
    ("2 > 4 in 1-20",  "",                  "4 ReadyForNewScale DesiredWithinRange"),
    ("10 > 20 in 1-20", "",                 "20 ReadyForNewScale DesiredWithinRange"),
    ("10 > 21 in 1-30", "",                 "20 ReadyForNewScale ScaleUpLimit limited"),
    ("10 > 50 in 1-20", "",                 "20 ReadyForNewScale TooManyReplicas limited"),
    ("0 > 9 in 0-20",  "",                  "4 ReadyForNewScale ScaleUpLimit limited"),
    ("1500000000 > 2000000000 in 1-2147483647", "", "2000000000 ReadyForNewScale DesiredWithinRange"),
    // The highest recommendation of the window counts.
    ("5 > 2 in 1-10",  "recs 5@60",         "5 ScaleDownStabilized DesiredWithinRange"),
    ("5 > 2 in 1-10",  "recs 5@300",        "5 ScaleDownStabilized DesiredWithinRange"),
    ("5 > 2 in 1-10",  "recs 5@301",        "2 ReadyForNewScale DesiredWithinRange"),
    ("5 > 2 in 1-10",  "recs 4@60 3@30",    "4 ScaleDownStabilized DesiredWithinRange"),
    ("5 > 2 in 1-10",  "recs 9@400 3@30",   "3 ScaleDownStabilized DesiredWithinRange"),
    ("5 > 2 in 1-10",  "recs 2@60",         "2 ReadyForNewScale DesiredWithinRange"),
    // It can be above the size too.
    ("5 > 2 in 1-10",  "recs 8@60",         "8 ScaleDownStabilized DesiredWithinRange"),
    ("5 > 2 in 1-7",   "recs 8@60",         "7 ScaleDownStabilized TooManyReplicas limited"),
    ("3 > 5 in 1-10",  "recs 1@60",         "5 ReadyForNewScale DesiredWithinRange"),
];

#[test]
fn without_a_behavior() {
    for (given, past, wanted) in WITHOUT_BEHAVIOR {
        assert_eq!(outcome(wish(given), None, past), *wanted, "{given}; {past}");
    }
}

/// Both directions' rules, what was before, the outcome.
#[rustfmt::skip]
const WITH_BEHAVIOR: &[(&str, &str, &str, &str, &str)] = &[
    // The API's defaults: twice or four more in 15 s up, all down after the flag's window.
    ("3 > 20 in 1-50", "", "",                                   "",                 "7 ReadyForNewScale ScaleUpLimit limited"),
    ("10 > 50 in 1-50", "", "",                                  "",                 "20 ReadyForNewScale ScaleUpLimit limited"),
    ("10 > 15 in 1-50", "", "",                                  "",                 "15 ReadyForNewScale DesiredWithinRange"),
    ("10 > 60 in 1-15", "", "",                                  "",                 "15 ReadyForNewScale TooManyReplicas limited"),
    ("10 > 2 in 1-50", "", "",                                   "",                 "2 ReadyForNewScale DesiredWithinRange"),
    ("10 > 2 in 1-50", "", "",                                   "recs 10@100",      "10 ScaleDownStabilized DesiredWithinRange"),
    ("10 > 2 in 1-50", "", "",                                   "recs 10@300",      "2 ReadyForNewScale DesiredWithinRange"),
    ("10 > 0 in 3-50", "", "",                                   "",                 "3 ReadyForNewScale TooFewReplicas limited"),
    ("10 > 10 in 1-50", "", "",                                  "",                 "10 ReadyForNewScale DesiredWithinRange"),
    // Policies up.
    ("10 > 50 in 1-50", "Pods:3/60", "",                         "",                 "13 ReadyForNewScale ScaleUpLimit limited"),
    ("10 > 12 in 1-50", "Pods:3/60", "",                         "",                 "12 ReadyForNewScale DesiredWithinRange"),
    ("10 > 50 in 1-50", "Percent:25/60", "",                     "",                 "13 ReadyForNewScale ScaleUpLimit limited"),
    ("1 > 50 in 1-50",  "Percent:10/60", "",                     "",                 "2 ReadyForNewScale ScaleUpLimit limited"),
    ("10 > 50 in 1-50", "Pods:3/60 Percent:50/60", "",           "",                 "15 ReadyForNewScale ScaleUpLimit limited"),
    ("10 > 50 in 1-50", "Max Pods:3/60 Percent:50/60", "",       "",                 "15 ReadyForNewScale ScaleUpLimit limited"),
    ("10 > 50 in 1-50", "Min Pods:3/60 Percent:50/60", "",       "",                 "13 ReadyForNewScale ScaleUpLimit limited"),
    ("10 > 50 in 1-50", "Disabled Pods:3/60", "",                "",                 "10 ReadyForNewScale ScaleUpLimit limited"),
    ("10 > 50 in 1-50", "Pods:0/60", "",                         "",                 "10 ReadyForNewScale ScaleUpLimit limited"),
    // What was scaled within the period counts, what was before does not.
    ("10 > 50 in 1-50", "Pods:3/60", "",                         "ups 2@30",         "11 ReadyForNewScale ScaleUpLimit limited"),
    ("10 > 50 in 1-50", "Pods:3/60", "",                         "ups 3@30",         "10 ReadyForNewScale ScaleUpLimit limited"),
    ("10 > 50 in 1-50", "Pods:3/60", "",                         "ups 5@30",         "10 ReadyForNewScale ScaleUpLimit limited"),
    ("10 > 50 in 1-50", "Pods:3/60", "",                         "ups 3@60",         "13 ReadyForNewScale ScaleUpLimit limited"),
    ("10 > 50 in 1-50", "Pods:3/60", "",                         "ups 3@59",         "10 ReadyForNewScale ScaleUpLimit limited"),
    ("10 > 50 in 1-50", "Pods:3/60", "",                         "ups 1@50 1@20",    "11 ReadyForNewScale ScaleUpLimit limited"),
    ("15 > 50 in 1-50", "Percent:50/60", "",                     "ups 5@30",         "15 ReadyForNewScale ScaleUpLimit limited"),
    ("12 > 50 in 1-50", "Percent:50/60", "",                     "ups 2@30",         "15 ReadyForNewScale ScaleUpLimit limited"),
    ("10 > 50 in 1-50", "Pods:3/60", "",                         "downs 4@30",       "17 ReadyForNewScale ScaleUpLimit limited"),
    ("10 > 50 in 1-50", "Pods:3/60", "",                         "ups 3@30 downs 3@20", "13 ReadyForNewScale ScaleUpLimit limited"),
    ("10 > 50 in 1-50", "Pods:3/60 Pods:6/300", "",              "ups 3@120",        "13 ReadyForNewScale ScaleUpLimit limited"),
    ("10 > 50 in 1-50", "Min Pods:3/60 Pods:6/300", "",          "ups 5@120",        "11 ReadyForNewScale ScaleUpLimit limited"),
    // Policies down.
    ("10 > 1 in 1-50", "", "Pods:3/60 window:0",                 "",                 "7 ReadyForNewScale ScaleDownLimit limited"),
    ("10 > 8 in 1-50", "", "Pods:3/60 window:0",                 "",                 "8 ReadyForNewScale DesiredWithinRange"),
    ("10 > 1 in 8-50", "", "Pods:3/60 window:0",                 "",                 "8 ReadyForNewScale TooFewReplicas limited"),
    ("10 > 1 in 1-50", "", "Percent:25/60 window:0",             "",                 "7 ReadyForNewScale ScaleDownLimit limited"),
    ("3 > 1 in 1-50",  "", "Percent:10/60 window:0",             "",                 "2 ReadyForNewScale ScaleDownLimit limited"),
    ("10 > 1 in 1-50", "", "Pods:3/60 Percent:50/60 window:0",   "",                 "5 ReadyForNewScale ScaleDownLimit limited"),
    ("10 > 1 in 1-50", "", "Min Pods:3/60 Percent:50/60 window:0", "",               "7 ReadyForNewScale ScaleDownLimit limited"),
    ("10 > 1 in 1-50", "", "Disabled window:0",                  "",                 "10 ReadyForNewScale ScaleDownLimit limited"),
    ("10 > 1 in 1-50", "", "Pods:3/60 window:0",                 "downs 2@30",       "9 ReadyForNewScale ScaleDownLimit limited"),
    ("10 > 1 in 1-50", "", "Pods:3/60 window:0",                 "downs 3@30",       "10 ReadyForNewScale ScaleDownLimit limited"),
    ("10 > 1 in 1-50", "", "Pods:3/60 window:0",                 "downs 3@61",       "7 ReadyForNewScale ScaleDownLimit limited"),
    ("10 > 1 in 1-50", "", "Pods:3/60 window:0",                 "ups 2@30",         "5 ReadyForNewScale ScaleDownLimit limited"),
    ("5 > 1 in 1-50",  "", "Percent:50/60 window:0",             "downs 5@30",       "5 ReadyForNewScale ScaleDownLimit limited"),
    // Windows.
    ("5 > 9 in 1-50",  "window:60", "",                          "recs 5@30",        "5 ScaleUpStabilized DesiredWithinRange"),
    ("5 > 9 in 1-50",  "window:60", "",                          "recs 7@30",        "7 ScaleUpStabilized DesiredWithinRange"),
    ("5 > 9 in 1-50",  "window:60", "",                          "recs 7@30 6@10",   "6 ScaleUpStabilized DesiredWithinRange"),
    ("5 > 9 in 1-50",  "window:60", "",                          "recs 5@60",        "9 ReadyForNewScale DesiredWithinRange"),
    ("5 > 9 in 1-50",  "window:60", "",                          "recs 3@30",        "5 ScaleUpStabilized DesiredWithinRange"),
    ("5 > 9 in 1-50",  "", "window:0",                           "recs 1@1",         "9 ReadyForNewScale DesiredWithinRange"),
    ("5 > 2 in 1-50",  "", "window:60",                          "recs 4@30",        "4 ScaleDownStabilized DesiredWithinRange"),
    ("5 > 2 in 1-50",  "", "window:60",                          "recs 4@60",        "2 ReadyForNewScale DesiredWithinRange"),
    ("5 > 2 in 1-50",  "", "window:0",                           "recs 4@1",         "2 ReadyForNewScale DesiredWithinRange"),
    ("5 > 2 in 1-50",  "", "window:60",                          "recs 9@30",        "5 ScaleDownStabilized DesiredWithinRange"),
    ("5 > 5 in 1-50",  "window:60", "window:60",                 "recs 2@30 9@20",   "5 ReadyForNewScale DesiredWithinRange"),
    // A window and a policy together.
    ("10 > 1 in 1-50", "", "Pods:2/60 window:60",                "recs 5@30",        "8 ScaleDownStabilized ScaleDownLimit limited"),
    ("5 > 50 in 1-50", "Pods:2/60 window:60", "",                "recs 9@30",        "7 ScaleUpStabilized ScaleUpLimit limited"),
];

#[test]
fn with_a_behavior() {
    for (given, up, down, past, wanted) in WITH_BEHAVIOR {
        let behavior = HorizontalPodAutoscalerBehavior {
            scale_up: (!up.is_empty()).then(|| rules(up)),
            scale_down: (!down.is_empty()).then(|| rules(down)),
        };
        assert_eq!(
            outcome(wish(given), Some(&behavior), past),
            *wanted,
            "{given}; up {up}; down {down}; {past}"
        );
    }
}

#[test]
fn there_are_as_many_cases_as_the_issue_asks_for() {
    // 150 in all with those of the formula; each is a line.
    assert!(WITHOUT_BEHAVIOR.len() + WITH_BEHAVIOR.len() >= 75);
}

#[test]
fn recommendations_that_never_decide_again_go() {
    let mut past = History::default();
    for (second, replicas) in [5, 5, 5, 7, 3, 3, 4, 4].into_iter().enumerate() {
        let now = at(NOW) + SignedDuration::from_secs(i64::try_from(second).unwrap());
        past.recommend(replicas, now, WINDOW);
    }
    let kept: Vec<i32> = past
        .recommendations
        .iter()
        .map(|one| one.replicas)
        .collect();
    assert_eq!(kept, [7, 3, 4]);
}

#[test]
fn the_highest_and_the_lowest_of_any_window_are_what_they_were_with_all_kept() {
    // A walk that visits every size often; compared with a list that keeps all.
    let (mut past, mut all, mut size) = (History::default(), Vec::new(), 10);
    for step in 0..400i64 {
        let now = at(NOW) + SignedDuration::from_secs(step * 15);
        size = (size * 7 + i32::try_from(step).unwrap() * 13 + 3) % 23;
        past.recommend(size, now, SignedDuration::from_secs(600));
        all.push((size, now));
        for window in [1, 60, 300, 599] {
            let cutoff = now - SignedDuration::from_secs(window);
            let wanted: Vec<i32> = all
                .iter()
                .filter(|(_, at)| *at > cutoff)
                .map(|(size, _)| *size)
                .collect();
            let kept: Vec<i32> = past
                .recommendations
                .iter()
                .filter(|one| one.at > cutoff)
                .map(|one| one.replicas)
                .collect();
            assert_eq!(kept.iter().max(), wanted.iter().max());
            assert_eq!(kept.iter().min(), wanted.iter().min());
        }
    }
    assert!(past.recommendations.len() <= RECOMMENDATIONS_MAX);
}

#[test]
fn history_is_bounded_and_forbids_no_less_for_it() {
    let mut past = History::default();
    for second in 0..1000 {
        let now = at(NOW) + SignedDuration::from_secs(second);
        past.scaled(0, 1, now);
        past.recommend(
            1000 - i32::try_from(second).unwrap(),
            now,
            SignedDuration::from_hours(1),
        );
    }
    assert_eq!(past.ups.len(), EVENTS_MAX);
    assert_eq!(past.ups.iter().map(|event| event.change).sum::<i32>(), 1000);
    assert_eq!(past.recommendations.len(), RECOMMENDATIONS_MAX);
    assert_eq!(past.recommendations[0].replicas, 1000);
}

#[test]
fn a_checkpoint_restores_the_events_that_policies_count() {
    let past = history("ups 4@100 2@10 downs 1@50 7@1801");
    let text = past.checkpoint(at(NOW));
    let mut back = History::default();
    back.restore(&text, at(NOW));
    assert_eq!(back.ups, past.ups);
    assert_eq!(back.downs, past.downs[..1]);
    assert_eq!(
        back.checkpoint(at(NOW)),
        "+4@1772452700.000 -1@1772452750.000 +2@1772452790.000"
    );
    assert_eq!(History::default().checkpoint(at(NOW)), "");
    // What it has not written itself does no harm; what is in the future counts as of now.
    let mut odd = History::default();
    odd.restore(
        "x +@ +-3@1 é +3 ++3@5 -2@99999999999999999 +2@99999999999.000",
        at(NOW),
    );
    assert_eq!(
        odd.ups,
        [Event {
            change: 2,
            at: at(NOW)
        }]
    );
    assert!(odd.downs.is_empty());
}

#[test]
fn ages_stay_when_a_clock_differs() {
    let mut past = history("recs 5@60 ups 4@100 downs 1@50");
    past.shift(SignedDuration::from_secs(1000));
    assert_eq!(
        past.recommendations[0].at,
        at(NOW) + SignedDuration::from_secs(940)
    );
    assert_eq!(past.ups[0].at, at(NOW) + SignedDuration::from_secs(900));
    assert_eq!(past.downs[0].at, at(NOW) + SignedDuration::from_secs(950));
}
