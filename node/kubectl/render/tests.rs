//! Tables and texts as they are printed: a change of one is a change for people.

use inspect::{
    BlockerKind, BusyController, BusyKey, BusyRange, ControllerState, Drain, Fence, Hidden,
    LastAttempt, Member, Missing, Moved, OwnedRange, Pause, Placement, RangeOwner, ReplicaShards,
    Setting, Totals,
};

use super::*;

fn fleet() -> FleetShards {
    let member = |name: &str, ready| Member {
        name: name.to_owned(),
        incarnation: "1f".to_owned(),
        address: "10.0.0.1:10258".to_owned(),
        ready,
        version: "0.1.0".to_owned(),
        ..Member::default()
    };
    let range = |range, owner: Option<&str>| RangeOwner {
        range,
        owner: owner.map(str::to_owned),
        epoch: 3,
        load: owner.map_or(0.0, |_| 0.034),
    };
    FleetShards {
        replica: "manifold-0".to_owned(),
        members: vec![member("manifold-0", true), member("manifold-1", false)],
        ranges: vec![range(0, Some("manifold-0")), range(1, None)],
        ranges_total: 2,
        replicas: vec![ReplicaShards {
            replica: "manifold-0".to_owned(),
            fence: Fence { open: true },
            owned: vec![OwnedRange {
                range: 0,
                epoch: 3,
                state: "active".to_owned(),
                keys: 12,
                queued: 1,
            }],
            totals: Totals {
                keys: 12,
                queued: 1,
                reconciles: 345,
                writes: 67,
            },
            ..ReplicaShards::default()
        }],
        missing: vec![Missing {
            replica: "manifold-1".to_owned(),
            why: "no answer within 3s".to_owned(),
        }],
        ..FleetShards::default()
    }
}

fn quota() -> Blocker {
    Blocker::new(
        BlockerKind::Quota,
        "resourcequotas shop/few",
        "requested: pods=1, used: pods=2, limited: pods=2",
        "kubectl describe quota few -n shop: raise it or delete what uses it up",
    )
}

fn attempt(time: &str) -> Attempt {
    Attempt {
        at: format!("2026-01-01T{time}.123Z"),
        waited_ms: Some(12),
        took_ms: 4.2,
        result: "error".to_owned(),
        error: "create pods shop/web-1-x (forbidden): exceeded quota".to_owned(),
        code: Some(403),
        blocker: Some(quota()),
        woken_by: "change of pods shop/web-1-y".to_owned(),
        next_in_ms: Some(640),
    }
}

fn failing() -> KeyReport {
    KeyReport {
        controller: "replicaset-controller".to_owned(),
        key: "shop/web-1".to_owned(),
        resource: "replicasets.apps".to_owned(),
        via: "its dependent replicasets.apps shop/web-1".to_owned(),
        range: 17,
        owner: Some("manifold-1".to_owned()),
        state: "delayed".to_owned(),
        next_in_ms: Some(3200),
        failures: 7,
        blocker: Some(quota()),
        last: Some(LastAttempt {
            at: "2026-01-01T12:00:05.5Z".to_owned(),
            result: "create pods shop/web-1-x (forbidden): exceeded quota".to_owned(),
            plan: vec!["create pods/web-1-x".to_owned()],
            ..LastAttempt::default()
        }),
        attempts: vec![attempt("12:00:01"), attempt("12:00:05")],
        ..KeyReport::default()
    }
}

