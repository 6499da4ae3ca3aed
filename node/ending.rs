//! What a panic does to the process.

use std::{
    cell::Cell,
    panic::{self, PanicHookInfo},
    process,
    sync::Arc,
    thread,
    time::Duration,
};

use controllers_kit::guard::is_guarded;

use crate::{actors::host::LateFence, termination};

/// Beyond the time in which the replica's end must come by itself, the process is aborted.
const GRACE: Duration = Duration::from_secs(1);

thread_local! {
    static PANICKED: Cell<bool> = const { Cell::new(false) };
}

/// Makes a panic anywhere but in a controller's code end the process. An actor that has panicked would be
/// gone while its ranges stay owned: the other replicas can only take over from a process that has ended.
///
/// From that moment on nothing new is sent. The thread that renews the replica Lease waits for the last
/// answers, releases the Lease, so that others take the ranges at once, and aborts. Before there is a Lease
/// the process is aborted at once.
pub fn end_process_on_panic(fence: Arc<LateFence>) {
    let say = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        if is_guarded() {
            return; // The guard's caller logs it, with controller and key.
        }
        say(panic);
        termination::add(&panic.to_string());
        let renews = thread::current().name() == Some(coordinator::RENEWAL_THREAD);
        if renews || !ends(&fence, panic) {
            process::abort();
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

/// Has the replica end, and sees to it that the process does; `false` if nobody would.
fn ends(fence: &LateFence, panic: &PanicHookInfo<'_>) -> bool {
    let Some(longest) = fence.end(panic.to_string()) else {
        return false;
    };
    let limit = longest + GRACE;
    let last = thread::Builder::new().name("manifold-end".to_owned());
    let started = last.spawn(move || {
        thread::sleep(limit);
        process::abort();
    });
    started.is_ok()
}
