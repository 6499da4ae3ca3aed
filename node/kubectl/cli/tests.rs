use super::{audit::judge, *};

#[test]
fn the_command_line_is_sound() {
    Cli::command().debug_assert();
    for (words, fits) in [
        (&["status"][..], true),
        (&["status", "--wait", "2m"], true),
        (&["status", "--wait", "soon"], false),
        (&["explain"], false),
        (&["explain", "deploy/web", "-n", "shop", "-o", "json"], true),
        (&["-n", "shop", "explain", "deploy", "web"], true),
        (&["explain", "a", "b", "c"], false),
        (&["history"], true),
        (&["history", "--controller", "x"], false),
        (&["history", "--controller", "x", "--key", "a/b"], true),
        (&["top", "-A", "-n", "x"], false),
        (&["move", "17", "--to", "manifold-1"], true),
        (&["move", "17"], false),
        (
            &[
                "move",
                "deploy/web",
                "-n",
                "shop",
                "--to",
                "a",
                "--for",
                "30m",
            ],
            true,
        ),
        (&["unmove", "17", "-o", "json"], true),
        (&["unmove"], false),
        (&["status", "--replica", "a", "--server", "b"], false),
        (&["doctor", "--pre", "-o", "json"], true),
        (&["audit"], false),
        (&["audit", "--print-policy"], true),
        (&["audit", "audit.log", "--unowned", "10s"], true),
        (&["pause"], false),
        (&["pause", "deployment-controller"], true),
        (
            &[
                "pause", "job/pi", "-n", "shop", "--for", "2h", "--reason", "x",
            ],
            true,
        ),
        (&["pause", "job", "--for", "long"], false),
        (&["resume", "job-controller/shop/pi", "-o", "json"], true),
        (&["drain", "manifold-1", "--wait", "60s"], true),
        (&["drain"], false),
        (&["undrain", "manifold-1", "--fleet-name", "other"], true),
        (
            &["set", "workers", "job-controller", "20", "--for", "30m"],
            true,
        ),
        (&["set", "qps", "job-controller", "-1"], true),
        (&["set", "memory", "job-controller", "1"], false),
        (&["set", "workers", "job-controller"], false),
        (&["unset", "qps", "job-controller"], true),
        (&["dashboard", "--port", "8100", "--no-open"], true),
        (&["dashboard", "--port", "66000"], false),
        (&["unknown"], false),
    ] {
        let words = std::iter::once("x").chain(words.iter().copied());
        let parsed = Cli::try_parse_from(words.clone());
        assert_eq!(parsed.is_ok(), fits, "{:?}", words.collect::<Vec<_>>());
    }
}

#[test]
fn an_order_holds_for_an_hour_where_nothing_else_is_given() {
    let words = ["x", "pause", "job-controller"];
    let cli = Cli::try_parse_from(words).unwrap();
    let Command::Pause { given, .. } = cli.command else {
        panic!("{:?}", cli.command)
    };
    let holds = Duration::try_from(steering::HOLDS).unwrap();
    assert_eq!(Given::from(given).holds, holds);
}

#[test]
fn a_query_holds_any_name() {
    assert_eq!(path("/a", &[]), "/a");
    assert_eq!(
        path("/a", &[("b", ""), ("c", "x&y=/z")]),
        "/a?c=x%26y%3D%2Fz"
    );
}

/// A request of a replica, as an API server logs it.
fn logged(at: u32, agent: &str, resource: &str, name: &str, body: &serde_json::Value) -> String {
    let time = format!("2026-03-02T12:00:{at:02}.000000Z");
    let record = serde_json::json!({
        "auditID": format!("{resource}-{name}-{at}"), "stage": "ResponseComplete", "verb": "patch",
        "requestURI": "/", "user": {"username": "system:kube-controller-manager"},
        "userAgent": format!("manifold/0.1.0 ({agent})"),
        "objectRef": {"resource": resource, "namespace": "default", "name": name},
        "responseStatus": {"code": 200}, "responseObject": body,
        "requestReceivedTimestamp": time, "stageTimestamp": time,
    });
    record.to_string()
}

fn range_lease(at: u32, holder: &str, epoch: u64) -> String {
    let name = "manifold-range-7";
    let body = serde_json::json!({
        "metadata": {"name": name},
        "spec": {"holderIdentity": holder, "leaseTransitions": epoch},
    });
    logged(at, "replica=a", "leases", name, &body)
}

fn pod(at: u32, replica: &str, epoch: u64) -> String {
    let agent = format!("replica={replica}; range=7; epoch={epoch}; controller=job-controller");
    logged(at, &agent, "pods", "web", &serde_json::Value::Null)
}

#[test]
fn audit_logs_are_judged_together_and_what_can_t_be_judged_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, lines: &[String]| {
        let path = dir.path().join(name);
        std::fs::write(&path, lines.join("\n") + "\n").unwrap();
        path
    };
    let unowned = Duration::try_from(audit_log::UNOWNED).unwrap();
    assert_eq!(duration("8s"), Ok(unowned), "the default of --unowned");
    let judged = |logs: &[PathBuf]| judge(logs, "manifold", unowned).map_err(|why| why.why);
    let first = file("1.log", &[range_lease(0, "a_1", 4), pod(1, "a", 4)]);
    let second = file("2.log", &[range_lease(2, "b_1", 5), pod(3, "b", 5)]);
    let good = judged(&[second.clone(), first.clone()]).unwrap();
    assert_eq!(
        good.text(),
        "4 requests, 2 writes that name range and epoch, 1 changes of owner\n\
         no range was without an owner for longer than 2000ms\n\
         √ each range had one writer at a time\n"
    );
    let late = file("3.log", &[pod(4, "a", 4)]);
    let bad = judged(&[first, second, late]).unwrap();
    assert_eq!(bad.complaints.len(), 1, "{:?}", bad.complaints);
    assert!(
        bad.complaints[0].starts_with("range 7: a sent patch pods default/web with epoch 4"),
        "{:?}",
        bad.complaints
    );
    let torn = file("torn.log", &["{\"auditID\"".to_owned()]);
    let missing = dir.path().join("none");
    for (logs, expected) in [
        (
            vec![missing],
            "no such file: give an API server's audit log",
        ),
        (vec![torn], "a line of the audit log: {\"auditID\""),
        (vec![file("empty.log", &[])], "--print-policy"),
    ] {
        let said = judged(&logs).err().unwrap_or_default();
        assert!(said.contains(expected), "{expected}: {said}");
    }
}
