//! What both controllers of bootstrap tokens ask of a token's Secret.

use controllers_kit::{Confidential, SignedDuration, Timestamp};
use jiff::{civil::DateTime, tz::TimeZone};
use kubernetes_proto::{Object, core::BootstrapToken};

/// Where bootstrap tokens lie.
pub const NAMESPACE: &str = "kube-system";

/// When a token expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expiry {
    /// It does not.
    Never,
    /// Then.
    At(Timestamp),
    /// Its expiration can't be read: it counts as expired.
    Unreadable,
}

impl Expiry {
    /// Whether it has expired.
    pub fn is_over(self, now: Timestamp) -> bool {
        match self {
            Self::Never => false,
            Self::At(at) => at <= now,
            Self::Unreadable => true,
        }
    }
}

fn data<'a>(token: &'a BootstrapToken, key: &str) -> Option<&'a Confidential> {
    token.data.get(key).filter(|value| !value.is_empty())
}

/// A token's expiration, from its `expiration`.
pub fn expiry(token: &BootstrapToken) -> Expiry {
    match data(token, "expiration") {
        None => Expiry::Never,
        Some(text) => text
            .reveal_text()
            .and_then(rfc3339)
            .map_or(Expiry::Unreadable, Expiry::At),
    }
}

/// An instant by the rules of Go's `time.Parse` for RFC 3339, since what they do not take counts as expired:
/// an hour may have one digit, a fraction may follow a comma and have any number of digits, of which nine
/// count, and an offset may be as large as 24 hours and 60 minutes.
fn rfc3339(text: &str) -> Option<Timestamp> {
    let mut rest = text.as_bytes();
    let year = number::<i16>(&mut rest, 4)?;
    literal(&mut rest, b'-')?;
    let month = number::<i8>(&mut rest, 2)?;
    literal(&mut rest, b'-')?;
    let day = number::<i8>(&mut rest, 2)?;
    literal(&mut rest, b'T')?;
    let hour_digits = match rest {
        [_, second, ..] if second.is_ascii_digit() => 2,
        _ => 1,
    };
    let hour = number::<i8>(&mut rest, hour_digits)?;
    literal(&mut rest, b':')?;
    let minute = number::<i8>(&mut rest, 2)?;
    literal(&mut rest, b':')?;
    let second = number::<i8>(&mut rest, 2)?;
    let nanosecond = match rest {
        [b'.' | b',', digit, ..] if digit.is_ascii_digit() => {
            let digits = &rest[1..];
            let count = digits
                .iter()
                .take_while(|byte| byte.is_ascii_digit())
                .count();
            rest = &digits[count..];
            (0..9).fold(0, |nanoseconds, place| {
                let digit = digits[..count].get(place).map_or(0, |digit| digit - b'0');
                nanoseconds * 10 + i32::from(digit)
            })
        }
        _ => 0,
    };
    let offset = match rest {
        b"Z" => 0,
        [sign @ (b'+' | b'-'), offset @ ..] => {
            let mut rest = offset;
            let hours = number::<i64>(&mut rest, 2).filter(|hours| *hours <= 24)?;
            literal(&mut rest, b':')?;
            let minutes = number::<i64>(&mut rest, 2).filter(|minutes| *minutes <= 60)?;
            if !rest.is_empty() {
                return None;
            }
            let minutes = 60 * hours + minutes;
            if *sign == b'-' { -minutes } else { minutes }
        }
        _ => return None,
    };
    // jiff checks the ranges of all parts, and knows no leap second, as Go.
    let local = DateTime::new(year, month, day, hour, minute, second, nanosecond).ok()?;
    let instant = local.to_zoned(TimeZone::UTC).ok()?.timestamp();
    instant.checked_sub(SignedDuration::from_mins(offset)).ok()
}

/// A number of exactly this many digits.
fn number<N: TryFrom<u32>>(rest: &mut &[u8], digits: usize) -> Option<N> {
    let (text, after) = rest.split_at_checked(digits)?;
    let mut number = 0;
    for byte in text {
        number = 10 * number + u32::from(byte.checked_sub(b'0').filter(|digit| *digit < 10)?);
    }
    *rest = after;
    N::try_from(number).ok()
}

fn literal(rest: &mut &[u8], wanted: u8) -> Option<()> {
    let (first, after) = rest.split_first()?;
    *rest = after;
    (*first == wanted).then_some(())
}

/// The id and secret of a token that may sign: named by its id, complete, not expired, and meant for signing.
pub fn for_signing(token: &BootstrapToken, now: Timestamp) -> Option<(&str, &Confidential)> {
    let name = &Object::metadata(token).name;
    let id = name.strip_prefix("bootstrap-token-").filter(|id| {
        id.len() == 6
            && id
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
    })?;
    let said = data(token, "token-id")?.reveal_text()?;
    let secret = data(token, "token-secret")?;
    let may_sign = data(token, "usage-bootstrap-signing")?.reveal_text()? == "true";
    (said == id && may_sign && !expiry(token).is_over(now)).then_some((said, secret))
}
