//! The lock by which a restarted replica knows that the processes before it have ended.
//!
//! A process locks a file (`flock`) for as long as it lives, and writes into it the incarnation that it
//! begins with. The kernel takes the lock away when the process has ended, and nothing else does. So the
//! process that gets the lock knows that every process which the file names is gone, and need not wait for
//! its Lease to expire. A witness that runs beside the process waits for the lock, learns the same as soon as
//! the process has ended, and lets it go.
//!
//! That holds within one running kernel and for one file: the file also says which ones, and counts for
//! nothing where it was copied or the machine was started since. On a file system in memory, where a write to
//! a file that is there cannot fail, the process also notes whether anything that it has sent is in flight.
//! File systems that other machines share are refused. Without the lock a restart takes longer, and nothing
//! else: no error here keeps a process from working.

use std::{
    fs::{File, OpenOptions, TryLockError},
    io::{self, Read as _},
    os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::fs::OFlags;

/// Processes that a file names: one that has ended before it had the Lease leaves that of the one before.
const PROCESSES_MAX: usize = 8;
/// A file of ours is far shorter.
const FILE_BYTES_MAX: u64 = 4096;
/// How often a process asks for the lock that has it, and after how long each time.
const TRIES: u32 = 50;
const TRY_AGAIN: Duration = Duration::from_millis(2);
/// Changes with each start of the kernel.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// File systems in memory, by the magic number that the kernel has for them.
const IN_MEMORY: [u32; 2] = [0x0102_1994, 0x8584_58f6];

/// The second line of a file, up to what says whether anything is in flight, and what follows that.
const IN_FLIGHT: &str = "in-flight=";
const LATE: &str = " late-ms=";
const YES: u8 = b'1';
const NO: u8 = b'0';

/// File systems by the magic number that the kernel has for them, where a lock may be another machine's or
/// be lost.
const SHARED: [(u32, &str); 14] = [
    (0x6969, "NFS"),
    (0x517b, "SMB"),
    (0xfe53_4d42, "SMB"),
    (0xff53_4d42, "CIFS"),
    (0x0102_1997, "9P"),
    (0x6573_5546, "FUSE"),
    (0x00c3_6400, "Ceph"),
    (0x5346_414f, "AFS"),
    (0x0116_1970, "GFS2"),
    (0x7461_636f, "OCFS2"),
    (0x0bd0_0bd0, "Lustre"),
    (0x4750_4653, "GPFS"),
    (0x1983_0326, "BeeGFS"),
    (0x786f_4256, "a folder of the hypervisor's host"),
];

/// What the processes before have left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Left {
    /// The first incarnation of each, the newest last. All have ended.
    pub processes: Vec<String>,
    /// The newest had nothing in flight when it ended.
    pub still: bool,
    /// How long after its end what one of them had sent may still be executed: the longest that they say.
    pub late: Duration,
}

/// Where a process notes whether anything of it is in flight.
#[derive(Debug)]
pub struct Note {
    file: &'static File,
    at: u64,
}

impl Note {
    /// Notes it.
    ///
    /// # Errors
    /// Where the file cannot be written.
    pub fn set(&self, in_flight: bool) -> io::Result<()> {
        let byte = match in_flight {
            true => YES,
            false => NO,
        };
        self.file.write_all_at(&[byte], self.at)
    }
}

/// The lock, for as long as this process lives.
#[derive(Debug)]
pub struct Taken {
    /// Of the processes before.
    pub left: Left,
    /// For the next one; `None` on a file system that may fail.
    pub note: Option<Note>,
}

