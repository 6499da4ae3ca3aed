use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use super::*;

const CONTROLLER: &str = "deployment-controller";

/// Minutes after a fixed instant.
fn at(minutes: i64) -> Timestamp {
    let noon: Timestamp = "2026-11-26T12:00:00Z".parse().unwrap();
    noon + SignedDuration::from_mins(minutes)
}

fn known(name: &str) -> Result<String, Option<String>> {
    match name {
        CONTROLLER | "deployment" => Ok(CONTROLLER.to_owned()),
        _ => Err(closest(name, [CONTROLLER]).map(str::to_owned)),
    }
}

fn order(target: Target, since: i64, until: i64) -> Order {
    Order {
        target,
        incarnation: None,
        amount: None,
        to: None,
        home: None,
        since: at(since),
        until: at(until),
        reason: "a trial".to_owned(),
        by: "jo".to_owned(),
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

fn drain(replica: &str, since: i64, until: i64) -> Order {
    Order {
        incarnation: Some("i1".to_owned()),
        ..order(Target::Replica(replica.to_owned()), since, until)
    }
}

fn set(setting: Setting, value: f64, since: i64, until: i64) -> Order {
    let target = Target::Setting {
        controller: CONTROLLER.to_owned(),
        setting,
    };
    Order {
        amount: Some(Amount::of(setting, value).unwrap()),
        ..order(target, since, until)
    }
}

fn data(orders: &[Order]) -> BTreeMap<String, String> {
    let fields = orders.iter();
    fields
        .map(|order| (order.target.field(), order.written()))
        .collect()
}

fn one(field: &str, text: &str) -> Orders {
    Orders::read(&[(field.to_owned(), text.to_owned())].into(), &known)
}

#[test]
fn an_order_is_read_as_it_was_written() {
    let given = [
        order(whole(), 0, 60),
        order(of_key("shop/web"), 0, 60),
        order(of_key("shop/api"), 0, 60),
        drain("manifold-1", 0, 60),
        set(Setting::Workers, 20.0, 0, 60),
        set(Setting::Qps, 2.5, 0, 60),
        Order {
            to: Some("manifold-1".to_owned()),
            home: Some("manifold-0".to_owned()),
            ..order(Target::Range(17), 0, 60)
        },
        Order {
            to: Some("manifold-1".to_owned()),
            ..order(Target::Range(0), 0, 60)
        },
    ];
    let read = Orders::read(&data(&given), &known);
    assert_eq!(read.faults, []);
    assert_eq!(read.all.len(), given.len());
    for order in &given {
        assert_eq!(read.all[&order.target.field()], *order);
    }
}

#[test]
fn what_holds_when_and_what_is_removed_when() {
    let all = [
        order(whole(), 0, 60),
        order(of_key("shop/web"), -10, 30),
        drain("manifold-1", 30, 90),
    ];
    let orders = Orders::read(&data(&all), &known);
    for (minute, in_force, next, expired) in [
        (-20, &[][..], Some(-15), 0),
        (-15, &[1], Some(-5), 0),
        // The clock of who has written it may be ahead.
        (-5, &[0, 1], Some(25), 0),
        (25, &[0, 1, 2], Some(30), 0),
        // The clock of a replica may be behind that of the one that removes orders.
        (30, &[0, 2], Some(35), 0),
        (35, &[0, 2], Some(60), 1),
        (60, &[2], Some(65), 1),
        (65, &[2], Some(90), 2),
        (90, &[], Some(95), 2),
        (95, &[], None, 3),
    ] {
        let found: Vec<&Target> = orders.in_force(at(minute)).into_keys().collect();
        let mut wanted: Vec<&Target> = in_force
            .iter()
            .map(|at| &all[*at as usize].target)
            .collect();
        wanted.sort();
        assert_eq!(found, wanted, "minute {minute}");
        assert_eq!(
            orders.next_change(at(minute)),
            next.map(at),
            "minute {minute}"
        );
        assert_eq!(orders.expired(at(minute)).len(), expired, "minute {minute}");
    }
}

#[test]
fn of_two_orders_about_one_target_the_later_end_counts() {
    let mut fields = data(&[order(whole(), 0, 60)]);
    let by_hand = order(whole(), 0, 90);
    fields.insert("pause.by-hand".to_owned(), by_hand.written());
    let orders = Orders::read(&fields, &known);
    assert_eq!(orders.in_force(at(70))[&whole()].until, at(90));
    assert_eq!(orders.in_force(at(10))[&whole()].until, at(90));
    // One command ends both.
    let lifted = lift(&orders, &whole());
    assert_eq!(lifted.fields.len(), 2);
}

#[test]
fn what_can_not_be_read_has_no_effect_and_says_why() {
    let times = r#""since":"2026-11-26T12:00:00Z","until":"2026-11-26T13:00:00Z""#;
    for (field, text, why) in [
        ("pause.x", "", "it is no order"),
        ("pause.x", "[]", "it is no order"),
        ("pause.x", "{}", "\"controller\" is missing"),
        (
            "hold.x",
            "{}",
            "begins with \"pause.\", \"drain.\", \"set.\" or \"move.\"",
        ),
        ("move.3", r#"{"range":3,TIMES}"#, "\"to\" is missing"),
        ("move.3", r#"{"to":"r",TIMES}"#, "\"range\" is missing"),
        (
            "move.3",
            r#"{"range":4096,"to":"r",TIMES}"#,
            "there is no range 4096",
        ),
        (
            "move.3",
            r#"{"range":3,"to":"a b",TIMES}"#,
            "\"a b\" is no name of a replica",
        ),
        (
            "pause.x",
            r#"{"controller":"deployment","to":"r",TIMES}"#,
            "\"to\" does not belong there",
        ),
        (
            "pause.x",
            r#"{"controller":"deployment-controler",TIMES}"#,
            "there is no controller \"deployment-controler\": did you mean \"deployment-controller\"?",
        ),
        (
            "pause.x",
            r#"{"controller":"zzz",TIMES}"#,
            "there is no controller \"zzz\"",
        ),
        // A mistyped key must not pause the whole controller.
        (
            "pause.x",
            r#"{"controller":"deployment","keey":"shop/web",TIMES}"#,
            "unknown field `keey`",
        ),
        (
            "pause.x",
            r#"{"controller":"deployment","key":"",TIMES}"#,
            "\"\" is no key",
        ),
        (
            "pause.x",
            r#"{"controller":"deployment","key":"a/b/c",TIMES}"#,
            "\"a/b/c\" is no key",
        ),
        (
            "pause.x",
            r#"{"controller":"deployment","replica":"r",TIMES}"#,
            "\"replica\" does not belong there",
        ),
        (
            "pause.x",
            r#"{"controller":"deployment","since":"2026-11-26T12:00:00Z"}"#,
            "\"until\" is missing",
        ),
        (
            "pause.x",
            r#"{"controller":"deployment","since":"2026-11-26T12:00:00Z","until":"2026-12-26T12:00:00Z"}"#,
            "give more than 0s and at most",
        ),
        (
            "pause.x",
            r#"{"controller":"deployment","since":"2026-11-26T12:00:00Z","until":"2026-11-26T12:00:00Z"}"#,
            "give more than 0s",
        ),
        (
            "pause.x",
            r#"{"controller":"deployment","since":"noon","until":"2026-11-26T12:00:00Z"}"#,
            "it is no order",
        ),
        (
            "pause.x",
            r#"{"controller":"deployment","reason":"a\nb",TIMES}"#,
            "\"reason\" has more than 256 characters, or a line break",
        ),
        (
            "drain.r",
            r#"{"replica":"r",TIMES}"#,
            "\"incarnation\" is missing",
        ),
        (
            "drain.r",
            r#"{"incarnation":"i",TIMES}"#,
            "\"replica\" is missing",
        ),
        (
            "drain.r",
            r#"{"replica":"r\u001b[2J","incarnation":"i",TIMES}"#,
            "\"r\\u{1b}[2J\" is no name of a replica",
        ),
        // What a parser quotes moves no cursor and begins no line.
        (
            "pause.x",
            r#"{"a\nb\u001b[2J":1}"#,
            "unknown field `a\u{fffd}b\u{fffd}[2J`",
        ),
        (
            "set.x",
            r#"{"controller":"deployment",TIMES}"#,
            "\"workers or qps\" is missing",
        ),
        (
            "set.x",
            r#"{"controller":"deployment","workers":2,"qps":5,TIMES}"#,
            "\"qps\" does not belong there",
        ),
        (
            "set.x",
            r#"{"controller":"deployment","key":"shop/web","workers":2,TIMES}"#,
            "\"key\" does not belong there",
        ),
        (
            "pause.x",
            r#"{"controller":"deployment","workers":2,TIMES}"#,
            "\"workers\" does not belong there",
        ),
        (
            "set.x",
            r#"{"controller":"deployment","workers":0,TIMES}"#,
            "0 workers can't be: give a whole number from 1 to 1000",
        ),
        (
            "set.x",
            r#"{"controller":"deployment","workers":1001,TIMES}"#,
            "from 1 to 1000",
        ),
        (
            "set.x",
            r#"{"controller":"deployment","workers":2.5,TIMES}"#,
            "it is no order",
        ),
        (
            "set.x",
            r#"{"controller":"deployment","qps":0,TIMES}"#,
            "a qps of 0 can't be: give a number from 0.1 to 10000",
        ),
        (
            "set.x",
            r#"{"controller":"deployment","qps":-1,TIMES}"#,
            "from 0.1",
        ),
        (
            "set.x",
            r#"{"controller":"deployment","qps":1e999,TIMES}"#,
            "it is no order",
        ),
    ] {
        let read = one(field, &text.replace("TIMES", times));
        assert_eq!(read.all.len(), 0, "{text}");
        let said = read.faults[0].why.to_string();
        assert!(said.contains(why), "{text}: {said}");
    }
    let long = format!(r#"{{"controller":"{}"}}"#, "x".repeat(ORDER_BYTES_MAX));
    assert_eq!(one("pause.x", &long).faults[0].why, Unreadable::Bytes);
    let good = one(
        "pause.x",
        &format!(r#"{{"controller":"deployment",{times}}}"#),
    );
    assert_eq!(good.all["pause.x"].target, whole());
}

#[test]
fn edits_of_different_orders_never_meet_and_repeated_ones_change_nothing() {
    let pause = place(&Orders::default(), &order(whole(), 0, 60)).unwrap();
    let other = place(&Orders::default(), &order(of_key("shop/web"), 0, 60)).unwrap();
    let (one, two) = (pause.patch(None), other.patch(None));
    let fields = |patch: &serde_json::Value| -> Vec<String> {
        patch["data"].as_object().unwrap().keys().cloned().collect()
    };
    assert_ne!(fields(&one), fields(&two));
    assert_eq!(one["metadata"], serde_json::Value::Null);
    let mut both = pause.data();
    both.extend(other.data());
    let orders = Orders::read(&both, &known);
    assert_eq!(place(&orders, &order(whole(), 0, 60)), Ok(pause));
    let resumed = lift(&orders, &whole());
    assert_eq!(resumed.patch(Some("7"))["metadata"]["resourceVersion"], "7");
    assert_eq!(
        resumed.patch(None)["data"][whole().field()],
        serde_json::Value::Null
    );
    assert_eq!(resumed.fields.len(), 1, "the key stays paused");
    assert!(lift(&orders, &of_key("shop/api")).is_empty());
}

#[test]
fn what_may_not_be_given_is_refused() {
    let none = Orders::default();
    for (order, part) in [
        (order(whole(), 0, 7 * 24 * 60 + 1), "at most"),
        (order(of_key("shop/"), 0, 60), "no key"),
        (
            Order {
                reason: "x".repeat(REASON_MAX + 1),
                ..order(whole(), 0, 60)
            },
            "\"reason\"",
        ),
    ] {
        let said = place(&none, &order).unwrap_err().to_string();
        assert!(said.contains(part), "{part}: {said}");
    }
    assert!(place(&none, &order(whole(), 0, 7 * 24 * 60)).is_ok());
}

#[test]
fn the_object_of_the_most_and_longest_orders_fits_the_api_server() {
    let longest = |index: usize| Order {
        reason: "ö".repeat(REASON_MAX),
        by: "system:serviceaccount:".to_owned() + &"x".repeat(200),
        ..order(of_key(&format!("{}/{index:0>253}", "n".repeat(63))), 0, 60)
    };
    let mut orders = Orders::default();
    for index in 0..ORDERS_MAX {
        let edit = place(&orders, &longest(index)).unwrap();
        orders.all.extend(Orders::read(&edit.data(), &known).all);
    }
    assert_eq!(orders.all.len(), ORDERS_MAX, "no two fields have one name");
    assert_eq!(place(&orders, &order(whole(), 0, 60)), Err(Refused::Full));
    let later = place(&orders, &order(whole(), 60, 90)).unwrap();
    let removed = later.fields.values().filter(|text| text.is_none());
    assert_eq!(removed.count(), ORDERS_MAX, "what has ended makes room");
    assert!(
        place(&orders, &longest(0)).is_ok(),
        "one that is there is replaced"
    );
    let all = data(&orders.all.values().cloned().collect::<Vec<_>>());
    let bytes: usize = all
        .iter()
        .map(|(field, text)| field.len() + text.len())
        .sum();
    println!("{ORDERS_MAX} of the longest orders have {bytes} bytes");
    assert!(bytes < 1 << 20, "{bytes}");
    assert!(all.keys().all(|field| field.len() <= 253));
    let mut more = all;
    more.insert("pause.zzz".to_owned(), order(whole(), 0, 60).written());
    let read = Orders::read(&more, &known);
    assert_eq!(
        (read.all.len(), &read.faults[0].why),
        (ORDERS_MAX, &Unreadable::TooMany)
    );
}

#[test]
fn of_ten_thousand_fields_few_are_named_and_the_rest_is_counted() {
    let orders = |text: &dyn Fn(usize) -> String| {
        let fields = (0..10_000).map(|index| (format!("pause.{index:05}"), text(index)));
        Orders::read(&fields.collect(), &known)
    };
    let good = orders(&|index| order(of_key(&format!("shop/{index}")), 0, 60).written());
    assert_eq!(good.all.len(), ORDERS_MAX);
    assert_eq!(good.faults_count(), 10_000 - ORDERS_MAX);
    let bad = orders(&|_| "{".to_owned());
    assert_eq!((bad.all.len(), bad.faults_count()), (0, 10_000));
    for read in [good, bad] {
        let said = read.faults_in_words();
        assert_eq!(said.len(), FAULTS_MAX + 1);
        let rest = format!("{} more fields", read.faults_count() - FAULTS_MAX);
        assert_eq!(said.last(), Some(&rest));
    }
}

#[test]
fn a_name_that_is_alike_is_suggested() {
    let names = ["deployment-controller", "job-controller"];
    assert_eq!(closest("deploymet-controller", names), Some(names[0]));
    assert_eq!(closest("xyz", names), None);
}
