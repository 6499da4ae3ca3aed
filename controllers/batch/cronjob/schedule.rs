//! Cron schedules: the grammar of robfig/cron v3's standard parser, and the next time after another.
//!
//! Five fields (minute, hour, day of month, month, day of week) of lists, ranges and steps; `@hourly` and
//! its like; `@every 1h30m`; a zone in front (`TZ=Asia/Tokyo …`). Where both the day of month and the day
//! of week are restricted, either suffices. A time that does not exist on the day the clock goes forward is
//! skipped; of the hours that occur twice when it goes back, schedules that name the hour run once, others
//! both times.

use std::cell::Cell;

use jiff::{SignedDuration, Timestamp, civil, tz::TimeZone};

/// A schedule.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Schedule {
    /// By the calendar of a zone.
    Calendar(Box<Calendar>),
    /// A fixed number of seconds after the last time.
    Every(i64),
}

/// Which minutes, hours and days.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Calendar {
    minute: Field,
    hour: Field,
    day: Field,
    month: Field,
    weekday: Field,
    zone: TimeZone,
}

/// The values of a field.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Field {
    bits: u64,
    /// Whether it is unrestricted (`*` or `?`, without a step).
    open: bool,
}

impl Field {
    fn has(self, value: i8) -> bool {
        u32::try_from(value).is_ok_and(|value| self.bits & (1 << value) != 0)
    }
}

struct Bounds {
    min: i64,
    max: i64,
    names: &'static [&'static str],
}

const MINUTES: Bounds = Bounds {
    min: 0,
    max: 59,
    names: &[],
};
const HOURS: Bounds = Bounds {
    min: 0,
    max: 23,
    names: &[],
};
const DAYS: Bounds = Bounds {
    min: 1,
    max: 31,
    names: &[],
};
const MONTHS: Bounds = Bounds {
    min: 1,
    max: 12,
    names: &[
        "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec",
    ],
};
const WEEKDAYS: Bounds = Bounds {
    min: 0,
    max: 6,
    names: &["sun", "mon", "tue", "wed", "thu", "fri", "sat"],
};

/// A time that is not found within this many years never comes.
const YEARS_MAX: i16 = 5;
/// Local times read in one search: the minutes of six years. Where a midnight does not exist the search
/// could go round in a circle.
const READS_MAX: u32 = 6 * 366 * 24 * 60;

/// A zone by its name, as Go's `time.LoadLocation` resolves it: case-sensitive, an empty name is UTC, and
/// `Local` is the zone of the host.
///
/// # Errors
/// Where there is no such zone; the words are Go's.
pub(super) fn zone(name: &str, local: &TimeZone) -> Result<TimeZone, String> {
    match name {
        "" | "UTC" => return Ok(TimeZone::UTC),
        "Local" => return Ok(local.clone()),
        _ => {}
    }
    if name.contains("..") || name.starts_with(['/', '\\']) || name.contains('\\') {
        return Err("time: invalid location name".to_owned());
    }
    TimeZone::get(name)
        .ok()
        .filter(|zone| zone.iana_name() == Some(name))
        .ok_or_else(|| format!("unknown time zone {name}"))
}

/// Parses a schedule; one that names no zone follows `local`.
///
/// # Errors
/// Where it can't be read; the words are upstream's.
pub(super) fn parse(text: &str, local: &TimeZone) -> Result<Schedule, String> {
    if text.is_empty() {
        return Err("empty spec string".to_owned());
    }
    let mut zone_here = local.clone();
    let mut spec = text;
    if text.starts_with("TZ=") || text.starts_with("CRON_TZ=") {
        let equals = text.find('=').unwrap_or(0);
        let Some(space) = text.find(' ') else {
            return Err(
                "invalid schedule format: runtime error: slice bounds out of range [:-1]"
                    .to_owned(),
            );
        };
        let name = &text[equals + 1..space];
        zone_here =
            zone(name, local).map_err(|why| format!("provided bad location {name}: {why}"))?;
        spec = text[space..].trim();
    }
    if spec.starts_with('@') {
        return descriptor(spec, zone_here);
    }
    let fields: Vec<&str> = spec.split_whitespace().collect();
    let [minute, hour, day, month, weekday] = fields[..] else {
        return Err(format!(
            "expected exactly 5 fields, found {}: [{}]",
            fields.len(),
            fields.join(" ")
        ));
    };
    calendar([minute, hour, day, month, weekday], zone_here)
}

fn calendar(fields: [&str; 5], zone: TimeZone) -> Result<Schedule, String> {
    Ok(Schedule::Calendar(Box::new(Calendar {
        minute: field(fields[0], &MINUTES)?,
        hour: field(fields[1], &HOURS)?,
        day: field(fields[2], &DAYS)?,
        month: field(fields[3], &MONTHS)?,
        weekday: field(fields[4], &WEEKDAYS)?,
        zone,
    })))
}

