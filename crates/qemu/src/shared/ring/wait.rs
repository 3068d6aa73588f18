//! Waiting for a word that another thread of the process changes.

use std::sync::atomic::{AtomicU32, Ordering};

/// How often the word is looked at before the thread sleeps: some microseconds.
const LOOKS: u32 = 300;

/// Whether somebody sleeps who waits for a word.
pub(super) struct Sleeper(AtomicU32);

impl Sleeper {
    pub(super) const fn new() -> Sleeper {
        Sleeper(AtomicU32::new(0))
    }

    /// The word has changed.
    #[inline(always)]
    pub(super) fn wake(&self, word: &AtomicU32) {
        if self.0.load(Ordering::SeqCst) != 0 {
            futex(word, libc::FUTEX_WAKE, 1);
        }
    }

    /// There is nobody.
    pub(super) fn forget(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// Returns when `awaited` holds of the word, which is looked at for a while before the thread sleeps; it sleeps as
    /// long as `enough` does not hold, which must not hold more often. Who changes the word calls `wake` afterwards.
    pub(super) fn wait(
        &self,
        word: &AtomicU32,
        awaited: impl Fn(u32) -> bool,
        enough: impl Fn(u32) -> bool,
    ) {
        for _ in 0..LOOKS {
            if awaited(word.load(Ordering::SeqCst)) {
                return;
            }
            std::hint::spin_loop();
        }
        self.0.store(1, Ordering::SeqCst);
        loop {
            let seen = word.load(Ordering::SeqCst);
            if enough(seen) {
                break;
            }
            // Comes back at once if the word has changed since.
            futex(word, libc::FUTEX_WAIT, seen);
        }
        self.0.store(0, Ordering::Relaxed);
    }
}

fn futex(word: &AtomicU32, operation: i32, value: u32) {
    let none = std::ptr::null::<libc::timespec>();
    // SAFETY: the word lives; a time limit is not given.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            operation | libc::FUTEX_PRIVATE_FLAG,
            value,
            none,
        )
    };
}
