//! A ptrace single-step tracer for x86-64 Linux. It reports what a program and all its children execute, as a stream of
//! events.
//!
//! [`Tracer::start_program`] runs a program; [`Tracer::next_batch`] returns the events since the last call. The tracer
//! needs no privilege, no hardware and no help from the program. A step costs about 20 microseconds.
//!
//! [`Tracer::attach_to_processes`] traces programs that already run, and detaches from them at the end.
//!
//! Start reading at `engine::event_loop`, which finds out the events (crate `rtit-events`). `task` is the state of a
//! thread between two of its stops, `event_stream` the queue between the tracing thread and the [`Tracer`].
//!
//! # What a traced program can see
//!
//! * The first step undoes the ignoring of SIGTRAP, which others see in `/proc`. The tracer still ignores sent
//!   SIGTRAPs, and a program that it detaches from ignores them again. Where that is impossible (filtered calls, 32-bit
//!   code) it warns; if the tracer is killed, nothing does. Blocking of SIGTRAP is hidden from the kernel and not from
//!   the program; `/proc/self/status` and `sigpending` show what the program expects.
//! * `rseq` answers ENOSYS, because each stop would restart a restartable sequence. Programs that were attached to keep
//!   it; one that uses such sequences itself (glibc does not) may not get on while it is traced.
//! * A system call that a signal without handler interrupts is restarted, as without a tracer. The few calls that are
//!   never restarted (`epoll_wait`, `semop`) return EINTR, as under any ptrace tracer.
//! * If the program loads the trap flag itself (POPF, IRET), the tracer uses the flag from then on.
//! * With pinning, `/proc/self/status` shows one CPU; `sched_getaffinity` answers as without a tracer.
//! * A timer's signal that arrives again before its handler has been stepped through is delayed until the thread has
//!   executed as many instructions as the handler, or enters a system call.
//! * A program that was attached to is not pinned. Calls that are never restarted, such as `epoll_wait`, are repeated
//!   at attach and detach with their full time limit.
//! * `TracerPid` is set, a set-user-ID program gets no privilege from an unprivileged tracer, and time passes slowly.

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
compile_error!("rtit-tracer steps programs by ptrace: it needs Linux on x86-64");

mod address_space;
mod attach_process;
mod engine;
mod error;
mod event_stream;
mod procfs;
mod program_start;
mod ptrace;
mod task;
mod tracer;
mod truth_output;

pub use error::Error;
pub use event_stream::RecordBatch;
pub use tracer::{TraceOptions, Tracer, TracerStats, WindowEdge};