fn explanation() -> Explanation {
    let reference = |resource: &str, name: &str| Reference {
        resource: resource.to_owned(),
        name: name.to_owned(),
    };
    let well = |controller: &str, key: &str| KeyReport {
        controller: controller.to_owned(),
        key: key.to_owned(),
        range: 3,
        owner: Some("manifold-0".to_owned()),
        state: "at rest".to_owned(),
        last: Some(LastAttempt {
            at: "2026-01-01T12:00:06Z".to_owned(),
            result: "done".to_owned(),
            ..LastAttempt::default()
        }),
        ..KeyReport::default()
    };
    Explanation {
        object: Some(ObjectReport {
            resource: "deployments.apps".to_owned(),
            name: "shop/web".to_owned(),
            exists: true,
            owners: Vec::new(),
            dependents: vec![reference("replicasets.apps", "shop/web-1")],
            dependents_total: 3,
            holds: vec![Blocker::new(
                BlockerKind::Paused,
                "deployments.apps shop/web",
                "spec.paused: its template is not rolled out",
                "kubectl rollout resume deployment/web -n shop",
            )],
        }),
        keys: vec![
            failing(),
            well("deployment-controller", "shop/web"),
            well("disruption-controller", "shop/budget"),
        ],
        hidden: vec![Hidden {
            controller: "endpoints-controller".to_owned(),
            needs: "get services in namespace shop".to_owned(),
        }],
        ..Explanation::default()
    }
}

fn unhappy_keys() -> Unhappy {
    let key = |failures| UnhappyKey {
        controller: "replicaset-controller".to_owned(),
        key: "shop/web-1".to_owned(),
        owner: "manifold-1".to_owned(),
        failures,
        attempts: vec![attempt("12:00:05")],
        ..UnhappyKey::default()
    };
    Unhappy {
        keys: vec![key(7), key(0)],
        hidden: 2,
        ..Unhappy::default()
    }
}

/// What is printed, each line begun with a bar so that blank ends would be seen.
fn is(printed: &str, expected: &str) {
    let printed: Vec<String> = printed.lines().map(|line| format!("|{line}")).collect();
    let expected: Vec<&str> = expected
        .lines()
        .map(str::trim_start)
        .filter(|line| !line.is_empty())
        .collect();
    assert_eq!(printed, expected, "\n{}", printed.join("\n"));
}

#[test]
fn status_says_what_is_wrong() {
    is(
        &status(&fleet(), &unhappy_keys(), false),
        "|Replicas: 1 ready of 2
         |Ranges:   1 owned of 2
         |Keys:     12, 1 waiting, 3 failing
         |
         |REPLICA       STATE      FENCE   RANGES   LOAD   KEYS   WAITING   RECONCILES   WRITES   VERSION
         |manifold-0*   ready      open         1   0.0%     12         1          345       67   0.1.0
         |manifold-1    starting   ?            ?   0.0%      ?         ?            ?        ?   0.1.0
         |
         |FAILING KEY   CONTROLLER              FAILURES   BLOCKED BY
         |shop/web-1    replicaset-controller          7   quota resourcequotas shop/few
         |
         |× 1 of 2 ranges have no owner (1): their keys wait
         |× manifold-1 is not ready: its caches fill
         |× manifold-1 does not answer: no answer within 3s",
    );
}

#[test]
fn status_shows_what_is_paused_and_who_is_drained() {
    let mut fleet = fleet();
    fleet.replicas[0].controllers.push(ControllerState {
        name: "job-controller".to_owned(),
        paused: 3,
        ..ControllerState::default()
    });
    let pause = |key: &str, reason: &str| Pause {
        controller: "job-controller".to_owned(),
        key: key.to_owned(),
        until: "2026-11-26T12:30:00Z".to_owned(),
        reason: reason.to_owned(),
        by: "jo".to_owned(),
        ..Pause::default()
    };
    fleet.steering.pauses = vec![pause("", "incident 7"), pause("shop/pi", "")];
    is(
        pauses(&fleet).trim_start(),
        "|PAUSED                   KEYS WAITING   UNTIL                  BY   REASON
         |job-controller                      3   2026-11-26T12:30:00Z   jo   incident 7
         |job-controller/shop/pi                  2026-11-26T12:30:00Z   jo",
    );
    fleet.steering.settings = vec![Setting {
        controller: "job-controller".to_owned(),
        setting: "qps".to_owned(),
        value: 2.5,
        until: "2026-11-26T12:30:00Z".to_owned(),
        by: "jo".to_owned(),
        ..Setting::default()
    }];
    is(
        settings(&fleet).trim_start(),
        "|SET              WHAT   VALUE   UNTIL                  BY   REASON
         |job-controller   qps      2.5   2026-11-26T12:30:00Z   jo",
    );
    for (incarnation, state) in [("1f", "drained"), ("2a", "ready")] {
        fleet.steering.drains = vec![Drain {
            replica: "manifold-0".to_owned(),
            incarnation: incarnation.to_owned(),
            ..Drain::default()
        }];
        let text = shards(&fleet, false);
        let row = text.lines().nth(1).unwrap_or_default();
        assert!(row.contains(&format!("manifold-0*   {state} ")), "{text}");
    }
    let mut unhappy = unhappy_keys();
    let order = Blocker::new(BlockerKind::Paused, "replicaset-controller", "", "");
    unhappy.keys[0].pause = Some(order);
    let text = status(&fleet, &unhappy, false);
    assert!(text.contains("7   paused replicaset-controller"), "{text}");
}

