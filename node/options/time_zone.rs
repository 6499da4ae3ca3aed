//! The time zone of the host, found as Go finds `time.Local`: upstream reads schedules that name no zone in
//! it.

use std::{fs::File, io::Read as _};

use jiff::{
    Timestamp,
    tz::{Offset, TimeZone},
};

#[cfg(test)]
mod tests;

/// What is read where `$TZ` is not set.
const LOCAL_TIME: &str = "/etc/localtime";
/// Where a zone's file is searched for by name, in Go's order.
const SOURCES: [&str; 4] = [
    "/usr/share/zoneinfo",
    "/usr/share/lib/zoneinfo",
    "/usr/lib/locale/TZ",
    "/etc/zoneinfo",
];
/// Go refuses larger files too.
const FILE_SIZE_MAX: u64 = 10 << 20;

/// A zone other than UTC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostZone {
    /// The file or name that it was read from.
    pub source: String,
    /// The zone.
    pub zone: TimeZone,
}

/// The zone of this process; `None` for UTC.
pub fn host_zone() -> Option<HostZone> {
    let tz = std::env::var_os("TZ").map(|tz| tz.to_string_lossy().into_owned());
    find(tz.as_deref(), &read)
}

/// The zone that a value of `$TZ` means; `None` for UTC. `read` has a file's content.
///
/// Go's rules: not set, `/etc/localtime`; empty, UTC; a colon in front is skipped; an absolute path is a
/// zone's file; everything else is a name, first of a file on this host and then of the zones that the build
/// has. What can't be found or read is UTC.
pub fn find(tz: Option<&str>, read: &dyn Fn(&str) -> Option<Vec<u8>>) -> Option<HostZone> {
    let parsed = |path: &str| TimeZone::tzif(path, &read(path)?).ok();
    let name = tz.map(|tz| tz.strip_prefix(':').unwrap_or(tz));
    let (source, zone) = match name {
        None => (LOCAL_TIME, parsed(LOCAL_TIME)),
        Some("" | "UTC") => return None,
        Some(path) if path.starts_with('/') => (path, parsed(path)),
        Some(name) => {
            let mut files = SOURCES.iter().map(|source| format!("{source}/{name}"));
            let zone = files.find_map(|path| parsed(&path));
            (name, zone.or_else(|| built_in(name)))
        }
    };
    zone.filter(|zone| !is_utc(zone)).map(|zone| HostZone {
        source: source.to_owned(),
        zone,
    })
}

/// A zone of the build by its exact name: Go distinguishes upper and lower case.
fn built_in(name: &str) -> Option<TimeZone> {
    let zone = TimeZone::get(name).ok()?;
    (zone.iana_name() == Some(name)).then_some(zone)
}

fn is_utc(zone: &TimeZone) -> bool {
    let epoch = Timestamp::UNIX_EPOCH;
    zone.to_offset(epoch) == Offset::UTC && zone.following(epoch).next().is_none()
}

fn read(path: &str) -> Option<Vec<u8>> {
    let file = File::open(path).ok()?;
    let mut content = Vec::new();
    file.take(FILE_SIZE_MAX + 1)
        .read_to_end(&mut content)
        .ok()?;
    (content.len() as u64 <= FILE_SIZE_MAX).then_some(content)
}
