//! The functions that QEMU calls: when it has translated a block, when the block runs, and when a system call begins or
//! returns. Those in `with_data` have the signatures of version 7 of the plugin interface.

pub(crate) mod blocks;
pub(crate) mod syscalls;
