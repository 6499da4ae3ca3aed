use std::{collections::BTreeMap, time::Duration};

use controllers_kit::{Key, SignedDuration, Timestamp};
use coordinator_core::Member;
use steering::{Amount, Order, Setting, Target};

use super::{
    in_force::{Change, InForce, What, changes},
    waiting::{WAITING_MAX, Waiting},
};

const CONTROLLER: &str = "job-controller";
const PLACE: u16 = 3;

fn at(minutes: i64) -> Timestamp {
    let noon: Timestamp = "2026-11-26T12:00:00Z".parse().unwrap();
    noon + SignedDuration::from_mins(minutes)
}

fn order(target: Target, since: i64, until: i64) -> Order {
    Order {
        target,
        incarnation: Some("i1".to_owned()),
        amount: None,
        to: None,
        home: None,
        since: at(since),
        until: at(until),
        reason: String::new(),
        by: String::new(),
    }
}

fn whole() -> Target {
    Target::Controller(CONTROLLER.to_owned())
}

fn of_key(key: &str) -> Target {
    Target::Key {
        controller: CONTROLLER.to_owned(),
        key: key.to_owned(),
    }
}

fn held(orders: &[Order]) -> BTreeMap<Target, Order> {
    let all = orders.iter();
    all.map(|order| (order.target.clone(), order.clone()))
        .collect()
}

fn in_force(orders: &[Order]) -> InForce {
    let all = held(orders);
    let place = |name: &str| (name == CONTROLLER).then_some(PLACE);
    InForce::of(&all.iter().collect(), &place, 1)
}

#[test]
fn a_key_is_paused_by_its_controllers_order_or_its_own() {
    let web = Key::new("shop", "web");
    let elsewhere = Target::Controller("ttl-controller".to_owned());
    for (case, orders, unit, until) in [
        ("none", &[][..], PLACE, None),
        ("its controller", &[order(whole(), 0, 60)], PLACE, Some(60)),
        (
            "its own",
            &[order(of_key("shop/web"), 0, 60)],
            PLACE,
            Some(60),
        ),
        (
            "a neighbour's",
            &[order(of_key("shop/api"), 0, 60)],
            PLACE,
            None,
        ),
        (
            "another controller's",
            &[order(of_key("shop/web"), 0, 60)],
            PLACE + 1,
            None,
        ),
        (
            "of one that does not run",
            &[order(elsewhere, 0, 60)],
            PLACE,
            None,
        ),
        (
            "both",
            &[order(whole(), 0, 60), order(of_key("shop/web"), 0, 90)],
            PLACE,
            Some(90),
        ),
    ] {
        let found = in_force(orders);
        let until = until.map(at);
        assert_eq!(
            found.pause(unit, &web).map(|order| order.until),
            until,
            "{case}"
        );
    }
    let both = in_force(&[order(whole(), 0, 60), order(of_key("shop/web"), 0, 90)]);
    assert_eq!(both.counts(PLACE), (1, 1));
}

fn set(setting: Setting, value: f64) -> Order {
    let target = Target::Setting {
        controller: CONTROLLER.to_owned(),
        setting,
    };
    Order {
        amount: Amount::of(setting, value).ok(),
        ..order(target, 0, 60)
    }
}

#[test]
fn a_setting_is_its_controllers_alone_and_pauses_nothing() {
    let found = in_force(&[set(Setting::Workers, 20.0), set(Setting::Qps, 2.5)]);
    let of = |unit, setting| found.setting(unit, setting).map(Amount::value);
    assert_eq!(of(PLACE, Setting::Workers), Some(20.0));
    assert_eq!(of(PLACE, Setting::Qps), Some(2.5));
    assert_eq!(of(PLACE + 1, Setting::Workers), None);
    assert_eq!(found.counts(PLACE), (0, 0));
    assert_eq!(found.pause(PLACE, &Key::new("shop", "web")), None);
    assert_eq!(found.drains(), 0);
}

#[test]
fn events_say_what_has_become_of_an_order() {
    let until = "until 2026-11-26T13:00:00Z by jo: incident 7";
    for (order, what, expected) in [
        (
            order(whole(), 0, 60),
            What::Begins,
            ("Paused", format!("job-controller is paused {until}")),
        ),
        (
            order(of_key("shop/pi"), 0, 60),
            What::Changes,
            (
                "Paused",
                format!("job-controller/shop/pi is paused {until}"),
            ),
        ),
        (
            order(whole(), 0, 60),
            What::Lifted,
            (
                "Resumed",
                "job-controller is reconciled again: the pause is over, it was taken back"
                    .to_owned(),
            ),
        ),
        (
            set(Setting::Qps, 2.5),
            What::Begins,
            (
                "SettingChanged",
                format!("qps of job-controller set to 2.5 {until}"),
            ),
        ),
        (
            set(Setting::Workers, 20.0),
            What::Expires,
            (
                "SettingRestored",
                "workers of job-controller as configured again: the order is over, it has expired"
                    .to_owned(),
            ),
        ),
        (
            order(Target::Replica("manifold-1".to_owned()), 0, 60),
            What::Begins,
            ("Drained", format!("manifold-1 is drained {until}")),
        ),
        (
            order(Target::Replica("manifold-1".to_owned()), 0, 60),
            What::Expires,
            (
                "Undrained",
                "manifold-1 takes ranges again: the drain is over, it has expired".to_owned(),
            ),
        ),
    ] {
        let order = Order {
            reason: "incident 7".to_owned(),
            by: "jo".to_owned(),
            ..order
        };
        assert_eq!(Change { order, what }.event(), expected);
    }
}

