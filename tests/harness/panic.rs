//! A panic in a running process, from outside, so that what is tried is the program that ships: a debugger's
//! breakpoint, at which the program continues in the standard library's own panic.

use std::fs::{self, File, OpenOptions};

use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::errno::Errno;
use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// What each thread that has come to the breakpoint is at.
const BREAKPOINT: [u8; 1] = [0xcc];
/// Panics with the place that its only argument points to, like `None.unwrap()`.
const PANICS: &str = "4core6option13unwrap_failed";
/// How often the threads are checked.
const POLL: Duration = Duration::from_micros(200);
/// From the far end of a stack, which the panic does not reach.
const MARGIN: u64 = 512;

/// Has a thread of a process panic when it next enters a function whose linker symbol holds this text. Gives
/// the moment; the process is on its own from there.
///
/// # Errors
/// Where there is no such function or no thread enters it in time, or the kernel does not let us.
pub fn panic_in(process: u32, program: &Path, function: &str, limit: Duration) -> Result<Instant> {
    let symbols = Command::new("nm")
        .arg("--defined-only")
        .arg(program)
        .output();
    let symbols = symbols.context("nm, of binutils")?;
    ensure!(
        symbols.status.success(),
        "nm {}: {}",
        program.display(),
        symbols.status
    );
    let symbols = String::from_utf8_lossy(&symbols.stdout).into_owned();
    let program = program.to_owned();
    let function = function.to_owned();
    // What a thread traces, it alone may ask for, and it continues with its end.
    let tracer = thread::Builder::new().name("tracer".to_owned());
    let traced = tracer.spawn(move || {
        let base = base_of(process, &program)?;
        let enters = base + address(&symbols, &function)?;
        let panics = base + address(&symbols, PANICS)?;
        trace(process, enters, panics, limit)
    })?;
    match traced.join() {
        Ok(traced) => traced,
        Err(_) => bail!("the tracer has panicked"),
    }
}

/// Where a function lies in its program.
fn address(symbols: &str, part: &str) -> Result<u64> {
    let found = symbols.lines().find_map(|line| {
        let mut fields = line.split_ascii_whitespace();
        let (address, kind, name) = (fields.next()?, fields.next()?, fields.next()?);
        let is_it = kind.eq_ignore_ascii_case("t") && name.contains(part);
        is_it
            .then(|| u64::from_str_radix(address, 16).ok())
            .flatten()
    });
    found.with_context(|| format!("the program has no function {part}"))
}

/// Where a program lies in a process.
fn base_of(process: u32, program: &Path) -> Result<u64> {
    let maps = fs::read_to_string(format!("/proc/{process}/maps"))?;
    let program = program.display().to_string();
    let first = maps.lines().find(|line| line.ends_with(&program));
    let start = first.and_then(|line| line.split('-').next());
    let start = start.with_context(|| format!("process {process} is not {program}"))?;
    Ok(u64::from_str_radix(start, 16)?)
}

/// The lowest address of the mapping that holds this one.
fn start_of_mapping(process: u32, address: u64) -> Result<u64> {
    let maps = fs::read_to_string(format!("/proc/{process}/maps"))?;
    let holds = |line: &str| {
        let (start, rest) = line.split_once('-')?;
        let end = rest.split(' ').next()?;
        let start = u64::from_str_radix(start, 16).ok()?;
        let end = u64::from_str_radix(end, 16).ok()?;
        (start..end).contains(&address).then_some(start)
    };
    let start = maps.lines().find_map(holds);
    start.context("a stack that is not mapped")
}

fn threads(process: u32) -> Result<Vec<Pid>> {
    let mut threads = Vec::new();
    for entry in fs::read_dir(format!("/proc/{process}/task"))? {
        let name = entry?.file_name();
        threads.extend(
            name.to_str()
                .and_then(|name| name.parse().ok())
                .map(Pid::from_raw),
        );
    }
    Ok(threads)
}

