//! `process_*`: what the kernel says about this process, read at each scrape.

use std::{fs, sync::OnceLock};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{counter::ConstCounter, gauge::ConstGauge},
};

/// The kernel counts CPU time for user space in hundredths of a second on every architecture that Rust's std
/// supports.
const TICKS_PER_SECOND: f64 = 100.0;

/// Pages as `/proc/self/stat` counts them. `VmRSS` in `/proc/self/status` is in kB whatever the page size, so
/// that is read.
const KIB: f64 = 1024.0;

/// Where a container finds the limit of its memory: cgroup v2, then v1.
const MEMORY_LIMITS: [&str; 2] = [
    "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes",
];
/// v1 says "no limit" by a number close to 2^63.
const NO_LIMIT_BYTES: f64 = (1_u64 << 60) as f64;

#[derive(Debug)]
pub(super) struct Process;

/// What a scrape shows.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Reading {
    pub(super) cpu_seconds: f64,
    pub(super) open_fds: f64,
    pub(super) max_fds: f64,
    pub(super) virtual_bytes: f64,
    pub(super) virtual_bytes_max: f64,
    pub(super) resident_bytes: f64,
    /// Of the container; 0 where there is none.
    pub(super) memory_limit_bytes: f64,
    pub(super) received_bytes: f64,
    pub(super) sent_bytes: f64,
}

impl Reading {
    /// What cannot be read is 0: a missing `/proc` must not cost the other metrics.
    pub(super) fn now() -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let limits = read("/proc/self/limits");
        let status = read("/proc/self/status");
        let (received_bytes, sent_bytes) = traffic(&read("/proc/self/net/dev"));
        Self {
            cpu_seconds: cpu_seconds(&read("/proc/self/stat")),
            open_fds: fs::read_dir("/proc/self/fd").map_or(0.0, |entries| entries.count() as f64),
            max_fds: limit(&limits, "Max open files"),
            virtual_bytes: kib(&status, "VmSize:"),
            virtual_bytes_max: limit(&limits, "Max address space"),
            resident_bytes: kib(&status, "VmRSS:"),
            memory_limit_bytes: MEMORY_LIMITS
                .iter()
                .map(|path| memory_limit(&read(path)))
                .find(|limit| *limit > 0.0)
                .unwrap_or_default(),
            received_bytes,
            sent_bytes,
        }
    }
}

/// The fields of `/proc/self/stat` after the command's name, which may hold spaces and brackets itself.
fn stat_fields(stat: &str) -> Vec<f64> {
    let after = stat.rsplit_once(") ").map_or("", |(_, after)| after);
    after
        .split_ascii_whitespace()
        .map(|field| field.parse().unwrap_or_default())
        .collect()
}

fn cpu_seconds(stat: &str) -> f64 {
    let fields = stat_fields(stat);
    let field = |number: usize| fields.get(number - 3).copied().unwrap_or_default();
    (field(14) + field(15)) / TICKS_PER_SECOND
}

fn limit(limits: &str, name: &str) -> f64 {
    let line = limits.lines().find_map(|line| line.strip_prefix(name));
    match line.and_then(|line| line.split_ascii_whitespace().next()) {
        Some("unlimited") => u64::MAX as f64,
        Some(number) => number.parse().unwrap_or_default(),
        None => 0.0,
    }
}

/// What a cgroup's file says; 0 where it says that there is no limit, or nothing.
fn memory_limit(text: &str) -> f64 {
    let bytes = text.trim().parse().unwrap_or_default();
    if bytes < NO_LIMIT_BYTES { bytes } else { 0.0 }
}

fn kib(status: &str, name: &str) -> f64 {
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|line| line.split_ascii_whitespace().next());
    number
        .and_then(|number| number.parse::<f64>().ok())
        .unwrap_or_default()
        * KIB
}

/// Bytes received and sent by all interfaces, as upstream's collector adds them up.
fn traffic(dev: &str) -> (f64, f64) {
    let mut total = (0.0, 0.0);
    for (_, counters) in dev.lines().filter_map(|line| line.split_once(':')) {
        let field = |place| {
            let text = counters.split_ascii_whitespace().nth(place);
            text.and_then(|text| text.parse::<f64>().ok())
                .unwrap_or_default()
        };
        total.0 += field(0);
        total.1 += field(8);
    }
    total
}

