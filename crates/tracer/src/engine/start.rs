//! The start of a program that is traced from its first instruction on.

use std::io;
use std::sync::mpsc::SyncSender;

use libc::pid_t;

use crate::child::{block_signals, Child, Plan};
use crate::engine::breakpoint;
use crate::engine::state::Engine;
use crate::engine::window::Window;
use crate::options::Options;
use crate::shared::Shared;
use crate::sys::{self, Go, Status};
use crate::truth::Truth;
use crate::Error;

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
        ..Engine::new(shared, truth, root, breakpoint::work())
    };
    let _ = started.send(Ok(root));
    engine.run();
    engine.finish();
}

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
