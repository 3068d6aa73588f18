//! The life of the process and of its threads, from QEMU's start to the end of the last thread.
//!
//! * `lifecycle`: the process and its threads start, go on to their next blocks, fork and end;
//! * `exec`: the process runs another program;
//! * `fault_causes`: which instruction and address ended the process.

pub(crate) mod exec;
pub(crate) mod fault_causes;
pub(crate) mod lifecycle;
