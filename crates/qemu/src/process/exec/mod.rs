//! execve, which would leave QEMU: a QEMU with the new program is run in its place.
//!
//! `follow` does it; `plan` and `elf` say what the kernel would run, `stack` whether there is room, `privilege` what is lost.

mod elf;
pub(crate) mod follow;
pub(crate) mod plan;
pub(crate) mod privilege;
pub(crate) mod stack;
