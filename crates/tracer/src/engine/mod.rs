//! The tracing thread. It waits for a thread of the program to stop, finds out what that thread did since its last
//! stop, writes events, and resumes it. `event_loop` begins with an overview.

mod attach_detach;
mod event_loop;
mod instruction_steps;
mod signal_stops;
mod syscalls;
mod threads_processes;

pub(crate) use attach_detach::trace_attached;
pub(crate) use threads_processes::trace_program;
