//! execve. The kernel would replace QEMU by the new program, which would then run unrecorded. The plugin starts a QEMU
//! that runs the new program instead.
//!
//! * `run_under_qemu`: does it, or decides that the new program runs unrecorded;
//! * `target_program`: the program that the kernel would run: scripts are followed to their interpreter;
//! * `program_name`: a path of that program that is still valid after the exec;
//! * `kernel_limits`: the stack size, capabilities and set-user-ID privileges that the kernel applies.

pub(crate) mod kernel_limits;
mod program_name;
pub(crate) mod run_under_qemu;
pub(crate) mod target_program;