#[test]
fn status_shows_what_is_moved_and_by_which_plan_ranges_are_placed() {
    let mut fleet = fleet();
    let moved = |range, to: &str, without_effect| Moved {
        range,
        to: to.to_owned(),
        home: "manifold-1".to_owned(),
        without_effect,
        until: "2026-11-26T12:30:00Z".to_owned(),
        by: "jo".to_owned(),
        ..Moved::default()
    };
    fleet.steering.moves = vec![moved(0, "manifold-0", false), moved(7, "manifold-9", true)];
    is(
        moves(&fleet).trim_start(),
        "|MOVED     TO                       HOME         UNTIL                  BY   REASON
         |range 0   manifold-0               manifold-1   2026-11-26T12:30:00Z   jo
         |range 7   manifold-9 (no effect)   manifold-1   2026-11-26T12:30:00Z   jo",
    );
    let wide = shards(&fleet, true);
    assert!(wide.contains("manifold-0   manifold-1       3"), "{wide}");
    assert_eq!(placement(&fleet), "");
    fleet.placement = Placement {
        in_force: true,
        plan: 3,
        planner: "manifold-0".to_owned(),
        ..Placement::default()
    };
    is(
        placement(&fleet).trim_start(),
        "|Placement: by load, plan 3 of manifold-0",
    );
}

#[test]
fn shards_are_shown_by_replica_or_by_range() {
    is(
        &shards(&fleet(), false),
        "|REPLICA       STATE      FENCE   RANGES   LOAD   KEYS   WAITING   RECONCILES   WRITES   VERSION
         |manifold-0*   ready      open         1   0.0%     12         1          345       67   0.1.0
         |manifold-1    starting   ?            ?   0.0%      ?         ?            ?        ?   0.1.0
         |× without owner: 1
         |‼ manifold-1 does not answer: no answer within 3s",
    );
    is(
        &shards(&fleet(), true),
        "|RANGE   OWNER        HOME   EPOCH   LOAD   STATE    KEYS   WAITING
         |    0   manifold-0              3   3.4%   active     12         1
         |    1                           3   0.0%   ?           ?         ?
         |‼ manifold-1 does not answer: no answer within 3s",
    );
}

#[test]
fn explain_says_what_blocks_and_what_to_do() {
    is(
        &explain(&explanation(), false),
        "|Object:     deployments.apps shop/web
         |Controls:   replicasets.apps shop/web-1 and 2 more
         |Held up by: paused: deployments.apps shop/web: spec.paused: its template is not rolled out
         |remedy:   kubectl rollout resume deployment/web -n shop
         |
         |× replicaset-controller shop/web-1 (range 17, manifold-1), by its dependent replicasets.apps shop/web-1
         |    state:    delayed, next attempt in 3.2s, 7 failures in a row
         |    blocked:  quota: resourcequotas shop/few: requested: pods=1, used: pods=2, limited: pods=2
         |    remedy:   kubectl describe quota few -n shop: raise it or delete what uses it up
         |    error:    create pods shop/web-1-x (forbidden): exceeded quota
         |    planned:  create pods/web-1-x
         |    attempt:  12:00:01 error 403 quota in 4ms, woken by change of pods shop/web-1-y, next in 640ms
         |    attempt:  12:00:05 error 403 quota in 4ms, woken by change of pods shop/web-1-y, next in 640ms
         |√ deployment-controller shop/web (range 3, manifold-0): at rest, last at 12:00:06: done
         |- 1 more keys are well: -o wide shows them
         |- endpoints-controller: hidden, you need the right to get services in namespace shop",
    );
    let wide = explain(&explanation(), true);
    assert!(
        wide.contains("√ disruption-controller shop/budget"),
        "{wide}"
    );
    let nothing = explain(&Explanation::default(), false);
    is(&nothing, "|- no controller that runs here has a key for it");
}

