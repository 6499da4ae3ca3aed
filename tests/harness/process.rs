//! Children that never outlive us, and directories that go with them.
//!
//! Every child runs in a process group of its own, so Ctrl-C on the terminal reaches this process
//! alone. One watchdog per process (a `sh` that reads a pipe from us) knows every child and every
//! working directory. When the pipe closes, for whatever reason this process ended, it kills what is
//! left and removes the directories. `PR_SET_PDEATHSIG` would not do: it fires when the *thread* that
//! started the child ends, and setting it in the child needs `unsafe`.
//!
//! A child begins as a `sh` that waits for one line from us and then becomes the program. That line
//! is written after the watchdog knows the child, so there is no moment at which our death leaves an
//! unknown child behind.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, anyhow, bail};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

/// Lines of a dead child's log that its error holds.
const TAIL_LINES: usize = 30;
/// Bytes at the log's end among which those lines are searched for.
const TAIL_BYTES: u64 = 64 * 1024;
/// Working directories of failed tests that are left in place; older ones are removed.
const KEPT_DIRECTORIES: usize = 4;
/// Names of working directories begin so.
const DIRECTORY_PREFIX: &str = "manifold-bed-";
/// Marks a working directory that was kept on purpose.
const KEPT_MARK: &str = "KEPT";

/// Reads `+pid`, `-pid`, `d directory`, `f directory`; acts when its input ends.
const WATCHDOG: &str = r#"
trap '' HUP INT QUIT TERM PIPE
children=' '
while IFS= read -r line; do
  verb=${line%% *}
  what=${line#* }
  case $verb in
    +) children="$children$what " ;;
    -) left=' '
       for child in $children; do [ "$child" = "$what" ] || left="$left$child "; done
       children=$left ;;
    d) set -- "$@" "$what" ;;
    f) count=$#
       while [ "$count" -gt 0 ]; do
         [ "$1" = "$what" ] || set -- "$@" "$1"
         shift
         count=$((count - 1))
       done ;;
  esac
done
for child in $children; do kill -s KILL -- "-$child" 2>/dev/null; done
for directory in "$@"; do rm -rf -- "$directory" 2>/dev/null; done
# A cgroup is removed bottom-up, once the last process in it is gone.
tries=200
for directory in "$@"; do
  while [ -d "$directory" ] && [ "$tries" -gt 0 ]; do
    find "$directory" -depth -type d -exec rmdir -- {} \; 2>/dev/null
    [ ! -d "$directory" ] || sleep 0.1
    tries=$((tries - 1))
  done
done
"#;

/// Becomes the program once started.
const STARTER: &str = r#"IFS= read -r go || exit 1; exec "$@" </dev/null"#;

struct Watchdog {
    pipe: ChildStdin,
    children: BTreeSet<u32>,
    directories: BTreeSet<PathBuf>,
}

static WATCHDOG_RUNNING: Mutex<Option<Watchdog>> = Mutex::new(None);

