//! What a step has cost: processor time and memory from /proc, requests from the managers' own counters and
//! from the API server's, bytes from the kernel's book of the sockets.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use harness::Metrics;
use kube::Client;

use crate::peer::Managers;

/// The interval between two readings of the processor time.
const READING_INTERVAL: Duration = Duration::from_millis(250);
/// Readings in a row that show that the managers are at rest.
const READINGS: usize = 4;
/// Seconds of processor that managers at rest take in these readings, for each process: renewals and resyncs.
const REST_CPU_MAX: f64 = 0.04;
/// A manager that does not come to rest by then is measured as it is, and the result says so.
const REST_LIMIT: Duration = Duration::from_secs(60);
/// Clock ticks of /proc/<pid>/stat: a constant of Linux' interface to programs.
const TICKS_PER_SECOND: f64 = 100.0;
const KIB_PER_MIB: f64 = 1024.0;

/// The figures of one step of one run, by name.
pub(crate) type Figures = BTreeMap<String, f64>;

/// Kinds that only managers give a status.
const OURS: [&str; 8] = [
    "deployments",
    "replicasets",
    "replicationcontrollers",
    "statefulsets",
    "daemonsets",
    "jobs",
    "cronjobs",
    "poddisruptionbudgets",
];

/// Seconds of processor that a file of /proc reports.
fn seconds(path: &str, parse: impl Fn(&str) -> Option<f64>) -> Result<f64> {
    let text = fs::read_to_string(path).with_context(|| format!("reading {path}"))?;
    parse(&text).with_context(|| format!("{path} reads {text:?}"))
}

/// User and system seconds of a process, all its threads, those that have ended included.
pub(crate) fn cpu_seconds(pid: u32) -> Result<f64> {
    seconds(&format!("/proc/{pid}/stat"), parse_cpu)
}

fn parse_cpu(stat: &str) -> Option<f64> {
    // The name may hold anything, so fields are counted from its end.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |at: usize| fields.get(at)?.parse::<f64>().ok();
    Some((ticks(11)? + ticks(12)?) / TICKS_PER_SECOND)
}

/// A line of /proc/<pid>/status in MiB: `VmHWM` is the peak, `VmRSS` the present.
pub(crate) fn memory_mib(pid: u32, line: &str) -> Result<f64> {
    let path = format!("/proc/{pid}/status");
    let text = fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
    parse_memory(&text, line).with_context(|| format!("{path} has no {line}"))
}

fn parse_memory(status: &str, line: &str) -> Option<f64> {
    let rest = status
        .lines()
        .find_map(|text| text.strip_prefix(line)?.strip_prefix(':'))?;
    let kib: f64 = rest.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib / KIB_PER_MIB)
}

/// The peak counts from here on.
fn reset_peak(pid: u32) -> Result<()> {
    let path = format!("/proc/{pid}/clear_refs");
    fs::write(&path, "5").with_context(|| format!("resetting the peak of memory by {path}"))
}

/// Bytes that a process has received, by socket; none where `ss` is not to be had.
fn received(pids: &[u32]) -> BTreeMap<String, f64> {
    let output = std::process::Command::new("ss")
        .args(["-H", "-t", "-i", "-n", "-p", "-O"])
        .output();
    match output {
        Ok(output) => parse_sockets(&String::from_utf8_lossy(&output.stdout), pids),
        Err(_) => BTreeMap::new(),
    }
}

/// A line for each socket: state, queues, addresses, `users:((…pid=N…))`, then what TCP knows.
fn parse_sockets(text: &str, pids: &[u32]) -> BTreeMap<String, f64> {
    let of_ours = |line: &&str| pids.iter().any(|pid| line.contains(&format!("pid={pid},")));
    text.lines()
        .filter(of_ours)
        .filter_map(|line| {
            let mut words = line.split_whitespace().skip(3);
            let socket = format!("{} {}", words.next()?, words.next()?);
            let bytes = words.find_map(|word| word.strip_prefix("bytes_received:"))?;
            Some((socket, bytes.parse().ok()?))
        })
        .collect()
}

