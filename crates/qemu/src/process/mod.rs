//! The life of the process and its threads, from QEMU's start to the last thread's end.
//!
//! * `start`: the process begins; `threads`: a thread does; `blocks`: it goes from block to block;
//! * `fork`, `exec`: another process, another program; `ending`: all threads stop, and `faults` why;
//!   `lifeline`: with the recorder.

pub(crate) mod blocks;
pub(crate) mod ending;
pub(crate) mod exec;
pub(crate) mod faults;
mod fork;
pub(crate) mod lifeline;
pub(crate) mod start;
pub(crate) mod threads;
