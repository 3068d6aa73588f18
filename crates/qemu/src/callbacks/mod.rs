//! What QEMU calls. A block's way begins in `execution`, that of a system call in `syscalls`.

pub(crate) mod counting;
pub(crate) mod execution;
pub(crate) mod syscalls;
pub(crate) mod translation;
mod unlike;
pub(crate) mod with_data;
