//! Whether a pod bears a taint.

use kubernetes_proto::core::{Taint, Toleration};

/// Whether a toleration tolerates a taint. `comparisons` says whether the gate
/// `TaintTolerationComparisonOperators` is on: without it, tolerations that compare numbers tolerate
/// nothing.
pub fn tolerates(toleration: &Toleration, taint: &Taint, comparisons: bool) -> bool {
    if !toleration.effect.is_empty() && toleration.effect != taint.effect {
        return false;
    }
    if !toleration.key.is_empty() && toleration.key != taint.key {
        return false;
    }
    let numbers = || Some((whole(&taint.value)?, whole(&toleration.value)?));
    match toleration.operator.as_str() {
        "" | "Equal" => toleration.value == taint.value,
        "Exists" => true,
        "Lt" if comparisons => numbers().is_some_and(|(taint, held)| taint < held),
        "Gt" if comparisons => numbers().is_some_and(|(taint, held)| taint > held),
        _ => false,
    }
}

/// A number as the API takes it: no plus sign, no leading zeros.
fn whole(text: &str) -> Option<i64> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let is_plain = !digits.is_empty()
        && digits.bytes().all(|byte| byte.is_ascii_digit())
        && (digits == "0" || !digits.starts_with('0'))
        && text != "-0";
    is_plain.then(|| text.parse().ok()).flatten()
}
