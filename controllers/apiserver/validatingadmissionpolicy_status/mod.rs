//! Warns in a ValidatingAdmissionPolicy's status of expressions whose types don't fit the kinds that it
//! matches.
//!
//! Watches ValidatingAdmissionPolicies; applies `status.observedGeneration` and `status.typeChecking`; a key
//! per policy; remembers, while a policy is being checked, what discovery has shown of resources that the
//! catalogue lacks. Invariant: a generation is checked once, against the schemas that the API server
//! publishes then; a warning says what kube-controller-manager's says, and where that is not certain there is
//! none.

mod cel;
mod kinds;
mod schema;
mod warnings;

use controllers_kit::{
    Answer, Controller, Descriptor, Flags, Key, MetricKind, PatchKind, Plan, Query, Refusal,
    Sharding, Snapshot, StatusWrite, Str, Watches,
};
use kubernetes_proto::{
    Object,
    admissionregistration::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicySpec},
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::time::Duration;

use kinds::{Found, Kind, Served};
use warnings::Against;

/// As whom the status is owned.
const FIELD_MANAGER: &str = "validatingadmissionpolicy-status";
/// Expressions of which nothing was said.
const UNCHECKED: &str = "manifold_vap_unchecked_total";
/// What a read of discovery may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// The controller.
pub struct ValidatingAdmissionPolicyStatus;

/// The results of discovery for a generation of a policy.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Memory {
    generation: i64,
    found: Found,
}

/// The policy, where its generation is not checked yet.
fn unchecked(key: &Key, seen: &Snapshot<'_>) -> Option<std::sync::Arc<ValidatingAdmissionPolicy>> {
    let policy = seen.get::<ValidatingAdmissionPolicy>(key)?;
    let observed = policy
        .status
        .as_ref()
        .map_or(0, |status| status.observed_generation);
    (policy.metadata().generation > observed).then_some(policy)
}

/// Reads of discovery that are missing.
fn reads(
    spec: &ValidatingAdmissionPolicySpec,
    generation: i64,
    served: &Served,
    memory: &Memory,
) -> Vec<(String, Query)> {
    let mut paths: Vec<String> = kinds::unknown(spec, served)
        .into_iter()
        .map(|(group, version)| kinds::discovery(&group, &version))
        .collect();
    if memory.generation == generation {
        paths.retain(|path| !memory.found.contains_key(path));
    }
    let query = |path: String| Query::Path {
        path,
        patience: PATIENCE,
    };
    paths
        .into_iter()
        .map(|path| (path.clone(), query(path)))
        .collect()
}

fn schema_of(kind: &Kind) -> Query {
    Query::Schema {
        group: Str::from(&*kind.group),
        version: Str::from(&*kind.version),
        kind: Str::from(&*kind.kind),
    }
}

fn params_of(spec: &ValidatingAdmissionPolicySpec) -> Option<Kind> {
    let params = spec.param_kind.as_ref()?;
    Kind::of(&params.api_version, &params.kind)
}

/// The schema of a kind; `None` where it has none.
fn schemas<'a>(kind: &Kind, seen: &Snapshot<'a>) -> Result<Option<&'a Value>, Refusal> {
    match seen.answer(&schema_of(kind)) {
        Some(Answer::Object(answer)) => Ok(Some(&**answer)),
        Some(Answer::Missing | Answer::NotFound(_)) => Ok(None),
        Some(Answer::Failed(why)) => Err(Refusal::Retry(format!(
            "the schema of {kind} can't be read: {why}"
        ))),
        None => Err(Refusal::Retry(format!(
            "the schema of {kind} was not asked for"
        ))),
    }
}

impl Controller for ValidatingAdmissionPolicyStatus {
    type Memory = Memory;