/// When the process began, in seconds of Unix time.
pub fn start_time_seconds() -> f64 {
    static START: OnceLock<f64> = OnceLock::new();
    *START.get_or_init(|| {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let stat = read("/proc/stat");
        let boot = stat.lines().find_map(|line| line.strip_prefix("btime "));
        let boot = boot
            .and_then(|text| text.trim().parse::<f64>().ok())
            .unwrap_or_default();
        let started = stat_fields(&read("/proc/self/stat")).get(22 - 3).copied();
        boot + started.unwrap_or_default() / TICKS_PER_SECOND
    })
}

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let now = Reading::now();
        for (name, help, value) in [
            (
                "process_cpu_seconds",
                "Total user and system CPU time spent in seconds.",
                now.cpu_seconds,
            ),
            (
                "process_network_receive_bytes",
                "Number of bytes received by the process over the network.",
                now.received_bytes,
            ),
            (
                "process_network_transmit_bytes",
                "Number of bytes sent by the process over the network.",
                now.sent_bytes,
            ),
        ] {
            let counter = ConstCounter::new(value);
            let metric = encoder.encode_descriptor(
                name,
                &format!("{help}."),
                None,
                counter.metric_type(),
            )?;
            counter.encode(metric)?;
        }
        for (name, help, value) in [
            (
                "manifold_memory_limit_bytes",
                "Memory that this replica's container may take, by its cgroup; 0 where there is no limit.",
                now.memory_limit_bytes,
            ),
            (
                "process_max_fds",
                "Maximum number of open file descriptors.",
                now.max_fds,
            ),
            (
                "process_open_fds",
                "Number of open file descriptors.",
                now.open_fds,
            ),
            (
                "process_resident_memory_bytes",
                "Resident memory size in bytes.",
                now.resident_bytes,
            ),
            (
                "process_start_time_seconds",
                "Start time of the process since unix epoch in seconds.",
                start_time_seconds(),
            ),
            (
                "process_virtual_memory_bytes",
                "Virtual memory size in bytes.",
                now.virtual_bytes,
            ),
            (
                "process_virtual_memory_max_bytes",
                "Maximum amount of virtual memory available in bytes.",
                now.virtual_bytes_max,
            ),
        ] {
            let gauge = ConstGauge::new(value);
            let metric =
                encoder.encode_descriptor(name, &format!("{help}."), None, gauge.metric_type())?;
            gauge.encode(metric)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_memory_files_and_a_beginning() {
        let now = Reading::now();
        assert!(
            now.resident_bytes > 1e5 && now.virtual_bytes >= now.resident_bytes,
            "{now:?}"
        );
        assert!(
            now.open_fds >= 3.0 && now.max_fds >= now.open_fds,
            "{now:?}"
        );
        let year_2020 = 1_577_836_800.0;
        assert!(start_time_seconds() > year_2020);
    }

    #[test]
    fn a_command_name_with_brackets_does_not_shift_the_fields() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194304 5 0 0 0 250 50 0 0 20 0 1 0 900 1000 10";
        assert_eq!(cpu_seconds(stat), 3.0);
        assert_eq!(stat_fields(stat)[22 - 3], 900.0);
    }

    #[test]
    fn a_container_s_limit_is_read_and_none_is_0() {
        for (text, limit) in [
            ("402653184\n", 402_653_184.0),
            ("max\n", 0.0),
            ("9223372036854771712\n", 0.0),
            ("", 0.0),
        ] {
            assert_eq!(memory_limit(text), limit, "{text:?}");
        }
    }

    #[test]
    fn limits_and_traffic_are_read() {
        let limits = "Max address space         unlimited            unlimited            bytes\n\
                      Max open files            1024                 4096                 files\n";
        assert_eq!(limit(limits, "Max open files"), 1024.0);
        assert_eq!(limit(limits, "Max address space"), u64::MAX as f64);
        let dev = "Inter-|   Receive\n lo: 10 1 0 0 0 0 0 0 20 1\n eth0:5 1 0 0 0 0 0 0 7 1\n";
        assert_eq!(traffic(dev), (15.0, 27.0));
    }
}
