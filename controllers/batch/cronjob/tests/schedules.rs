//! The grammar and the next times: 430 schedules over 16 zones, whose clocks go forward and back at midnight,
//! at two and by half an hour. What is wanted was asked of robfig/cron 3.0.1 itself.

use controllers_kit::Timestamp;
use jiff::tz::TimeZone;

use super::super::schedule;

/// The next four times, or what is said against the schedule.
fn answer(spec: &str, from: &str) -> String {
    let schedule = match schedule::parse(spec, &TimeZone::UTC) {
        Ok(schedule) => schedule,
        Err(why) => return format!("error: {why}"),
    };
    let mut times = Vec::new();
    let mut at: Timestamp = from.parse().expect("the table has times");
    while times.len() < 4 {
        match schedule.next(at) {
            Some(next) => {
                times.push(next.to_string());
                at = next;
            }
            None => {
                times.push("never".to_owned());
                break;
            }
        }
    }
    times.join(" ")
}

#[test]
fn every_schedule_is_read_as_robfig_reads_it() {
    let table = include_str!("robfig.txt");
    let mut wrong = Vec::new();
    for line in table.lines() {
        let mut parts = line.splitn(3, " | ");
        let (Some(spec), Some(from), Some(wanted)) = (parts.next(), parts.next(), parts.next())
        else {
            panic!("a line has a schedule, a time and an answer: {line}");
        };
        let spec: String = serde_json::from_str(spec).expect("schedules stand in quotes");
        let said = answer(&spec, from);
        if said != wanted {
            wrong.push(format!("{line}\n  {said}"));
        }
    }
    assert!(table.lines().count() >= 400);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn times_that_do_not_exist_are_skipped_and_those_that_come_twice_are_run_once() {
    let table = [
        // Forward at 2:00 on March 29th in Berlin: 2:30 is not, so the next is a day later.
        (
            "TZ=Europe/Berlin 30 2 * * *",
            "2026-03-28T12:00:00Z",
            "2026-03-30T00:30:00Z",
        ),
        // Back at 3:00 on October 25th: 2:30 comes twice and is run at the first.
        (
            "TZ=Europe/Berlin 30 2 * * *",
            "2026-10-24T12:00:00Z",
            "2026-10-25T00:30:00Z",
        ),
        // Back at 2:00 on November 1st in New York: 1:30 comes at 5:30 and at 6:30 UTC.
        (
            "TZ=America/New_York 30 1 * * *",
            "2026-10-31T12:00:00Z",
            "2026-11-01T05:30:00Z",
        ),
        // The 29th of February, the 31st.
        ("0 0 29 2 *", "2026-03-02T12:00:00Z", "2028-02-29T00:00:00Z"),
        ("0 0 31 * *", "2026-03-31T12:00:00Z", "2026-05-31T00:00:00Z"),
        // Friday or the 13th; Friday and any day.
        ("0 0 13 * 5", "2026-03-02T12:00:00Z", "2026-03-06T00:00:00Z"),
        ("0 0 * * 5", "2026-03-06T12:00:00Z", "2026-03-13T00:00:00Z"),
    ];
    for (spec, from, wanted) in table {
        assert_eq!(answer(spec, from).split(' ').next(), Some(wanted), "{spec}");
    }
}

#[test]
fn a_search_that_finds_nothing_ends() {
    for spec in ["0 0 30 2 *", ", * * * *", "* , * * *", "* * * , *"] {
        assert_eq!(answer(spec, "2026-03-02T12:00:00Z"), "never", "{spec}");
    }
}

#[test]
fn zones_are_known_by_their_exact_names() {
    let table = [
        ("", true),
        ("UTC", true),
        ("Local", true),
        ("Europe/Berlin", true),
        ("Etc/UTC", true),
        ("europe/berlin", false),
        ("Nowhere/City", false),
        ("../etc/passwd", false),
        ("/UTC", false),
    ];
    for (name, known) in table {
        let zone = schedule::zone(name, &TimeZone::UTC);
        assert_eq!(zone.is_ok(), known, "{name}");
    }
}

#[test]
fn a_schedule_follows_the_host_s_zone_unless_it_names_another() {
    let berlin = TimeZone::get("Europe/Berlin").unwrap();
    let table = [
        ("0 3 * * *", "2026-03-03T02:00:00Z"),
        ("@daily", "2026-03-02T23:00:00Z"),
        ("@every 1h", "2026-03-02T13:00:00Z"),
        ("TZ=Local 0 3 * * *", "2026-03-03T02:00:00Z"),
        ("TZ=UTC 0 3 * * *", "2026-03-03T03:00:00Z"),
        ("TZ=Asia/Tokyo 0 3 * * *", "2026-03-02T18:00:00Z"),
    ];
    let from: Timestamp = "2026-03-02T12:00:00Z".parse().unwrap();
    for (spec, wanted) in table {
        let next = schedule::parse(spec, &berlin).unwrap().next(from).unwrap();
        assert_eq!(next.to_string(), wanted, "{spec}");
    }
    // 02:30 does not exist on the day the clock goes forward: the next one is a day later.
    let from: Timestamp = "2026-03-28T12:00:00Z".parse().unwrap();
    let next = schedule::parse("30 2 * * *", &berlin).unwrap().next(from);
    assert_eq!(next.unwrap().to_string(), "2026-03-30T00:30:00Z");
}
