//! The program to run, and how; and the handle on a traced program. A thread of its own does the tracing.

use std::ffi::OsString;
use std::io;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{mpsc, Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use libc::pid_t;

use crate::event_stream::{lock_despite_poison, RecordBatch, TracerState};
use crate::program_start::LaunchPlan;
use crate::truth_output::TruthOutput;
use crate::{attach_process, engine, error, Error};

/// An edge of the recording window.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum WindowEdge {
    /// Before the instruction at `offset` of file `path`.
    Code { path: Vec<u8>, offset: u64 },
    /// After so many instructions of all threads.
    After(u64),
    /// After so many instructions since the start edge.
    AfterStart(u64),
}

/// A program and the conditions under which it is traced.
#[derive(Clone, Debug)]
pub struct TraceOptions {
    /// The program, looked up in PATH unless it has a slash, and its arguments.
    pub arguments: Vec<OsString>,
    /// Entries NAME=value; None: the environment of this process.
    pub environment: Option<Vec<OsString>>,
    /// The directory to start in; None: that of this process.
    pub directory: Option<PathBuf>,
    /// Load everything at addresses that do not change between runs.
    pub no_aslr: bool,
    /// The truth file to write.
    pub truth: Option<PathBuf>,
    /// End its runs at each conditional branch, also at those not taken: a PSB, from which a decoder can start, can
    /// follow any branch.
    pub cut_at_branches: bool,
    /// Run tracer and program on one CPU, which halves the cost of a step. The program does not see it.
    pub pin: bool,
    /// Signals that the program gets with their default action although this process ignores them. The default is what
    /// Rust and Python programs ignore: SIGPIPE and SIGXFSZ.
    pub default_signals: Vec<i32>,
    /// Signals that the program starts with blocked; None: those that the calling thread blocks.
    pub blocked_signals: Option<Vec<i32>>,
    /// Tracing is off outside of these edges. The truth file has everything.
    pub start: Option<WindowEdge>,
    pub stop: Option<WindowEdge>,
}

impl TraceOptions {
    pub fn new(arguments: impl IntoIterator<Item = impl Into<OsString>>) -> TraceOptions {
        TraceOptions {
            arguments: arguments.into_iter().map(Into::into).collect(),
            environment: None,
            directory: None,
            no_aslr: false,
            truth: None,
            cut_at_branches: false,
            pin: true,
            default_signals: vec![libc::SIGPIPE, libc::SIGXFSZ],
            blocked_signals: None,
            start: None,
            stop: None,
        }
    }
}

/// The progress of the program.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct TracerStats {
    /// Instructions that all threads have retired: the clock of the events.
    pub retired: u64,
    /// Stops of threads.
    pub stops: u64,
    /// Since the start, or from start to end.
    pub seconds: f64,
    /// Living processes.
    pub processes: usize,
}

/// Ends the stream however the tracing thread ends.
struct EndOfStream(Arc<TracerState>);

impl Drop for EndOfStream {
    fn drop(&mut self) {
        *self.0.tracing_end_time() = Some(Instant::now());
        self.0.stream.end_stream();
    }
}

fn spawn_thread(
    shared: &Arc<TracerState>,
    work: impl FnOnce(&TracerState) + Send + 'static,
) -> Result<JoinHandle<()>, Error> {
    let end = EndOfStream(shared.clone());
    std::thread::Builder::new()
        .name("rtit-tracer".to_owned())
        .spawn(move || {
            let end = end;
            work(&end.0);
        })
        .map_err(Error::from_failed_call("pthread_create"))
}

/// A traced program and all that it starts. Dropping it kills them, or detaches from them if they were attached to. It
/// does nothing in a forked process.
pub struct Tracer {
    shared: Arc<TracerState>,
    pid: pid_t,
    /// Shutting it down detaches from attached programs.
    control: Mutex<Option<UnixStream>>,
    /// The process that owns the tracer. A forked one has its memory but not its threads.
    owner: u32,
    thread: Option<JoinHandle<()>>,
}

impl Tracer {
    /// Runs a program up to its first instruction and starts to trace it.
    ///
    /// The tracing thread waits only for its own children and leaves other children of this process alone; but a
    /// `waitpid(-1)` elsewhere in this process would take its stops.
    pub fn start_program(options: &TraceOptions) -> Result<Tracer, Error> {
        let plan = LaunchPlan::new(options)?;
        let truth = TruthOutput::new(options.truth.as_deref(), options.cut_at_branches)?;
        let options = options.clone();
        let shared = Arc::new(TracerState::new(false));
        let (sender, started) = mpsc::sync_channel(1);
        let thread = spawn_thread(&shared, move |shared| {
            engine::trace_program(shared, &plan, truth, &options, &sender);
        })?;
        let ended = |_| {
            Err(Error::from_failed_call("start")(io::Error::other(
                "the tracing thread ended",
            )))
        };
        let pid = started.recv().unwrap_or_else(ended)?;
        Ok(Tracer::new(shared, pid, None, thread))
    }