fn descriptor(text: &str, zone: TimeZone) -> Result<Schedule, String> {
    let fields = match text {
        "@yearly" | "@annually" => "0 0 1 1 *",
        "@monthly" => "0 0 1 * *",
        "@weekly" => "0 0 * * 0",
        "@daily" | "@midnight" => "0 0 * * *",
        "@hourly" => "0 * * * *",
        _ => {
            let Some(interval) = text.strip_prefix("@every ") else {
                return Err(format!("unrecognized descriptor: {text}"));
            };
            let duration = duration(interval)
                .map_err(|why| format!("failed to parse duration {text}: {why}"))?;
            return Ok(Schedule::Every((duration / 1_000_000_000).max(1)));
        }
    };
    let fields: Vec<&str> = fields.split(' ').collect();
    calendar(
        [fields[0], fields[1], fields[2], fields[3], fields[4]],
        zone,
    )
}

fn field(text: &str, bounds: &Bounds) -> Result<Field, String> {
    let mut field = Field::default();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let range = range(part, bounds)?;
        field.bits |= range.bits;
        field.open |= range.open;
    }
    Ok(field)
}

fn range(text: &str, bounds: &Bounds) -> Result<Field, String> {
    let parts: Vec<&str> = text.split('/').collect();
    let ends: Vec<&str> = parts[0].split('-').collect();
    let mut open = false;
    let (start, mut end) = if matches!(ends[0], "*" | "?") {
        open = true;
        (bounds.min, bounds.max)
    } else {
        let start = value(ends[0], bounds)?;
        match ends[..] {
            [_] => (start, start),
            [_, end] => (start, value(end, bounds)?),
            _ => return Err(format!("too many hyphens: {text}")),
        }
    };
    let step = match parts[..] {
        [_] => 1,
        [_, step] => {
            let step = integer(step)?;
            // From one value on: to the last.
            if ends.len() == 1 {
                end = bounds.max;
            }
            open &= step <= 1;
            step
        }
        _ => return Err(format!("too many slashes: {text}")),
    };
    if start < bounds.min {
        return Err(format!(
            "beginning of range ({start}) below minimum ({}): {text}",
            bounds.min
        ));
    }
    if end > bounds.max {
        return Err(format!(
            "end of range ({end}) above maximum ({}): {text}",
            bounds.max
        ));
    }
    if start > end {
        return Err(format!(
            "beginning of range ({start}) beyond end of range ({end}): {text}"
        ));
    }
    if step == 0 {
        return Err(format!("step of range should be a positive number: {text}"));
    }
    let mut bits = 0;
    let mut at = start;
    while at <= end {
        bits |= 1 << at;
        // No step is longer than the field: a longer one would only overflow.
        at += step.min(64);
    }
    Ok(Field { bits, open })
}

fn value(text: &str, bounds: &Bounds) -> Result<i64, String> {
    let lower = text.to_lowercase();
    match bounds.names.iter().position(|name| **name == *lower) {
        Some(place) => Ok(bounds.min + i64::try_from(place).unwrap_or(0)),
        None => integer(text),
    }
}

fn integer(text: &str) -> Result<i64, String> {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let number = if is_number {
        text.parse::<i64>().map_err(|_| "value out of range")
    } else {
        Err("invalid syntax")
    };
    match number {
        Err(why) => Err(format!(
            "failed to parse int from {text}: strconv.Atoi: parsing {text:?}: {why}"
        )),
        Ok(number) if number < 0 => Err(format!("negative number ({number}) not allowed: {text}")),
        Ok(number) => Ok(number),
    }
}

/// A duration as Go writes it (`1h30m`, `1.5h`), in nanoseconds.
fn duration(text: &str) -> Result<i64, String> {
    let invalid = || format!("time: invalid duration {text:?}");
    let (negative, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Ok(0);
    }
    if rest.is_empty() {
        return Err(invalid());
    }
    let mut total: f64 = 0.0;
    while !rest.is_empty() {
        let end = rest
            .find(|character: char| !character.is_ascii_digit() && character != '.')
            .unwrap_or(rest.len());
        let number: f64 = rest[..end].parse().map_err(|_| invalid())?;
        rest = &rest[end..];
        let end = rest
            .find(|character: char| character.is_ascii_digit() || character == '.')
            .unwrap_or(rest.len());
        let unit = &rest[..end];
        let nanoseconds = match unit {
            "ns" => 1.0,
            "us" | "µs" | "μs" => 1e3,
            "ms" => 1e6,
            "s" => 1e9,
            "m" => 60e9,
            "h" => 3600e9,
            "" => return Err(format!("time: missing unit in duration {text:?}")),
            _ => return Err(format!("time: unknown unit {unit:?} in duration {text:?}")),
        };
        total += number * nanoseconds;
        rest = &rest[end..];
    }
    if total > i64::MAX as f64 {
        return Err(invalid());
    }
    #[expect(
        clippy::cast_possible_truncation,
        reason = "it was compared with the largest number"
    )]
    let total = total.round() as i64;
    Ok(if negative { -total } else { total })
}

