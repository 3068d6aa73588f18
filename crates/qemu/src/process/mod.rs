//! The life of the process and of its threads, from QEMU's start to the end of the last thread.
//!
//! * `lifecycle`: the process starts, a thread starts, a thread forks;
//! * `follow_block`: a thread goes on to its next block, whatever that block is;
//! * `exec`: the process runs another program;
//! * `process_end`: all threads stop where they are; `fault_causes`: which instruction and address ended the process;
//! * `lifeline`: the process dies with its recorder.

pub(crate) mod exec;
pub(crate) mod fault_causes;
pub(crate) mod follow_block;
pub(crate) mod lifecycle;
pub(crate) mod lifeline;
pub(crate) mod process_end;
