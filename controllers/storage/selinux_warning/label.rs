//! SELinux labels and policies of a pod's volume, and when those of two pods conflict.

use std::collections::BTreeSet;

use kubernetes_proto::core::{Pod, SeLinuxOptions, SecurityContext, VolumeMount};

/// The policy under which a volume is mounted with a context.
pub(super) const MOUNT_OPTION: &str = "MountOption";
/// The policy under which a runtime changes the labels of all files.
pub(super) const RECURSIVE: &str = "Recursive";

/// User, role, type and level; an empty one is filled in by the node, except the level.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Label([String; 4]);

impl Label {
    fn of(options: &SeLinuxOptions) -> Self {
        let parts = [
            &options.user,
            &options.role,
            &options.r#type,
            &options.level,
        ];
        Self(parts.map(Clone::clone))
    }

    /// Whether nothing is said.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(String::is_empty)
    }

    /// Whether two labels can't be of one volume. Parts that a node may fill in are compared only where
    /// both have them; the level is never filled in.
    pub fn conflicts_with(&self, other: &Self) -> bool {
        let [.., level] = &self.0;
        let [.., other_level] = &other.0;
        let mut parts = self.0.iter().zip(&other.0).take(3);
        level != other_level
            || parts.any(|(one, other)| one != other && !one.is_empty() && !other.is_empty())
    }
}

impl std::fmt::Display for Label {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.is_empty() {
            true => Ok(()),
            false => f.write_str(&self.0.join(":")),
        }
    }
}

/// The labels of all containers that mount a volume of a pod, where they have any; `None` where none mounts
/// it.
pub(super) fn of_mounts(pod: &Pod, volume: &str) -> Option<BTreeSet<Label>> {
    let spec = pod.spec.as_ref()?;
    type Container<'a> = (Option<&'a Vec<VolumeMount>>, Option<&'a SecurityContext>);
    let regular = spec.containers.iter().map(|one| -> Container<'_> {
        (
            one.volume_mounts.as_deref(),
            one.security_context.as_deref(),
        )
    });
    let init = spec.init_containers.iter().map(|one| -> Container<'_> {
        (
            one.volume_mounts.as_deref(),
            one.security_context.as_deref(),
        )
    });
    let debugging = spec.ephemeral_containers.iter().flat_map(|all| all.iter());
    let debugging = debugging
        .filter_map(|one| one.ephemeral_container_common.as_ref())
        .map(|one| -> Container<'_> {
            (
                one.volume_mounts.as_deref(),
                one.security_context.as_deref(),
            )
        });
    let of_pod = spec.security_context.as_ref();
    let of_pod = of_pod.and_then(|context| context.se_linux_options.as_ref());
    let mut labels = None;
    for (mounts, context) in regular.chain(init).chain(debugging) {
        let mut mounts = mounts.into_iter().flatten();
        if !mounts.any(|mount| *mount.name == *volume) {
            continue;
        }
        let labels: &mut BTreeSet<Label> = labels.get_or_insert_default();
        let own = context.and_then(|context| context.se_linux_options.as_ref());
        labels.extend(own.or(of_pod).map(Label::of));
    }
    labels
}

/// The policy that a pod asks for.
pub(super) fn policy(pod: &Pod) -> &str {
    let context = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.security_context.as_ref());
    let policy = context.and_then(|context| context.se_linux_change_policy.as_deref());
    policy.unwrap_or(MOUNT_OPTION)
}

/// The label and policy by which a pod mounts a volume; `None` where it does not, or its containers
/// disagree.
pub(super) fn effective(
    pod: &Pod,
    volume: &str,
    supports_context: bool,
) -> Option<(Label, String)> {
    let labels = of_mounts(pod, volume)?;
    if labels.len() > 1 {
        return None;
    }
    let policy = policy(pod);
    let with_context = supports_context && policy != RECURSIVE;
    let label = labels.into_iter().next().filter(|_| with_context);
    let label = label.unwrap_or_default();
    let policy = match !supports_context || label.is_empty() {
        true => RECURSIVE,
        false => policy,
    };
    Some((label, policy.to_owned()))
}
