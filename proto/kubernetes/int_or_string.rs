//! `intstr.IntOrString`: a number, or a percentage as text.

use serde::{Deserialize, Serialize};

use crate::meta::IntOrString;

/// As JSON has it.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum Either {
    Number(i32),
    Text(String),
}

impl From<Either> for IntOrString {
    fn from(either: Either) -> Self {
        match either {
            Either::Number(number) => Self::number(number),
            Either::Text(text) => Self::text(&text),
        }
    }
}

impl From<IntOrString> for Either {
    fn from(value: IntOrString) -> Self {
        if value.r#type == 1 {
            Self::Text(value.str_val)
        } else {
            Self::Number(value.int_val)
        }
    }
}

impl IntOrString {
    /// A number.
    pub fn number(number: i32) -> Self {
        Self {
            r#type: 0,
            int_val: number,
            str_val: String::new(),
        }
    }

    /// A text, as in `25%`.
    pub fn text(text: &str) -> Self {
        Self {
            r#type: 1,
            int_val: 0,
            str_val: text.to_owned(),
        }
    }

    /// The number, or that percentage of `total`, rounded up or down.
    ///
    /// # Errors
    /// Where the text is no percentage; the text says so.
    pub fn scaled(&self, total: i32, round_up: bool) -> Result<i32, String> {
        if self.r#type != 1 {
            return Ok(self.int_val);
        }
        let percent: i64 = self
            .str_val
            .strip_suffix('%')
            .and_then(|digits| digits.parse().ok())
            .ok_or_else(|| {
                format!(
                    "invalid value for IntOrString: invalid type: string is not a percentage: {:?}",
                    self.str_val
                )
            })?;
        let scaled = percent.saturating_mul(i64::from(total));
        let value = if round_up {
            scaled.saturating_add(99).div_euclid(100)
        } else {
            scaled.div_euclid(100)
        };
        let bound = if value < 0 { i32::MIN } else { i32::MAX };
        Ok(i32::try_from(value).unwrap_or(bound))
    }
}