/// Counters at one moment.
#[derive(Debug)]
struct Reading {
    cpu: BTreeMap<u32, f64>,
    own: BTreeMap<Asked, f64>,
    server: BTreeMap<Counted, f64>,
    sockets: BTreeMap<String, f64>,
}

/// What a manager says that it has asked for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Asked {
    method: String,
    code: String,
}

/// What the API server says that was asked for, by whomever.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Counted {
    pub(crate) verb: String,
    pub(crate) group: String,
    pub(crate) resource: String,
    pub(crate) subresource: String,
    pub(crate) code: String,
}

impl Counted {
    fn is_write(&self) -> bool {
        matches!(
            self.verb.as_str(),
            "POST" | "PUT" | "PATCH" | "APPLY" | "DELETE" | "DELETECOLLECTION"
        )
    }

    fn is_status(&self) -> bool {
        self.subresource == "status" && OURS.contains(&self.resource.as_str()) && self.is_write()
    }

    /// `PATCH deployments/status`.
    pub(crate) fn words(&self) -> String {
        let slash = if self.subresource.is_empty() { "" } else { "/" };
        format!("{} {}{slash}{}", self.verb, self.resource, self.subresource)
    }
}

fn requests_to_the_server(metrics: &Metrics) -> BTreeMap<Counted, f64> {
    let mut counted = BTreeMap::new();
    for sample in metrics.select("apiserver_request_total", &[]) {
        let label = |name: &str| sample.labels.get(name).cloned().unwrap_or_default();
        let key = Counted {
            verb: label("verb"),
            group: label("group"),
            resource: label("resource"),
            subresource: label("subresource"),
            code: label("code"),
        };
        *counted.entry(key).or_default() += sample.value;
    }
    counted
}

fn requests_of_managers(scrapes: &[Metrics]) -> BTreeMap<Asked, f64> {
    let mut own = BTreeMap::new();
    for sample in scrapes
        .iter()
        .flat_map(|scrape| scrape.select("rest_client_requests_total", &[]))
    {
        let label = |name: &str| sample.labels.get(name).cloned().unwrap_or_default();
        let key = Asked {
            method: label("method"),
            code: label("code"),
        };
        *own.entry(key).or_default() += sample.value;
    }
    own
}

fn grown<K: Ord + Clone>(before: &BTreeMap<K, f64>, after: &BTreeMap<K, f64>) -> BTreeMap<K, f64> {
    after
        .iter()
        .map(|(key, now)| (key.clone(), now - before.get(key).copied().unwrap_or(0.0)))
        .filter(|(_, more)| *more > 0.0)
        .collect()
}

/// What the API server has counted until now.
pub(crate) async fn server(client: &Client) -> Result<BTreeMap<Counted, f64>> {
    let request = http::Request::get("/metrics").body(Vec::new())?;
    let text = client.request_text(request).await;
    Ok(requests_to_the_server(&Metrics::parse(
        &text.context("the API server's /metrics")?,
    )))
}

/// Writes that the API server has counted since. Those to Leases and of nodes' heartbeats are left out, and
/// what is only asked by a POST: reviews and tokens.
pub(crate) fn writes_since(
    before: &BTreeMap<Counted, f64>,
    after: &BTreeMap<Counted, f64>,
) -> BTreeMap<String, f64> {
    let mut writes = BTreeMap::new();
    for (counted, more) in grown(before, after) {
        let is_asked = counted.resource.ends_with("reviews") || counted.subresource == "token";
        let is_beat = ["leases", "nodes"].contains(&counted.resource.as_str());
        if counted.is_write() && !is_asked && !is_beat {
            *writes.entry(counted.words()).or_default() += more;
        }
    }
    writes
}