#[test]
fn what_begins_changes_is_lifted_or_expires_is_distinguished() {
    let known = held(&[
        order(whole(), 0, 60),
        order(of_key("shop/web"), 0, 60),
        order(of_key("shop/api"), 0, 30),
    ]);
    let later = held(&[
        order(whole(), 0, 60),
        order(of_key("shop/api"), 0, 90),
        order(of_key("shop/new"), 0, 90),
    ]);
    let seen = |before: &BTreeMap<Target, Order>,
                after: &BTreeMap<Target, Order>,
                now|
     -> Vec<(String, What)> {
        let found = changes(before, &after.iter().collect(), now);
        let seen = |Change { order, what }: Change| (order.target.to_string(), what);
        found.into_iter().map(seen).collect()
    };
    let name = |key: &str| format!("{CONTROLLER}/shop/{key}");
    assert_eq!(
        seen(&known, &later, at(10)),
        [
            (name("web"), What::Lifted),
            (name("api"), What::Changes),
            (name("new"), What::Begins),
        ]
    );
    assert_eq!(
        seen(&known, &held(&[]), at(30))[1],
        (name("api"), What::Expires)
    );
    assert!(seen(&known, &known, at(10)).is_empty());
}

/// A member by its name: with `-` in front it is stale, with `!` on its way out, with `?` not ready.
fn member(sign: &str) -> Member {
    let name = sign.trim_start_matches(['-', '!', '?']);
    Member {
        name: name.to_owned(),
        incarnation: "i1".to_owned(),
        ready: !sign.starts_with('?'),
        draining: sign.starts_with('!'),
        stale: sign.starts_with('-'),
        ..Member::default()
    }
}

#[test]
fn a_drained_replica_steps_back_while_another_takes_its_ranges() {
    for (case, drained, members, steps_back) in [
        ("nobody is drained", &[][..], &["a", "b", "c"][..], &[][..]),
        ("one is", &["a"], &["a", "b", "c"], &["a"]),
        ("it is alone", &["a"], &["a"], &[]),
        ("the other is stale", &["a"], &["a", "-b"], &[]),
        ("the other is on its way out", &["a"], &["a", "!b"], &[]),
        ("the other is not ready", &["a"], &["a", "?b"], &[]),
        (
            "two of three are",
            &["a", "b"],
            &["a", "b", "c"],
            &["a", "b"],
        ),
        // What a replica that steps back says of itself.
        (
            "the second has stepped back",
            &["a", "b"],
            &["a", "-b", "c"],
            &["a", "b"],
        ),
        (
            "all are: the last keeps all",
            &["a", "b", "c"],
            &["a", "b", "c"],
            &["a", "b"],
        ),
        (
            "… and stays where it is",
            &["a", "b", "c"],
            &["-a", "-b", "c"],
            &["a", "b"],
        ),
        ("in another order", &["c", "a"], &["-c", "a"], &["c"]),
        ("the last of them is stale", &["a", "b"], &["a", "-b"], &[]),
        ("others are no members", &["x"], &["a", "b"], &[]),
    ] {
        let orders: Vec<Order> = (0..)
            .zip(drained)
            .map(|(minute, name)| order(Target::Replica((*name).to_owned()), minute, 60))
            .collect();
        let orders = in_force(&orders);
        let members: Vec<Member> = members.iter().map(|sign| member(sign)).collect();
        let found: Vec<&str> = members
            .iter()
            .map(|member| &*member.name)
            .filter(|name| orders.steps_back(name, &members))
            .collect();
        let mut wanted = steps_back.to_vec();
        wanted.sort_by_key(|name| members.iter().position(|member| member.name == *name));
        assert_eq!(found, wanted, "{case}");
    }
    let again = Member {
        incarnation: "i2".to_owned(),
        ..member("a")
    };
    let orders = in_force(&[order(Target::Replica("a".to_owned()), 0, 60)]);
    assert!(
        !orders.steps_back("a", &[again, member("b")]),
        "another start of it"
    );
}

#[test]
fn paused_keys_wait_once_and_within_a_bound() {
    let key = |name: &str| Key::new("shop", name);
    let secs = Duration::from_secs;
    let mut waiting = Waiting::default();
    assert!(waiting.put(PLACE, key("web"), secs(5)) && waiting.put(PLACE, key("web"), secs(9)));
    assert!(waiting.put(PLACE, key("api"), secs(7)) && waiting.put(1, key("web"), secs(8)));
    assert_eq!(waiting.since(PLACE, &key("web")), Some(secs(5)));
    assert_eq!(
        (waiting.count(PLACE), waiting.count(1), waiting.count(2)),
        (2, 1, 0)
    );
    let free = waiting.take(|unit, key| unit == PLACE && key.name == *"api");
    assert_eq!(free, [(1, key("web")), (PLACE, key("web"))]);
    assert_eq!(waiting.keys(PLACE).count(), 1);
    for index in 0..WAITING_MAX {
        let fits = waiting.put(PLACE, key(&index.to_string()), secs(1));
        assert_eq!(fits, index + 1 < WAITING_MAX, "{index}");
    }
    assert_eq!(waiting.take(|_, _| false).len(), WAITING_MAX);
    assert!(waiting.is_empty());
}
