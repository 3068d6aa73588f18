//! One thread at a time changes what is done with a signal.
//!
//! What QEMU made of an action is looked at once the call is over (`ignored`, `taken`), for real-time signals at all of
//! them: of two threads the one that looked first could tell last.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::Duration;

static TAKEN: AtomicBool = AtomicBool::new(false);

/// A thread is about to change an action; it may end as it waits.
pub(crate) fn take() {
    while TAKEN.swap(true, Ordering::Acquire) {
        sleep(Duration::from_micros(20));
    }
}

/// It has looked at what came of it.
pub(crate) fn give_back() {
    TAKEN.store(false, Ordering::Release);
}
