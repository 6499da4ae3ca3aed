//! DER, as far as certificates and requests need it. Go accepts no other encoding of the same values.

use controllers_kit::Timestamp;

pub(super) const BOOLEAN: u8 = 0x01;
pub(super) const INTEGER: u8 = 0x02;
pub(super) const BIT_STRING: u8 = 0x03;
pub(super) const OCTET_STRING: u8 = 0x04;
pub(super) const NULL: u8 = 0x05;
pub(super) const OID: u8 = 0x06;
pub(super) const UTF8_STRING: u8 = 0x0c;
pub(super) const NUMERIC_STRING: u8 = 0x12;
pub(super) const PRINTABLE_STRING: u8 = 0x13;
pub(super) const T61_STRING: u8 = 0x14;
pub(super) const IA5_STRING: u8 = 0x16;
pub(super) const BMP_STRING: u8 = 0x1e;
pub(super) const UTC_TIME: u8 = 0x17;
pub(super) const GENERALIZED_TIME: u8 = 0x18;
pub(super) const SEQUENCE: u8 = 0x30;
pub(super) const SET: u8 = 0x31;

pub(super) const fn explicit(number: u8) -> u8 {
    0xa0 | number
}

pub(super) const fn implicit(number: u8) -> u8 {
    0x80 | number
}

/// A value as it was read.
pub(super) struct Der<'a> {
    pub(super) tag: u8,
    pub(super) content: &'a [u8],
    /// With tag and length.
    pub(super) whole: &'a [u8],
}

/// The first value and the rest; `None` where there is none. Lengths must be definite and minimal, and tags
/// of one byte: Go accepts no others.
pub(super) fn next(der: &[u8]) -> Option<(Der<'_>, &[u8])> {
    let (&tag, rest) = der.split_first()?;
    let (&first, rest) = rest.split_first()?;
    if tag & 0x1f == 0x1f {
        return None;
    }
    let (length, rest) = match first {
        short @ 0..=0x7f => (usize::from(short), rest),
        0x81..=0x84 => {
            let (bytes, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            let length = bytes
                .iter()
                .fold(0, |length, byte| length << 8 | usize::from(*byte));
            if bytes[0] == 0 || length < 0x80 {
                return None;
            }
            (length, rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(length)?;
    let whole = &der[..der.len() - rest.len()];
    Some((
        Der {
            tag,
            content,
            whole,
        },
        rest,
    ))
}

/// The first value, if it has this tag, and the rest.
pub(super) fn take(der: &[u8], tag: u8) -> Option<(Der<'_>, &[u8])> {
    next(der).filter(|(value, _)| value.tag == tag)
}

/// All values in sequence; ends with `None` at the first malformed one.
pub(super) fn each(der: &[u8]) -> impl Iterator<Item = Option<Der<'_>>> {
    let mut rest = der;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let found = next(rest);
        rest = found.as_ref().map_or(&[], |(_, rest)| *rest);
        Some(found.map(|(value, _)| value))
    })
}

/// One value: tag, length, content.
pub(super) fn value(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    let mut der = vec![tag];
    match u8::try_from(length) {
        Ok(short @ 0..0x80) => der.push(short),
        _ => {
            let bytes = length.to_be_bytes();
            let bytes = positive_bytes(&bytes);
            der.push(0x80 | u8::try_from(bytes.len()).unwrap_or_default());
            der.extend_from_slice(bytes);
        }
    }
    parts.iter().for_each(|part| der.extend_from_slice(part));
    der
}

/// Without zeros in front.
fn positive_bytes(bytes: &[u8]) -> &[u8] {
    let start = bytes.iter().position(|byte| *byte != 0);
    start.map_or(&bytes[bytes.len() - 1..], |start| &bytes[start..])
}

/// The content of a positive integer.
pub(super) fn positive(bytes: &[u8]) -> Vec<u8> {
    let bytes = positive_bytes(bytes);
    let mut content = Vec::with_capacity(bytes.len() + 1);
    if bytes[0] >= 0x80 {
        content.push(0);
    }
    content.extend_from_slice(bytes);
    content
}

/// A text as Go writes it in names: a PrintableString where possible.
pub(super) fn printable(text: &str) -> Vec<u8> {
    let is_printable = |byte: u8| byte.is_ascii_alphanumeric() || b" '()+,-./:=?".contains(&byte);
    let tag = match text.bytes().all(is_printable) {
        true => PRINTABLE_STRING,
        false => UTF8_STRING,
    };
    value(tag, &[text.as_bytes()])
}

/// An instant in whole seconds: with a two-digit year from 1950 to 2049, a four-digit one beyond.
pub(super) fn time(at: Timestamp) -> Vec<u8> {
    let civil = at.to_zoned(jiff::tz::TimeZone::UTC).datetime();
    let rest = format!(
        "{:02}{:02}{:02}{:02}{:02}Z",
        civil.month(),
        civil.day(),
        civil.hour(),
        civil.minute(),
        civil.second()
    );
    match civil.year() {
        year @ 1950..=2049 => value(UTC_TIME, &[format!("{:02}{rest}", year % 100).as_bytes()]),
        year => value(GENERALIZED_TIME, &[format!("{year:04}{rest}").as_bytes()]),
    }
}
