//! Signals that the program ignores, over an exec.
//!
//! The kernel keeps them ignored. QEMU has handlers of its own for signals that end a process, also where the program
//! ignores them, and the kernel takes handlers away: so an exec has to put the word back. Not of real-time ones: they
//! have other numbers in QEMU than in the program.

use std::sync::atomic::{AtomicU64, Ordering};

use libc::c_int;

use crate::interface::memory;

const REAL_TIME: c_int = 32;

/// A bit a signal.
static IGNORED: AtomicU64 = AtomicU64::new(0);

/// What the kernel ignores for the program from the start; before QEMU has handlers.
pub(crate) fn inherit() {
    let ignored = (1..REAL_TIME).filter(|&signal| disposition(signal) == Some(libc::SIG_IGN));
    IGNORED.store(
        ignored.map(bit).fold(0, |all, bit| all | bit),
        Ordering::Relaxed,
    );
}

/// rt_sigaction is about to install the action at `address`.
pub(crate) fn note(signal: u64, address: u64) {
    if !(1..REAL_TIME as u64).contains(&signal) {
        return;
    }
    let bit = bit(signal as c_int);
    match memory::word(address) {
        Some(handler) if handler == libc::SIG_IGN as u64 => {
            IGNORED.fetch_or(bit, Ordering::Relaxed)
        }
        Some(_) => IGNORED.fetch_and(!bit, Ordering::Relaxed),
        None => return,
    };
}

/// Another program is about to come, and no other thread runs any more: QEMU catches no faults from here on.
pub(crate) fn keep_for_exec() {
    let all = IGNORED.load(Ordering::Relaxed);
    for signal in (1..REAL_TIME).filter(|&signal| all & bit(signal) != 0) {
        if disposition(signal) != Some(libc::SIG_IGN) {
            // SAFETY: no handler.
            unsafe { libc::signal(signal, libc::SIG_IGN) };
        }
    }
}

fn disposition(signal: c_int) -> Option<usize> {
    // SAFETY: an action is read into a value that lives long enough.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        (libc::sigaction(signal, std::ptr::null(), &mut action) == 0).then_some(action.sa_sigaction)
    }
}

const fn bit(signal: c_int) -> u64 {
    1 << (signal - 1)
}
