//! A cgroup for each node, below the one that this process is in, in every hierarchy of version 1.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::process;

/// A node's processes are gone within this after its first one was killed.
const REMOVAL_LIMIT: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(20);
/// A cgroup without these takes no process; they are empty in a new one.
const COPIED: [&str; 2] = ["cpuset.mems", "cpuset.cpus"];

/// One mounted hierarchy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hierarchy {
    /// Name of its mount point: its controllers, joined by commas, or the name that it was given.
    folder: String,
    /// With which it can be mounted again.
    options: String,
    /// The cgroup of this process in it.
    own: PathBuf,
}

/// The cgroup of this process in the hierarchy with just this controller, where version 1 has it.
pub(crate) fn own(controller: &str) -> Result<Option<PathBuf>> {
    let all = hierarchies()?;
    let found = all.into_iter().find(|one| one.options == controller);
    Ok(found.map(|one| one.own))
}

/// Those of version 1 that are mounted here.
pub(super) fn hierarchies() -> Result<Vec<Hierarchy>> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").context("reading the mounts")?;
    let groups = fs::read_to_string("/proc/self/cgroup").context("reading the own cgroups")?;
    Ok(parse(&mounts, &groups))
}

fn parse(mounts: &str, groups: &str) -> Vec<Hierarchy> {
    let own = |options: &str| {
        groups.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':');
            let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
            (controllers == options).then(|| path.to_owned())
        })
    };
    mounts
        .lines()
        .filter_map(|line| {
            let (mount, kind) = line.split_once(" - ")?;
            let mut kind = kind.split(' ');
            (kind.next()? == "cgroup").then_some(())?;
            let options = kind.nth(1)?;
            let options: Vec<&str> = options
                .split(',')
                .filter(|option| !matches!(*option, "rw" | "ro" | "xattr" | "clone_children"))
                .filter(|option| !option.starts_with("release_agent="))
                .collect();
            let options = options.join(",");
            let mut mount = mount.split(' ').skip(3);
            let (root, point) = (mount.next()?, Path::new(mount.next()?));
            let group = own(&options)?;
            let below = Path::new(&group).strip_prefix(root).ok()?;
            Some(Hierarchy {
                folder: point.file_name()?.to_str()?.to_owned(),
                options: match options.strip_prefix("name=") {
                    Some(_) => format!("none,{options}"),
                    None => options.clone(),
                },
                own: point.join(below),
            })
        })
        .collect()
}

/// One node's cgroups. Dropping it waits until no process is left in them, and removes them with all that
/// were made below; so does the watchdog where this process is killed.
#[derive(Debug)]
pub(super) struct Cgroups {
    hierarchies: Vec<Hierarchy>,
    paths: Vec<PathBuf>,
}

impl Cgroups {
    /// Makes them, empty, under a name that nothing else has.
    pub(super) fn create() -> Result<Self> {
        let hierarchies = hierarchies()?;
        if hierarchies.is_empty() {
            bail!("no cgroup v1 hierarchy is mounted");
        }
        let name = format!("manifold-node-{:08x}", rand::random::<u32>());
        let mut cgroups = Self {
            hierarchies,
            paths: Vec::new(),
        };
        for hierarchy in &cgroups.hierarchies {
            let path = hierarchy.own.join(&name);
            process::watch_directory(&path)?;
            cgroups.paths.push(path.clone());
            fs::create_dir(&path).with_context(|| format!("making {}", path.display()))?;
            for file in COPIED {
                if let Ok(value) = fs::read_to_string(hierarchy.own.join(file)) {
                    fs::write(path.join(file), value.trim())
                        .with_context(|| format!("setting {file} of {}", path.display()))?;
                }
            }
        }
        Ok(cgroups)
    }

    /// Their directories, a line each.
    pub(super) fn paths(&self) -> String {
        let paths = self.paths.iter().map(|path| path.display().to_string());
        paths.collect::<Vec<_>>().join("\n")
    }

    /// Where each hierarchy is mounted within a node, and with which options, a line each.
    pub(super) fn mounts(&self) -> String {
        let lines = self
            .hierarchies
            .iter()
            .map(|one| format!("{} {}", one.folder, one.options));
        lines.collect::<Vec<_>>().join("\n")
    }
}

impl Drop for Cgroups {
    fn drop(&mut self) {
        remove(&self.paths);
    }
}

/// Waits until no process is left in these cgroups, and removes them with all that were made below.
pub(crate) fn remove(paths: &[PathBuf]) {
    let started = Instant::now();
    for path in paths {
        while path.exists() {
            let done = remove_bottom_up(path);
            if done.is_ok() {
                break;
            }
            if started.elapsed() > REMOVAL_LIMIT {
                eprintln!("{} is left: {:?}", path.display(), done.err());
                break;
            }
            std::thread::sleep(POLL);
        }
        if !path.exists()
            && let Err(error) = process::forget_directory(path)
        {
            eprintln!("{}: {error:#}", path.display());
        }
    }
}

/// A cgroup's files can't be removed and go with it.
fn remove_bottom_up(path: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_bottom_up(&entry.path())?;
        }
    }
    fs::remove_dir(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hierarchies_of_version_1_are_found_with_the_own_cgroup_in_each() {
        let mounts = "\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 /box /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,xattr,release_agent=/lib/x,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";
        let groups = "9:name=systemd:/a/b\n4:memory:/box/test\n1:cpu,cpuacct:/\n0::/c\n";
        let found = parse(mounts, groups);
        let wanted = [
            ("cpu,cpuacct", "cpu,cpuacct", "/sys/fs/cgroup/cpu,cpuacct"),
            ("memory", "memory", "/sys/fs/cgroup/memory/test"),
            ("systemd", "none,name=systemd", "/sys/fs/cgroup/systemd/a/b"),
        ]
        .map(|(folder, options, own)| Hierarchy {
            folder: folder.to_owned(),
            options: options.to_owned(),
            own: PathBuf::from(own),
        });
        assert_eq!(found, wanted);
    }

    #[test]
    fn a_machine_with_cgroup_v2_alone_has_no_hierarchies() {
        let mounts = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";
        assert_eq!(parse(mounts, "0::/user.slice\n"), Vec::new());
    }
}
