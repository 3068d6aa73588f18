//! Threads and processes: how they begin, become another program, and end.

use std::cell::RefCell;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::rc::Rc;

use libc::pid_t;

use crate::engine::state::Engine;
use crate::event::{Kind, Record, Resume, SHARES_MEMORY, TOOK_SIGNAL, WAITS};
use crate::space::Space;
use crate::sys::{self, Go};
use crate::task::{Call, Position, Task};
use crate::{memory, procfs};

impl Engine<'_> {
    pub(super) fn announce(
        &mut self,
        task: &mut Task,
        parent: pid_t,
        parent_process: pid_t,
        shares_memory: bool,
    ) {
        if let Some(text) = self.truth.thread(task.id(), task.pid as u32) {
            self.warn(task.tid, &text);
        }
        let waits = self.window.waits();
        task.tracing = !waits;
        if waits {
            if let Some(text) = self.truth.tracing(task.id(), false) {
                self.warn(task.tid, &text);
            }
        }
        let shares = if shares_memory { SHARES_MEMORY } else { 0 };
        self.emit(Record {
            flags: shares | if waits { WAITS } else { 0 },
            ip: task.pid as u64,
            target: parent as u64,
            extra: parent_process as u64,
            ..Record::new(Kind::Thread, task.id())
        });
    }

    /// The first program is at its exec.
    pub(super) fn began(&mut self, task: &mut Task) -> io::Result<()> {
        self.new_program(task)?;
        task.trap_ignored
            .set(procfs::ignores(task.tid, libc::SIGTRAP));
        // There is no earlier code that anything could rely on.
        task.stale = false;
        self.go(task, 0)
    }

    /// A new thread stops for the first time, in user code.
    pub(super) fn began_thread(&mut self, task: &mut Task) -> io::Result<()> {
        if task.traced {
            let registers = sys::registers(task.tid)?;
            self.arrive(task, &registers);
        }
        Ok(())
    }

    /// The thread started another one.
    pub(super) fn created(&mut self, task: &mut Task) -> io::Result<()> {
        let tid = sys::event_message(task.tid)? as pid_t;
        task.starting = false;
        self.adopt(task, tid);
        Ok(())
    }

    fn adopt(&mut self, parent: &Task, tid: pid_t) {
        let flags = match &parent.position {
            Position::Kernel(call) => clone_flags(parent.tid, call),
            _ if procfs::process_of(tid) == Some(parent.pid) => THREAD_FLAGS,
            _ => 0,
        };
        let pid = if flags & libc::CLONE_THREAD as u64 != 0 {
            parent.pid
        } else {
            tid
        };
        let shares_memory = flags & libc::CLONE_VM as u64 != 0;
        let mut task = parent.child(tid, pid, shares_memory);
        if pid == tid {
            self.shared.add(pid);
        }
        self.announce(&mut task, parent.tid, parent.pid, shares_memory);
        self.tasks.insert(tid, task);
        self.newborn.push(tid);
    }

    /// The thread's process runs a new program; all its other threads are gone.
    pub(super) fn executed(&mut self, task: &mut Task) -> io::Result<()> {
        let former = sys::event_message(task.tid)? as pid_t;
        if former != task.tid {
            if let Some(mut caller) = self.tasks.remove(&former) {
                // The caller goes on under the number of the process's first thread.
                task.position = caller.position.clone();
                task.own_affinity = caller.own_affinity;
                task.trap_blocked = caller.trap_blocked;
                task.held = caller.held;
                task.trap = caller.trap;
                task.traced = caller.traced;
                self.end(&mut caller, 0);
            }
        }
        self.new_program(task)?;
        self.go(task, 0)
    }

    fn new_program(&mut self, task: &mut Task) -> io::Result<()> {
        let registers = sys::registers(task.tid)?;
        task.space = Rc::new(RefCell::new(Space::default()));
        self.own_trap_action(task);
        let path = procfs::executable(task.tid).unwrap_or_default();
        self.emit_blob(
            Record {
                ip: task.pid as u64,
                ..Record::new(Kind::Exec, task.id())
            },
            Some(path.clone()),
        );
        self.write_name(task, true);
        self.warn_of_privilege(task, &path);
        task.outside = Some(Resume::Exec);
        task.injected = None;
        if !sys::is_64_bit(&registers) {
            self.give_up(task, "it is a 32-bit program");
            return Ok(());
        }
        task.traced = true;
        if self.shared.released() {
            self.release(task);
            return Ok(());
        }
        let changes = task.space.borrow_mut().refresh(task.tid);
        self.change(task, changes);
        task.stale = true;
        let call = match std::mem::replace(&mut task.position, Position::Exiting) {
            Position::Kernel(call) => Some(call),
            _ => None,
        };
        task.position = Position::Kernel(Call {
            exec: true,
            ..call.unwrap_or_default()
        });
        Ok(())
    }

    /// `release`, with a warning.
    pub(super) fn give_up(&mut self, task: &mut Task, why: &str) {
        let name = procfs::executable(task.tid).or_else(|| procfs::name(task.tid));
        let name = String::from_utf8_lossy(name.as_deref().unwrap_or_default()).into_owned();
        self.warn(
            task.tid,
            &format!("process {} ({name}) runs untraced: {why}", task.pid),
        );
        self.release(task);
    }

    /// The thread goes on, still followed, but without its path.
    pub(super) fn release(&mut self, task: &mut Task) {
        self.leave(task, 0);
        task.traced = false;
        task.position = Position::Exiting;
        // It may have been killed.
        let _ = self.give_back(task);
        if let (Some(all), false) = (&self.affinity, task.own_affinity) {
            // Untraced, it need not share our CPU; if it may not move, it stays.
            let _ = sys::set_affinity(task.tid, all);
        }
    }

    fn warn_of_privilege(&mut self, task: &Task, path: &[u8]) {
        let file = std::path::Path::new(std::ffi::OsStr::from_bytes(path));
        let (Ok(metadata), Some((user, group))) = (file.metadata(), procfs::identity(task.tid))
        else {
            return;
        };
        let mode = metadata.mode();
        let user_lost = mode & libc::S_ISUID != 0 && metadata.uid() != user;
        let group_lost = mode & (libc::S_ISGID | libc::S_IXGRP) == libc::S_ISGID | libc::S_IXGRP
            && metadata.gid() != group;
        if user_lost || group_lost {
            let what = if user_lost {
                "set-user-ID"
            } else {
                "set-group-ID"
            };
            self.warn(
                task.tid,
                &format!(
                    "{} is {what} and runs without that privilege: the tracer has none",
                    file.display()
                ),
            );
        }
    }

    /// The thread is on its way out.
    pub(super) fn exiting(&mut self, task: &mut Task) -> io::Result<()> {
        let signal = task
            .injected
            .map_or(libc::SIGKILL, |injected| injected.signal);
        self.leave(task, signal);
        if task.traced {
            task.position = Position::Exiting;
        }
        sys::resume(task.tid, Go::Free, 0)
    }

    /// The thread was waited for.
    pub(super) fn ended(&mut self, mut task: Task, raw: i32) {
        self.leave(&mut task, libc::SIGKILL);
        if task.tid == self.root {
            self.status = raw;
        }
        if task.tid == task.pid {
            self.shared.remove(task.pid);
            self.traps.retain(|&(of, _)| of != task.pid);
        }
        let took = task
            .injected
            .is_some_and(|injected| raw & 0x7f == injected.signal);
        self.end_with(&mut task, raw, if took { TOOK_SIGNAL } else { 0 });
        // A thread that is killed while it starts another one never says so.
        if task.starting && !self.tasks.values().any(|other| other.starting) {
            let orphans: Vec<pid_t> = self.early.keys().copied().collect();
            for tid in orphans {
                self.adopt(&task, tid);
            }
            self.on_newborn();
        }
    }

    fn end(&mut self, task: &mut Task, raw: i32) {
        self.end_with(task, raw, 0);
    }

    /// The thread's trace ends; `flags` are those of [`Kind::Exit`].
    pub(super) fn end_with(&mut self, task: &mut Task, raw: i32, flags: u8) {
        self.cut(task);
        if let Some(text) = self.truth.end(task.id(), raw as u32) {
            self.warn(task.tid, &text);
        }
        self.emit(Record {
            flags,
            ip: u64::from(raw as u32),
            extra: task.retired,
            ..Record::new(Kind::Exit, task.id())
        });
    }
}

const THREAD_FLAGS: u64 = (libc::CLONE_THREAD | libc::CLONE_VM) as u64;

/// Whether the call starts a thread or process.
pub(super) fn starts_thread(call: &Call) -> bool {
    let calls: &[u64] = if call.compat { &COMPAT_CALLS } else { &CALLS };
    calls.contains(&call.number)
}

/// clone, fork, vfork, clone3, by SYSCALL and by INT 80H.
const CALLS: [u64; 4] = [56, 57, 58, 435];
const COMPAT_CALLS: [u64; 4] = [120, 2, 190, 435];

fn clone_flags(tid: pid_t, call: &Call) -> u64 {
    let calls = if call.compat { COMPAT_CALLS } else { CALLS };
    match calls.iter().position(|&number| number == call.number) {
        Some(0) => call.arguments[0],
        Some(2) => (libc::CLONE_VM | libc::CLONE_VFORK) as u64,
        // The flags are the first field of the structure.
        Some(3) => memory::read_u64(tid, call.arguments[0]).unwrap_or(0),
        _ => 0,
    }
}
