//! Edits of a pod spec that is carried as bytes: only what is touched is encoded anew, the rest stays byte for byte.

use prost::encoding::{WireType, decode_key, decode_varint, encode_key, encode_varint};

/// Fields of `core/v1` PodSpec.
const CONTAINERS: u32 = 2;
const RESTART_POLICY: u32 = 3;
const HOSTNAME: u32 = 16;
const INIT_CONTAINERS: u32 = 20;
/// Fields of Container.
const ENV: u32 = 7;
/// Fields of EnvVar, EnvVarSource and ObjectFieldSelector.
const ENV_NAME: u32 = 1;
const ENV_VALUE_FROM: u32 = 3;
const FIELD_REF: u32 = 1;
const FIELD_PATH: u32 = 2;

/// Bytes that are no protobuf message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the pod template's spec is no readable protobuf message")]
pub struct Malformed;

/// One field of a message, as it stands.
struct Field<'a> {
    tag: u32,
    /// Key, length and content.
    whole: &'a [u8],
    /// The content of a length-delimited field; empty for others.
    content: &'a [u8],
}

/// The fields of a message in their order.
fn fields(message: &[u8]) -> Result<Vec<Field<'_>>, Malformed> {
    let mut found = Vec::new();
    let mut rest = message;
    while !rest.is_empty() {
        let start = rest;
        let (tag, wire_type) = decode_key(&mut rest).map_err(|_| Malformed)?;
        let length = match wire_type {
            WireType::Varint => {
                decode_varint(&mut rest).map_err(|_| Malformed)?;
                0
            }
            WireType::SixtyFourBit => 8,
            WireType::ThirtyTwoBit => 4,
            WireType::LengthDelimited => {
                let length = decode_varint(&mut rest).map_err(|_| Malformed)?;
                usize::try_from(length).map_err(|_| Malformed)?
            }
            // The API has no groups.
            WireType::StartGroup | WireType::EndGroup => return Err(Malformed),
        };
        let content = rest.get(..length).ok_or(Malformed)?;
        rest = &rest[length..];
        found.push(Field {
            tag,
            whole: &start[..start.len() - rest.len()],
            content: if wire_type == WireType::LengthDelimited {
                content
            } else {
                &[]
            },
        });
    }
    Ok(found)
}

fn put(message: &mut Vec<u8>, tag: u32, content: &[u8]) {
    encode_key(tag, WireType::LengthDelimited, message);
    encode_varint(content.len() as u64, message);
    message.extend_from_slice(content);
}

fn message(tag: u32, content: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(content.len() + 4);
    put(&mut bytes, tag, content);
    bytes
}

/// With a variable in every container and init container that takes its value from a field of the pod. A container that
/// has a variable of that name keeps its own.
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
    for field in fields(spec)? {
        let is_container = matches!(field.tag, CONTAINERS | INIT_CONTAINERS);
        if is_container && !has_variable(field.content, name)? {
            let container = [field.content, &message(ENV, &variable)].concat();
            put(&mut edited, field.tag, &container);
        } else {
            edited.extend_from_slice(field.whole);
        }
    }
    Ok(edited)
}

fn has_variable(container: &[u8], name: &str) -> Result<bool, Malformed> {
    for variable in fields(container)?.iter().filter(|field| field.tag == ENV) {
        if text(variable.content, ENV_NAME)? == name.as_bytes() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The last value of a text field, which is the one that counts; empty where there is none.
fn text(message: &[u8], tag: u32) -> Result<&[u8], Malformed> {
    let last = fields(message)?.into_iter().rfind(|field| field.tag == tag);
    Ok(last.map_or(&[], |field| field.content))
}

/// With another host name.
///
/// # Errors
/// Where the bytes are no message.
pub fn with_hostname(spec: &[u8], hostname: &str) -> Result<Vec<u8>, Malformed> {
    let mut edited = Vec::with_capacity(spec.len() + hostname.len() + 3);
    for field in fields(spec)? {
        if field.tag != HOSTNAME {
            edited.extend_from_slice(field.whole);
        }
    }
    put(&mut edited, HOSTNAME, hostname.as_bytes());
    Ok(edited)
}

/// Whether containers that fail are started again within their pod.
///
/// # Errors
/// Where the bytes are no message.
pub fn restarts_on_failure(spec: &[u8]) -> Result<bool, Malformed> {
    Ok(text(spec, RESTART_POLICY)? == b"OnFailure")
}

#[cfg(test)]
mod tests;
