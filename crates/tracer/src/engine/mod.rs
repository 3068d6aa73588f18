//! The tracing thread: waits for a stop, finds out what the thread did since its last one, writes events, lets it go on.
//!
//! * here: the start of the program, the loop, who handles which stop;
//! * `stops`: signals and traps; `steps`: instructions; `calls`: system calls; `processes`: threads, exec, exit;
//! * `attach`, `detach`: programs that ran before and live on; `window`: from where to where the program is traced;
//! * `go`: how a thread goes on; `held`: signals that wait; `breakpoint`: REP instructions in one go; `conditional`: branches that
//!   lead to the next instruction; `output`: the events.

mod attach;
mod breakpoint;
mod calls;
mod conditional;
mod detach;
mod go;
mod held;
mod output;
mod processes;
mod steps;
mod stops;
mod window;

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::SyncSender;
use std::time::Instant;

use libc::pid_t;

use crate::child::{block_signals, Child, Plan};
use crate::event::{Kind, Record, KILLED};
use crate::options::Options;
use crate::space::Space;
use crate::sys::{self, Go, Status};
use crate::task::{Position, Task};
use crate::tracer::Shared;
use crate::truth::Truth;
use crate::Error;

use window::Window;

struct Engine<'a> {
    shared: &'a Shared,
    truth: Truth,
    /// All threads that have not ended. The one whose stop is being handled is taken out.
    tasks: HashMap<pid_t, Task>,
    /// Stops of threads whose parent has not yet said that it started them.
    early: HashMap<pid_t, Vec<Status>>,
    /// Threads that were just started.
    newborn: Vec<pid_t>,
    /// Instructions retired by all threads.
    clock: u64,
    window: Window,
    root: pid_t,
    /// Wait status of the first process.
    status: i32,
    /// The CPUs that the program would run on without us, if we chose one for it.
    affinity: Option<Vec<u8>>,
    breakpoints: bool,
    /// Everything has been told to die.
    killing: bool,
    /// For programs that ran before: the child whose end asks us to let go of them.
    bell: Option<pid_t>,
    /// Since when everything has been told to stop for the last time.
    detaching: Option<Instant>,
    /// Warnings that are given once.
    warned: Warned,
}

#[derive(Default)]
struct Warned {
    unknown: bool,
    jumps: bool,
    mode: bool,
}

/// The life of the tracing thread. Reports the first process, or why there is none, to `started`.
pub(crate) fn main(
    shared: &Shared,
    plan: &Plan,
    truth: Truth,
    options: &Options,
    started: &SyncSender<Result<pid_t, Error>>,
) {
    block_signals();
    let affinity = if options.pin { pin_to_one_cpu() } else { None };
    let root = match launch(plan) {
        Ok(root) => root,
        Err(error) => {
            // Nobody waits for it if the caller is gone.
            let _ = started.send(Err(error));
            return;
        }
    };
    shared.add(root);
    let mut engine = Engine {
        window: Window::new(options.start.clone(), options.stop.clone()),
        affinity,
        ..Engine::new(shared, truth, root)
    };
    let _ = started.send(Ok(root));
    engine.run();
    engine.finish();
}

pub(crate) use attach::main as attached;

/// Keeps this thread, and so the program, on the CPU that it runs on; returns the CPUs that it had.
fn pin_to_one_cpu() -> Option<Vec<u8>> {
    let all = sys::affinity().ok()?;
    // SAFETY: no arguments.
    let cpu = usize::try_from(unsafe { libc::sched_getcpu() }).ok()?;
    let mut one = vec![0u8; all.len()];
    *one.get_mut(cpu / 8)? = 1 << (cpu % 8);
    sys::set_affinity(0, &one).ok()?;
    Some(all)
}

/// Forks the program and follows it up to its exec.
fn launch(plan: &Plan) -> Result<pid_t, Error> {
    let child = plan.fork()?;
    if let Err(error) = child.seize() {
        // It waits at the gate, which is never opened: it ends by itself.
        let pid = child.pid;
        drop(child);
        let _ = sys::wait(pid);
        return Err(error);
    }
    child.release()?;
    follow_to_exec(child, plan)
}

fn follow_to_exec(child: Child, plan: &Plan) -> Result<pid_t, Error> {
    let pid = child.pid;
    loop {
        let stop = sys::wait(pid).map_err(|error| Error::System {
            call: "waitpid",
            error,
        })?;
        let (go, signal) = match stop {
            None => break,
            Some((_, Status::Ended(_))) => break,
            Some((_, Status::Event(libc::PTRACE_EVENT_EXEC, _))) => return Ok(pid),
            Some((_, Status::Event(libc::PTRACE_EVENT_STOP, signal)))
                if signal != libc::SIGTRAP =>
            {
                (Go::Listen, 0)
            }
            Some((_, Status::Signal(signal))) => (Go::Free, signal),
            Some((_, Status::Event(..) | Status::Call)) => (Go::Free, 0),
        };
        // If it has just been killed, the next wait says so.
        let _ = sys::resume(pid, go, signal);
    }
    Err(child.failure(plan).unwrap_or_else(|| Error::System {
        call: "execve",
        error: io::Error::other("the program was killed before it began"),
    }))
}

