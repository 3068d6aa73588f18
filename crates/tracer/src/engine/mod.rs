//! The tracing thread: waits for a stop, finds out what the thread did since its last one, writes events, lets it go on.
//!
//! * `state`: what it knows; `start`: a program begins; `run`: the loop, who handles which stop;
//! * `stops`: signals and traps; `steps`: instructions; `calls`: system calls; `processes`: threads, exec, exit;
//! * `attach`, `detach`: programs that ran before and live on; `window`, `edges`: from where to where it is traced;
//! * `go`: how a thread goes on; `held`, `waiting`: signals that wait; `traps`: SIGTRAP; `ignoring`: who ignores it;
//!   `breakpoint`: REP instructions in one go; `conditional`: branches that lead to the next instruction; `restart`:
//!   calls that a stop interrupts; `output`: the events.

mod attach;
mod breakpoint;
mod calls;
mod conditional;
mod detach;
mod edges;
mod go;
mod held;
mod ignoring;
mod output;
mod processes;
mod restart;
mod run;
mod start;
mod state;
mod steps;
mod stops;
mod traps;
mod waiting;
mod window;

pub(crate) use attach::main as attached;
pub(crate) use start::main;
