//! Label selectors: compiled once, matched often, written out for the API's `labelSelector`.

use kubernetes_proto::meta::{self, Entry, LabelSelector};

/// A selector that can't be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// An operator other than In, NotIn, Exists, DoesNotExist.
    #[error("{0:?} is not a valid label selector operator")]
    Operator(String),
    /// In or NotIn without values.
    #[error("label {0:?}: for 'in', 'notin' operators, values set can't be empty")]
    NoValues(String),
    /// Exists or DoesNotExist with values.
    #[error("label {0:?}: values set must be empty for exists and does not exist")]
    Values(String),
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Test {
    /// Has the key with this value.
    Equals(String),
    /// Has the key with one of these values, sorted.
    In(Vec<String>),
    /// Has not the key with one of these values, sorted.
    NotIn(Vec<String>),
    Exists,
    DoesNotExist,
}

/// A compiled selector.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Selector {
    /// Sorted by key; all must hold. `None`: matches nothing.
    requirements: Option<Vec<(String, Test)>>,
}

impl Selector {
    /// From the API's form: none matches nothing, an empty one everything.
    ///
    /// # Errors
    /// Where an expression can't be read.
    pub fn compile(selector: Option<&LabelSelector>) -> Result<Self, Error> {
        let Some(selector) = selector else {
            return Ok(Self::nothing());
        };
        let mut requirements: Vec<(String, Test)> = selector
            .match_labels
            .iter()
            .map(|entry| {
                (
                    entry.key.as_str().to_owned(),
                    Test::Equals(entry.value.as_str().to_owned()),
                )
            })
            .collect();
        for expression in &selector.match_expressions {
            let key = || expression.key.clone();
            let values = || {
                let mut values = expression.values.clone();
                values.sort_unstable();
                values.dedup();
                values
            };
            let test = match expression.operator.as_str() {
                "In" | "NotIn" if expression.values.is_empty() => {
                    return Err(Error::NoValues(key()));
                }
                "Exists" | "DoesNotExist" if !expression.values.is_empty() => {
                    return Err(Error::Values(key()));
                }
                "In" => Test::In(values()),
                "NotIn" => Test::NotIn(values()),
                "Exists" => Test::Exists,
                "DoesNotExist" => Test::DoesNotExist,
                other => return Err(Error::Operator(other.to_owned())),
            };
            requirements.push((key(), test));
        }
        requirements.sort_by(|one, other| one.0.cmp(&other.0));
        Ok(Self {
            requirements: Some(requirements),
        })
    }

    /// Matches nothing.
    pub fn nothing() -> Self {
        Self { requirements: None }
    }

    /// Exactly these labels, and any others.
    pub fn of_labels(labels: &[Entry]) -> Self {
        Self {
            requirements: Some(
                labels
                    .iter()
                    .map(|entry| {
                        (
                            entry.key.as_str().to_owned(),
                            Test::Equals(entry.value.as_str().to_owned()),
                        )
                    })
                    .collect(),
            ),
        }
    }

    /// Whether it restricts nothing: true of none and of an empty selector, which an owner of orphans must not follow.
    pub fn is_empty(&self) -> bool {
        self.requirements.as_ref().is_none_or(Vec::is_empty)
    }

    /// Whether an object with these labels is selected.
    pub fn matches(&self, labels: &[Entry]) -> bool {
        self.requirements.as_ref().is_some_and(|requirements| {
            requirements.iter().all(|(key, test)| {
                let value = meta::get(labels, key);
                match test {
                    Test::Equals(wanted) => value == Some(wanted),
                    Test::In(wanted) => {
                        value.is_some_and(|value| wanted.iter().any(|one| one == value))
                    }
                    Test::NotIn(unwanted) => {
                        value.is_none_or(|value| unwanted.iter().all(|one| one != value))
                    }
                    Test::Exists => value.is_some(),
                    Test::DoesNotExist => value.is_none(),
                }
            })
        })
    }

    /// The API's text form; `None` for a selector of nothing, which has none.
    pub fn text(&self) -> Option<String> {
        let requirements = self.requirements.as_ref()?;
        Some(
            requirements
                .iter()
                .map(|(key, test)| match test {
                    Test::Equals(value) => format!("{key}={value}"),
                    Test::In(values) => format!("{key} in ({})", values.join(",")),
                    Test::NotIn(values) => format!("{key} notin ({})", values.join(",")),
                    Test::Exists => key.clone(),
                    Test::DoesNotExist => format!("!{key}"),
                })
                .collect::<Vec<_>>()
                .join(","),
        )
    }
}

#[cfg(test)]
mod tests;
