//! Real-time signals, which QEMU numbers its own way.
//!
//! The C library keeps 32 and 33, which a program may use: QEMU has a later one in their place, and so on up. How much
//! later depends on its version: two in 7.2, more since it keeps some for itself, one of them for the program's SIGABRT,
//! or as QEMU_RTSIG_MAP says. So where the program changes one, all are looked at.

use std::ops::RangeInclusive;

use libc::c_int;

/// The kernel's numbers; the C library refuses the first two.
pub(super) const OF_KERNEL: RangeInclusive<c_int> = 32..=64;

/// Whether the program's `signal` may be a real-time one of the kernel's.
pub(super) fn may_be(signal: c_int) -> bool {
    OF_KERNEL.contains(&signal) || signal == libc::SIGABRT
}
