//! Values as Go's flag library reads and writes them.

use std::{collections::BTreeMap, fmt::Write, net::IpAddr};

use super::Kind;

/// A flag's value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// true or false.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A number.
    Float(f64),
    /// A duration in nanoseconds; may be negative.
    Duration(i64),
    /// A text.
    Text(String),
    /// Several texts.
    List(Vec<String>),
    /// Texts by name.
    Map(BTreeMap<String, String>),
}

impl Value {
    /// Reads one, as pflag's type of that name does. The error says what is expected.
    pub(super) fn parse(kind: Kind, text: &str) -> Result<Self, &'static str> {
        const NUMBER: &str = "a number";
        match kind {
            Kind::Bool => truth(text).map(Self::Bool).ok_or("true or false"),
            Kind::Int32 => whole(text)
                .filter(|number| i32::try_from(*number).is_ok())
                .map(Self::Int)
                .ok_or("a whole number of 32 bits"),
            Kind::Int => whole(text).map(Self::Int).ok_or("a whole number"),
            Kind::Level => whole(text)
                .filter(|number| (0..=i64::from(i32::MAX)).contains(number))
                .map(Self::Int)
                .ok_or("a whole number from 0 up"),
            Kind::Float | Kind::Float32 => match text.parse::<f64>() {
                Ok(number) if number.is_finite() => Ok(Self::Float(number)),
                _ => Err(NUMBER),
            },
            Kind::Duration => duration(text)
                .map(Self::Duration)
                .ok_or("a duration such as 300ms, 15s or 1h30m"),
            Kind::Text | Kind::Version => Ok(Self::Text(text.to_owned())),
            Kind::Ip => match text.trim().parse::<IpAddr>() {
                Ok(address) => Ok(Self::Text(address.to_string())),
                Err(_) => Err("an IP address"),
            },
            Kind::Quantity => quantity(text)
                .map(|()| Self::Text(text.to_owned()))
                .ok_or("a quantity of bytes such as 512, 1K or 2Mi"),
            Kind::List => list(text).map(Self::List),
            Kind::Int32List => {
                let numbers = list(text)?;
                let each_is_one =
                    |text: &String| whole(text).is_some_and(|n| i32::try_from(n).is_ok());
                match numbers.iter().all(each_is_one) {
                    true => Ok(Self::List(numbers)),
                    false => Err("whole numbers separated by commas"),
                }
            }
            Kind::Map => map(text, "key=value, separated by commas").map(Self::Map),
            Kind::Gates => map(text, "key=true|false, separated by commas").map(Self::Map),
            Kind::NamedCert => match named_cert(text) {
                true => Ok(Self::List(vec![text.to_owned()])),
                false => Err("paths of a certificate and its key, separated by a comma"),
            },
            Kind::Pattern => match patterns(text) {
                Some(_) => Ok(Self::Text(text.to_owned())),
                None => Err("pattern=N, separated by commas"),
            },
        }
    }

    /// What a flag without being given is, from its default as `--help` writes it.
    pub(super) fn default(kind: Kind, text: &str) -> Self {
        let bare = text
            .strip_prefix('[')
            .and_then(|text| text.strip_suffix(']'))
            .unwrap_or(text);
        match kind {
            Kind::List | Kind::Int32List | Kind::NamedCert if bare.is_empty() => Self::List(vec![]),
            Kind::Map | Kind::Gates if bare.is_empty() => Self::Map(BTreeMap::new()),
            Kind::Pattern | Kind::Quantity | Kind::Ip if bare.is_empty() => {
                Self::Text(String::new())
            }
            _ => Self::parse(kind, bare).unwrap_or_else(|expected| {
                panic!("the default {text} of a flag is not {expected}")
            }),
        }
    }

    /// A later occurrence of the same flag: lists grow, others are replaced.
    pub(super) fn merge(&mut self, later: Self) {
        match (&mut *self, later) {
            (Self::List(list), Self::List(more)) => list.extend(more),
            (Self::Map(map), Self::Map(more)) => map.extend(more),
            (old, new) => *old = new,
        }
    }

    /// As `/flagz` writes it.
    pub(super) fn show(&self, kind: Kind) -> String {
        match self {
            Self::Bool(truth) => truth.to_string(),
            Self::Int(number) => number.to_string(),
            Self::Float(number) => number.to_string(),
            Self::Duration(nanos) => show_duration(*nanos),
            Self::Text(text) => text.clone(),
            Self::List(list) if kind == Kind::NamedCert => format!("[{}]", list.join(";")),
            Self::List(list) => format!("[{}]", list.join(",")),
            Self::Map(map) => {
                let pairs: Vec<String> = map
                    .iter()
                    .map(|(key, value)| format!("{key}={value}"))
                    .collect();
                match kind {
                    Kind::Gates => pairs.join(","),
                    _ => format!("[{}]", pairs.join(",")),
                }
            }
        }
    }
}

/// The spellings of Go's `ParseBool`.
pub(super) fn truth(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// A whole number in Go's notation: decimal, 0x, 0o, 0b, a leading 0 for octal, `_` between digits.
fn whole(text: &str) -> Option<i64> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let lower = digits.to_ascii_lowercase();
    let (radix, digits) = if let Some(rest) = lower.strip_prefix("0x") {
        (16, rest)
    } else if let Some(rest) = lower.strip_prefix("0b") {
        (2, rest)
    } else if let Some(rest) = lower.strip_prefix("0o") {
        (8, rest)
    } else if lower.len() > 1 && lower.starts_with('0') {
        (8, &lower[1..])
    } else {
        (10, lower.as_str())
    };
    if digits.is_empty() || digits.starts_with(['+', '-', '_']) || digits.ends_with('_') {
        return None;
    }
    let digits = digits.replace('_', "");
    let sign = if negative { "-" } else { "" };
    i64::from_str_radix(&format!("{sign}{digits}"), radix).ok()
}