    fn describe() -> Descriptor {
        Descriptor::new("validatingadmissionpolicy-status-controller", Sharding::ByObject)
            .queue("validatingadmissionpolicy-status")
            .workers(
                "concurrent-validating-admission-policy-status-syncs",
                5,
                "The number of ValidatingAdmissionPolicyStatusController workers that are allowed to sync concurrently.",
            )
            .rule(
                "admissionregistration.k8s.io",
                "validatingadmissionpolicies",
                &["list", "watch"],
            )
            .rule(
                "admissionregistration.k8s.io",
                "validatingadmissionpolicies/status",
                &["patch"],
            )
            .metric(
                UNCHECKED,
                MetricKind::Counter,
                &[],
                "Expressions of ValidatingAdmissionPolicies whose types were not checked, for each kind that the policy matches: they use what the type checker does not know, or are too large.",
            )
            .differences(include_str!("differences.md"))
    }

    fn new(_: &Flags) -> Self {
        Self
    }

    fn watch(&self, on: &mut Watches) {
        on.catalogue();
        on.kind::<ValidatingAdmissionPolicy>().wakes_itself();
    }

    fn ask(&self, key: &Key, seen: &Snapshot<'_>, memory: &Memory) -> Vec<Query> {
        let Some(policy) = unchecked(key, seen) else {
            return Vec::new();
        };
        let catalogue = seen.catalogue();
        let (Some(spec), true) = (&policy.spec, catalogue.is_known()) else {
            return Vec::new();
        };
        let served = Served::new(&catalogue);
        let reads = reads(spec, policy.metadata().generation, &served, memory);
        if !reads.is_empty() {
            return reads.into_iter().map(|(_, query)| query).collect();
        }
        let (kinds, _) = kinds::of(spec, &served, &memory.found);
        let mut queries: Vec<Query> = kinds.iter().map(schema_of).collect();
        queries.extend(params_of(spec).as_ref().map(schema_of));
        queries.sort();
        queries.dedup();
        queries
    }

    fn plan(&self, key: &Key, seen: &Snapshot<'_>, memory: &mut Memory) -> Result<Plan, Refusal> {
        let mut plan = Plan::nothing();
        let Some(policy) = unchecked(key, seen) else {
            *memory = Memory::default();
            return Ok(plan);
        };
        let generation = policy.metadata().generation;
        let catalogue = seen.catalogue();
        if !catalogue.is_known() {
            return Err(Refusal::Retry("discovery was not read yet".to_owned()));
        }
        let empty = ValidatingAdmissionPolicySpec::default();
        let spec = policy.spec.as_ref().unwrap_or(&empty);
        if memory.generation != generation {
            *memory = Memory {
                generation,
                ..Memory::default()
            };
        }
        let served = Served::new(&catalogue);
        let reads = reads(spec, generation, &served, memory);
        if !reads.is_empty() {
            for (path, query) in reads {
                let kinds = match seen.answer(&query) {
                    Some(Answer::Object(document)) => kinds::discovered(document, spec),
                    Some(Answer::Missing | Answer::NotFound(_)) => Default::default(),
                    Some(Answer::Failed(why)) => {
                        return Err(Refusal::Retry(format!("{path} can't be read: {why}")));
                    }
                    None => continue,
                };
                memory.found.insert(path, kinds);
            }
            plan.requeue_now();
            return Ok(plan);
        }
        let mut against = Against {
            kinds: Vec::new(),
            params: None,
            spec,
        };
        let (kinds, is_cut) = kinds::of(spec, &served, &memory.found);
        for kind in kinds {
            // A kind without a schema is skipped.
            if let Some(schemas) = schemas(&kind, seen)? {
                against.kinds.push((kind, schemas));
            }
        }
        if let Some(kind) = params_of(spec) {
            let schemas = schemas(&kind, seen)?;
            against.params = Some((kind, schemas));
        }
        let mut outcome = warnings::check(&against);
        outcome.unchecked += usize::from(is_cut);
        if outcome.unchecked > 0 {
            #[allow(clippy::cast_precision_loss)]
            plan.measure(UNCHECKED, &[], outcome.unchecked as f64);
        }
        let mut checking = json!({});
        if !outcome.warnings.is_empty() {
            checking["expressionWarnings"] = json!(outcome.warnings);
        }
        plan.patch(
            &*policy,
            "status",
            PatchKind::Apply {
                manager: FIELD_MANAGER,
            },
            json!({ "status": { "observedGeneration": generation, "typeChecking": checking } }),
            StatusWrite::No,
        );
        Ok(plan)
    }
}

#[cfg(test)]
pub(crate) mod tests;
