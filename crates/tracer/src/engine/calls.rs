//! System calls: their entry and exit, and those that matter to a trace.

use std::io;

use crate::engine::processes::starts_thread;
use crate::engine::restart::{
    may_restart, nothing_for_program, restart, was_interrupted, RESTARTS,
};
use crate::engine::state::Engine;
use crate::event::{Kind, Record, Resume};
use crate::sys::{self, Registers};
use crate::task::{Call, Next, Position, Task};
use crate::{memory, procfs};

/// Set in the number of a call by the x32 ABI.
const X32: u64 = 0x4000_0000;

impl Engine<'_> {
    /// The thread is at the entry or the exit of a system call.
    pub(super) fn call_stop(&mut self, task: &mut Task) -> io::Result<()> {
        let mut registers = sys::registers(task.tid)?;
        task.injected = None;
        match task.position.clone() {
            Position::Kernel(call) => {
                if !call.compat
                    && may_restart(&registers)
                    && (self.detaching.is_some() || nothing_for_program(task))
                {
                    restart(task.tid, &mut registers)?;
                }
                self.returned(task, &call, &registers)?;
            }
            Position::User(next) => {
                self.entered(task, next, registers)?;
                if let Position::Kernel(call) = task.position.clone() {
                    self.hand_back(task, &call)?;
                }
                let signal = self.send_held(task);
                return self.go(task, signal);
            }
            Position::Restart(call) => {
                self.made_again(task, &call.next);
                self.hand_back(task, &call)?;
                task.position = Position::Kernel(call);
            }
            Position::New | Position::Attaching | Position::Exiting => {}
        }
        self.go(task, 0)
    }

    fn entered(&mut self, task: &mut Task, next: Next, mut registers: Registers) -> io::Result<()> {
        let compat = next.vector == 0x80;
        if compat {
            self.write_software_interrupt(task, &next);
        } else {
            // The shadow of MOV SS ends at a SYSCALL: what is not at it has been passed.
            self.pass_to(task, registers.rip);
        }
        task.outside = Some(Resume::SystemCall);
        let call = call_at(next, &registers);
        if !compat && call.number == libc::SYS_rseq as u64 && self.bell.is_none() {
            // A restartable sequence is restarted by every stop, so that it would never come to its end. A program that
            // was attached to has been promised the call: glibc aborts it if a new thread does not get it.
            registers.orig_rax = u64::MAX;
            sys::set_registers(task.tid, &registers)?;
        }
        task.starting = starts_thread(&call);
        task.position = Position::Kernel(call);
        Ok(())
    }

    /// The kernel went back to the instruction and made the call again.
    pub(super) fn made_again(&mut self, task: &mut Task, next: &Next) {
        self.enter(task, next);
        if next.vector == 0x80 {
            self.write_software_interrupt(task, next);
        } else {
            task.position = Position::User(next.clone());
            self.pass_to(task, next.ip.wrapping_add(2));
        }
        task.outside = Some(Resume::SystemCall);
    }

    /// The thread is about to leave the kernel.
    pub(super) fn returned(
        &mut self,
        task: &mut Task,
        call: &Call,
        registers: &Registers,
    ) -> io::Result<()> {
        let result = registers.rax as i64;
        self.handed_back(task, call, result)?;
        task.starting = false;
        task.lets_trap &= was_interrupted(result);
        let sigreturn = libc::SYS_rt_sigreturn as u64;
        task.returned = !call.compat && call.number == sigreturn;
        if !task.returned && RESTARTS.contains(&result) {
            task.position = Position::Restart(call.clone());
            return Ok(());
        }
        if task.returned {
            task.even = task.retired + (task.retired - task.handler_began);
        }
        if call.exec || changes_mask(call) {
            self.mask_changed(task, call, result)?;
        }
        if call.exec {
            task.outside = Some(Resume::Exec);
        } else if !(-4095..0).contains(&result) {
            self.succeeded(task, call, registers.rax)?;
        }
        self.arrive(task, registers);
        Ok(())
    }

    /// The kernel must not know SIGTRAP as blocked; what the program thinks of it is kept.
    fn mask_changed(&mut self, task: &mut Task, call: &Call, result: i64) -> io::Result<()> {
        let now = sys::unblock_trap(task.tid)?;
        let before = task.trap_blocked;
        let set = |index: usize| {
            let address = call.arguments[index];
            (address != 0).then(|| memory::read_u64(task.tid, address))?
        };
        if call.compat || call.exec || call.number != libc::SYS_rt_sigprocmask as u64 {
            task.trap_blocked = now || call.exec && before;
            return Ok(());
        }
        if result != 0 {
            return Ok(());
        }
        let given = call.arguments[1] != 0;
        let unblocked = || set(1).is_some_and(|set| set & sys::TRAP != 0);
        task.trap_blocked = match call.arguments[0] as i32 {
            libc::SIG_SETMASK if given => now,
            libc::SIG_UNBLOCK if given && unblocked() => false,
            _ => now || before,
        };
        if let (true, Some(old)) = (before, set(2)) {
            let old = (old | sys::TRAP).to_le_bytes();
            memory::write(task.tid, call.arguments[2], &old)?;
        }
        Ok(())
    }

    /// A call whose effect a trace or the tracer has to know.
    fn succeeded(&mut self, task: &mut Task, call: &Call, result: u64) -> io::Result<()> {
        if self.maps_code(task, call, result) {
            let changes = task.space.borrow_mut().refresh(task.tid);
            self.change(task, changes);
        }
        if call.compat {
            return Ok(());
        }
        match call.number as i64 {
            libc::SYS_prctl if call.arguments[0] as i32 == libc::PR_SET_NAME => {
                self.write_name(task, false);
            }
            libc::SYS_rt_sigaction if call.arguments[0] == libc::SIGTRAP as u64 => {
                self.trap_action(task, call)?;
            }
            libc::SYS_sched_setaffinity => {
                let tid = call.arguments[0] as libc::pid_t;
                if tid == 0 || tid == task.tid {
                    task.own_affinity = true;
                } else if let Some(other) = self.tasks.get_mut(&tid) {
                    other.own_affinity = true;
                }
            }
            libc::SYS_sched_getaffinity => self.hide_affinity(task, call, result)?,
            _ => {}
        }
        Ok(())
    }

    /// Whether executable mappings may have changed.
    fn maps_code(&self, task: &Task, call: &Call, result: u64) -> bool {
        if call.compat {
            // Other numbers; rare enough to look each time.
            return true;
        }
        let [start, length, third, ..] = call.arguments;
        let executable = third & libc::PROT_EXEC as u64 != 0;
        let over = |start: u64, length: u64| {
            task.space
                .borrow()
                .has_code(start, start.saturating_add(length))
        };
        match call.number as i64 {
            libc::SYS_mmap => executable || over(result, length),
            libc::SYS_mprotect | libc::SYS_pkey_mprotect => executable || over(start, length),
            libc::SYS_munmap => over(start, length),
            libc::SYS_mremap => over(start, length) || over(result, third),
            libc::SYS_shmat | libc::SYS_shmdt | libc::SYS_remap_file_pages => true,
            _ => false,
        }
    }

    /// The program asked for its CPUs: the answer is what it would be without us.
    fn hide_affinity(&mut self, task: &Task, call: &Call, result: u64) -> io::Result<()> {
        let Some(mask) = &self.affinity else {
            return Ok(());
        };
        let tid = call.arguments[0] as libc::pid_t;
        let own = match tid {
            0 => task.own_affinity,
            _ if tid == task.tid => task.own_affinity,
            _ => self.tasks.get(&tid).is_none_or(|other| other.own_affinity),
        };
        if own {
            return Ok(());
        }
        let size = mask
            .len()
            .min(usize::try_from(result).unwrap_or(usize::MAX));
        memory::write(task.tid, call.arguments[2], &mask[..size])
    }

    pub(super) fn write_name(&mut self, task: &Task, by_exec: bool) {
        let Some(name) = procfs::name(task.tid) else {
            return;
        };
        self.emit_blob(
            Record {
                flags: u8::from(by_exec) * crate::event::BY_EXEC,
                ip: task.pid as u64,
                ..Record::new(Kind::Comm, task.id())
            },
            Some(name),
        );
    }
}

/// The call that the registers tell of; its instruction is `next`.
pub(super) fn call_at(next: Next, r: &Registers) -> Call {
    let compat = next.vector == 0x80;
    Call {
        number: r.orig_rax & !X32,
        arguments: if compat {
            [r.rbx, r.rcx, r.rdx, r.rsi, r.rdi, r.rbp].map(|argument| argument & 0xffff_ffff)
        } else {
            [r.rdi, r.rsi, r.rdx, r.r10, r.r8, r.r9]
        },
        compat,
        exec: false,
        next,
    }
}

/// Whether the call may block signals until further notice.
fn changes_mask(call: &Call) -> bool {
    // INT 80H has other numbers; rare enough to look each time.
    call.compat
        || matches!(
            call.number as i64,
            libc::SYS_rt_sigprocmask | libc::SYS_rt_sigreturn
        )
}
