use std::{cell::RefCell, rc::Rc};

use node_options::args::{self, Parsed};
use tokio::sync::mpsc;

use super::*;

const HEAD: &str = "apiVersion: kubecontrollermanager.config.k8s.io/v1alpha1\nkind: KubeControllerManagerConfiguration\n";

fn maker(words: &[&str]) -> Maker {
    let descriptors = node_registry::descriptors();
    let Ok(Parsed::Run(flags)) = args::parse(args::flags(&descriptors), words.iter().copied())
    else {
        panic!("{words:?}");
    };
    let surroundings = Surroundings {
        host_name: "host".to_owned(),
        ..Surroundings::default()
    };
    Maker::new(flags, descriptors, surroundings)
}

fn made(maker: &Maker, lines: &str) -> Options {
    let content = format!("{HEAD}{lines}\n").into_bytes();
    maker.made_of("m.yaml", content).unwrap()
}

#[test]
fn what_may_change_takes_effect_and_the_rest_waits_for_a_restart() {
    let all = "\
Generic:
  ClientConnection: {qps: 50, burst: 60, kubeconfig: /k}
  Debugging: {enableProfiling: false}
DeploymentController: {ConcurrentDeploymentSyncs: 9}
logging: {verbosity: 4, vmodule: [{filePattern: range, verbosity: 5}]}
metrics: {disabledMetrics: [a]}
fleet: {controllerShutdownTimeout: 20s, ranges: 64}
";
    for (words, before, after, applied, pending) in [
        (&[][..], "", "", &[][..], &[][..]),
        (
            &[],
            "",
            "logging: {verbosity: 2}",
            &["logging.verbosity"],
            &[],
        ),
        (
            &[],
            "logging: {verbosity: 2}",
            "",
            &["logging.verbosity"],
            &[],
        ),
        (&[], "", "fleet: {ranges: 64}", &[], &["fleet.ranges"]),
        (
            &[],
            "",
            "NodeIPAMController: {ServiceCIDR: a}",
            &[],
            &["NodeIPAMController.ServiceCIDR"],
        ),
        // The default, said or not, is the same.
        (&[], "", "fleet: {ranges: 256}", &[], &[]),
        // A flag goes before the file, whatever that says.
        (
            &["-v=3", "--ranges=32"],
            "",
            "logging: {verbosity: 2}\nfleet: {ranges: 64}",
            &[],
            &[],
        ),
        (
            &[],
            "",
            all,
            &[
                "Generic.Debugging.enableProfiling",
                "fleet.controllerShutdownTimeout",
                "Generic.ClientConnection.burst",
                "Generic.ClientConnection.qps",
                "DeploymentController.ConcurrentDeploymentSyncs",
                "metrics.disabledMetrics",
                "logging.verbosity",
                "logging.vmodule",
            ],
            &["Generic.ClientConnection.kubeconfig", "fleet.ranges"],
        ),
    ] {
        let maker = maker(words);
        let (before, wanted) = (made(&maker, before), made(&maker, after));
        let make = |values| maker.options(values);
        let (now, found) = change(&before, &wanted, make).unwrap();
        let missing: Vec<_> = applied
            .iter()
            .filter(|field| !found.applied.contains(field))
            .collect();
        assert!(missing.is_empty(), "{after}: {missing:?}");
        assert_eq!(found.applied.len(), applied.len(), "{:?}", found.applied);
        assert_eq!(found.pending, pending, "{after}");
        let overrides = words.contains(&"--ranges=32") && after.contains("ranges");
        assert_eq!(found.overriding.contains(&"ranges"), overrides, "{after}");
        // What waits is as before, and what takes effect as it was asked for.
        for spec in now.values().specs() {
            let name = spec.name;
            let source = if spec.live { &wanted } else { &before };
            assert_eq!(
                now.values().get(name),
                source.values().get(name),
                "--{name}"
            );
        }
        assert_eq!(
            now.configz()["manifold"]["fleet"]["ranges"],
            before.configz()["manifold"]["fleet"]["ranges"]
        );
    }
}