#[test]
fn history_lists_attempts_and_keys() {
    is(
        &history(&explanation()),
        "|replicaset-controller shop/web-1 (range 17, manifold-1)
         |TIME       RESULT   CODE   TOOK    NEXT   WOKEN BY                      ERROR
         |12:00:01   error     403    4ms   640ms   change of pods shop/web-1-y   create pods shop/web-1-x (forbidden): exceeded quota
         |12:00:05   error     403    4ms   640ms   change of pods shop/web-1-y   create pods shop/web-1-x (forbidden): exceeded quota",
    );
    is(
        &history(&Explanation::default()),
        "|none of its keys has failed lately",
    );
    is(
        &unhappy(&unhappy_keys()),
        "|KEY          CONTROLLER              OWNER        FAILURES   LAST       BLOCKED BY
         |shop/web-1   replicaset-controller   manifold-1          7   12:00:05   quota resourcequotas shop/few
         |shop/web-1   replicaset-controller   manifold-1          0   12:00:05   nothing: it has recovered
         |- 2 keys are hidden: you may not list their objects",
    );
}

#[test]
fn top_shows_what_is_busy() {
    let all = Top {
        controllers: vec![
            BusyController {
                controller: "job-controller".to_owned(),
                keys: 40,
                queued: 2,
                failing: 1,
                rate: 12.345,
                load: 0.25,
            },
            BusyController {
                controller: "idle-controller".to_owned(),
                ..BusyController::default()
            },
        ],
        ranges: vec![BusyRange {
            range: 200,
            owner: "manifold-1".to_owned(),
            keys: 40,
            queued: 2,
            rate: 12.345,
            load: 0.25,
        }],
        keys: vec![BusyKey {
            controller: "job-controller".to_owned(),
            key: "shop/pi".to_owned(),
            range: 200,
            owner: "manifold-1".to_owned(),
            failures: 3,
            rate: 1.5,
            load: 0.031,
            ..BusyKey::default()
        }],
        hidden: 4,
        ..Top::default()
    };
    is(
        &top(&all, false),
        "|CONTROLLER       RATE/S    LOAD   KEYS   WAITING   FAILING
         |job-controller    12.35   25.0%     40         2         1
         |
         |RANGE   OWNER        RATE/S    LOAD   KEYS   WAITING
         |  200   manifold-1    12.35   25.0%     40         2
         |
         |KEY       CONTROLLER       RANGE   OWNER        RATE/S   LOAD   FAILURES
         |shop/pi   job-controller     200   manifold-1     1.50   3.1%          3
         |- 4 keys are hidden: you may not list their objects",
    );
    assert!(top(&all, true).contains("idle-controller"));
}

#[test]
fn ages_are_short() {
    for (ms, expected) in [
        (0, "0ms"),
        (999, "999ms"),
        (1_000, "1.0s"),
        (59_999, "59s"),
        (119_999, "119s"),
        (120_000, "2m"),
        (7_200_000, "2h"),
    ] {
        assert_eq!(age(ms), expected);
    }
    assert_eq!(time_of_day("2026-01-01T12:00:05.5Z"), "12:00:05");
    assert_eq!(time_of_day("2026-01-01T12:00:05Z"), "12:00:05");
}
