//! The warnings of a policy: each of its expressions is checked against each kind.

use std::collections::{BTreeSet, HashMap};

use controllers_kit::openapi::Schemas;
use kubernetes_proto::admissionregistration::{ExpressionWarning, ValidatingAdmissionPolicySpec};
use serde_json::Value;

use super::{
    cel::{self, Environment, Fields, Type, Verdict},
    kinds::Kind,
    schema,
};

/// The most code points of all checks of a policy. The rest is not checked, and counted.
const WORK_MAX: usize = 400_000;
/// What a check costs besides its length.
const CHECK_COST: usize = 20;
/// Bytes of all warnings of a policy: a status with more could not be written.
const WARNINGS_MAX: usize = 1 << 20;

/// The object type whose fields are the policy's variables.
const VARIABLES: &str = "kubernetes.variables";

/// The result of checking a policy.
#[derive(Debug, Default, PartialEq)]
pub struct Outcome {
    /// The warnings, in the order of the expressions.
    pub warnings: Vec<ExpressionWarning>,
    /// Expressions without a verdict, for each kind.
    pub unchecked: usize,
}

/// What an expression is checked against.
pub struct Against<'a> {
    /// The kinds that the rules name, with their schemas as they were answered.
    pub kinds: Vec<(Kind, &'a Value)>,
    /// The kind of parameters, and its schema where there is one.
    pub params: Option<(Kind, Option<&'a Value>)>,
    /// The policy.
    pub spec: &'a ValidatingAdmissionPolicySpec,
}

/// Checks all expressions.
pub fn check(against: &Against<'_>) -> Outcome {
    let spec = against.spec;
    let expressions = expressions(spec);
    let mut texts = vec![String::new(); expressions.len()];
    let mut outcome = Outcome::default();
    let mut work = 0;
    let mut size = 0;
    // The same expression is checked once.
    let distinct: BTreeSet<&str> = expressions.iter().map(|(_, text)| *text).collect();
    let variables = spec.variables.iter();
    let variables = variables.map(|variable| variable.expression.as_str());
    let cost = variables
        .chain(distinct)
        .map(|text| text.len() + CHECK_COST);
    let cost: usize = cost.sum();
    let base = base();
    for (kind, schemas) in &against.kinds {
        work += cost;
        let environment = match work > WORK_MAX {
            true => None,
            false => environment(&base, (kind, schemas), against.params.as_ref()),
        };
        let Some(mut environment) = environment else {
            outcome.unchecked += expressions.len();
            continue;
        };
        let sure = add_variables(&mut environment, spec);
        let mut known: HashMap<&str, Verdict> = HashMap::new();
        for ((_, expression), text) in expressions.iter().zip(&mut texts) {
            // A variable without a verdict leaves the expressions that use it without one.
            if !sure && expression.contains("variables") {
                outcome.unchecked += 1;
                continue;
            }
            let expression = *expression;
            let verdict = known
                .entry(expression)
                .or_insert_with(|| cel::check(expression, &environment));
            let Verdict::Wrong(errors) = verdict else {
                outcome.unchecked += usize::from(*verdict == Verdict::Unsure);
                continue;
            };
            let separator = if text.is_empty() { "" } else { "\n" };
            let more = format!("{separator}{kind}: {errors}\n");
            size += more.len();
            match size > WARNINGS_MAX {
                true => outcome.unchecked += 1,
                false => text.push_str(&more),
            }
        }
    }
    for ((field, _), warning) in expressions.into_iter().zip(texts) {
        if warning.is_empty() {
            continue;
        }
        outcome.warnings.push(ExpressionWarning {
            field_ref: field,
            warning,
        });
    }
    outcome
}

/// The expressions that are checked, each with its field path.
fn expressions(spec: &ValidatingAdmissionPolicySpec) -> Vec<(String, &str)> {
    let mut all = Vec::new();
    for (place, validation) in spec.validations.iter().enumerate() {
        let path = |field| format!("spec.validations[{place}].{field}");
        all.push((path("expression"), validation.expression.as_str()));
        if !validation.message_expression.is_empty() {
            all.push((path("messageExpression"), &validation.message_expression));
        }
    }
    all
}

/// The name of a kind's type. kube-controller-manager takes the kind and the nanoseconds of the time; a
/// number that follows from the kind keeps warnings the same from one check to the next.
pub(super) fn type_name(kind: &Kind) -> String {
    const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x100_0000_01b3;
    let number = kind.to_string().bytes().fold(OFFSET, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(PRIME)
    });
    format!("{}{}", kind.kind, number % 1_000_000_000)
}