/// What the API server was asked for since, Leases left out; refused requests are listed separately.
pub(crate) fn requests_since(
    before: &BTreeMap<Counted, f64>,
    after: &BTreeMap<Counted, f64>,
) -> BTreeMap<String, f64> {
    let mut requests = BTreeMap::new();
    for (counted, more) in grown(before, after) {
        if counted.resource == "leases" || counted.resource.is_empty() {
            continue;
        }
        let refused = if counted.code.starts_with('2') {
            String::new()
        } else {
            format!(" {}", counted.code)
        };
        *requests
            .entry(format!("{}{refused}", counted.words()))
            .or_default() += more;
    }
    requests
}

/// Processor seconds of all of them together.
pub(crate) fn cpu_of_all(pids: &[u32]) -> Result<f64> {
    pids.iter().map(|pid| cpu_seconds(*pid)).sum()
}

/// Seconds that all processors together have worked, for any process, since the machine came up.
pub(crate) fn machine_seconds() -> Result<f64> {
    seconds("/proc/stat", parse_machine)
}

fn parse_machine(stat: &str) -> Option<f64> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let ticks: Vec<f64> = line
        .split_whitespace()
        .map(|field| field.parse().ok())
        .collect::<Option<_>>()?;
    // User, nice, system, idle, waiting for disks, interrupts of both kinds; then what other machines took.
    let [user, nice, system, _, _, hard, soft, ..] = ticks[..] else {
        return None;
    };
    Some((user + nice + system + hard + soft) / TICKS_PER_SECOND)
}

/// Waits until the managers take no processor to speak of; whether they came to that.
pub(crate) async fn rest(managers: &mut Managers<'_>) -> Result<bool> {
    let pids = managers.ids();
    resting(&pids, || managers.check()).await
}

