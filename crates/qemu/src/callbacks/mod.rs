//! The functions that QEMU calls.
//!
//! * `block_translation`: QEMU has translated a block. Registers one of the callbacks of `block_execution` for it.
//! * `block_execution`: the block runs. The hot path of the plugin, which begins with the paragraph to read first.
//! * `syscalls`: a system call begins or returns. `unsupported_syscalls` warns of calls that QEMU does not carry out as
//!   the kernel does.
//! * `with_data`: the same callbacks with the signatures of version 7 of the plugin interface.

pub(crate) mod block_execution;
pub(crate) mod block_translation;
pub(crate) mod syscalls;
mod unsupported_syscalls;
pub(crate) mod with_data;
