//! Files that change while the process runs: certificates, keys, authorities, kubeconfigs.
//!
//! [`Reloaded`] holds what was made of a fixed number of files (one for a CA bundle, two for a certificate
//! with its key) and makes it again when their content differs. Content is compared and not modification
//! times, because a kubelet replaces a mounted volume by swapping a symbolic link and an operator may copy
//! files with their old times. Nothing here watches by inotify: a reader that polls sees every kind of
//! replacement.

use std::{
    fmt,
    fs::File,
    io::{self, Read as _},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use arc_swap::ArcSwap;

/// Bytes of one file: certificates, keys and kubeconfigs are far smaller. A larger file is an error.
pub const FILE_BYTES_MAX: u64 = 1 << 20;

/// A file that can't be read.
#[derive(Debug, thiserror::Error)]
#[error("can't read {}", path.display())]
pub struct Unreadable {
    /// Which of the files, in the order in which they were given.
    pub index: usize,
    /// The file.
    pub path: PathBuf,
    /// Why.
    #[source]
    pub source: io::Error,
}

/// Reads a file of at most [`FILE_BYTES_MAX`] bytes.
///
/// # Errors
/// Those of the system, and one for a longer file.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    File::open(path)?
        .take(FILE_BYTES_MAX + 1)
        .read_to_end(&mut content)?;
    if content.len() as u64 > FILE_BYTES_MAX {
        return Err(io::Error::other(format!(
            "longer than {FILE_BYTES_MAX} bytes"
        )));
    }
    Ok(content)
}

/// What a set of files held at one moment. Two are equal where the same paths held the same bytes or were
/// unreadable for the same kind of reason.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Snapshot(Vec<(PathBuf, Result<Vec<u8>, io::ErrorKind>)>);

impl Snapshot {
    /// Reads the files.
    pub fn of(paths: impl IntoIterator<Item = PathBuf>) -> Self {
        let files = paths.into_iter();
        Self(
            files
                .map(|path| {
                    let content = read(&path).map_err(|why| why.kind());
                    (path, content)
                })
                .collect(),
        )
    }

    /// What it says of these paths alone.
    #[must_use]
    pub fn only(mut self, paths: &[PathBuf]) -> Self {
        self.0.retain(|(path, _)| paths.contains(path));
        self
    }

    /// The paths that changed between two snapshots; one that only one of them has counts as changed.
    pub fn changed_since<'a>(&'a self, earlier: &'a Self) -> Vec<&'a Path> {
        let differs = |from: &'a Self, to: &'a Self| {
            from.0
                .iter()
                .filter(|one| !to.0.contains(one))
                .map(|one| one.0.as_path())
        };
        let mut paths: Vec<&Path> = differs(self, earlier)
            .chain(differs(earlier, self))
            .collect();
        paths.sort_unstable();
        paths.dedup();
        paths
    }
}

impl fmt::Debug for Snapshot {
    /// Without the content, which may be secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let paths = self
            .0
            .iter()
            .map(|(path, content)| (path, content.as_ref().map(Vec::len)));
        f.debug_map().entries(paths).finish()
    }
}

type Build<T, E, const N: usize> = Box<dyn Fn(&[Vec<u8>; N]) -> Result<T, E> + Send + Sync>;

struct Held<T, const N: usize> {
    content: [Vec<u8>; N],
    value: Arc<T>,
}

/// What `N` files make together, made again when one of them changes. Where the new content can't be read or
/// used, the value before it stays; so a pair of certificate and key that is read while only one of the two
/// has been replaced is refused by `build` and taken at a later check.
pub struct Reloaded<T, E, const N: usize> {
    paths: [PathBuf; N],
    build: Build<T, E, N>,
    held: ArcSwap<Held<T, N>>,
    /// One refresh at a time, or an older content could overwrite a newer one.
    refreshing: Mutex<()>,
}

impl<T, E, const N: usize> fmt::Debug for Reloaded<T, E, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reloaded")
            .field("paths", &self.paths)
            .finish_non_exhaustive()
    }
}

impl<T, E: From<Unreadable>, const N: usize> Reloaded<T, E, N> {
    /// Reads the files for the first time.
    ///
    /// # Errors
    /// Where a file can't be read, or `build` refuses the content.
    pub fn load(
        paths: [PathBuf; N],
        build: impl Fn(&[Vec<u8>; N]) -> Result<T, E> + Send + Sync + 'static,
    ) -> Result<Self, E> {
        let content = read_all(&paths)?;
        let value = Arc::new(build(&content)?);
        Ok(Self {
            paths,
            build: Box::new(build),
            held: ArcSwap::from_pointee(Held { content, value }),
            refreshing: Mutex::new(()),
        })
    }

    /// The value of the last content that could be used.
    pub fn get(&self) -> Arc<T> {
        Arc::clone(&self.held.load().value)
    }

    /// Reads the files again; whether there is a new value.
    ///
    /// # Errors
    /// Where a file can't be read or `build` refuses the content; the old value stays.
    pub fn refresh(&self) -> Result<bool, E> {
        let _one = self
            .refreshing
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let content = read_all(&self.paths)?;
        if self.held.load().content == content {
            return Ok(false);
        }
        let value = Arc::new((self.build)(&content)?);
        self.held.store(Arc::new(Held { content, value }));
        Ok(true)
    }
}

fn read_all<const N: usize>(paths: &[PathBuf; N]) -> Result<[Vec<u8>; N], Unreadable> {
    let mut content = [const { Vec::new() }; N];
    for (index, (path, into)) in paths.iter().zip(&mut content).enumerate() {
        *into = read(path).map_err(|source| Unreadable {
            index,
            path: path.clone(),
            source,
        })?;
    }
    Ok(content)
}

