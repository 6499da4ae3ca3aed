//! Which volume suits a claim.

use std::sync::Arc;

use controllers_kit::selectors::Selector;
use kubernetes_proto::{
    Object,
    core::{PersistentVolume, PersistentVolumeClaim},
};

use super::facts::{
    AVAILABLE, claim_attributes, claim_class, claim_ref, claim_spec, gives_access, modes_differ,
    points_at, requested, size, volume_attributes, volume_class, volume_phase, volume_spec,
};

/// Access modes by which volumes are grouped; others do not count.
const MODES: [&str; 4] = [
    "ReadWriteOnce",
    "ReadOnlyMany",
    "ReadWriteMany",
    "ReadWriteOncePod",
];

/// How many modes of access a volume has.
fn modes(volume: &PersistentVolume) -> usize {
    let given = &volume_spec(volume).access_modes;
    let has = |mode: &&&str| given.iter().any(|one| one == **mode);
    MODES.iter().filter(has).count()
}

/// Spreads equal claims over equal volumes: each claim has another order of them.
fn spread(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> u64 {
    let texts = [&Object::metadata(claim).uid, &Object::metadata(volume).name];
    let bytes = texts.into_iter().flat_map(|text| text.bytes().chain([0]));
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    hash ^ (hash >> 29)
}

/// A claim's requirements for an available volume.
pub(super) struct Wanted<'a> {
    claim: &'a PersistentVolumeClaim,
    selector: Option<Selector>,
}

impl<'a> Wanted<'a> {
    /// # Errors
    /// Where the claim's selector can't be read.
    pub(super) fn by(claim: &'a PersistentVolumeClaim) -> Result<Self, String> {
        let meta = Object::metadata(claim);
        let compile = |selector| {
            Selector::compile(Some(selector)).map_err(|error| {
                format!(
                    "error creating internal label selector for claim: {}/{}: {error}",
                    meta.namespace, meta.name
                )
            })
        };
        let selector = claim_spec(claim).selector.as_deref();
        Ok(Self {
            claim,
            selector: selector.map(compile).transpose()?,
        })
    }

    /// The conditions that every volume for the claim must meet, reserved or available.
    fn fits(&self, volume: &PersistentVolume) -> bool {
        !requested(self.claim).exceeds(size(volume))
            && !modes_differ(self.claim, volume)
            && claim_attributes(self.claim) == volume_attributes(volume)
            && !volume.is_terminating()
            && gives_access(volume, self.claim)
    }

    /// Whether a volume that no claim has suits it.
    pub(super) fn suits(&self, volume: &PersistentVolume) -> bool {
        let selected = |selector: &Selector| selector.matches(&Object::metadata(volume).labels);
        claim_ref(volume).is_none()
            && volume_phase(volume) == AVAILABLE
            && volume_class(volume) == claim_class(self.claim)
            && self.selector.as_ref().is_none_or(selected)
            && self.fits(volume)
    }

    /// The best matching volume: of those with the fewest access modes one that is reserved for the claim,
    /// else the smallest. With delayed binding, only a reserved one.
    pub(super) fn best(
        &self,
        volumes: impl IntoIterator<Item = Arc<PersistentVolume>>,
        delayed: bool,
    ) -> Option<Arc<PersistentVolume>> {
        let reserved = |volume: &PersistentVolume| points_at(volume, self.claim);
        let rank = |volume: &PersistentVolume| {
            let name = Object::metadata(volume).name.clone();
            (
                modes(volume),
                !reserved(volume),
                Size(size(volume)),
                spread(self.claim, volume),
                name,
            )
        };
        let candidates = volumes.into_iter().filter(|volume| {
            (reserved(volume) && self.fits(volume)) || (!delayed && self.suits(volume))
        });
        candidates.min_by_key(|volume| rank(volume))
    }
}

/// An amount in order.
struct Size(kubernetes_proto::quantity::Exact);

impl PartialEq for Size {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}
impl Eq for Size {}
impl PartialOrd for Size {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Size {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.exceeds(other.0).cmp(&other.0.exceeds(self.0))
    }
}

/// Why a claim can't have the volume that it asks for by name, in upstream's words. Ignores the selector.
pub(super) fn mismatch(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> Option<String> {
    let text = if volume.is_terminating() {
        let name = &Object::metadata(volume).name;
        return Some(format!("the volume is marked for deletion \"{name}\""));
    } else if requested(claim).whole().exceeds(size(volume).whole()) {
        "requested PV is too small"
    } else if volume_class(volume) != claim_class(claim) {
        "storageClassName does not match"
    } else if claim_attributes(claim) != volume_attributes(volume) {
        "volumeAttributesClassName does not match"
    } else if modes_differ(claim, volume) {
        "incompatible volumeMode"
    } else if !gives_access(volume, claim) {
        "incompatible accessMode"
    } else {
        return None;
    };
    Some(text.to_owned())
}