/// Takes the lock of a replica for as long as this process lives, and names the process in it, whose writes
/// may be executed until `late` after its end. The processes that had it before have ended; `None` where
/// another process has it.
///
/// # Errors
/// In words, where the directory will not do. Nothing that the file names then is believed by anybody.
pub fn take(
    directory: &Path,
    fleet: &str,
    replica: &str,
    process: &str,
    late: Duration,
) -> Result<Option<Taken>, String> {
    let LockFile {
        path,
        file,
        boot,
        magic,
    } = open(directory, fleet, replica)?;
    let wrong = |error: io::Error| unusable(&path, &error);
    let mut tries = 0;
    loop {
        match file.try_lock() {
            Ok(()) => break,
            // A witness has it for as long as it takes to read the file.
            Err(TryLockError::WouldBlock) if tries < TRIES => {
                tries += 1;
                std::thread::sleep(TRY_AGAIN);
            }
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(wrong(error)),
        }
    }
    // From here on nobody but the kernel may close it, whatever happens: it may name this process.
    let file: &'static File = Box::leak(Box::new(file));
    let (header, left) = read(file, &boot).map_err(wrong)?;
    let mut named = left.processes.clone();
    named.push(process.to_owned());
    write(file, &header, left.late.max(late), &named).map_err(wrong)?;
    let at = (header.len() + "\n".len() + IN_FLIGHT.len()) as u64;
    let note = IN_MEMORY.contains(&magic).then_some(Note { file, at });
    Ok(Some(Taken { left, note }))
}

/// Waits until no process has the lock of a replica, and says what those have left that had it: all have
/// ended. Another may have it by the time that this returns.
///
/// # Errors
/// As [`take`].
pub fn await_end(directory: &Path, fleet: &str, replica: &str) -> Result<Left, String> {
    let LockFile {
        path, file, boot, ..
    } = open(directory, fleet, replica)?;
    let wrong = |error: io::Error| unusable(&path, &error);
    loop {
        // Shared: it names nobody, and others may wait for the same.
        match file.lock_shared() {
            Ok(()) => break,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(wrong(error)),
        }
    }
    let (_, left) = read(&file, &boot).map_err(wrong)?;
    Ok(left)
}

/// A file that will do for a lock.
struct LockFile {
    path: PathBuf,
    file: File,
    boot: String,
    /// Of its file system.
    magic: u32,
}

fn open(directory: &Path, fleet: &str, replica: &str) -> Result<LockFile, String> {
    let path = directory.join(format!("{fleet}-{replica}.lock"));
    let wrong = |error: &dyn std::fmt::Display| unusable(&path, error);
    let boot = std::fs::read_to_string(BOOT_ID).map_err(|error| wrong(&error))?;
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    // No link to a file that belongs to something else.
    let not_followed = OFlags::NOFOLLOW.bits().cast_signed();
    let file = options
        .mode(0o600)
        .custom_flags(not_followed)
        .open(&path)
        .map_err(|error| wrong(&error))?;
    let magic = magic(&file).map_err(|error| wrong(&error))?;
    if let Some((_, shared)) = SHARED.iter().find(|(one, _)| *one == magic) {
        return Err(wrong(&format!(
            "is on {shared}, which other machines may share"
        )));
    }
    if !file.metadata().map_err(|error| wrong(&error))?.is_file() {
        return Err(wrong(&"is no regular file"));
    }
    Ok(LockFile {
        path,
        file,
        boot,
        magic,
    })
}

fn unusable(path: &Path, error: &dyn std::fmt::Display) -> String {
    format!(
        "--lock-dir: {}: {error}: give a directory on a disk of this machine that this user may write to",
        path.display()
    )
}

/// The header that the file is to have, and what the processes have left that it names.
fn read(mut file: &File, boot: &str) -> io::Result<(String, Left)> {
    let metadata = file.metadata()?;
    let header = header(boot.trim(), metadata.dev(), metadata.ino());
    let mut text = Vec::new();
    (&mut file).take(FILE_BYTES_MAX).read_to_end(&mut text)?;
    let left = left(&String::from_utf8_lossy(&text), &header);
    Ok((header, left))
}

/// For which kernel and which file the rest counts.
fn header(boot: &str, device: u64, inode: u64) -> String {
    format!("{boot} {device}:{inode}")
}

/// What a file says; nothing where it was written under another kernel, or is another file's copy.
fn left(text: &str, header: &str) -> Left {
    // A line without its end was not written to the end.
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let mut lines = whole.lines();
    if lines.next() != Some(header) {
        return Left::default();
    }
    let Some(in_flight) = lines.next().and_then(|line| line.strip_prefix(IN_FLIGHT)) else {
        return Left::default();
    };
    // Builds from before did not write it: those of their writes are then as late as the reader's own.
    let (in_flight, late) = in_flight.split_once(LATE).unwrap_or((in_flight, ""));
    let still = in_flight.as_bytes() == [NO];
    let late = Duration::from_millis(late.parse().unwrap_or_default());
    let mut processes: Vec<String> = lines.map(str::to_owned).collect();
    processes.drain(..processes.len().saturating_sub(PROCESSES_MAX));
    Left {
        processes,
        still,
        late,
    }
}

