use std::time::Duration;

use coordinator::{HoldState, Holds, Pulse, View};
use node_options::{Options, args};
use node_serving::http::{Health, Kind};
use node_telemetry::metrics::Metrics;

use super::{
    checks::{check_life, held},
    gauges::{states, unowned},
    setup::{certificate_pem, enabled, flex_drivers, measured, names, selected},
};

#[test]
fn flex_volume_drivers_are_named_where_there_are_any() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(flex_drivers(&folder.path().join("missing")), None);
    std::fs::write(folder.path().join("README"), "").unwrap();
    std::fs::create_dir(folder.path().join(".cache")).unwrap();
    assert_eq!(flex_drivers(folder.path()), None);
    std::fs::create_dir(folder.path().join("vendor~disk")).unwrap();
    let warning = flex_drivers(folder.path()).unwrap();
    assert!(warning.contains("(vendor~disk) are not run"), "{warning}");
}

#[test]
fn ranges_of_the_dead_and_those_without_a_lease_are_unowned_and_members_counted_by_state() {
    let member = |name: &str, ready, draining| coordinator::Member {
        name: name.to_owned(),
        incarnation: "1".to_owned(),
        ready,
        draining,
        ..coordinator::Member::default()
    };
    let owned = |range, owner: Option<&str>| coordinator::RangeOwner {
        range,
        owner: owner.map(str::to_owned),
        epoch: 1,
    };
    let view = View {
        members: vec![
            member("a", true, false),
            member("b", false, false),
            member("c", true, true),
            member("d", false, true),
        ],
        ranges: [
            owned(0, Some("a")),
            owned(1, Some("dead")),
            owned(2, None),
            owned(3, Some("c")),
        ]
        .into(),
        ..View::default()
    };
    assert_eq!(unowned(4, &view), 2);
    assert_eq!(unowned(8, &view), 6, "four have no Lease");
    assert_eq!(unowned(8, &View::default()), 8);
    let wanted = [("ready", 1), ("not_ready", 1), ("draining", 2)];
    assert_eq!(states(&view), wanted);
}

#[test]
fn readyz_fails_where_a_replica_should_work_and_may_not_and_passes_on_standby() {
    let now = Some(Duration::from_secs(1));
    for (holds, open_until, well) in [
        (Holds::Unknown, None, false),
        (Holds::Nobody, None, false),
        (Holds::Other("kcm_1".to_owned()), None, true),
        (Holds::Fleet, None, false),
        (Holds::Fleet, now, true),
    ] {
        let mut state = HoldState::default();
        state.hold.holds = holds;
        state.hold.open_until = open_until;
        assert_eq!(held("a/b", &state).is_ok(), well, "{state:?}");
    }
}

#[test]
fn a_certificate_is_written_in_pem_as_go_writes_it() {
    let text = certificate_pem(&[7; 100]);
    let lines: Vec<&str> = text.split('\n').collect();
    assert_eq!(lines.first(), Some(&"-----BEGIN CERTIFICATE-----"));
    assert_eq!(lines[lines.len() - 2..], ["-----END CERTIFICATE-----", ""]);
    let body = &lines[1..lines.len() - 2];
    assert_eq!(
        body.iter().map(|line| line.len()).collect::<Vec<_>>(),
        [64, 64, 8]
    );
    assert!(!text.contains('\r'));
}

/// Upstream builds the controller of tokens without a check of `--controllers`.
#[test]
fn the_controller_of_tokens_runs_with_a_key_whatever_is_listed() {
    const TOKENS: &str = "serviceaccount-token-controller";
    let descriptors = node_registry::descriptors();
    let run = |words: &[&str]| {
        let specs = args::flags(&descriptors);
        let args::Parsed::Run(values) = args::parse(specs, words.iter().copied()).unwrap() else {
            panic!("nothing is to be printed");
        };
        let surroundings = node_options::Surroundings {
            host_name: "one".to_owned(),
            ..Default::default()
        };
        let options = Options::new(values, &descriptors, &surroundings).unwrap();
        names(&enabled(&options, &options.flags).unwrap())
    };
    let key = "--service-account-private-key-file=/sa.key";
    let mut both = run(&["--controllers=ttl", key]);
    both.sort_unstable();
    assert_eq!(both, [TOKENS, "ttl-controller"]);
    assert_eq!(run(&["--controllers=ttl"]), ["ttl-controller"]);
    assert!(run(&["--controllers=*,-serviceaccount-token", key]).contains(&TOKENS));
}

#[test]
fn the_selection_is_published_as_the_shortest_list() {
    const TOKENS: &str = "serviceaccount-token-controller";
    let all: Vec<&str> = node_registry::descriptors()
        .iter()
        .filter(|one| one.on_by_default)
        .map(|one| one.name)
        .collect();
    assert_eq!(selected(&all, &all), format!("* {TOKENS}"));
    assert_eq!(selected(&all, &[]), "*");
    assert_eq!(
        selected(&["ttl-controller"], &["ttl-controller"]),
        "ttl-controller"
    );
    let but_one: Vec<&str> = all
        .iter()
        .copied()
        .filter(|name| *name != "ttl-controller")
        .collect();
    assert_eq!(
        selected(&but_one, &but_one),
        format!("* {TOKENS} -ttl-controller")
    );
}

#[test]
fn cloud_controllers_that_do_not_run_export_no_metrics() {
    let has = |running: &[&str], family: &str| {
        let text = Metrics::new(&measured(running)).encode();
        text.contains(&format!("# TYPE {family} "))
    };
    let family = "service_controller_loadbalancer_sync_total";
    assert!(!has(&[], family));
    assert!(has(&["service-lb-controller"], family));
    assert!(has(&[], "ephemeral_volume_controller_create_total"));
}

#[tokio::test(start_paused = true)]
async fn livez_fails_where_something_has_shown_no_sign_of_life_for_half_a_minute() {
    let health = Health::new(Metrics::new(&[]));
    let (working, dead) = (Pulse::default(), Pulse::default());
    let pulses = [("ranges-0", &working), ("renewal", &dead)];
    check_life(
        &health,
        pulses
            .map(|(name, pulse)| (name.to_owned(), pulse.clone()))
            .to_vec(),
    );
    dead.beat();
    let kept = tokio::spawn(working.keep());
    tokio::time::sleep(Duration::from_secs(29)).await;
    assert!(health.failing(Kind::Livez).is_empty());
    tokio::time::sleep(Duration::from_secs(2)).await;
    let wanted = (
        "alive-renewal".to_owned(),
        "no sign of life for 31s".to_owned(),
    );
    assert_eq!(health.failing(Kind::Livez), [wanted]);
    assert!(
        health.failing(Kind::Readyz).is_empty(),
        "that is for a restart to mend"
    );
    dead.beat();
    assert!(health.failing(Kind::Livez).is_empty());
    kept.abort();
}