/// Repeats `refresh` for ever: logs when `what` has changed, and each different failure once. Never returns;
/// drop it.
pub async fn follow<E: std::error::Error>(
    what: &'static str,
    every: Duration,
    mut refresh: impl FnMut() -> Result<bool, E>,
) -> std::convert::Infallible {
    let mut complaint = Complaint::default();
    loop {
        tokio::time::sleep(every).await;
        complaint.log(what, refresh());
    }
}

/// Remembers the last failure, so that one that lasts is logged once.
#[derive(Debug, Default)]
pub struct Complaint(Option<String>);

impl Complaint {
    /// Logs a change, and a failure that differs from the last one.
    pub fn log<E: std::error::Error>(&mut self, what: &str, refreshed: Result<bool, E>) {
        match refreshed {
            Ok(changed) => {
                self.0 = None;
                if changed {
                    tracing::info!("{what}: the files have changed and are in use");
                }
            }
            Err(why) => {
                let why = causes(&why);
                if self.0.as_ref() != Some(&why) {
                    tracing::warn!(
                        why,
                        "{what}: the files can't be read again, the old ones stay in use"
                    );
                    self.0 = Some(why);
                }
            }
        }
    }
}

fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        let more = next.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = next.source();
    }
    text.replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    enum Error {
        #[error(transparent)]
        Unreadable(#[from] Unreadable),
        #[error("the halves differ")]
        Unfit,
    }

    /// A pair fits where both halves hold the same text.
    fn pair(dir: &Path) -> Result<Reloaded<String, Error, 2>, Error> {
        Reloaded::load([dir.join("cert"), dir.join("key")], |[cert, key]| {
            match cert == key {
                true => Ok(String::from_utf8_lossy(cert).into_owned()),
                false => Err(Error::Unfit),
            }
        })
    }

    #[test]
    fn a_pair_changes_when_both_files_have_and_the_old_one_stays_until_then() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
        assert!(matches!(
            pair(dir.path()),
            Err(Error::Unreadable(Unreadable { index: 0, .. }))
        ));
        write("cert", "one");
        assert!(matches!(
            pair(dir.path()),
            Err(Error::Unreadable(Unreadable { index: 1, .. }))
        ));
        write("key", "one");
        let pair = pair(dir.path()).unwrap();
        assert_eq!(*pair.get(), "one");
        assert!(!pair.refresh().unwrap(), "nothing has changed");
        write("cert", "two");
        assert!(matches!(pair.refresh(), Err(Error::Unfit)));
        assert_eq!(*pair.get(), "one");
        write("key", "two");
        assert!(pair.refresh().unwrap());
        assert_eq!(*pair.get(), "two");
        assert!(!pair.refresh().unwrap());
        fs::remove_file(dir.path().join("key")).unwrap();
        assert!(pair.refresh().is_err());
        assert_eq!(
            *pair.get(),
            "two",
            "a file that is missing for a moment costs nothing"
        );
    }

    #[test]
    fn content_is_compared_and_not_the_time_of_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ca");
        fs::write(&path, "one").unwrap();
        let time = fs::metadata(&path).unwrap().modified().unwrap();
        let ca = Reloaded::<_, Error, 1>::load([path.clone()], |[ca]| Ok(ca.clone())).unwrap();
        fs::write(&path, "two").unwrap();
        fs::File::options()
            .write(true)
            .open(&path)
            .unwrap()
            .set_modified(time)
            .unwrap();
        assert!(ca.refresh().unwrap());
        fs::write(&path, "two").unwrap();
        assert!(
            !ca.refresh().unwrap(),
            "written again with the same content"
        );
    }

    #[test]
    fn a_volume_whose_symbolic_link_is_swapped_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        for (folder, text) in [("v1", "one"), ("v2", "two")] {
            fs::create_dir(dir.path().join(folder)).unwrap();
            fs::write(dir.path().join(folder).join("ca"), text).unwrap();
        }
        let link = |to: &str| {
            let next = dir.path().join("next");
            std::os::unix::fs::symlink(to, &next).unwrap();
            fs::rename(next, dir.path().join("..data")).unwrap();
        };
        link("v1");
        let path = dir.path().join("..data").join("ca");
        let ca = Reloaded::<_, Error, 1>::load([path], |[ca]| Ok(ca.clone())).unwrap();
        link("v2");
        assert!(ca.refresh().unwrap());
        assert_eq!(*ca.get(), b"two");
    }

    #[test]
    fn a_file_without_end_is_refused() {
        let read = read(Path::new("/dev/zero"));
        assert!(
            read.unwrap_err()
                .to_string()
                .contains("longer than 1048576 bytes")
        );
    }

    #[test]
    fn a_snapshot_names_the_files_that_changed() {
        let dir = tempfile::tempdir().unwrap();
        let (one, two) = (dir.path().join("one"), dir.path().join("two"));
        fs::write(&one, "a").unwrap();
        let all = || Snapshot::of([one.clone(), two.clone()]);
        let before = all();
        assert_eq!(before, all());
        fs::write(&two, "b").unwrap();
        assert_eq!(all().changed_since(&before), [two.as_path()]);
        let only = std::slice::from_ref(&one);
        let now = all().only(only);
        assert_eq!(now, before.only(only));
        assert!(
            !format!("{now:?}").contains("97"),
            "the content stays secret"
        );
    }
}
