//! Guards by which a panic costs one object or one key, not the process.
//!
//! Controllers' code runs on every replica for the same object: a panic outside of a guard would end all of
//! them at once, and again after each restart, since the object is in the list.

use std::{
    any::Any,
    cell::Cell,
    panic::{AssertUnwindSafe, catch_unwind},
};

thread_local! {
    static GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// Runs a controller's code and catches its panic.
///
/// # Errors
/// The panic's message. State that the code was changing may be half changed.
pub fn guarded<R>(run: impl FnOnce() -> R) -> Result<R, String> {
    let outer = GUARDED.replace(true);
    let result = catch_unwind(AssertUnwindSafe(run));
    GUARDED.set(outer);
    result.map_err(|panic: Box<dyn Any + Send>| {
        panic
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
            .unwrap_or_else(|| "no message".to_owned())
    })
}

/// Whether a guard is open on this thread; its opener reports the panic.
pub fn is_guarded() -> bool {
    GUARDED.get()
}

#[cfg(test)]
mod tests {
    use super::{guarded, is_guarded};

    #[test]
    fn a_panic_ends_at_the_guard_and_an_inner_guard_leaves_the_outer_one_open() {
        let outer = guarded(|| {
            let inner: Result<(), String> = guarded(|| panic!("no {}", 7));
            (inner, is_guarded())
        });
        assert_eq!(outer, Ok((Err("no 7".to_owned()), true)));
        assert!(!is_guarded());
    }
}
