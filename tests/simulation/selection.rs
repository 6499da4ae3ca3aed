//! Label selectors in the API's text form.

use kubernetes_proto::meta::Entry;
use serde_json::Value;

/// A label selector in the API's text form.
pub struct Selection(Vec<Wanted>);

enum Wanted {
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
    Exists(String),
    Missing(String),
}

impl Selection {
    /// From its text.
    ///
    /// # Errors
    /// Why it can't be read.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut parts = Vec::new();
        let mut depth = 0;
        let mut part = String::new();
        for char in text.chars() {
            match char {
                '(' => depth += 1,
                ')' => depth -= 1,
                ',' if depth == 0 => {
                    parts.push(std::mem::take(&mut part));
                    continue;
                }
                _ => {}
            }
            part.push(char);
        }
        parts.push(part);
        let values = |text: &str| -> Vec<String> {
            text.trim()
                .trim_start_matches('(')
                .trim_end_matches(')')
                .split(',')
                .map(|value| value.trim().to_owned())
                .collect()
        };
        let wanted = parts
            .iter()
            .map(|part| part.trim())
            .filter(|part| !part.is_empty())
            .map(|part| {
                if let Some((key, list)) = part.split_once(" notin ") {
                    Wanted::NotIn(key.trim().to_owned(), values(list))
                } else if let Some((key, list)) = part.split_once(" in ") {
                    Wanted::In(key.trim().to_owned(), values(list))
                } else if let Some((key, value)) = part.split_once("!=") {
                    Wanted::NotIn(key.trim().to_owned(), vec![value.trim().to_owned()])
                } else if let Some((key, value)) = part.split_once('=') {
                    let value = value.trim_start_matches('=').trim();
                    Wanted::In(key.trim().to_owned(), vec![value.to_owned()])
                } else if let Some(key) = part.strip_prefix('!') {
                    Wanted::Missing(key.to_owned())
                } else {
                    Wanted::Exists(part.to_owned())
                }
            })
            .collect();
        if depth == 0 {
            Ok(Self(wanted))
        } else {
            Err(format!("unable to parse requirement: {text}"))
        }
    }

    fn holds(&self, get: impl Fn(&str) -> Option<String>) -> bool {
        self.0.iter().all(|wanted| match wanted {
            Wanted::In(key, values) => get(key).is_some_and(|value| values.contains(&value)),
            Wanted::NotIn(key, values) => get(key).is_none_or(|value| !values.contains(&value)),
            Wanted::Exists(key) => get(key).is_some(),
            Wanted::Missing(key) => get(key).is_none(),
        })
    }

    /// Whether labels match.
    pub fn matches(&self, labels: &[Entry]) -> bool {
        self.holds(|key| {
            labels
                .iter()
                .find(|entry| *entry.key == *key)
                .map(|entry| entry.value.to_string())
        })
    }

    /// Whether labels in JSON match.
    pub fn matches_json(&self, labels: &Value) -> bool {
        self.holds(|key| labels[key].as_str().map(str::to_owned))
    }
}
