//! Attaching to programs that run: all their threads are stopped, and what a trace needs to know of them is written
//! before they go on.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

use libc::pid_t;

use crate::engine::breakpoint;
use crate::engine::calls::call_at;
use crate::engine::restart::{may_restart, restart, RESTARTS};
use crate::engine::state::Engine;
use crate::event::Resume;
use crate::shared::Shared;
use crate::space::Space;
use crate::sys::{self, Status, Waited};
use crate::task::{Position, Task};
use crate::truth::Truth;
use crate::{procfs, refusal, Error};

/// A thread that the kernel keeps from stopping joins when it can; the others go on after this time.
const PATIENCE: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_micros(200);

/// The life of a process that attaches to others. It lets go of them when `bell`, its child, ends. Reports to `started`.
pub(crate) fn main(
    shared: &Shared,
    pids: &[pid_t],
    truth: Truth,
    bell: pid_t,
    started: impl FnOnce(Result<(), Error>),
) {
    let mut engine = Engine {
        bell: Some(bell),
        ..Engine::new(
            shared,
            truth,
            pids.first().copied().unwrap_or(0),
            breakpoint::work(),
        )
    };
    match engine.attach(pids) {
        Ok(()) => started(Ok(())),
        // What was attached is let go by the kernel when this process ends: it has not gone on yet.
        Err(error) => return started(Err(error)),
    }
    engine.go_on();
    engine.run_attached();
    engine.finish();
}

impl Engine<'_> {
    /// Stops all threads and says what they are.
    fn attach(&mut self, pids: &[pid_t]) -> Result<(), Error> {
        let mut processes = Vec::new();
        for &pid in pids {
            processes.push((pid, seize_process(pid)?));
        }
        self.wait_for_stops(&processes);
        for (pid, tids) in processes {
            let has_ended = |tid: &pid_t| {
                let stops = self.early.get(tid).map(Vec::as_slice);
                matches!(stops, Some([Status::Ended(_)]))
            };
            let (ended, tids): (Vec<_>, Vec<_>) = tids.into_iter().partition(has_ended);
            for tid in ended {
                self.early.remove(&tid);
            }
            if tids.is_empty() {
                return Err(ended_meanwhile(pid));
            }
            self.introduce(pid, &tids);
        }
        Ok(())
    }

    fn wait_for_stops(&mut self, processes: &[(pid_t, Vec<pid_t>)]) {
        let begin = Instant::now();
        let missing = |engine: &Self| {
            let mut tids = processes.iter().flat_map(|(_, tids)| tids);
            tids.any(|tid| !engine.early.contains_key(tid))
        };
        while missing(self) && begin.elapsed() < PATIENCE {
            match sys::poll() {
                Ok(Waited::Status(tid, _)) if Some(tid) == self.bell => self.shared.kill(),
                Ok(Waited::Status(tid, status)) => self.early.entry(tid).or_default().push(status),
                Ok(Waited::Nothing) => std::thread::sleep(PAUSE),
                Ok(Waited::Nobody) | Err(_) => break,
            }
        }
    }

    /// Writes the threads, their names and the mappings of a process.
    fn introduce(&mut self, pid: pid_t, tids: &[pid_t]) {
        self.shared.add(pid);
        let space = Rc::new(RefCell::new(Space::default()));
        let ignored = Rc::new(Cell::new(procfs::ignores(pid, libc::SIGTRAP)));
        let mut parent = 0;
        for &tid in tids {
            let mut task = Task::new(tid, pid, space.clone());
            task.position = Position::Attaching;
            task.trap_ignored = Rc::clone(&ignored);
            let parent_process = if parent == 0 { 0 } else { pid };
            self.announce(&mut task, parent, parent_process, parent != 0);
            self.write_name(&task, false);
            if parent == 0 {
                let changes = space.borrow_mut().refresh(tid);
                self.change(&mut task, changes);
                parent = tid;
            }
            // Nothing that ran in this trace relies on anything else.
            task.stale = false;
            self.tasks.insert(tid, task);
        }
    }

    /// Handles the first stops.
    fn go_on(&mut self) {
        self.newborn = self.tasks.keys().copied().collect();
        self.on_newborn();
    }

    /// A thread that ran before it was traced has stopped: finds out where.
    pub(super) fn first_stop(&mut self, task: &mut Task, status: Status) -> io::Result<()> {
        let mut registers = sys::registers(task.tid)?;
        task.trap_blocked = sys::unblock_trap(task.tid)?;
        let in_call = registers.orig_rax as i64 >= 0;
        task.outside = Some(if in_call {
            Resume::SystemCall
        } else {
            Resume::Other
        });
        let starts_another = matches!(
            status,
            Status::Event(
                libc::PTRACE_EVENT_CLONE | libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK,
                _
            )
        );
        if in_call && may_restart(&registers) {
            restart(task.tid, &mut registers)?;
        }
        let restarts = RESTARTS.contains(&(registers.rax as i64));
        if !in_call || !(restarts || starts_another) {
            self.arrive(task, &registers);
            return Ok(());
        }
        // Both instructions that make system calls have two bytes.
        let call = call_at(
            self.next_at(task, registers.rip.wrapping_sub(2), &registers, 0),
            &registers,
        );
        task.position = if starts_another {
            Position::Kernel(call)
        } else {
            Position::Restart(call)
        };
        Ok(())
    }
}

fn ended_meanwhile(pid: pid_t) -> Error {
    Error::Attach {
        why: format!("process {pid} ended while it was being attached to"),
    }
}

/// Begins to trace all threads of a process, the first one first, and tells them to stop.
fn seize_process(pid: pid_t) -> Result<Vec<pid_t>, Error> {
    // SAFETY: no arguments.
    let tracer = unsafe { libc::gettid() };
    let mut known = HashSet::new();
    let mut seized = Vec::new();
    loop {
        let mut grew = false;
        for tid in procfs::threads(pid) {
            if !known.insert(tid) {
                continue;
            }
            match sys::seize_running(tid) {
                Ok(()) => {
                    seized.push(tid);
                    grew = true;
                    // If it has ended, that is reported.
                    let _ = sys::interrupt(tid);
                }
                // It ended, or one that is traced already has just started it and will say so.
                Err(_) if procfs::has_ended(tid) => {}
                Err(_) if procfs::restrictions(tid).1 == tracer as u32 => {}
                Err(error) => {
                    return Err(Error::Attach {
                        why: refusal::why_not(pid, &error),
                    });
                }
            }
        }
        if !grew {
            break;
        }
    }
    if seized.is_empty() {
        return Err(ended_meanwhile(pid));
    }
    Ok(seized)
}
