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
    /// A part of a selector's text that is no requirement.
    #[error("unable to parse requirement: {0:?}")]
    Requirement(String),
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Test {
    /// Has the key with this value.
    Equals(String),
    /// Has the key with one of these values, sorted.
    In(Vec<String>),
    /// Does not have the key with any of these values, sorted.
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

/// Whether a selector exists without requirements: it would select everything in its namespace.
pub fn selects_all(selector: Option<&LabelSelector>) -> bool {
    selector.is_some_and(|selector| {
        selector.match_labels.is_empty() && selector.match_expressions.is_empty()
    })
}

impl Selector {
    /// Compiles the API's form: none matches nothing, an empty one everything.
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

    /// Parses the API's text form, as a scale's `status.selector` has it.
    ///
    /// # Errors
    /// Where a requirement can't be read.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let mut selector = LabelSelector::default();
        for requirement in split_requirements(text) {
            let requirement = requirement.trim();
            if requirement.is_empty() {
                continue;
            }
            selector.match_expressions.push(expression(requirement)?);
        }
        let mut selector = Self::compile(Some(&selector))?;
        for (_, test) in selector.requirements.iter_mut().flatten() {
            if let Test::In(values) = test
                && let [value] = values.as_slice()
            {
                *test = Test::Equals(value.clone());
            }
        }
        Ok(selector)
    }

    /// The labels that all selected objects have, key and value.
    pub fn labels(&self) -> impl Iterator<Item = (&str, &str)> {
        self.requirements
            .iter()
            .flatten()
            .filter_map(|(key, test)| match test {
                Test::Equals(value) => Some((key.as_str(), value.as_str())),
                _ => None,
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

    /// Whether it selects everything or is absent: an owner of orphans must not follow such a selector.
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

/// The requirements of a selector's text: split at the commas outside parentheses.
fn split_requirements(text: &str) -> Vec<&str> {
    let (mut depth, mut start, mut parts) = (0i32, 0, Vec::new());
    for (at, char) in text.char_indices() {
        match char {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

/// One requirement of a selector's text.
fn expression(text: &str) -> Result<meta::LabelSelectorRequirement, Error> {
    let of = |key: &str, operator: &str, values: Vec<String>| meta::LabelSelectorRequirement {
        key: key.trim().to_owned(),
        operator: operator.to_owned(),
        values,
    };
    let bad = || Error::Requirement(text.to_owned());
    let made = if let Some(key) = text.strip_prefix('!') {
        of(key, "DoesNotExist", Vec::new())
    } else if let Some(open) = text.find('(') {
        let list = text[open + 1..].strip_suffix(')').ok_or_else(bad)?;
        let values = list.split(',').map(|value| value.trim().to_owned());
        let mut words = text[..open].split_whitespace();
        let (key, operator) = (words.next().ok_or_else(bad)?, words.next());
        let operator = match (operator, words.next()) {
            (Some("in"), None) => "In",
            (Some("notin"), None) => "NotIn",
            _ => return Err(bad()),
        };
        of(key, operator, values.collect())
    } else if let Some((key, value)) = text.split_once("!=") {
        of(key, "NotIn", vec![value.trim().to_owned()])
    } else if let Some((key, value)) = text.split_once("==").or_else(|| text.split_once('=')) {
        of(key, "In", vec![value.trim().to_owned()])
    } else {
        of(text, "Exists", Vec::new())
    };
    let valid = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/');
    if made.key.is_empty() || !made.key.chars().all(valid) {
        return Err(bad());
    }
    Ok(made)
}

/// A selector as Go prints it in messages.
pub fn in_messages(selector: Option<&LabelSelector>) -> String {
    let Some(selector) = selector else {
        return "nil".to_owned();
    };
    let mut labels: Vec<&Entry> = selector.match_labels.iter().collect();
    labels.sort_by(|one, other| one.key.as_str().cmp(other.key.as_str()));
    let labels: String = labels
        .iter()
        .map(|entry| format!("{}: {},", entry.key, entry.value))
        .collect();
    let expressions: String = selector
        .match_expressions
        .iter()
        .map(|one| {
            format!(
                "LabelSelectorRequirement{{Key:{},Operator:{},Values:[{}],}},",
                one.key,
                one.operator,
                one.values.join(" ")
            )
        })
        .collect();
    format!(
        "&LabelSelector{{MatchLabels:map[string]string{{{labels}}},MatchExpressions:[]LabelSelectorRequirement{{{expressions}}},}}"
    )
}

#[cfg(test)]
mod tests;
