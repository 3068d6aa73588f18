//! Real-time signals, which QEMU numbers its own way.
//!
//! The C library keeps 32 and 33, which a program may use: QEMU has a later one in their place, and so on up, how much
//! later depends on its version (two up to 8.1, more since: it keeps some for itself, and has one for the program's
//! SIGABRT). Nothing tells which is which. So where the program changes one, all are looked at.

use std::ops::RangeInclusive;

use libc::c_int;

/// The kernel's numbers; the C library refuses the first two.
pub(super) const OF_KERNEL: RangeInclusive<c_int> = 32..=64;

/// Whether the program's `signal` may be a real-time one of the kernel's.
pub(super) fn may_be(signal: c_int) -> bool {
    OF_KERNEL.contains(&signal) || signal == libc::SIGABRT
}
