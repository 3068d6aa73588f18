//! Signals that the program ignores, over an exec.
//!
//! The kernel keeps them ignored. QEMU has handlers of its own for signals that end a process, also where the program
//! ignores them, and the kernel takes handlers away: so an exec has to put the word back.

use std::sync::atomic::{AtomicU64, Ordering};

use libc::c_int;

use crate::interface::{memory, real_time, taken};

/// A bit for each of the kernel's signals.
static IGNORED: AtomicU64 = AtomicU64::new(0);

/// What the kernel ignores for the program from the start; before QEMU has handlers.
pub(crate) fn inherit() {
    let ignored = (1..=64).filter(|&signal| disposition(signal) == Some(libc::SIG_IGN));
    IGNORED.store(
        ignored.map(bit).fold(0, |all, bit| all | bit),
        Ordering::Relaxed,
    );
}

/// Whether the action at `address` ignores its signal; None if it cannot be read.
pub(crate) fn asked(address: u64) -> Option<bool> {
    memory::word(address).map(|handler| handler == libc::SIG_IGN as u64)
}

/// rt_sigaction has installed an action for the program's `signal`; before QEMU's handlers are wrapped.
pub(crate) fn installed(signal: c_int, ignores: bool) {
    if (1..*real_time::OF_KERNEL.start()).contains(&signal) {
        note(signal, ignores);
    }
    if !real_time::may_be(signal) {
        return;
    }
    for signal in real_time::OF_KERNEL {
        match disposition(signal) {
            // The program did not mean this one: of those that are ignored QEMU's handlers are all wrapped.
            None => {}
            Some(handler) if taken::is_wrapped(handler) => {}
            Some(handler) => note(signal, handler == libc::SIG_IGN),
        }
    }
}

fn note(signal: c_int, ignores: bool) {
    if ignores {
        IGNORED.fetch_or(bit(signal), Ordering::Relaxed);
    } else {
        IGNORED.fetch_and(!bit(signal), Ordering::Relaxed);
    }
}

/// Another program is about to come, and no other thread runs any more: QEMU catches no faults from here on.
pub(crate) fn keep_for_exec() {
    let all = IGNORED.load(Ordering::Relaxed);
    for signal in (1..=64).filter(|&signal| all & bit(signal) != 0) {
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