fn trace(process: u32, enters: u64, panics: u64, limit: Duration) -> Result<Instant> {
    let threads = threads(process)?;
    for thread in &threads {
        match ptrace::seize(*thread, ptrace::Options::empty()) {
            Ok(()) | Err(Errno::ESRCH) => {}
            Err(error) => return Err(error).context("tracing a thread"),
        }
    }
    let memory = OpenOptions::new()
        .read(true)
        .write(true)
        .open(format!("/proc/{process}/mem"))?;
    let mut before = [0];
    memory.read_exact_at(&mut before, enters)?;
    memory.write_all_at(&BREAKPOINT, enters)?;
    let until = Instant::now() + limit;
    while Instant::now() < until {
        for thread in &threads {
            if stopped_at_the_breakpoint(*thread, enters)? {
                memory.write_all_at(&before, enters)?;
                let place = write_a_place(process, &memory, *thread)?;
                for other in threads.iter().filter(|other| *other != thread) {
                    // It may have come there as well.
                    if stopped_at_the_breakpoint(*other, enters)? {
                        go(*other, enters, None)?;
                    }
                }
                let at = Instant::now();
                go(*thread, panics, Some(place))?;
                return Ok(at);
            }
        }
        thread::sleep(POLL);
    }
    memory.write_all_at(&before, enters)?;
    bail!("no thread of process {process} has entered the function within {limit:?}")
}

/// Lets a thread continue that runs into anything else.
fn stopped_at_the_breakpoint(thread: Pid, enters: u64) -> Result<bool> {
    let flags = WaitPidFlag::WNOHANG | WaitPidFlag::__WALL;
    match waitpid(thread, Some(flags)) {
        Ok(WaitStatus::Stopped(_, Signal::SIGTRAP)) if instruction(thread)? == enters + 1 => {
            Ok(true)
        }
        Ok(WaitStatus::Stopped(_, signal)) => {
            ptrace::cont(thread, signal)?;
            Ok(false)
        }
        Ok(WaitStatus::PtraceEvent(..)) => {
            ptrace::cont(thread, None)?;
            Ok(false)
        }
        Ok(_) | Err(Errno::ECHILD) => Ok(false),
        Err(error) => Err(error).context("waiting for a thread"),
    }
}

/// A `core::panic::Location` in a part of the thread's stack that nobody uses: where it lies.
fn write_a_place(process: u32, memory: &File, thread: Pid) -> Result<u64> {
    const FILE: &[u8] = b"from-outside\0";
    let text = start_of_mapping(process, stack(thread)?)? + MARGIN;
    let place = text + 64;
    let mut bytes = Vec::new();
    for word in [text, FILE.len() as u64] {
        bytes.extend(word.to_ne_bytes());
    }
    for number in [1_u32, 1] {
        bytes.extend(number.to_ne_bytes());
    }
    memory.write_all_at(FILE, text)?;
    memory.write_all_at(&bytes, place)?;
    Ok(place)
}

#[cfg(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu"))]
mod registers {
    use nix::sys::ptrace;
    use nix::unistd::Pid;

    pub fn instruction(thread: Pid) -> nix::Result<u64> {
        ptrace::getregs(thread).map(|registers| registers.rip)
    }

    pub fn stack(thread: Pid) -> nix::Result<u64> {
        ptrace::getregs(thread).map(|registers| registers.rsp)
    }

    /// As if the function there was called instead, with this argument.
    pub fn go(thread: Pid, instruction: u64, argument: Option<u64>) -> nix::Result<()> {
        let mut registers = ptrace::getregs(thread)?;
        registers.rip = instruction;
        if let Some(argument) = argument {
            registers.rdi = argument;
        }
        ptrace::setregs(thread, registers)?;
        ptrace::cont(thread, None)
    }
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu")))]
mod registers {
    use nix::errno::Errno;
    use nix::unistd::Pid;

    pub fn instruction(_: Pid) -> nix::Result<u64> {
        Err(Errno::ENOSYS)
    }

    pub fn stack(_: Pid) -> nix::Result<u64> {
        Err(Errno::ENOSYS)
    }

    pub fn go(_: Pid, _: u64, _: Option<u64>) -> nix::Result<()> {
        Err(Errno::ENOSYS)
    }
}

use registers::{go, instruction, stack};