/// The environment of expressions for a kind; `None` where its schema, or that of the parameters, is too
/// large.
fn environment(
    base: &Environment,
    (kind, schemas): (&Kind, &Value),
    params: Option<&(Kind, Option<&Value>)>,
) -> Option<Environment> {
    let mut environment = base.clone();
    let schemas = Schemas::read(schemas).ok()?;
    let object = schema::declare(&schemas, &type_name(kind), &mut environment).ok()?;
    let object = object.unwrap_or(Type::Dyn);
    let mut add = |name: &str, of: Type| {
        environment.variables.insert(name.to_owned(), of);
    };
    add("object", object.clone());
    add("oldObject", object);
    if let Some((kind, schemas)) = params {
        let of = match schemas {
            Some(schemas) => {
                let schemas = Schemas::read(schemas).ok()?;
                schema::declare(&schemas, &type_name(kind), &mut environment).ok()?
            }
            None => None,
        };
        let of = of.unwrap_or(Type::Dyn);
        environment.variables.insert("params".to_owned(), of);
    }
    Some(environment)
}

/// Declares the policy's variables, each of which may refer to those before it. Whether each has a verdict.
fn add_variables(environment: &mut Environment, spec: &ValidatingAdmissionPolicySpec) -> bool {
    let mut sure = true;
    for variable in &spec.variables {
        let of = match cel::check(&variable.expression, environment) {
            Verdict::Fits(of) => simple(&of),
            Verdict::Wrong(_) => Type::Dyn,
            Verdict::Unsure => {
                sure = false;
                Type::Dyn
            }
        };
        let fields = environment.structs.entry(VARIABLES.to_owned()).or_default();
        fields.insert(variable.name.clone(), of);
    }
    sure
}

/// The type that a variable is declared with: objects, optional values and types of libraries are dynamic.
fn simple(of: &Type) -> Type {
    match of {
        Type::List(element) => Type::list(simple(element)),
        Type::Map(key, value) => Type::map(simple(key), simple(value)),
        Type::Of(_) | Type::Opaque(..) | Type::Struct(_) | Type::Param(_) | Type::Error => {
            Type::Dyn
        }
        _ => of.clone(),
    }
}

/// The environment of expressions for any kind.
fn base() -> Environment {
    let mut environment = Environment::default();
    for (name, fields) in OBJECTS {
        let fields = fields.split(", ").filter_map(|field| {
            let (name, of) = field.split_once(' ')?;
            Some((name.to_owned(), declared(of)))
        });
        environment
            .structs
            .insert((*name).to_owned(), fields.collect());
    }
    environment
        .structs
        .insert(VARIABLES.to_owned(), Fields::new());
    environment.variables = HashMap::from(
        [
            ("namespaceObject", "kubernetes.Namespace"),
            ("request", "kubernetes.AdmissionRequest"),
            ("authorizer", "kubernetes.authorization.Authorizer"),
            ("variables", VARIABLES),
        ]
        .map(|(name, of)| (name.to_owned(), Type::object(of))),
    );
    environment
}

fn declared(of: &str) -> Type {
    match of {
        "bool" => Type::Bool,
        "dyn" => Type::Dyn,
        "int" => Type::Int,
        "string" => Type::String,
        "timestamp" => Type::Timestamp,
        _ => match of.split_once('*') {
            Some(("list", element)) => Type::list(declared(element)),
            Some((_, value)) => Type::map(Type::String, declared(value)),
            None => Type::object(of),
        },
    }
}

/// Objects that every expression may use: `list*x` is a list of x, `map*x` a map from texts to x.
const OBJECTS: &[(&str, &str)] = &[
    (
        "kubernetes.GroupVersionKind",
        "group string, version string, kind string",
    ),
    (
        "kubernetes.GroupVersionResource",
        "group string, version string, resource string",
    ),
    (
        "kubernetes.UserInfo",
        "username string, uid string, groups list*string, extra map*list*string",
    ),
    (
        "kubernetes.AdmissionRequest",
        "kind kubernetes.GroupVersionKind, resource kubernetes.GroupVersionResource, subResource string, requestKind kubernetes.GroupVersionKind, requestResource kubernetes.GroupVersionResource, requestSubResource string, name string, namespace string, operation string, userInfo kubernetes.UserInfo, dryRun bool, options dyn",
    ),
    ("kubernetes.NamespaceSpec", "finalizers list*string"),
    (
        "kubernetes.NamespaceCondition",
        "status string, type string, lastTransitionTime timestamp, message string, reason string",
    ),
    (
        "kubernetes.NamespaceStatus",
        "conditions list*kubernetes.NamespaceCondition, phase string",
    ),
    (
        "kubernetes.NamespaceMetadata",
        "name string, generateName string, namespace string, labels map*string, annotations map*string, UID string, creationTimestamp timestamp, deletionGracePeriodSeconds int, deletionTimestamp timestamp, generation int, resourceVersion string, finalizers list*string",
    ),
    (
        "kubernetes.Namespace",
        "metadata kubernetes.NamespaceMetadata, spec kubernetes.NamespaceSpec, status kubernetes.NamespaceStatus",
    ),
];
