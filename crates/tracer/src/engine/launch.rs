//! Starts a program that is traced from its first instruction.

use std::io;
use std::sync::mpsc::SyncSender;

use libc::pid_t;

use crate::engine::engine_state::Engine;
use crate::engine::engine_state::RecordingWindow;
use crate::engine::instruction_steps;
use crate::event_stream::TracerState;
use crate::options::Options;
use crate::program_start::{block_signals, LaunchPlan, WaitingChild};
use crate::ptrace::{self, ResumeMode, StopStatus};
use crate::truth_output::TruthOutput;
use crate::Error;

/// The life of the tracing thread. `started` gets the first process, or an error.
pub(crate) fn main(
    shared: &TracerState,
    plan: &LaunchPlan,
    truth: TruthOutput,
    options: &Options,
    started: &SyncSender<Result<pid_t, Error>>,
) {
    block_signals();
    let affinity = if options.pin { pin_to_one_cpu() } else { None };
    let root = match launch(plan) {
        Ok(root) => root,
        Err(error) => {
            // The caller may be gone.
            let _ = started.send(Err(error));
            return;
        }
    };
    shared.add_process(root);
    let mut engine = Engine {
        window: RecordingWindow::new(options.start.clone(), options.stop.clone()),
        affinity,
        ..Engine::new(shared, truth, root, instruction_steps::breakpoints_work())
    };
    let _ = started.send(Ok(root));
    engine.run_loop();
    engine.finish_trace();
}

/// Pins this thread, and so the program, to the current CPU; returns the CPUs that it had.
fn pin_to_one_cpu() -> Option<Vec<u8>> {
    let all = ptrace::affinity().ok()?;
    // SAFETY: no arguments.
    let cpu = usize::try_from(unsafe { libc::sched_getcpu() }).ok()?;
    let mut one = vec![0u8; all.len()];
    *one.get_mut(cpu / 8)? = 1 << (cpu % 8);
    ptrace::set_affinity(0, &one).ok()?;
    Some(all)
}

/// Forks the program and follows it up to its exec.
fn launch(plan: &LaunchPlan) -> Result<pid_t, Error> {
    let child = plan.fork_child()?;
    if let Err(error) = child.seize() {
        // It waits at the gate, which never opens: it ends by itself.
        let pid = child.pid;
        drop(child);
        let _ = ptrace::wait_for_stop(pid);
        return Err(error);
    }
    child.open_gate()?;
    follow_to_exec(child, plan)
}

fn follow_to_exec(child: WaitingChild, plan: &LaunchPlan) -> Result<pid_t, Error> {
    let pid = child.pid;
    loop {
        let stop = ptrace::wait_for_stop(pid).map_err(|error| Error::System {
            call: "waitpid",
            error,
        })?;
        let (go, signal) = match stop {
            None => break,
            Some((_, StopStatus::Ended(_))) => break,
            Some((_, StopStatus::Event(libc::PTRACE_EVENT_EXEC, _))) => return Ok(pid),
            Some((_, StopStatus::Event(libc::PTRACE_EVENT_STOP, signal)))
                if signal != libc::SIGTRAP =>
            {
                (ResumeMode::Listen, 0)
            }
            Some((_, StopStatus::Signal(signal))) => (ResumeMode::Free, signal),
            Some((_, StopStatus::Event(..) | StopStatus::Syscall)) => (ResumeMode::Free, 0),
        };
        // If it has just been killed, the next wait reports that.
        let _ = ptrace::resume_thread(pid, go, signal);
    }
    Err(child.launch_error(plan).unwrap_or_else(|| Error::System {
        call: "execve",
        error: io::Error::other("the program was killed before it began"),
    }))
}
