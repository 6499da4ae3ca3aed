//! One thread of a running process is stuck, and the others continue: a debugger's stop, from outside, so
//! that what is tried is the program that ships.

use std::fs;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// How often it is seen whether the process has ended: the kernel keeps it until its tracer has noticed.
const POLL: Duration = Duration::from_millis(20);

/// A thread that is stuck. It continues when this is dropped.
#[derive(Debug)]
pub struct Hang {
    /// The thread's name, as the kernel has it: 15 bytes.
    pub thread: String,
    resume: Option<Sender<()>>,
    tracer: Option<JoinHandle<()>>,
}

impl Hang {
    /// Stops a thread of the process whose name begins so; of several, the last one started.
    ///
    /// # Errors
    /// Where there is none, or the kernel does not let us.
    pub fn begin(process: u32, name: &str) -> Result<Self> {
        let mut found = Vec::new();
        for entry in fs::read_dir(format!("/proc/{process}/task"))? {
            let path = entry?.path();
            let id: Option<i32> = path
                .file_name()
                .and_then(|name| name.to_str()?.parse().ok());
            let (Some(id), Ok(comm)) = (id, fs::read_to_string(path.join("comm"))) else {
                continue;
            };
            found.push((id, comm.trim_end().to_owned()));
        }
        let thread = found
            .iter()
            .filter(|(_, comm)| comm.starts_with(name))
            .max();
        let Some((id, thread)) = thread.cloned() else {
            let names: Vec<&str> = found.iter().map(|(_, comm)| comm.as_str()).collect();
            bail!(
                "process {process} has no thread called {name}…: it has {}",
                names.join(", ")
            );
        };
        let (resume, held) = mpsc::channel();
        let (stopped, stuck) = mpsc::channel();
        // What a thread traces continues with its end.
        let tracer = thread::Builder::new()
            .name("tracer".to_owned())
            .spawn(move || {
                let pid = Pid::from_raw(id);
                let _gone = stopped.send(stop(pid));
                while let Err(RecvTimeoutError::Timeout) = held.recv_timeout(POLL) {
                    let flags = WaitPidFlag::WNOHANG | WaitPidFlag::__WALL;
                    match waitpid(pid, Some(flags)) {
                        Ok(WaitStatus::StillAlive) => {}
                        Ok(WaitStatus::Exited(..) | WaitStatus::Signaled(..)) | Err(_) => return,
                        Ok(_) => {}
                    }
                }
                let _gone = ptrace::detach(pid, None::<Signal>);
            })?;
        stuck
            .recv()
            .context("the tracer has ended")?
            .with_context(|| format!("stopping {thread} of process {process}"))?;
        Ok(Self {
            thread,
            resume: Some(resume),
            tracer: Some(tracer),
        })
    }
}

fn stop(pid: Pid) -> Result<(), Errno> {
    ptrace::seize(pid, ptrace::Options::empty())?;
    ptrace::interrupt(pid)?;
    waitpid(pid, Some(WaitPidFlag::__WALL)).map(|_| ())
}

impl Drop for Hang {
    fn drop(&mut self) {
        self.resume.take();
        if let Some(tracer) = self.tracer.take() {
            let _panicked = tracer.join();
        }
    }
}
