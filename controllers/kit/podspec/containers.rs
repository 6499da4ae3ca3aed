//! Edits for what Jobs run: variables, host names, restart policies.

use super::fields::{self, Malformed, put};

/// Fields of `core/v1` PodSpec.
pub(super) const CONTAINERS: u32 = 2;
pub(super) const RESTART_POLICY: u32 = 3;
pub(super) const HOSTNAME: u32 = 16;
pub(super) const INIT_CONTAINERS: u32 = 20;
const SCHEDULING_GROUP: u32 = 43;
/// A field of PodSchedulingGroup.
const POD_GROUP_NAME: u32 = 1;
/// Fields of Container.
pub(super) const ENV: u32 = 7;
/// Fields of EnvVar, EnvVarSource and ObjectFieldSelector.
pub(super) const ENV_NAME: u32 = 1;
const ENV_VALUE_FROM: u32 = 3;
const FIELD_REF: u32 = 1;
const FIELD_PATH: u32 = 2;

pub(super) fn message(tag: u32, content: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(content.len() + 4);
    put(&mut bytes, tag, content);
    bytes
}

/// Adds a variable to every container and init container that takes its value from a field of the pod. A
/// container that has a variable of that name keeps its own.
///
/// # Errors
/// Where the bytes are no message.
pub fn with_env_from_field(spec: &[u8], name: &str, path: &str) -> Result<Vec<u8>, Malformed> {
    let source = message(FIELD_REF, &message(FIELD_PATH, path.as_bytes()));
    let variable = [
        message(ENV_NAME, name.as_bytes()),
        message(ENV_VALUE_FROM, &source),
    ]
    .concat();
    let mut edited = Vec::with_capacity(spec.len() + variable.len() + 8);
    for field in fields::of(spec)? {
        let is_container = matches!(field.number, CONTAINERS | INIT_CONTAINERS);
        if is_container && !has_variable(field.content, name)? {
            let container = [field.content, &message(ENV, &variable)].concat();
            put(&mut edited, field.number, &container);
        } else {
            edited.extend_from_slice(field.whole);
        }
    }
    Ok(edited)
}

fn has_variable(container: &[u8], name: &str) -> Result<bool, Malformed> {
    for variable in fields::of(container)?
        .iter()
        .filter(|field| field.number == ENV)
    {
        if text(variable.content, ENV_NAME)? == name.as_bytes() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The last value of a text field, which is the effective one; empty where there is none.
fn text(message: &[u8], tag: u32) -> Result<&[u8], Malformed> {
    let last = fields::of(message)?
        .into_iter()
        .rfind(|field| field.number == tag);
    Ok(last.map_or(&[], |field| field.content))
}

/// Sets the host name.
///
/// # Errors
/// Where the bytes are no message.
pub fn with_hostname(spec: &[u8], hostname: &str) -> Result<Vec<u8>, Malformed> {
    fields::replaced(spec, HOSTNAME, hostname.as_bytes())
}

/// Sets the PodGroup that the pod is scheduled with.
///
/// # Errors
/// Where the bytes are no message.
pub fn with_group(spec: &[u8], name: &str) -> Result<Vec<u8>, Malformed> {
    let group = message(POD_GROUP_NAME, name.as_bytes());
    fields::replaced(spec, SCHEDULING_GROUP, &group)
}

/// Whether a group that the pod is scheduled with is set, or the bytes are no message.
pub fn has_group(spec: &[u8]) -> bool {
    fields::of(spec).map_or(true, |fields| {
        fields.iter().any(|field| field.number == SCHEDULING_GROUP)
    })
}

/// Sets whether containers that fail are restarted within their pod.
///
/// # Errors
/// Where the bytes are no message.
pub fn restarts_on_failure(spec: &[u8]) -> Result<bool, Malformed> {
    Ok(text(spec, RESTART_POLICY)? == b"OnFailure")
}
