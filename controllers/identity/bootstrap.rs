//! What both controllers of bootstrap tokens ask of a token's Secret.

use controllers_kit::{Confidential, Timestamp};
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

/// When a token expires, as its `expiration` says.
pub fn expiry(token: &BootstrapToken) -> Expiry {
    match data(token, "expiration") {
        None => Expiry::Never,
        Some(text) => text
            .reveal_text()
            .and_then(rfc3339)
            .map_or(Expiry::Unreadable, Expiry::At),
    }
}

/// An instant as RFC 3339 writes it, and nothing else that a lenient parser would take.
fn rfc3339(text: &str) -> Option<Timestamp> {
    let bytes = text.as_bytes();
    let (date, rest) = bytes.split_at_checked("2006-01-02T15:04:05".len())?;
    let shape = b"0000-00-00T00:00:00";
    let is_shaped = date.iter().zip(shape).all(|(is, wanted)| match wanted {
        b'0' => is.is_ascii_digit(),
        _ => is == wanted,
    });
    // Go knows no leap second.
    if !is_shaped || &date[17..] >= b"60".as_slice() {
        return None;
    }
    let fraction = match rest.split_first() {
        Some((b'.', digits)) => {
            let count = digits
                .iter()
                .take_while(|byte| byte.is_ascii_digit())
                .count();
            if count == 0 {
                return None;
            }
            count + 1
        }
        _ => 0,
    };
    let offset = &rest[fraction..];
    let is_offset = match offset {
        b"Z" => true,
        [b'+' | b'-', h1, h2, b':', m1, m2] => {
            [h1, h2, m1, m2].iter().all(|byte| byte.is_ascii_digit())
        }
        _ => false,
    };
    is_offset.then(|| text.parse().ok()).flatten()
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
