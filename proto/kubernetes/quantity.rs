//! `resource.Quantity`: an amount as text, read and written as the API does.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{
    Str,
    message::{Word, wire},
};

/// An amount, as in `1500m` or `64Mi`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Quantity {
    /// As the API writes it; a few texts repeat, so it is interned.
    pub string: Str,
}

wire! { Quantity { 1 string: Word, } }

impl From<String> for Quantity {
    fn from(string: String) -> Self {
        Self::text(&string)
    }
}

/// Suffixes and what they multiply by, in powers of ten and of two.
const SUFFIXES: [(&str, i32, u32); 16] = [
    ("Ki", 0, 10),
    ("Mi", 0, 20),
    ("Gi", 0, 30),
    ("Ti", 0, 40),
    ("Pi", 0, 50),
    ("Ei", 0, 60),
    ("n", -9, 0),
    ("u", -6, 0),
    ("m", -3, 0),
    ("k", 3, 0),
    ("M", 6, 0),
    ("G", 9, 0),
    ("T", 12, 0),
    ("P", 15, 0),
    ("E", 18, 0),
    ("", 0, 0),
];

/// Digits of a number that are read: more than any amount that the API keeps has.
const DIGITS_MAX: usize = 30;

/// A number apart: digits without the point, the power of ten and the power of two that multiply them.
struct Parts {
    negative: bool,
    digits: u128,
    ten: i32,
    two: u32,
}

impl Quantity {
    /// From text.
    pub fn text(text: &str) -> Self {
        Self {
            string: Str::interned(text),
        }
    }

    fn parts(&self) -> Option<Parts> {
        let text = self.string.trim();
        let (negative, text) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text.strip_prefix('+').unwrap_or(text)),
        };
        let end = text
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(text.len());
        let (number, suffix) = text.split_at(end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        let plain = [whole, fraction].concat();
        if plain.is_empty() || plain.len() > DIGITS_MAX || fraction.contains('.') {
            return None;
        }
        let digits = plain.parse().ok()?;
        let places = i32::try_from(fraction.len()).ok()?;
        let exponent = suffix.strip_prefix(['e', 'E']).filter(|power| {
            // `E` alone is exa, `Ei` exbi.
            power.starts_with(|first: char| first.is_ascii_digit() || "+-".contains(first))
        });
        let (ten, two) = match exponent {
            Some(power) => (power.parse::<i32>().ok()?, 0),
            None => SUFFIXES
                .iter()
                .find(|(name, ..)| *name == suffix)
                .map(|(_, ten, two)| (*ten, *two))?,
        };
        Some(Parts {
            negative,
            digits,
            ten: ten - places,
            two,
        })
    }

    /// In thousandths, rounded away from zero; the largest number where it is larger. `None` where the text is no
    /// amount.
    pub fn milli(&self) -> Option<i64> {
        let parts = self.parts()?;
        let power = parts.ten + 3;
        let scaled = 1u128
            .checked_shl(parts.two)
            .and_then(|factor| parts.digits.checked_mul(factor));
        let size = match (scaled, u32::try_from(power)) {
            (None, _) => u128::MAX,
            (Some(scaled), Ok(up)) => 10u128
                .checked_pow(up)
                .and_then(|factor| scaled.checked_mul(factor))
                .unwrap_or(if scaled == 0 { 0 } else { u128::MAX }),
            (Some(scaled), Err(_)) => match 10u128.checked_pow(power.unsigned_abs()) {
                Some(divisor) => scaled.div_ceil(divisor),
                None => u128::from(scaled > 0),
            },
        };
        let size = i64::try_from(size).unwrap_or(i64::MAX);
        Some(if parts.negative { -size } else { size })
    }

    /// As a number, near enough. `None` where the text is no amount.
    pub fn approximate(&self) -> Option<f64> {
        let parts = self.parts()?;
        let size = parts.digits as f64 * 10f64.powi(parts.ten) * 2f64.powi(parts.two as i32);
        Some(if parts.negative { -size } else { size })
    }

    /// So many thousandths, in the API's shortest form: `1500m`, `2`, `3k`.
    pub fn of_milli(milli: i64) -> Self {
        let (mut number, mut step) = (milli, 0);
        const STEPS: [&str; 7] = ["m", "", "k", "M", "G", "T", "P"];
        while number != 0 && number % 1000 == 0 && step + 1 < STEPS.len() {
            number /= 1000;
            step += 1;
        }
        let suffix = if number == 0 { "" } else { STEPS[step] };
        Self::from(format!("{number}{suffix}"))
    }

    /// So many thousandths, in powers of two where that is exact and 1024 or more: `64Mi`, but `1500m`.
    pub fn of_milli_binary(milli: i64) -> Self {
        if milli % 1000 != 0 || milli.abs() < 1024 * 1000 {
            return Self::of_milli(milli);
        }
        let (mut number, mut step) = (milli / 1000, 0);
        const STEPS: [&str; 6] = ["", "Ki", "Mi", "Gi", "Ti", "Pi"];
        while number % 1024 == 0 && step + 1 < STEPS.len() {
            number /= 1024;
            step += 1;
        }
        Self::from(format!("{number}{}", STEPS[step]))
    }
}

/// Amounts by name are a list to us and an object to JSON.
pub mod amounts {
    use std::collections::BTreeMap;

    use super::{Deserialize, Deserializer, Quantity, Serializer, Str};
    use crate::core::Amount;

    /// As a JSON object.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<S: Serializer>(amounts: &[Amount], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(amounts.iter().map(|amount| (&amount.key, &amount.value)))
    }

    /// From a JSON object, sorted by name.
    ///
    /// # Errors
    /// Where the value is no object of texts.
    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<Amount>, D::Error> {
        let map = BTreeMap::<String, Quantity>::deserialize(deserializer)?;
        Ok(map
            .into_iter()
            .map(|(key, value)| Amount {
                key: Str::interned(&key),
                value: Some(value),
            })
            .collect())
    }
}
