//! A ptrace single-step tracer for x86-64 Linux: what a program and all its children execute, as a stream of events.
//!
//! [`Tracer::start`] runs a program; [`Tracer::next_batch`] hands over what happened since. The tracer needs no
//! privilege, no hardware and no help from the program; it costs some 20 microseconds an instruction.
//!
//! [`Tracer::attach`] does the same to programs that run already, and lets go of them.
//!
//! Where to start reading: [`event`] says what comes out, `engine` how it is found out (`engine::run` is the loop), `task`
//! what is known about a thread between two of its stops, `shared` what the tracing thread and the [`Tracer`] share.
//!
//! # What a traced program can see
//!
//! * Ignoring SIGTRAP is undone by the first step, which others see in `/proc`; what is sent is ignored all the same,
//!   and a program that is let go ignores it again. Where that cannot be (calls that are filtered, 32-bit code) a warning
//!   says so; where the tracer is killed, nothing does. Blocking it is hidden from the kernel and not from the program;
//!   `/proc/self/status` and `sigpending` tell the truth.
//! * `rseq` answers ENOSYS: stops restart a restartable sequence for ever. Programs that were attached to keep it; one
//!   that uses such sequences itself (glibc does not) may not get on while it is traced.
//! * A system call that a signal without handler interrupts is restarted, as it would be; the few calls that are never
//!   restarted (`epoll_wait`, `semop`) return EINTR, as under any ptrace tracer.
//! * The trap flag that the program loads itself (POPF, IRET) is the tracer's from then on.
//! * With pinning, `/proc/self/status` shows one CPU; `sched_getaffinity` answers as if there were no tracer.
//! * A timer's signal that comes again before its handler has been stepped through waits until the thread has got on by
//!   as many instructions as the handler took, or enters a system call.
//! * A program that was attached to is not pinned. What it waits for in `epoll_wait` and other calls that are never
//!   restarted is made again at attaching and letting go, with the whole of its time limit.
//! * `TracerPid` is set, a set-user-ID program gets no privilege from an unprivileged tracer, and time passes slowly.

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
compile_error!("rtit-tracer steps programs by ptrace: it needs Linux on x86-64");

mod attach;
mod child;
mod engine;
mod error;
pub mod event;
mod lookup;
mod maps;
mod memory;
mod options;
mod procfs;
mod refusal;
mod shared;
mod space;
mod stream;
mod sys;
mod task;
mod tracer;
mod truth;
mod wire;

pub use error::Error;
pub use event::{Kind, Mapping, Record};
pub use options::{Edge, Options};
pub use stream::Batch;
pub use tracer::{Stats, Tracer};