impl<'a> Engine<'a> {
    fn new(shared: &'a Shared, truth: Truth, root: pid_t) -> Engine<'a> {
        Engine {
            shared,
            truth,
            tasks: HashMap::new(),
            early: HashMap::new(),
            newborn: Vec::new(),
            clock: 0,
            window: Window::new(None, None),
            root,
            status: 0,
            affinity: None,
            breakpoints: breakpoint::work(),
            killing: false,
            bell: None,
            detaching: None,
            warned: Warned::default(),
        }
    }

    fn run(&mut self) {
        let root = self.root;
        let mut task = Task::new(root, root, Rc::new(RefCell::new(Space::default())));
        self.announce(&mut task, 0, 0, false);
        let result = self.began(&mut task);
        self.tasks.insert(root, task);
        self.settle_errors(root, result);
        loop {
            if self.shared.killed() {
                self.kill_everything();
            }
            match sys::wait(-1) {
                Ok(Some((tid, status))) => self.on_status(tid, status),
                Ok(None) => break,
                Err(error) => {
                    self.warn(root, &format!("waitpid: {error}; the trace ends here"));
                    self.kill_everything();
                    break;
                }
            }
            self.count();
        }
    }

    fn count(&self) {
        self.shared.stops.fetch_add(1, Ordering::Relaxed);
        self.shared.retired.store(self.clock, Ordering::Relaxed);
    }

    fn finish(&mut self) {
        let root = self.root;
        if let Some(text) = self.truth.finish() {
            self.warn(root, &text);
        }
        self.emit(Record {
            ip: self.status as u32 as u64,
            target: self.window.phase as u64,
            flags: if self.killing { KILLED } else { 0 },
            ..Record::new(Kind::End, root as u32)
        });
    }

    fn on_status(&mut self, tid: pid_t, status: Status) {
        let Some(mut task) = self.tasks.remove(&tid) else {
            self.early.entry(tid).or_default().push(status);
            return;
        };
        if let Status::Ended(raw) = status {
            self.ended(task, raw);
            return;
        }
        let result = self.on_stop(&mut task, status);
        if !task.detached {
            self.tasks.insert(tid, task);
        }
        self.settle_errors(tid, result);
        self.on_newborn();
    }

    /// Handles what threads reported before they were known.
    fn on_newborn(&mut self) {
        while let Some(born) = self.newborn.pop() {
            for status in self.early.remove(&born).unwrap_or_default() {
                self.on_status(born, status);
            }
        }
    }

    /// A thread that was killed answers ESRCH to everything; its end is reported later.
    fn settle_errors(&mut self, tid: pid_t, result: io::Result<()>) {
        if let Err(error) = result {
            if error.raw_os_error() != Some(libc::ESRCH) {
                let end = match self.bell {
                    Some(_) => "the trace ends here",
                    None => "the program is killed",
                };
                self.warn(tid, &format!("ptrace: {error}; {end}"));
                self.shared.kill();
            }
        }
    }

    fn on_stop(&mut self, task: &mut Task, status: Status) -> io::Result<()> {
        if task.armed {
            self.disarm(task)?;
        }
        if matches!(task.position, Position::Attaching) {
            self.first_stop(task, status)?;
        }
        match status {
            Status::Event(libc::PTRACE_EVENT_EXEC, _) => self.executed(task),
            Status::Event(libc::PTRACE_EVENT_EXIT, _) => self.exiting(task),
            Status::Event(
                libc::PTRACE_EVENT_CLONE | libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK,
                _,
            ) => {
                self.created(task)?;
                self.go(task, 0)
            }
            Status::Event(libc::PTRACE_EVENT_STOP, libc::SIGTRAP) => {
                if matches!(task.position, Position::New) {
                    self.began_thread(task)?;
                }
                self.go(task, 0)
            }
            Status::Event(libc::PTRACE_EVENT_STOP, signal) => {
                self.leave(task, signal);
                match self.detaching {
                    Some(_) => self.detach(task, 0),
                    None => sys::resume(task.tid, Go::Listen, 0),
                }
            }
            Status::Signal(signal) if !task.traced => self.go(task, signal),
            Status::Event(..) => self.go(task, 0),
            Status::Call if !task.traced => self.go(task, 0),
            Status::Call => self.call_stop(task),
            Status::Signal(libc::SIGTRAP) => self.trapped(task),
            Status::Signal(signal) => self.signalled(task, signal),
            Status::Ended(_) => Ok(()),
        }
    }

    fn kill_everything(&mut self) {
        if self.killing && self.early.is_empty() {
            return;
        }
        self.killing = true;
        self.shared.kill();
        for (&tid, statuses) in &self.early {
            if !statuses
                .iter()
                .any(|status| matches!(status, Status::Ended(_)))
            {
                // SAFETY: no pointers. The thread has not been waited for, so that the number is its own.
                unsafe { libc::kill(tid, libc::SIGKILL) };
            }
        }
    }
}