impl Watchdog {
    fn start(children: BTreeSet<u32>, directories: BTreeSet<PathBuf>) -> Result<Self> {
        let mut child = Command::new("/bin/sh")
            .args(["-c", WATCHDOG, "manifold-watchdog"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .context("starting /bin/sh to watch over the children")?;
        let pipe = child.stdin.take().context("the watchdog has no input")?;
        let mut watchdog = Self {
            pipe,
            children,
            directories,
        };
        let lines: String = watchdog
            .children
            .iter()
            .map(|pid| format!("+ {pid}\n"))
            .chain(
                watchdog
                    .directories
                    .iter()
                    .map(|path| format!("d {}\n", path.display())),
            )
            .collect();
        watchdog
            .pipe
            .write_all(lines.as_bytes())
            .context("telling the watchdog")?;
        Ok(watchdog)
    }
}

/// Sends the watchdog one line; starts it first if this is the first thing, or if it was killed.
fn instruct(
    line: &str,
    remember: impl FnOnce(&mut BTreeSet<u32>, &mut BTreeSet<PathBuf>),
) -> Result<()> {
    let mut running = WATCHDOG_RUNNING
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    if running.is_none() {
        *running = Some(Watchdog::start(BTreeSet::new(), BTreeSet::new())?);
    }
    let watchdog = running.as_mut().ok_or_else(|| anyhow!("no watchdog"))?;
    remember(&mut watchdog.children, &mut watchdog.directories);
    if watchdog.pipe.write_all(line.as_bytes()).is_err() {
        let (children, directories) = (watchdog.children.clone(), watchdog.directories.clone());
        *running = Some(Watchdog::start(children, directories)?);
    }
    Ok(())
}

fn keep(directory: &Path) -> Result<()> {
    if !directory.join(KEPT_MARK).exists() {
        File::create(directory.join(KEPT_MARK)).context("marking a directory as kept")?;
        eprintln!("kept for inspection: {}", directory.display());
    }
    forget_directory(directory)
}

/// Has a directory removed when this process ends, however it ends: files with it, or a cgroup without
/// processes.
pub(crate) fn watch_directory(directory: &Path) -> Result<()> {
    let path = directory.to_owned();
    instruct(&format!("d {}\n", directory.display()), |_, directories| {
        directories.insert(path);
    })
}

/// The opposite of [`watch_directory`].
pub(crate) fn forget_directory(directory: &Path) -> Result<()> {
    instruct(&format!("f {}\n", directory.display()), |_, directories| {
        directories.remove(directory);
    })
}

/// A directory for the files and logs of one control plane or fleet; removed on drop.
#[derive(Debug)]
pub struct WorkDir {
    path: PathBuf,
}

impl WorkDir {
    /// A fresh one among the system's temporary files.
    pub fn new() -> Result<Self> {
        remove_old_kept_directories();
        let path = tempfile::Builder::new()
            .prefix(DIRECTORY_PREFIX)
            .tempdir()
            .context("making a working directory")?
            .keep();
        watch_directory(&path)?;
        Ok(Self { path })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A file in it.
    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Writes a file into it that only this user can read, for some are keys.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> Result<PathBuf> {
        use std::os::unix::fs::OpenOptionsExt;
        let path = self.file(name);
        let mut file = File::options()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&path)
            .with_context(|| format!("writing {}", path.display()))?;
        file.write_all(content.as_ref())
            .with_context(|| format!("writing {}", path.display()))?;
        Ok(path)
    }

    /// For what many tests share and nobody drops: a panic anywhere in this process keeps it.
    pub(crate) fn keep_after_any_panic(&self) {
        let path = self.path.clone();
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            before(info);
            // A panic hook must not fail in turn; what cannot be kept is lost.
            let _ = keep(&path);
        }));
    }

    /// Leaves it in place when it is dropped.
    pub fn keep(&self) -> Result<()> {
        keep(&self.path)
    }
}

thread_local! {
    /// Directories whose test is not over yet, where [`deciding_later`] runs on this thread.
    static UNDECIDED: RefCell<Option<Vec<PathBuf>>> = const { RefCell::new(None) };
}

/// Runs `body`; working directories that are dropped meanwhile on this thread are removed only if it
/// succeeds. A test that fails by returning an error drops its control plane before anybody knows
/// that it has failed.
pub(crate) fn deciding_later<T>(body: impl FnOnce() -> Result<T>) -> Result<T> {
    let decision = Decision {
        outer: UNDECIDED.replace(Some(Vec::new())),
        succeeded: false,
    };
    let result = body();
    decision.is(result.is_ok());
    result
}

/// Acts on the undecided directories when it is dropped, in a panic too.
struct Decision {
    outer: Option<Vec<PathBuf>>,
    succeeded: bool,
}

impl Decision {
    fn is(mut self, success: bool) {
        self.succeeded = success;
    }
}

