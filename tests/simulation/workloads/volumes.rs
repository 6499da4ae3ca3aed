//! Claims that are deleted while pods come and go that use them.

use controllers_kit::testing::{Common, PodBuild, World, claim, pod};
use kubernetes_proto::core::{
    PersistentVolumeClaim, PersistentVolumeClaimVolumeSource, Pod, Volume, VolumeSource,
};

use super::Making;
use crate::protection::FINALIZER;

/// Claims of one workload.
const CLAIMS: usize = 6;

/// A pod on a node that uses a claim.
fn user(name: &str, claim: &str) -> Pod {
    let mut pod = pod(name).on("node-1");
    pod.spec.get_or_insert_default().volumes.push(Volume {
        name: "data".into(),
        volume_source: Some(VolumeSource {
            persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
                claim_name: claim.into(),
                read_only: false,
            }),
            ..VolumeSource::default()
        }),
    });
    pod
}

fn delete_pod(world: &mut World, name: &str) {
    if world.find::<Pod>(name).is_some() {
        world.delete::<Pod>(name);
    }
}

/// Each claim gets a pod, is deleted so soon that who protects it may see the deletion before the pod, and
/// loses the pod.
pub(super) fn protected(making: &mut Making) {
    // A pod that somebody else deletes would let a claim go for another reason.
    making.workload.pods_may_go = false;
    making.put(claim("kept"));
    making.put(user("stays", "kept"));
    for number in 0..CLAIMS {
        let (name, first, second) = (
            format!("data-{number}"),
            format!("first-{number}"),
            format!("second-{number}"),
        );
        making.put(claim(&name).finalizer(FINALIZER));
        let early = making.dice.chance(400);
        if early {
            making.put(user(&first, &name));
        } else {
            let (pod, of) = (first.clone(), name.clone());
            making.then(move |world| world.put(user(&pod, &of)));
        }
        let claim = name.clone();
        making.then_soon(move |world| world.delete::<PersistentVolumeClaim>(&claim));
        let again = making.dice.chance(300);
        if again {
            let (pod, of) = (second.clone(), name.clone());
            making.then_soon(move |world| world.put(user(&pod, &of)));
        }
        making.then(move |world| {
            delete_pod(world, &first);
            delete_pod(world, &second);
        });
    }
}