impl Schedule {
    /// The next time after another; `None` if there is none in five years.
    pub(super) fn next(&self, after: Timestamp) -> Option<Timestamp> {
        match self {
            Self::Calendar(calendar) => calendar.next(after),
            Self::Every(seconds) => Timestamp::from_second(after.as_second())
                .ok()?
                .checked_add(SignedDuration::from_secs(*seconds))
                .ok(),
        }
    }
}

impl Calendar {
    fn local(&self, at: i64) -> Option<civil::DateTime> {
        Some(self.zone.to_datetime(Timestamp::from_second(at).ok()?))
    }

    fn offset(&self, at: i64) -> Option<i64> {
        let at = Timestamp::from_second(at).ok()?;
        Some(i64::from(self.zone.to_offset(at).seconds()))
    }

    /// The instant of a local time. In a gap and in an overlap it chooses as Go does: by the offset at the
    /// instant that the first guess leads to.
    fn instant(&self, local: civil::DateTime) -> Option<i64> {
        let text = TimeZone::UTC.to_timestamp(local).ok()?.as_second();
        let guess = self.offset(text)?;
        if guess == 0 {
            return Some(text);
        }
        Some(text - self.offset(text - guess)?)
    }

    fn day_matches(&self, local: civil::DateTime) -> bool {
        let day = self.day.has(local.day());
        let weekday = self.weekday.has(local.weekday().to_sunday_zero_offset());
        if self.day.open || self.weekday.open {
            day && weekday
        } else {
            day || weekday
        }
    }

    fn next(&self, after: Timestamp) -> Option<Timestamp> {
        const HOUR: i64 = 3600;
        const MINUTE: i64 = 60;
        let floor = after.as_second() - i64::from(after.subsec_nanosecond() < 0);
        let mut at = floor + 1;
        let reads = Cell::new(0);
        let local_at = |at: i64| {
            reads.set(reads.get() + 1);
            self.local(at).filter(|_| reads.get() <= READS_MAX)
        };
        let last_year = local_at(at)?.year() + YEARS_MAX;
        // Whether a field was advanced: the lower ones then start over.
        let mut moved = false;
        'wrap: loop {
            if local_at(at)?.year() > last_year {
                return None;
            }
            while !self.month.has(local_at(at)?.month()) {
                if !moved {
                    moved = true;
                    at = self.instant(local_at(at)?.date().first_of_month().at(0, 0, 0, 0))?;
                }
                // Days beyond the month's end overflow into the next, as in Go.
                let local = local_at(at)?;
                let days = i64::from(local.day()) - 1;
                let date = local.date().first_of_month();
                let date = date.checked_add(jiff::Span::new().months(1)).ok()?;
                let date = date.checked_add(jiff::Span::new().days(days)).ok()?;
                at = self.instant(date.to_datetime(local.time()))?;
                if local_at(at)?.month() == 1 {
                    continue 'wrap;
                }
            }
            while !self.day_matches(local_at(at)?) {
                let mut local = local_at(at)?;
                if !moved {
                    moved = true;
                    at = self.instant(local.date().at(0, 0, 0, 0))?;
                    local = local_at(at)?;
                }
                at = self.instant(local.checked_add(jiff::Span::new().days(1)).ok()?)?;
                // Where midnight does not exist the day begins an hour later, or appears to begin an hour
                // earlier.
                let hour = i64::from(local_at(at)?.hour());
                if hour > 12 {
                    at += (24 - hour) * HOUR;
                } else {
                    at -= hour * HOUR;
                }
                if local_at(at)?.day() == 1 {
                    continue 'wrap;
                }
            }
            while !self.hour.has(local_at(at)?.hour()) {
                if !moved {
                    moved = true;
                    let local = local_at(at)?;
                    at = self.instant(local.date().at(local.hour(), 0, 0, 0))?;
                }
                at += HOUR;
                if local_at(at)?.hour() == 0 {
                    continue 'wrap;
                }
            }
            while !self.minute.has(local_at(at)?.minute()) {
                if !moved {
                    moved = true;
                    at -= at.rem_euclid(MINUTE);
                }
                at += MINUTE;
                if local_at(at)?.minute() == 0 {
                    continue 'wrap;
                }
            }
            // The second is always 0.
            let second = i64::from(local_at(at)?.second());
            if second != 0 {
                at += MINUTE - second;
                moved = true;
                // The minute has changed.
                continue 'wrap;
            }
            return Timestamp::from_second(at).ok();
        }
    }
}