/// The same of any processes; `check` fails where one has ended.
pub(crate) async fn resting(pids: &[u32], mut check: impl FnMut() -> Result<()>) -> Result<bool> {
    let allowed = REST_CPU_MAX * pids.len() as f64;
    let began = Instant::now();
    let mut readings = vec![cpu_of_all(pids)?];
    while began.elapsed() < REST_LIMIT {
        tokio::time::sleep(READING_INTERVAL).await;
        check()?;
        readings.push(cpu_of_all(pids)?);
        let earlier = readings.len().checked_sub(READINGS + 1);
        if let (Some(earlier), Some(last)) = (earlier, readings.last())
            && last - readings[earlier] <= allowed
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// What a step has come to.
#[derive(Debug)]
pub(crate) struct Cost {
    pub(crate) figures: Figures,
    /// What the API server was asked for, by verb and resource.
    pub(crate) requests: BTreeMap<String, f64>,
}

impl From<Figures> for Cost {
    fn from(figures: Figures) -> Self {
        Self {
            figures,
            requests: BTreeMap::new(),
        }
    }
}

/// From a step's beginning to its end.
#[derive(Debug)]
pub(crate) struct Meter {
    before: Reading,
    figures: Figures,
    began: Instant,
}

impl Meter {
    /// The managers are to be at rest. The scrapes come before the processor time is read: they cost some.
    pub(crate) async fn begin(client: &Client, managers: &mut Managers<'_>) -> Result<Self> {
        let pids = managers.ids();
        let mut figures = Figures::new();
        let before = Reading {
            own: requests_of_managers(&managers.metrics().await?),
            server: server(client).await?,
            sockets: received(&pids),
            cpu: BTreeMap::new(),
        };
        let mut largest: f64 = 0.0;
        for pid in &pids {
            reset_peak(*pid)?;
            largest = largest.max(memory_mib(*pid, "VmRSS")?);
        }
        figures.insert("rss_before_mib".to_owned(), largest);
        let cpu = pids
            .iter()
            .map(|pid| Ok((*pid, cpu_seconds(*pid)?)))
            .collect::<Result<_>>()?;
        Ok(Self {
            before: Reading { cpu, ..before },
            figures,
            began: Instant::now(),
        })
    }

    /// When it began.
    pub(crate) fn began(&self) -> Instant {
        self.began
    }

    /// The work is done: that took `seconds`. What the managers still do belongs to the step too, so the
    /// costs are read when they have come to rest.
    pub(crate) async fn end(
        mut self,
        client: &Client,
        managers: &mut Managers<'_>,
        seconds: f64,
    ) -> Result<Cost> {
        let rested = rest(managers).await?;
        let pids = managers.ids();
        let (mut all, mut most) = (0.0, 0.0_f64);
        for pid in &pids {
            let used = cpu_seconds(*pid)? - self.before.cpu.get(pid).copied().unwrap_or(0.0);
            all += used;
            most = most.max(used);
        }
        self.set("cpu_s", all);
        if pids.len() > 1 {
            self.set("cpu_s_of_the_busiest", most);
        }
        let (mut peak, mut resting, mut sum) = (0.0_f64, 0.0_f64, 0.0);
        for pid in &pids {
            let now = memory_mib(*pid, "VmRSS")?;
            peak = peak.max(memory_mib(*pid, "VmHWM")?);
            resting = resting.max(now);
            sum += now;
        }
        self.set("rss_peak_mib", peak);
        self.set("rss_rest_mib", resting);
        if pids.len() > 1 {
            self.set("rss_rest_mib_of_all", sum);
        }
        self.set("seconds", seconds);
        if !rested {
            self.set("not_at_rest", 1.0);
        }
        let requests = self.count(client, managers, &pids).await?;
        Ok(Cost {
            figures: self.figures,
            requests,
        })
    }

    async fn count(
        &mut self,
        client: &Client,
        managers: &Managers<'_>,
        pids: &[u32],
    ) -> Result<BTreeMap<String, f64>> {
        let sockets = received(pids);
        if !sockets.is_empty() {
            let bytes: f64 = grown(&self.before.sockets, &sockets).values().sum();
            self.set("received_mib", bytes / KIB_PER_MIB / KIB_PER_MIB);
        }
        let own = grown(
            &self.before.own,
            &requests_of_managers(&managers.metrics().await?),
        );
        for (asked, count) in &own {
            self.add(&format!("requests_{}", asked.method.to_lowercase()), *count);
        }
        for (_, count) in own.iter().filter(|(asked, _)| asked.code == "409") {
            self.add("refused_409", *count);
        }
        self.set("conflicts", 0.0);
        let asked = server(client).await?;
        let requests = requests_since(&self.before.server, &asked);
        for (counted, count) in grown(&self.before.server, &asked) {
            let created = counted.verb == "POST" && counted.code == "201";
            if created && counted.resource == "pods" && counted.subresource.is_empty() {
                self.add("pods_created", count);
            }
            if counted.is_status() {
                self.add("status_writes", count);
                if counted.code == "409" {
                    self.add("conflicts", count);
                }
            }
            // The scheduler's are of the group events.k8s.io.
            if counted.resource == "events" && counted.group.is_empty() && counted.is_write() {
                self.add("event_writes", count);
            }
        }
        Ok(requests)
    }

    fn set(&mut self, name: &str, value: f64) {
        self.figures.insert(name.to_owned(), value);
    }

    fn add(&mut self, name: &str, value: f64) {
        *self.figures.entry(name.to_owned()).or_default() += value;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_read_past_a_name_with_spaces_and_brackets() {
        let stat = "42 (a b) c) S 1 42 42 0 -1 4194304 100 0 0 0 1234 66 0 0 20 0 8 0 100 0 0";
        assert_eq!(parse_cpu(stat), Some(13.0));
        assert_eq!(parse_cpu("42 (a) S 1"), None);
    }

    #[test]
    fn what_the_machine_has_worked_is_neither_idle_nor_another_machines() {
        let stat = "cpu  100 20 30 4000 500 6 7 800 90 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n";
        assert_eq!(parse_machine(stat), Some(1.63));
        assert_eq!(parse_machine("intr 1 2 3"), None);
    }

    #[test]
    fn memory_is_read_from_its_own_line() {
        let status = "Name:\tmanifold\nVmHWM:\t  204800 kB\nVmRSS:\t    1024 kB\n";
        assert_eq!(parse_memory(status, "VmHWM"), Some(200.0));
        assert_eq!(parse_memory(status, "VmRSS"), Some(1.0));
        assert_eq!(parse_memory(status, "VmSwap"), None);
    }

    #[test]
    fn sockets_of_others_do_not_count() {
        let text = "ESTAB 0 0 127.0.0.1:5 127.0.0.1:6 users:((\"m\",pid=12,fd=3)) cubic bytes_sent:7 bytes_received:900 x\n\
                    ESTAB 0 0 127.0.0.1:7 127.0.0.1:6 users:((\"m\",pid=123,fd=3)) cubic bytes_received:50\n\
                    ESTAB 0 0 127.0.0.1:8 127.0.0.1:6 users:((\"m\",pid=12,fd=4)) cubic bytes_sent:7\n";
        let found = parse_sockets(text, &[12]);
        assert_eq!(found.len(), 1);
        assert_eq!(found["127.0.0.1:5 127.0.0.1:6"], 900.0);
    }

    #[test]
    fn a_process_measures_itself() {
        let pid = std::process::id();
        assert!(cpu_seconds(pid).is_ok());
        assert!(memory_mib(pid, "VmRSS").is_ok_and(|mib| mib > 1.0));
        assert!(cpu_seconds(u32::MAX).is_err());
    }

    fn counted(verb: &str, group: &str, resource: &str, subresource: &str) -> Counted {
        Counted {
            verb: verb.to_owned(),
            group: group.to_owned(),
            resource: resource.to_owned(),
            subresource: subresource.to_owned(),
            code: "200".to_owned(),
        }
    }

    #[test]
    fn leases_heartbeats_and_reads_are_no_writes_at_rest() {
        let before = BTreeMap::from([(counted("PATCH", "apps", "deployments", "status"), 3.0)]);
        let after = BTreeMap::from([
            (counted("PATCH", "apps", "deployments", "status"), 5.0),
            (counted("PUT", "coordination.k8s.io", "leases", ""), 9.0),
            (counted("PATCH", "", "nodes", "status"), 9.0),
            (counted("LIST", "", "pods", ""), 9.0),
            (
                counted("POST", "authorization.k8s.io", "subjectaccessreviews", ""),
                9.0,
            ),
            (counted("POST", "", "serviceaccounts", "token"), 9.0),
        ]);
        let writes = writes_since(&before, &after);
        assert_eq!(
            writes,
            BTreeMap::from([("PATCH deployments/status".to_owned(), 2.0)])
        );
    }

    #[test]
    fn requests_are_counted_by_verb_and_resource_and_refusals_separately() {
        let refused = Counted {
            code: "409".to_owned(),
            ..counted("PATCH", "apps", "deployments", "status")
        };
        let after = BTreeMap::from([
            (counted("PATCH", "apps", "deployments", "status"), 5.0),
            (refused, 2.0),
            (counted("PUT", "coordination.k8s.io", "leases", ""), 9.0),
        ]);
        assert_eq!(
            requests_since(&BTreeMap::new(), &after),
            BTreeMap::from([
                ("PATCH deployments/status".to_owned(), 5.0),
                ("PATCH deployments/status 409".to_owned(), 2.0),
            ])
        );
    }

    #[test]
    fn the_pods_status_is_the_kubelets() {
        assert!(counted("PUT", "apps", "replicasets", "status").is_status());
        assert!(!counted("PATCH", "", "pods", "status").is_status());
        assert!(!counted("GET", "apps", "replicasets", "status").is_status());
    }
}