impl Drop for Decision {
    fn drop(&mut self) {
        for path in UNDECIDED.replace(self.outer.take()).unwrap_or_default() {
            let done = if self.succeeded {
                remove(&path)
            } else {
                keep(&path)
            };
            if let Err(error) = done {
                eprintln!("{}: {error:#}", path.display());
            }
        }
    }
}

fn remove(directory: &Path) -> Result<()> {
    std::fs::remove_dir_all(directory).context("removing a working directory")?;
    forget_directory(directory)
}

impl Drop for WorkDir {
    fn drop(&mut self) {
        let wanted = std::env::var_os("MANIFOLD_KEEP").is_some_and(|value| value != "0");
        if self.path.join(KEPT_MARK).exists() {
            return;
        }
        if wanted || std::thread::panicking() {
            if let Err(error) = keep(&self.path) {
                eprintln!("{}: {error:#}", self.path.display());
            }
            return;
        }
        let undecided = UNDECIDED.with_borrow_mut(|undecided| {
            let wait = undecided.as_mut()?;
            wait.push(self.path.clone());
            Some(())
        });
        if undecided.is_none()
            && let Err(error) = remove(&self.path)
        {
            eprintln!("{}: {error:#}", self.path.display());
        }
    }
}

fn remove_old_kept_directories() {
    let Ok(entries) = std::fs::read_dir(std::env::temp_dir()) else {
        return;
    };
    let mut kept: Vec<(SystemTime, PathBuf)> = entries
        .flatten()
        .filter(|entry| {
            entry
                .file_name()
                .to_string_lossy()
                .starts_with(DIRECTORY_PREFIX)
        })
        .filter_map(|entry| {
            let mark = std::fs::metadata(entry.path().join(KEPT_MARK)).ok()?;
            Some((mark.modified().ok()?, entry.path()))
        })
        .collect();
    kept.sort();
    let surplus = kept.len().saturating_sub(KEPT_DIRECTORIES);
    for (_, directory) in kept.into_iter().take(surplus) {
        // Another process may be removing the same one.
        let _ = std::fs::remove_dir_all(directory);
    }
}

/// What to start.
#[derive(Debug, Clone)]
pub struct Spec {
    /// As errors call it.
    pub name: String,
    /// The program's file.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
    /// Added to this process's environment.
    pub env: Vec<(String, String)>,
    /// Both of its output streams go here.
    pub log: PathBuf,
}

/// A running child. Dropping it kills it.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
    spec: Spec,
    exit: Option<ExitStatus>,
}

impl Process {
    /// Starts it.
    pub fn spawn(spec: &Spec) -> Result<Self> {
        let name = &spec.name;
        if !spec.program.is_file() {
            bail!("{name}: no program at {}", spec.program.display());
        }
        let log = File::options()
            .create(true)
            .append(true)
            .open(&spec.log)
            .with_context(|| format!("{name}: opening its log {}", spec.log.display()))?;
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", STARTER, name])
            .arg(&spec.program)
            .args(&spec.args)
            .envs(spec.env.iter().map(|(key, value)| (key, value)))
            .stdin(Stdio::piped())
            .stdout(
                log.try_clone()
                    .with_context(|| format!("{name}: its log"))?,
            )
            .stderr(log)
            .process_group(0);
        // All talk stays on loopback: a proxy would only stand in the way.
        for proxy in ["HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"] {
            command.env_remove(proxy);
        }
        let mut child = command
            .spawn()
            .with_context(|| format!("starting {name}"))?;
        let go = child.stdin.take();
        let mut process = Self {
            name: name.clone(),
            log: spec.log.clone(),
            spec: spec.clone(),
            exit: None,
            child,
        };
        let pid = process.id();
        instruct(&format!("+ {pid}\n"), |children, _| {
            children.insert(pid);
        })?;
        if let Err(error) = go
            .context("no input")
            .and_then(|mut go| Ok(go.write_all(b"go\n")?))
        {
            process.kill();
            return Err(error.context(format!("starting {name}")));
        }
        Ok(process)
    }

