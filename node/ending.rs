//! What a panic does to the process.

use std::{
    backtrace::{Backtrace, BacktraceStatus},
    cell::Cell,
    io::{self, Write as _},
    mem, panic, process,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
    time::Duration,
};

use controllers_kit::guard::is_guarded;

use crate::{actors::host::LateFence, termination};

/// Beyond the time in which the replica's end must come by itself, the process is aborted: a backtrace is
/// written within this on a busy machine too.
const GRACE: Duration = Duration::from_secs(5);
/// Of a thread that others on the machine should not wait for.
const LOWEST_PRIORITY: i32 = 19;

thread_local! {
    static PANICKED: Cell<bool> = const { Cell::new(false) };
}

/// Threads that write what has panicked. Bound: two for each thread of the process.
static REPORTING: Mutex<Vec<JoinHandle<()>>> = Mutex::new(Vec::new());

/// Makes a panic anywhere but in a controller's code end the process. An actor that has panicked would be
/// gone while its ranges stay owned: the other replicas can only take over from a process that has ended.
///
/// From that moment on nothing new is sent. The thread that renews the replica Lease waits for the last
/// answers, releases the Lease, so that others take the ranges at once, and aborts. Before there is a Lease
/// the process is aborted once it is written what has panicked.
pub fn end_process_on_panic(fence: Arc<LateFence>) {
    let say = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        if is_guarded() {
            return; // The guard's caller logs it, with controller and key.
        }
        let what = panic.to_string();
        if !report(what.clone()) {
            say(panic);
            termination::add(&what);
        }
        // There is nobody to release the Lease without the thread that renews it.
        let renews = thread::current().name() == Some(coordinator::RENEWAL_THREAD);
        let longest = fence.end(what).filter(|_| !renews);
        let is_bounded = abort_within(longest.unwrap_or_default() + GRACE);
        if longest.is_none() || !is_bounded {
            abort();
        }
        // A task's runtime catches the panic, and what other tasks of the thread have sent is still answered.
        // Any other thread would end here, and with the first one the process, before the Lease is released;
        // so would the process with a panic while the first one unwinds.
        if PANICKED.replace(true) || tokio::task::try_id().is_none() {
            loop {
                thread::park();
            }
        }
    }));
}

/// Aborts the process once it is written what has panicked.
pub fn abort() {
    for report in mem::take(&mut *reporting()) {
        let _panicked = report.join();
    }
    process::abort();
}

fn reporting() -> MutexGuard<'static, Vec<JoinHandle<()>>> {
    REPORTING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Has a thread write what has panicked, and where; `false` if there is none. Finding the names of a
/// backtrace takes a second or more, for which neither the release nor the answers to other tasks of the
/// thread that panics should wait.
fn report(what: String) -> bool {
    let backtrace = Backtrace::capture();
    let thread = thread::current();
    let name = thread.name().unwrap_or("<unnamed>").to_owned();
    let write = move || {
        // Each under its own lock of stderr: the thread that releases the Lease logs before it does.
        let _closed = writeln!(io::stderr(), "\nthread '{name}' {what}");
        termination::add(&what);
        // Those that take the ranges over may be on this machine.
        let _refused = rustix::process::nice(LOWEST_PRIORITY);
        let backtrace = match backtrace.status() {
            BacktraceStatus::Captured => format!("stack backtrace:\n{backtrace}"),
            _ => "set RUST_BACKTRACE=1 for a backtrace".to_owned(),
        };
        let _closed = writeln!(io::stderr(), "{backtrace}");
    };
    let writes = thread::Builder::new().name("manifold-panic".to_owned());
    let started = writes.spawn(write);
    started.map(|report| reporting().push(report)).is_ok()
}

/// Sees to it that the process ends; `false` if nobody would.
fn abort_within(limit: Duration) -> bool {
    let last = thread::Builder::new().name("manifold-end".to_owned());
    let started = last.spawn(move || {
        thread::sleep(limit);
        process::abort();
    });
    started.is_ok()
}
