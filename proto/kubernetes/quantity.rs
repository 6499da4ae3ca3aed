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
    /// The API's text; a few texts repeat, so it is interned.
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

/// The most digits that are read: more than any amount that the API stores has.
const DIGITS_MAX: usize = 30;

/// The parts of a number: digits without the point, the power of ten and the power of two that multiply
/// them.
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

    /// In thousandths, rounded away from zero; saturating. `None` where the text is no amount.
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

    /// As a floating-point number. `None` where the text is no amount.
    pub fn approximate(&self) -> Option<f64> {
        let parts = self.parts()?;
        let size = parts.digits as f64 * 10f64.powi(parts.ten) * 2f64.powi(parts.two as i32);
        Some(if parts.negative { -size } else { size })
    }

    /// The exact value. `None` where the text is no amount.
    pub fn exact(&self) -> Option<Exact> {
        let parts = self.parts()?;
        let scaled = 1u128
            .checked_shl(parts.two)
            .and_then(|factor| parts.digits.checked_mul(factor));
        let power = parts.ten + NANO_PLACES;
        let most = MOST.unsigned_abs();
        let size = match (scaled, u32::try_from(power)) {
            (None, _) => most,
            (Some(0), _) => 0,
            (Some(scaled), Ok(up)) => 10u128
                .checked_pow(up)
                .and_then(|factor| scaled.checked_mul(factor))
                .unwrap_or(most),
            (Some(scaled), Err(_)) => 10u128
                .checked_pow(power.unsigned_abs())
                .map_or(1, |divisor| scaled.div_ceil(divisor)),
        };
        let size = i128::try_from(size.min(most)).unwrap_or(MOST);
        let fraction = size < NANO;
        let format = match parts.two {
            0 if self.string.contains('e') || self.has_large_exponent() => Format::Exponent,
            0 => Format::Decimal,
            // Less than one has no form in powers of two.
            _ if fraction && size > 0 => Format::Decimal,
            _ => Format::Binary,
        };
        Some(Exact {
            nano: if parts.negative { -size } else { size },
            format,
        })
    }

    /// Whether its `E` begins a power of ten, and is not the suffix of exa or exbi.
    fn has_large_exponent(&self) -> bool {
        self.string
            .split_once('E')
            .is_some_and(|(_, power)| !power.is_empty() && power != "i")
    }

    /// From thousandths, in the API's shortest form: `1500m`, `2`, `3k`.
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

    /// From thousandths, in powers of two where that is exact and 1024 or more: `64Mi`, but `1500m`.
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

/// The suffix style of an amount, which results of arithmetic keep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// By powers of ten: `1500m`, `3k`.
    #[default]
    Decimal,
    /// By powers of two: `64Mi`.
    Binary,
    /// With an exponent: `12e6`.
    Exponent,
}

/// Digits behind the point that amounts have at most.
const NANO_PLACES: i32 = 9;
const NANO: i128 = 1_000_000_000;
/// The largest amount that one text can express: that of the API.
const MOST: i128 = i64::MAX as i128 * NANO;

/// An amount for arithmetic, exact to the thousand-millionth, as the API's are. A sum has the format of its
/// first part that is not 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exact {
    nano: i128,
    format: Format,
}

impl Exact {
    /// From whole units.
    pub fn of_count(count: i64) -> Self {
        Self {
            nano: i128::from(count) * NANO,
            format: Format::Decimal,
        }
    }

    /// Whether it is nothing.
    pub fn is_zero(self) -> bool {
        self.nano == 0
    }

    /// With more of the same.
    #[must_use]
    pub fn plus(self, more: Self) -> Self {
        Self {
            nano: self.nano.saturating_add(more.nano),
            format: if self.nano == 0 {
                more.format
            } else {
                self.format
            },
        }
    }

    /// Less something; written as it was.
    #[must_use]
    pub fn less(self, other: Self) -> Self {
        Self {
            nano: self.nano.saturating_sub(other.nano),
            format: if self.nano == 0 {
                other.format
            } else {
                self.format
            },
        }
    }

    /// The larger of two; itself where they are equal.
    #[must_use]
    pub fn at_least(self, other: Self) -> Self {
        if other.nano > self.nano { other } else { self }
    }

    /// Whole, rounded away from zero.
    #[must_use]
    pub fn whole(self) -> Self {
        let rest = self.nano % NANO;
        let up = if rest == 0 { 0 } else { rest.signum() * NANO };
        Self {
            nano: self.nano - rest + up,
            format: self.format,
        }
    }

    /// Whether it is the larger.
    pub fn exceeds(self, other: Self) -> bool {
        self.nano > other.nano
    }

    /// Whether they are the same amount, however written.
    pub fn equals(self, other: Self) -> bool {
        self.nano == other.nano
    }

    /// As the API writes it.
    pub fn quantity(self) -> Quantity {
        const TENS: [&str; 10] = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];
        const TWOS: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
        if self.nano == 0 {
            return Quantity::text("0");
        }
        let whole = self.nano / NANO;
        if self.format == Format::Binary && self.nano % NANO == 0 && whole.abs() >= 1024 {
            let (number, step) = without_factor(whole, 1024, TWOS.len() - 1);
            return Quantity::from(format!("{number}{}", TWOS[step]));
        }
        if self.format == Format::Exponent {
            let (number, step) = without_factor(self.nano, 1000, usize::MAX);
            let power = 3 * i64::try_from(step).unwrap_or(i64::MAX / 3) - i64::from(NANO_PLACES);
            return Quantity::from(match power {
                0 => number.to_string(),
                power => format!("{number}e{power}"),
            });
        }
        let (number, step) = without_factor(self.nano, 1000, TENS.len() - 1);
        Quantity::from(format!("{number}{}", TENS[step]))
    }
}

/// A number without a factor, and the factor's multiplicity.
fn without_factor(mut number: i128, factor: i128, most: usize) -> (i128, usize) {
    let mut times = 0;
    while number % factor == 0 && times < most {
        number /= factor;
        times += 1;
    }
    (number, times)
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