/// Something is in flight, as far as is known, until the process says otherwise.
fn write(file: &File, header: &str, late: Duration, processes: &[String]) -> io::Result<()> {
    let skipped = processes.len().saturating_sub(PROCESSES_MAX);
    let (yes, late) = (char::from(YES), late.as_millis());
    let mut text = format!("{header}\n{IN_FLIGHT}{yes}{LATE}{late}\n");
    for process in &processes[skipped..] {
        text.push_str(process);
        text.push('\n');
    }
    file.set_len(0)?;
    file.write_all_at(text.as_bytes(), 0)
}

/// The kernel's number of a file's file system.
fn magic(file: &File) -> io::Result<u32> {
    // It is 32 bits wide, whatever the type of the field.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let magic = rustix::fs::fstatfs(file)?.f_type as u32;
    Ok(magic)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "b00t 1:2";
    const LATE_WRITES: Duration = Duration::from_secs(2);

    #[test]
    fn a_file_counts_under_its_own_kernel_and_in_its_own_place_alone() {
        let many: String = (0..20).map(|process| format!("p{process}\n")).collect();
        let newest: Vec<String> = (12..20).map(|process| format!("p{process}")).collect();
        let left = |processes: &[&str], still| Left {
            processes: processes.iter().map(|one| (*one).to_owned()).collect(),
            still,
            late: Duration::ZERO,
        };
        let cases: [(&str, String, Left); 13] = [
            (
                "two processes",
                format!("{HEADER}\nin-flight=1\na\nb\n"),
                left(&["a", "b"], false),
            ),
            (
                "with nothing in flight",
                format!("{HEADER}\nin-flight=0\na\nb\n"),
                left(&["a", "b"], true),
            ),
            (
                "of a build that says how late its writes may be",
                format!("{HEADER}\nin-flight=0 late-ms=2500\na\n"),
                Left {
                    late: Duration::from_millis(2500),
                    ..left(&["a"], true)
                },
            ),
            (
                "with more in that line",
                format!("{HEADER}\nin-flight=0 late-ms=2500 more\na\n"),
                left(&["a"], true),
            ),
            (
                "with something else there",
                format!("{HEADER}\nin-flight=0 more\na\n"),
                left(&["a"], false),
            ),
            (
                "none yet",
                format!("{HEADER}\nin-flight=1\n"),
                left(&[], false),
            ),
            ("a new file", String::new(), left(&[], false)),
            (
                "the machine was started since",
                "b00u 1:2\nin-flight=0\na\n".to_owned(),
                left(&[], false),
            ),
            (
                "a copy",
                "b00t 1:3\nin-flight=0\na\n".to_owned(),
                left(&[], false),
            ),
            (
                "cut off",
                format!("{HEADER}\nin-flight=1\na\nbc"),
                left(&["a"], false),
            ),
            (
                "cut off sooner",
                format!("{HEADER}\nin-flight=0"),
                left(&[], false),
            ),
            (
                "of another kind",
                format!("{HEADER}\nin-flight=00\na\n"),
                left(&["a"], false),
            ),
            (
                "many",
                format!("{HEADER}\nin-flight=1\n{many}"),
                Left {
                    processes: newest,
                    still: false,
                    late: Duration::ZERO,
                },
            ),
        ];
        for (name, text, expected) in cases {
            assert_eq!(super::left(&text, HEADER), expected, "{name}");
        }
    }

    #[test]
    fn who_gets_the_lock_hears_who_had_it_and_nobody_gets_it_twice() {
        let dir = tempfile::tempdir().unwrap();
        let take =
            |process| take(dir.path(), "manifold", "manifold-0", process, LATE_WRITES).unwrap();
        let first = take("first").unwrap();
        assert_eq!(first.left, Left::default());
        assert!(take("second").is_none(), "the first has it");
        // A process that has ended, of another file: this one holds its locks for as long as it lives.
        let path = dir.path().join("manifold-manifold-1.lock");
        let boot = std::fs::read_to_string(BOOT_ID).unwrap();
        std::fs::write(&path, "").unwrap();
        let metadata = std::fs::metadata(&path).unwrap();
        let header = header(boot.trim(), metadata.dev(), metadata.ino());
        std::fs::write(
            &path,
            format!("{header}\nin-flight=0 late-ms=2000\nfirst\n"),
        )
        .unwrap();
        let taken = super::take(
            dir.path(),
            "manifold",
            "manifold-1",
            "second",
            LATE_WRITES / 2,
        );
        let left = Left {
            processes: vec!["first".to_owned()],
            still: true,
            late: LATE_WRITES,
        };
        assert_eq!(taken.unwrap().unwrap().left, left);
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(
            text,
            format!("{header}\nin-flight=1 late-ms=2000\nfirst\nsecond\n")
        );
    }

    #[test]
    fn who_waits_for_the_end_hears_at_once_who_has_ended_and_keeps_nobody_out() {
        let dir = tempfile::tempdir().unwrap();
        let left = || await_end(dir.path(), "manifold", "manifold-0").unwrap();
        assert_eq!(left(), Left::default(), "nobody has begun");
        // The lock of a process that ends while two wait for it, here a file that is closed.
        let path = dir.path().join("manifold-manifold-0.lock");
        let process = File::options().read(true).write(true).open(&path).unwrap();
        process.lock().unwrap();
        let metadata = process.metadata().unwrap();
        let boot = std::fs::read_to_string(BOOT_ID).unwrap();
        let header = header(boot.trim(), metadata.dev(), metadata.ino());
        write(&process, &header, LATE_WRITES, &["first".to_owned()]).unwrap();
        std::thread::scope(|scope| {
            let waiting = [(); 2].map(|()| scope.spawn(left));
            std::thread::sleep(Duration::from_millis(50));
            assert!(waiting.iter().all(|one| !one.is_finished()), "it lives");
            drop(process);
            for one in waiting {
                assert_eq!(one.join().unwrap().processes, ["first"]);
            }
        });
        let taken = take(dir.path(), "manifold", "manifold-0", "second", LATE_WRITES).unwrap();
        assert_eq!(taken.unwrap().left.processes, ["first"]);
    }

    #[test]
    fn what_is_in_flight_is_noted_in_memory_alone() {
        let Ok(dir) = tempfile::tempdir_in("/dev/shm") else {
            return; // No such file system here.
        };
        let taken = take(dir.path(), "manifold", "manifold-0", "first", LATE_WRITES).unwrap();
        let note = taken.unwrap().note.unwrap();
        let path = dir.path().join("manifold-manifold-0.lock");
        let said = || std::fs::read_to_string(&path).unwrap();
        assert!(said().ends_with("\nin-flight=1 late-ms=2000\nfirst\n"));
        note.set(false).unwrap();
        assert!(said().ends_with("\nin-flight=0 late-ms=2000\nfirst\n"));
        note.set(true).unwrap();
        assert!(said().ends_with("\nin-flight=1 late-ms=2000\nfirst\n"));
    }

    /// A link is not followed, and nothing is overwritten.
    #[test]
    fn what_will_not_do_is_named_with_the_remedy_and_left_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let within = |name: &str| dir.path().join(name);
        for name in ["link", "full"] {
            std::fs::create_dir(within(name)).unwrap();
        }
        std::fs::write(within("theirs"), "theirs\n").unwrap();
        std::os::unix::fs::symlink(within("theirs"), within("link/manifold-a.lock")).unwrap();
        std::fs::create_dir(within("full/manifold-a.lock")).unwrap();
        let cases = [
            (within("nowhere"), "No such file or directory"),
            (within("theirs"), "Not a directory"),
            (within("full"), "Is a directory"),
            (within("link"), "Too many levels of symbolic links"),
            ("/proc/self".into(), ""),
        ];
        for (directory, problem) in cases {
            let why = take(&directory, "manifold", "a", "p", LATE_WRITES).unwrap_err();
            let begins = format!(
                "--lock-dir: {}/manifold-a.lock: {problem}",
                directory.display()
            );
            assert!(why.starts_with(&begins), "{why}");
            assert!(why.ends_with("that this user may write to"), "{why}");
        }
        let theirs = std::fs::read_to_string(within("theirs")).unwrap();
        assert_eq!(theirs, "theirs\n");
    }
}