#[test]
fn what_takes_effect_and_does_not_fit_with_what_waits_is_refused() {
    let maker = maker(&[]);
    let before = made(&maker, "logging: {format: json}");
    let wanted = made(
        &maker,
        "logging: {format: text, vmodule: [{filePattern: a, verbosity: 1}]}",
    );
    let make = |values| maker.options(values);
    let why = change(&before, &wanted, make).unwrap_err().to_string();
    assert!(
        why.contains("--vmodule works with --logging-format=text only"),
        "{why}"
    );
}

struct Bed {
    dir: tempfile::TempDir,
    in_force: Arc<InForce>,
    state: Arc<FileState>,
    metrics: Arc<Metrics>,
    applied: Rc<RefCell<Vec<i64>>>,
    notices: RefCell<mpsc::Receiver<Notice>>,
}

impl Bed {
    fn write(&self, text: &str) {
        std::fs::write(self.dir.path().join("m.yaml"), text).unwrap();
    }

    /// Lets it be read again.
    async fn read(&self) {
        // Reading is on threads that the paused clock does not wait for.
        for _ in 0..50 {
            tokio::time::sleep(READ_EVERY / 10).await;
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Reasons of the events since the last time, and the longest message in characters.
    fn events(&self) -> (Vec<&'static str>, usize) {
        let mut notices = self.notices.borrow_mut();
        let all: Vec<_> = std::iter::from_fn(|| notices.try_recv().ok()).collect();
        let longest = all.iter().map(|one| one.message.chars().count()).max();
        let reasons = all.iter().map(|one| one.reason).collect();
        (reasons, longest.unwrap_or(0))
    }

    fn metric(&self, name: &str) -> Option<String> {
        let text = self.metrics.encode();
        text.lines()
            .find_map(|line| Some(line.strip_prefix(name)?.trim().to_owned()))
    }
}

fn bed(lines: &str) -> Bed {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.yaml");
    std::fs::write(&path, format!("{HEAD}{lines}")).unwrap();
    let maker = maker(&[&format!("--config={}", path.display())]);
    let (options, content) = maker.start().unwrap();
    let in_force = Arc::new(InForce::new(Arc::new(options)));
    let (state, metrics) = (Arc::<FileState>::default(), Metrics::new(&[]));
    let applied = Rc::<RefCell<Vec<i64>>>::default();
    let noted = Rc::clone(&applied);
    let (notices, said) = mpsc::channel(64);
    let parts = Parts {
        maker: Arc::new(maker),
        content: content.unwrap(),
        in_force: Arc::clone(&in_force),
        state: Arc::clone(&state),
        metrics: Arc::clone(&metrics),
        notices: Some(notices),
        apply: Box::new(move |_, now| {
            noted.borrow_mut().push(now.logging.verbosity);
            Vec::new()
        }),
    };
    actix::spawn(follow(parts));
    Bed {
        dir,
        in_force,
        state,
        metrics,
        applied,
        notices: RefCell::new(said),
    }
}

#[actix::test]
async fn a_file_that_changes_is_used_refused_and_used_again() {
    tokio::time::pause();
    let bed = bed("logging: {verbosity: 1}\n");
    bed.read().await;
    assert!(bed.applied.borrow().is_empty(), "it has not changed");
    assert!(bed.events().0.is_empty());
    bed.write(&format!("{HEAD}logging: {{verbosity: 2}}\n"));
    bed.read().await;
    assert_eq!(*bed.applied.borrow(), [2]);
    assert_eq!(bed.in_force.load().logging.verbosity, 2);
    assert!(bed.state.lines().is_empty());
    assert_eq!(bed.events().0, ["ConfigurationChanged"]);
    assert_eq!(bed.metric("manifold_config_refused ").as_deref(), Some("0"));
    assert_eq!(
        bed.metric("manifold_config_changes_total{result=\"used\"}")
            .as_deref(),
        Some("1")
    );

    for (text, part) in [
        (
            format!("{HEAD}logging: {{verbosty: 3}}\n"),
            "m.yaml:3: logging.verbosty: there is no such field (did you mean verbosity?)",
        ),
        (
            format!("{HEAD}fleet: {{ranges: 100}}\n"),
            "m.yaml:3: fleet.ranges: --ranges must be a power of two",
        ),
        ("a: [".to_owned(), "m.yaml:"),
    ] {
        bed.write(&text);
        bed.read().await;
        let lines = bed.state.lines();
        assert_eq!(lines.len(), 1);
        assert!(
            lines[0].contains("is refused, what was read before stays in force")
                && lines[0].contains(part),
            "{lines:?}"
        );
        assert_eq!(bed.in_force.load().logging.verbosity, 2);
        assert_eq!(bed.events().0, ["ConfigurationRefused"]);
        assert_eq!(bed.metric("manifold_config_refused ").as_deref(), Some("1"));
    }
    std::fs::remove_file(bed.dir.path().join("m.yaml")).unwrap();
    bed.read().await;
    assert!(
        bed.state.lines()[0].contains("can't be read"),
        "{:?}",
        bed.state.lines()
    );
    assert_eq!(
        bed.metric("manifold_config_changes_total{result=\"refused\"}")
            .as_deref(),
        Some("4")
    );
    // Each mistake has a line of its own, and an event its bound.
    let lines: String = (0..40).map(|n| format!("nothing{n:040}: 1\n")).collect();
    bed.write(&format!("{HEAD}{lines}"));
    bed.read().await;
    let (reasons, longest) = bed.events();
    assert_eq!(reasons, ["ConfigurationRefused"; 2]);
    assert_eq!(longest, NOTICE_MAX + 1);

    bed.write(&format!(
        "{HEAD}logging: {{verbosity: 3}}\nfleet: {{ranges: 64}}\nserving: {{securePort: 1}}\n"
    ));
    bed.read().await;
    assert_eq!(*bed.applied.borrow(), [2, 3]);
    assert_eq!(
        bed.events().0,
        ["ConfigurationChanged", "ConfigurationNeedsRestart"]
    );
    assert_eq!(bed.metric("manifold_config_refused ").as_deref(), Some("0"));
    let lines = bed.state.lines();
    assert!(
        lines[0].ends_with("these fields need a restart: serving.securePort, fleet.ranges"),
        "{lines:?}"
    );
    assert_eq!(
        bed.metric("manifold_config_pending_fields ").as_deref(),
        Some("2")
    );
    assert_eq!(bed.in_force.load().fleet.ranges, 256);
    // Taken back, nothing waits any more.
    bed.write(&format!("{HEAD}logging: {{verbosity: 3}}\n"));
    bed.read().await;
    assert!(bed.state.lines().is_empty());
    assert_eq!(
        bed.metric("manifold_config_pending_fields ").as_deref(),
        Some("0")
    );
}

#[test]
fn a_start_names_what_is_wrong_with_file_and_line() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.yaml").display().to_string();
    let start = |text: &str, words: &[&str]| {
        std::fs::write(&path, text).unwrap();
        let config = format!("--config={path}");
        let words: Vec<&str> = [config.as_str()]
            .into_iter()
            .chain(words.iter().copied())
            .collect();
        maker(&words).start().map(|(options, _)| options)
    };
    let why = start(&format!("{HEAD}fleet:\n  ranges: 100\n"), &[]).unwrap_err();
    assert!(
        why.to_string()
            .starts_with(&format!("{path}:4: fleet.ranges: --ranges must be")),
        "{why}"
    );
    let options = start(&format!("{HEAD}fleet:\n  ranges: 100\n"), &["--ranges=64"]).unwrap();
    assert_eq!(options.fleet.ranges, 64);
    let why = start("", &[]).unwrap_err();
    assert_eq!(why.to_string(), format!("{path}: is empty"));
    let absent = maker(&["--config=/does/not/exist"])
        .start()
        .map(|_| ())
        .unwrap_err();
    assert_eq!(
        absent.to_string(),
        "--config: can't read /does/not/exist: No such file or directory (os error 2); manifold config from-flags makes such a file"
    );
    let folder = maker(&[&format!("--config={}", dir.path().display())])
        .start()
        .map(|_| ())
        .unwrap_err();
    assert!(
        folder
            .to_string()
            .ends_with("Is a directory (os error 21); name the file in it"),
        "{folder}"
    );
    let endless = maker(&["--config=/dev/zero"])
        .start()
        .map(|_| ())
        .unwrap_err();
    assert!(
        endless.to_string().contains("longer than 1048576 bytes"),
        "{endless}"
    );
    assert!(maker(&[]).start().unwrap().1.is_none());
}
