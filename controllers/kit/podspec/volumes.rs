//! A pod's own name in the network, and the volumes of its claims: for pods that have an identity.

use kubernetes_proto::core::{PersistentVolumeClaimVolumeSource, Volume, VolumeSource};
use prost::Message;
use serde_json::{Map, Value, json};

use super::fields::{self, Malformed};

/// The numbers of PodSpec's fields.
const VOLUMES: u32 = 1;
const HOSTNAME: u32 = 16;
const SUBDOMAIN: u32 = 17;

/// A volume and the claim that it is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimVolume {
    /// The volume's name.
    pub volume: String,
    /// The claim's name.
    pub claim: String,
}

/// The spec with a host name and a subdomain; an empty subdomain is none.
///
/// # Errors
/// Where the spec can't be read.
pub fn with_identity(spec: &[u8], hostname: &str, subdomain: &str) -> Result<Vec<u8>, Malformed> {
    let spec = fields::replaced(spec, HOSTNAME, hostname.as_bytes())?;
    fields::replaced(&spec, SUBDOMAIN, subdomain.as_bytes())
}

/// The spec with the volumes of some claims in front of its own; its own of the same names go.
///
/// # Errors
/// Where the spec can't be read.
pub fn with_claims(spec: &[u8], claims: &[ClaimVolume]) -> Result<Vec<u8>, Malformed> {
    let mut new = Vec::with_capacity(spec.len() + 64 * claims.len());
    for claim in claims {
        let volume = Volume {
            name: claim.volume.as_str().into(),
            volume_source: Some(VolumeSource {
                persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
                    claim_name: claim.claim.as_str().into(),
                    read_only: false,
                }),
                ..VolumeSource::default()
            }),
        };
        fields::put(&mut new, VOLUMES, &volume.encode_to_vec());
    }
    for field in fields::of(spec)? {
        let is_replaced = field.number == VOLUMES && {
            let volume = Volume::decode(field.content)?;
            claims.iter().any(|claim| claim.volume == volume.name)
        };
        if !is_replaced {
            new.extend_from_slice(field.whole);
        }
    }
    Ok(new)
}

/// As [`with_identity`], of a spec in JSON.
pub fn set_identity(spec: &mut Map<String, Value>, hostname: &str, subdomain: &str) {
    spec.insert("hostname".to_owned(), hostname.into());
    if subdomain.is_empty() {
        spec.remove("subdomain");
    } else {
        spec.insert("subdomain".to_owned(), subdomain.into());
    }
}

/// As [`with_claims`], of a spec in JSON.
pub fn set_claims(spec: &mut Map<String, Value>, claims: &[ClaimVolume]) {
    let own = match spec.remove("volumes") {
        Some(Value::Array(own)) => own,
        _ => Vec::new(),
    };
    let volumes: Vec<Value> = claims
        .iter()
        .map(|claim| json!({"name": claim.volume, "persistentVolumeClaim": {"claimName": claim.claim}}))
        .chain(own.into_iter().filter(|volume| {
            claims.iter().all(|claim| volume["name"] != claim.volume.as_str())
        }))
        .collect();
    if !volumes.is_empty() {
        spec.insert("volumes".to_owned(), volumes.into());
    }
}
