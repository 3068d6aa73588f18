//! The tracing thread. It waits for a thread of the program to stop, finds out what that thread did since its last
//! stop, writes events, and resumes it. `event_loop` begins with an overview.

mod attach_detach;
mod engine_state;
mod event_loop;
mod event_output;
mod ignored_sigtrap;
mod instruction_steps;
mod launch;
mod recording_window;
mod signal_stops;
mod sigtrap;
mod syscalls;
mod threads_processes;

pub(crate) use attach_detach::main as trace_attached;
pub(crate) use launch::main as trace_program;