    /// Starts it again as it was; what is left of it is killed first.
    pub fn start_again(&mut self) -> Result<()> {
        self.kill();
        *self = Self::spawn(&self.spec)?;
        Ok(())
    }

    /// The process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// As errors call it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its program's file.
    pub fn program(&self) -> &Path {
        &self.spec.program
    }

    /// Where its output goes.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// How it ended, if it has.
    pub fn exited(&mut self) -> Option<ExitStatus> {
        if self.exit.is_none()
            && let Ok(Some(status)) = self.child.try_wait()
        {
            self.ended(status);
        }
        self.exit
    }

    /// An error with the end of its log if it is no longer running.
    pub fn check(&mut self) -> Result<()> {
        match self.exited() {
            None => Ok(()),
            Some(status) => Err(anyhow!(
                "{} ended early ({status}); the end of its log:\n{}",
                self.name,
                self.log_tail()
            )),
        }
    }

    /// The last lines of its log.
    pub fn log_tail(&self) -> String {
        tail(&self.log).unwrap_or_else(|error| format!("(no log: {error})"))
    }

    /// Whether its log's end holds this text.
    pub fn log_says(&self, text: &str) -> bool {
        self.log_tail().contains(text)
    }

    /// SIGKILL to the child and whatever it started; returns when it is gone.
    pub fn kill(&mut self) {
        if self.exited().is_some() {
            return;
        }
        if let Some(pid) = self.pid() {
            // The group can be gone in between; the child itself is not before it is waited for.
            let _ = kill_process_group(pid, Signal::KILL);
        }
        let _ = self.child.kill();
        if let Ok(status) = self.child.wait() {
            self.ended(status);
        }
    }

    /// SIGTERM, and does not wait.
    pub fn ask_to_end(&mut self) -> Result<()> {
        self.signal(Signal::TERM)
    }

    /// SIGINT, and does not wait.
    pub fn interrupt(&mut self) -> Result<()> {
        self.signal(Signal::INT)
    }

    /// SIGABRT, and does not wait: a program in Go ends by its fatal error, as by a panic.
    pub fn abort(&mut self) -> Result<()> {
        self.signal(Signal::ABORT)
    }

    /// SIGTERM, then waits for the end; an error when that takes longer than `limit`.
    pub async fn terminate(&mut self, limit: Duration) -> Result<ExitStatus> {
        self.ask_to_end()?;
        let start = Instant::now();
        loop {
            if let Some(status) = self.exited() {
                return Ok(status);
            }
            if start.elapsed() > limit {
                bail!(
                    "{} still runs {limit:?} after SIGTERM; the end of its log:\n{}",
                    self.name,
                    self.log_tail()
                );
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// SIGSTOP: it is suspended, as a machine under a hypervisor may.
    pub fn pause(&mut self) -> Result<()> {
        self.signal(Signal::STOP)
    }

    /// SIGCONT.
    pub fn resume(&mut self) -> Result<()> {
        self.signal(Signal::CONT)
    }

    fn signal(&mut self, signal: Signal) -> Result<()> {
        self.check()?;
        let pid = self
            .pid()
            .with_context(|| format!("{} has no process id", self.name))?;
        kill_process(pid, signal).with_context(|| format!("signalling {}", self.name))
    }

    fn pid(&self) -> Option<Pid> {
        i32::try_from(self.id()).ok().and_then(Pid::from_raw)
    }

    fn ended(&mut self, status: ExitStatus) {
        self.exit = Some(status);
        let pid = self.id();
        if let Err(error) = instruct(&format!("- {pid}\n"), |children, _| {
            children.remove(&pid);
        }) {
            eprintln!("{}: {error:#}", self.name);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

fn tail(path: &Path) -> std::io::Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES)))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().collect();
    Ok(lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n"))
}
