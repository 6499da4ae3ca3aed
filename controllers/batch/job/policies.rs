//! What a Job says about failed pods (podFailurePolicy) and about enough success (successPolicy).

use kubernetes_proto::{
    Object,
    batch::{PodFailurePolicy, PodFailurePolicyOnExitCodesRequirement, SuccessPolicy},
    core::{ContainerStatus, Pod},
};

use super::indexes::Indexes;

/// What a rule does about a failed pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Action {
    Ignore,
    Count,
    FailIndex,
    FailJob,
}

impl Action {
    fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "Ignore" => Self::Ignore,
            "Count" => Self::Count,
            "FailIndex" => Self::FailIndex,
            "FailJob" => Self::FailJob,
            _ => return None,
        })
    }

    /// As the API spells it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Ignore => "Ignore",
            Self::Count => "Count",
            Self::FailIndex => "FailIndex",
            Self::FailJob => "FailJob",
        }
    }
}

/// What the policy makes of a failed pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Verdict {
    /// Whether the failure counts against the back-off limit.
    pub counts: bool,
    /// The action of the rule that matched.
    pub action: Option<Action>,
    /// Why the Job fails, where it does.
    pub message: Option<String>,
}

/// The first rule that matches decides; without one the failure counts.
pub(super) fn judge(policy: Option<&PodFailurePolicy>, pod: &Pod) -> Verdict {
    let meta = Object::metadata(pod);
    let rules = policy.map_or(&[][..], |policy| &policy.rules);
    for (place, rule) in rules.iter().enumerate() {
        let Some(action) = Action::parse(&rule.action) else {
            continue;
        };
        let matched = match &rule.on_exit_codes {
            Some(requirement) => exit_code(pod, requirement).map(|(container, code)| {
                format!(
                    "Container {container} for pod {}/{} failed with exit code {code} matching {} rule at index {place}",
                    meta.namespace, meta.name, rule.action
                )
            }),
            None => condition(pod, &rule.on_pod_conditions).map(|condition| {
                format!(
                    "Pod {}/{} has condition {condition} matching {} rule at index {place}",
                    meta.namespace, meta.name, rule.action
                )
            }),
        };
        if let Some(message) = matched {
            return Verdict {
                counts: action != Action::Ignore,
                action: Some(action),
                message: (action == Action::FailJob).then_some(message),
            };
        }
    }
    Verdict {
        counts: true,
        action: None,
        message: None,
    }
}

/// The first container that ended with an exit code of the requirement: regular ones before init
/// containers.
fn exit_code<'a>(
    pod: &'a Pod,
    requirement: &PodFailurePolicyOnExitCodesRequirement,
) -> Option<(&'a str, i32)> {
    let status = pod.status.as_ref()?;
    let matches = |container: &'a ContainerStatus| {
        let code = container.state.as_ref()?.terminated.as_ref()?.exit_code;
        let named = requirement
            .container_name
            .as_ref()
            .is_none_or(|name| *name == container.name);
        let listed = requirement.values.contains(&code);
        let meant = match requirement.operator.as_str() {
            "In" => listed,
            "NotIn" => !listed,
            _ => false,
        };
        (code != 0 && named && meant).then_some((container.name.as_str(), code))
    };
    status
        .container_statuses
        .iter()
        .chain(&status.init_container_statuses)
        .find_map(matches)
}

fn condition<'a>(
    pod: &'a Pod,
    patterns: &[kubernetes_proto::batch::PodFailurePolicyOnPodConditionsPattern],
) -> Option<&'a str> {
    let conditions = &pod.status.as_ref()?.conditions;
    conditions
        .iter()
        .find(|condition| {
            patterns.iter().any(|pattern| {
                condition.r#type == *pattern.r#type && condition.status == *pattern.status
            })
        })
        .map(|condition| condition.r#type.as_str())
}

/// The message of the first success rule that matches.
pub(super) fn success(
    policy: Option<&SuccessPolicy>,
    completions: i32,
    succeeded: &Indexes,
) -> Option<String> {
    if succeeded.is_empty() {
        return None;
    }
    let rules = &policy?.rules;
    let place = rules.iter().position(|rule| {
        let enough = |count: i64| {
            rule.succeeded_count
                .is_some_and(|wanted| count >= i64::from(wanted))
        };
        match &rule.succeeded_indexes {
            None => enough(succeeded.count()),
            Some(text) => {
                let wanted = Indexes::parse(text, completions);
                let met = wanted.overlap(succeeded);
                !wanted.is_empty() && (met == wanted.count() || enough(met))
            }
        }
    })?;
    Some(format!("Matched rules at index {place}"))
}