const UNITS: [(&str, i64); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("μs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// Nanoseconds of a duration in Go's notation, as in `1h30m`, `1.5s`, `-2ms` or `0`.
pub(super) fn duration(text: &str) -> Option<i64> {
    let (sign, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Some(0);
    }
    if rest.is_empty() {
        return None;
    }
    let mut total = 0i64;
    while !rest.is_empty() {
        let number_end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, after) = rest.split_at(number_end);
        let unit_end = after
            .find(|c: char| c.is_ascii_digit() || c == '.')
            .unwrap_or(after.len());
        let (unit, after) = after.split_at(unit_end);
        let (_, size) = UNITS.iter().find(|(name, _)| *name == unit)?;
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() && fraction.is_empty() {
            return None;
        }
        let whole: i64 = if whole.is_empty() {
            0
        } else {
            whole.parse().ok()?
        };
        total = total.checked_add(whole.checked_mul(*size)?)?;
        if !fraction.is_empty() {
            let part = format!("0.{fraction}").parse::<f64>().ok()?;
            total = total.checked_add((part * *size as f64) as i64)?;
        }
        rest = after;
    }
    Some(sign * total)
}

/// A duration as Go writes it: `12h0m0s`, `1m30s`, `1.5s`, `300ms`, `0s`.
pub(super) fn show_duration(nanos: i64) -> String {
    let sign = if nanos < 0 { "-" } else { "" };
    let nanos = nanos.unsigned_abs();
    let small = |size: u64, unit: &str| {
        let text = format!(
            "{}.{:0width$}",
            nanos / size,
            nanos % size,
            width = size.ilog10() as usize
        );
        format!(
            "{sign}{}{unit}",
            text.trim_end_matches('0').trim_end_matches('.')
        )
    };
    match nanos {
        0 => return "0s".to_owned(),
        1..1_000 => return format!("{sign}{nanos}ns"),
        1_000..1_000_000 => return small(1_000, "µs"),
        1_000_000..1_000_000_000 => return small(1_000_000, "ms"),
        _ => {}
    }
    let (whole, fraction) = (nanos / 1_000_000_000, nanos % 1_000_000_000);
    let (hours, minutes, seconds) = (whole / 3600, whole / 60 % 60, whole % 60);
    let mut text = sign.to_owned();
    // Writing into a String can't fail.
    if hours > 0 {
        let _ = write!(text, "{hours}h");
    }
    if hours > 0 || minutes > 0 {
        let _ = write!(text, "{minutes}m");
    }
    let _ = match fraction {
        0 => write!(text, "{seconds}s"),
        _ => write!(
            text,
            "{}s",
            format!("{seconds}.{fraction:09}").trim_end_matches('0')
        ),
    };
    text
}

/// A line of comma-separated values, quoted where one holds a comma.
fn list(text: &str) -> Result<Vec<String>, &'static str> {
    const EXPECTED: &str = "values separated by commas";
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let (mut values, mut value, mut quoted) = (Vec::new(), String::new(), false);
    let mut chars = text.chars().peekable();
    let mut fresh = true;
    while let Some(c) = chars.next() {
        match c {
            '"' if quoted && chars.peek() == Some(&'"') => {
                chars.next();
                value.push('"');
            }
            '"' if quoted => quoted = false,
            '"' if fresh => quoted = true,
            '"' => return Err(EXPECTED),
            ',' if !quoted => {
                values.push(std::mem::take(&mut value));
                fresh = true;
                continue;
            }
            other => value.push(other),
        }
        fresh = false;
    }
    if quoted {
        return Err(EXPECTED);
    }
    values.push(value);
    Ok(values)
}

fn map(text: &str, expected: &'static str) -> Result<BTreeMap<String, String>, &'static str> {
    let pairs = text
        .split(',')
        .map(str::trim)
        .filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| {
            let (key, value) = pair.split_once('=').ok_or(expected)?;
            Ok((key.trim().to_owned(), value.trim().to_owned()))
        })
        .collect()
}

fn named_cert(text: &str) -> bool {
    let files = text.split_once(':').map_or(text, |(files, _)| files);
    match files.split_once(',') {
        Some((cert, key)) => !cert.is_empty() && !key.is_empty() && !key.contains(','),
        None => false,
    }
}

/// Certificate, key and names of `cert,key:name,name`, which the parser has checked.
pub(super) fn split_named_cert(text: &str) -> (&str, &str, Vec<&str>) {
    let (files, names) = text.split_once(':').unwrap_or((text, ""));
    let (cert, key) = files.split_once(',').unwrap_or((files, ""));
    let names = names.split(',').filter(|name| !name.is_empty());
    (cert, key, names.collect())
}

/// Whether a text is a number.
pub(super) fn is_number(text: &str) -> bool {
    text.parse::<f64>().is_ok_and(f64::is_finite)
}

/// `pattern=N,…` of `--vmodule`.
pub(super) fn patterns(text: &str) -> Option<Vec<(String, i64)>> {
    let entries = text.split(',').filter(|entry| !entry.is_empty());
    entries
        .map(|entry| {
            let (pattern, level) = entry.split_once('=')?;
            let level = level.parse().ok().filter(|level| *level >= 0)?;
            (!pattern.is_empty()).then(|| (pattern.to_owned(), level))
        })
        .collect()
}

fn quantity(text: &str) -> Option<()> {
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    number.parse::<f64>().ok()?;
    let known = [
        "", "k", "K", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei",
    ];
    known.contains(&unit).then_some(())
}
