use controllers_kit::testing::{PodBuild as _, contract::Contract, *};

use crate::{
    REGISTRY,
    builders::{Volumes as _, gated, leaving, protected, volume},
    ephemeral_volume::tests::SPEC,
    persistentvolume_attach_detach::tests::{attachment, kept_node, user, world},
    persistentvolume_binder,
    persistentvolume_expander::tests::{bound, csi, ebs, volume_of},
    selinux_warning::tests as selinux,
    volumeattributesclass_protection::tests as classes,
};

/// Claims that nobody uses, that pods use, that are being deleted.
fn claims(world: World) -> World {
    // A pod that a kubelet starts in time keeps its claim, in some orders.
    world
        .without_kubelets()
        .with(claim("bare"))
        .with(protected("data"))
        .with(leaving("unused"))
        .with(leaving("used").finalizer("other/one"))
        .with(leaving("waited-for").in_namespace("shop"))
        .with(pod("user").uses("used").uses("data").ready("11:00:00"))
        .with(pod("next").uses("unused"))
        .with(pod("over").uses("data").on("node-1").phase("Succeeded"))
        .with(pod("own").ephemeral("scratch", SPEC))
}

#[test]
fn the_contract_holds() {
    const V: &str = "kubernetes.io/csi/d^h";
    let volumes = World::at("12:00:00")
        .with(volume("bare", "Available"))
        .with(volume("bound", "Bound").finalizer("kubernetes.io/pv-protection"))
        .with(
            volume("going", "Released")
                .finalizer("kubernetes.io/pv-protection")
                .terminating("11:00:00"),
        )
        .with(
            volume("held", "Bound")
                .finalizer("kubernetes.io/pv-protection")
                .terminating("11:00:00"),
        );
    let mut growing = World::at("12:00:00");
    for (claim, source) in [
        (bound("csi", "2Gi", "1Gi"), csi()),
        (bound("ebs", "2Gi", "1Gi"), ebs()),
        (bound("content", "1Gi", "1Gi"), ebs()),
    ] {
        growing.put(volume_of(&claim, source));
        growing.put(claim);
    }
    let attributed = World::at("12:00:00")
        .with(classes::class("bare"))
        .with(classes::leaving("unused"))
        .with(classes::leaving("used"))
        .with(classes::pv("pv1", "used"))
        .with(classes::leaving("asked-for"))
        .with(classes::pvc("pvc1", "asked-for", "", ""));
    for factory in REGISTRY {
        let contract = Contract::of(factory).seconds(400);
        match (factory.describe)().name {
            "ephemeral-volume-controller" => contract.check([World::at("12:00:00")
                .with(pod("web").ephemeral("a", SPEC).ephemeral("b", b""))
                .with(pod("plain"))
                .with(claim("api-a"))
                .with(pod("api").ephemeral("a", b"").ephemeral("b", b""))]),
            "persistentvolume-attach-detach-controller" => {
                let once = || world(&["ReadWriteOnce"]);
                Contract::of(factory).seconds(800).check([
                    once().with(kept_node("a", &[], &[])).with(user("web", "a")),
                    once()
                        .with(kept_node("a", &[], &[]))
                        .with(user("web", "a"))
                        .with(attachment("a", true)),
                    once()
                        .with(kept_node("a", &[V], &[]))
                        .with(kept_node("b", &[], &[]))
                        .with(attachment("a", true))
                        .with(user("web", "b")),
                ]);
            }
            "persistentvolume-binder-controller" => {
                contract.check(persistentvolume_binder::tests::worlds());
            }
            "persistentvolume-expander-controller" => contract.check([growing.clone()]),
            "selinux-warning-controller" => contract.check([selinux::world()
                .with(selinux::mounting("a", ":::s0:c1"))
                .with(selinux::mounting("b", ":::s0:c2"))
                .with(selinux::mounting("c", ""))]),
            "volumeattributesclass-protection-controller" => contract.check([attributed.clone()]),
            "persistentvolume-protection-controller" => contract.check([volumes.clone()]),
            "persistentvolumeclaim-protection-controller" => contract.check([
                claims(World::at("12:00:00")),
                claims(gated("PersistentVolumeClaimUnusedSinceTime")),
            ]),
            other => panic!("{other} has no worlds"),
        }
    }
}
