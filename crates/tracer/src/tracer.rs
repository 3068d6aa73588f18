//! The handle on a traced program. The tracing itself is done by a thread of its own.

use std::io;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{mpsc, Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use libc::pid_t;

use crate::child::Plan;
use crate::shared::Shared;
use crate::stream::Batch;
use crate::truth::Truth;
use crate::{attach, engine, refusal, Error, Options};

/// How far the program has come.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Stats {
    /// Instructions that all threads retired: the clock of the events.
    pub retired: u64,
    /// How often a thread stopped for us.
    pub stops: u64,
    /// Since the start, or from start to end.
    pub seconds: f64,
    /// Processes that exist now.
    pub processes: usize,
}

/// However the tracing thread ends, the reader gets to know.
struct EndOfStream(Arc<Shared>);

impl Drop for EndOfStream {
    fn drop(&mut self) {
        *self.0.ended() = Some(Instant::now());
        self.0.stream.end();
    }
}

/// A traced program and all that it starts. Dropping it kills them, or lets go of them if they were attached to;
/// in a process that was forked nothing happens.
pub struct Tracer {
    shared: Arc<Shared>,
    pid: pid_t,
    /// Shutting it down lets go of programs that were attached to.
    control: Mutex<Option<UnixStream>>,
    /// The process that it belongs to: one that is forked has its memory, but not its threads.
    owner: u32,
    thread: Option<JoinHandle<()>>,
}

impl Tracer {
    /// Runs a program up to its first instruction and begins to trace it.
    ///
    /// The tracing thread waits only for its own children, so
    /// that other children of this process stay untouched; but a `waitpid(-1)` elsewhere in this process would take
    /// stops from it.
    pub fn start(options: &Options) -> Result<Tracer, Error> {
        let plan = Plan::new(options)?;
        let truth = Truth::new(options.truth.as_deref(), options.cut_at_branches)?;
        let options = options.clone();
        let shared = Arc::new(Shared::new(false));
        let (sender, started) = mpsc::sync_channel(1);
        let for_thread = shared.clone();
        let thread = std::thread::Builder::new()
            .name("rtit-tracer".to_owned())
            .spawn(move || {
                let end = EndOfStream(for_thread);
                engine::main(&end.0, &plan, truth, &options, &sender);
            })
            .map_err(|error| Error::System {
                call: "pthread_create",
                error,
            })?;
        let pid = started.recv().unwrap_or_else(|_| {
            Err(Error::System {
                call: "start",
                error: io::Error::other("the tracing thread ended"),
            })
        })?;
        Ok(Tracer {
            shared,
            pid,
            control: Mutex::new(None),
            owner: std::process::id(),
            thread: Some(thread),
        })
    }

    /// Begins to trace processes that run already, with all their threads and all that they start. `truth` is as in
    /// [`Options`].
    ///
    /// They are not started, killed or pinned to a CPU: [`Tracer::kill`] and dropping let go of them. If this process is
    /// killed, they are let go as well.
    pub fn attach(
        pids: &[u32],
        truth: Option<&Path>,
        cut_at_branches: bool,
    ) -> Result<Tracer, Error> {
        let numbers = process_numbers(pids)?;
        let truth = Truth::new(truth, cut_at_branches)?;
        let (attached, control) = attach::attach(&numbers, truth)?;
        let shared = Arc::new(Shared::new(true));
        let end = EndOfStream(shared.clone());
        let thread = std::thread::Builder::new()
            .name("rtit-tracer".to_owned())
            .spawn(move || attached.read(&end.0))
            .map_err(|error| Error::System {
                call: "pthread_create",
                error,
            })?;
        Ok(Tracer {
            shared,
            pid: numbers[0],
            control: Mutex::new(Some(control)),
            owner: std::process::id(),
            thread: Some(thread),
        })
    }

    /// What [`Tracer::start`] would find wrong before it starts anything: a program that is not there or that may not be
    /// executed, a directory, arguments with NUL bytes.
    pub fn check(options: &Options) -> Result<(), Error> {
        Plan::new(options).map(drop)
    }

    /// What [`Tracer::attach`] would find wrong before it stops anything.
    pub fn check_processes(pids: &[u32]) -> Result<(), Error> {
        process_numbers(pids).map(drop)
    }

    /// Whether this is the process that it belongs to. In one that was forked from it there is nothing to be done with
    /// it: its locks may be held by threads that are not there, and the programs are not its own.
    pub fn is_ours(&self) -> bool {
        std::process::id() == self.owner
    }

    /// The first process.
    pub fn pid(&self) -> u32 {
        self.pid as u32
    }

    /// What happened since the last call, in order. An empty batch if nothing did within `timeout`; None after
    /// [`crate::Kind::End`].
    pub fn next_batch(&self, timeout: Duration) -> Option<Batch> {
        self.shared.stream.next(timeout)
    }

    /// Sends a signal to the first process; fails with ESRCH if it has ended, or was not started by us.
    pub fn signal(&self, signal: i32) -> io::Result<()> {
        self.shared.signal(self.pid, signal)
    }

    /// Lets everything run on without steps; threads and processes are still followed to their ends.
    pub fn release(&self) {
        self.shared.released.store(true, Ordering::Relaxed);
    }

    /// Kills every process, or lets go of those that were attached to; the events still come to their end.
    pub fn kill(&self) {
        self.shared.kill();
        let control = self
            .control
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
            .take();
        if let Some(control) = control {
            // The other end may be gone already.
            let _ = control.shutdown(Shutdown::Both);
        }
    }

    pub fn stats(&self) -> Stats {
        let end = self.shared.ended().unwrap_or_else(Instant::now);
        Stats {
            retired: self.shared.retired.load(Ordering::Relaxed),
            stops: self.shared.stops.load(Ordering::Relaxed),
            seconds: end.duration_since(self.shared.started).as_secs_f64(),
            processes: self.shared.living(),
        }
    }
}

/// The numbers of processes that nothing seems to keep us from tracing; at least one.
fn process_numbers(pids: &[u32]) -> Result<Vec<pid_t>, Error> {
    if pids.is_empty() {
        return Err(Error::Argument {
            what: "no process is given".to_owned(),
        });
    }
    let mut numbers = Vec::new();
    for &pid in pids {
        let number = pid_t::try_from(pid).unwrap_or(0);
        refusal::check(number)?;
        if !numbers.contains(&number) {
            numbers.push(number);
        }
    }
    Ok(numbers)
}

impl Drop for Tracer {
    fn drop(&mut self) {
        if !self.is_ours() {
            // neither waited for nor let go of: it is another process's
            std::mem::forget(self.thread.take());
            return;
        }
        self.shared.stream.abandon();
        self.kill();
        if let Some(thread) = self.thread.take() {
            // A panic in there has been printed, and its tracees died with it.
            let _ = thread.join();
        }
    }
}
