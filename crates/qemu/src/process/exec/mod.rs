//! execve, which would leave QEMU: a QEMU with the new program is run in its place.
//!
//! `follow` does it; `plan` and `elf` say what the kernel would run, `stack` whether there is room, `privilege` what is
//! lost, `rights` what can be reached afterwards; `held` finds programs that have no name.

mod elf;
pub(crate) mod follow;
mod held;
pub(crate) mod plan;
pub(crate) mod privilege;
mod rights;
pub(crate) mod stack;
