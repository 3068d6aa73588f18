//! What QEMU calls. A block's way begins in `execution`, or in `ahead` where it is only kept; that of a system call in
//! `syscalls`.

pub(crate) mod ahead;
pub(crate) mod counting;
pub(crate) mod execution;
pub(crate) mod syscalls;
pub(crate) mod translation;
mod unlike;
pub(crate) mod with_data;