    fn new(
        shared: Arc<TracerState>,
        pid: pid_t,
        control: Option<UnixStream>,
        thread: JoinHandle<()>,
    ) -> Tracer {
        Tracer {
            shared,
            pid,
            control: Mutex::new(control),
            owner: std::process::id(),
            thread: Some(thread),
        }
    }

    /// Starts to trace running processes, with all their threads and all that they start. `truth` is as in
    /// [`TraceOptions`].
    ///
    /// They are not started, killed or pinned to a CPU: [`Tracer::kill_all_processes`] and dropping detach from them,
    /// and so does the death of this process.
    pub fn attach_to_processes(
        pids: &[u32],
        truth: Option<&Path>,
        cut_at_branches: bool,
    ) -> Result<Tracer, Error> {
        let numbers = checked_process_ids(pids)?;
        let truth = TruthOutput::new(truth, cut_at_branches)?;
        let (attached, control) = attach_process::attach_processes(&numbers, truth)?;
        let shared = Arc::new(TracerState::new(true));
        let thread = spawn_thread(&shared, move |shared| attached.forward_batches(shared))?;
        Ok(Tracer::new(shared, numbers[0], Some(control), thread))
    }

    /// Fails as [`Tracer::start_program`] would before it starts anything: if the program does not exist or may not be
    /// executed, for a directory, for arguments with NUL bytes.
    pub fn check_program(options: &TraceOptions) -> Result<(), Error> {
        LaunchPlan::new(options).map(drop)
    }

    /// Fails as [`Tracer::attach_to_processes`] would before it stops anything.
    pub fn check_processes(pids: &[u32]) -> Result<(), Error> {
        checked_process_ids(pids).map(drop)
    }

    /// Returns whether this process owns the tracer. A forked process can do nothing with it: threads that it lacks may
    /// hold the locks, and the programs are not its own.
    pub fn is_owned_by_this_process(&self) -> bool {
        std::process::id() == self.owner
    }

    /// Returns the first process.
    pub fn first_process_id(&self) -> u32 {
        self.pid as u32
    }

    /// Returns the events since the last call, in order. The batch is empty if nothing happens within `timeout`; None
    /// after [`crate::EventKind::End`].
    pub fn next_batch(&self, timeout: Duration) -> Option<RecordBatch> {
        self.shared.stream.next_batch(timeout)
    }

    /// Sends a signal to the first process; fails with ESRCH if it has ended or was attached to.
    pub fn signal_first_process(&self, signal: i32) -> io::Result<()> {
        self.shared.signal_process(self.pid, signal)
    }

    /// Lets everything run without steps. Threads and processes are still followed to their ends.
    pub fn release_all_threads(&self) {
        self.shared.released.store(true, Ordering::Relaxed);
    }

    /// Kills every process, or detaches from attached ones. The remaining events still arrive.
    pub fn kill_all_processes(&self) {
        self.shared.kill_all_processes();
        let control = lock_despite_poison(&self.control).take();
        if let Some(control) = control {
            // The other end may be gone.
            let _ = control.shutdown(Shutdown::Both);
        }
    }

    pub fn tracer_stats(&self) -> TracerStats {
        let end = self.shared.tracing_end_time().unwrap_or_else(Instant::now);
        TracerStats {
            retired: self.shared.retired.load(Ordering::Relaxed),
            stops: self.shared.stops.load(Ordering::Relaxed),
            seconds: end.duration_since(self.shared.started).as_secs_f64(),
            processes: self.shared.process_count(),
        }
    }
}

/// Returns the processes to attach to, without duplicates, after checking them.
fn checked_process_ids(pids: &[u32]) -> Result<Vec<pid_t>, Error> {
    if pids.is_empty() {
        return Err(Error::Argument {
            what: "no process is given".to_owned(),
        });
    }
    let mut numbers = Vec::new();
    for &pid in pids {
        let number = pid_t::try_from(pid).unwrap_or(0);
        error::check_attachable(number)?;
        if !numbers.contains(&number) {
            numbers.push(number);
        }
    }
    Ok(numbers)
}

impl Drop for Tracer {
    fn drop(&mut self) {
        if !self.is_owned_by_this_process() {
            // Another process owns the thread: neither wait for it nor detach.
            std::mem::forget(self.thread.take());
            return;
        }
        self.shared.stream.continue_without_reader();
        self.kill_all_processes();
        if let Some(thread) = self.thread.take() {
            // A panic in there has been printed, and its tracees have died with it.
            let _ = thread.join();
        }
    }
}
