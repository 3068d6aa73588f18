//! A program that ignores SIGTRAP ignores it again when it is let go.
//!
//! The kernel forgets that at the first step (`traps`), and takes it from the process itself alone: one of its threads
//! makes the call, at a stop that comes before any signal is taken, with all signals blocked, and is brought back to
//! where it was, the call included that the stop had interrupted. Each thread looks: another's step may undo it.

use std::io;

use crate::engine::state::Engine;
use crate::sys::{self, trap, Go, Registers, Status};
use crate::task::Task;
use crate::{maps, memory, procfs};

/// What a signal handler of the program, or the red zone, may have below the stack pointer is left alone.
const BELOW_STACK: u64 = 1024;
/// `struct sigaction` of the kernel: handler, flags, restorer, mask.
const ACTION: [u64; 4] = [libc::SIG_IGN as u64, 0, 0, 0];
const SYSCALL: [u8; 2] = [0x0f, 0x05];
/// A search for SYSCALL in code goes so far into a mapping.
const LOOKED_AT: u64 = 1 << 20;
/// Stops that others cause while one of ours is waited for.
const OTHER_STOPS: usize = 64;

/// Whether the kernel has forgotten that the process ignores SIGTRAP.
pub(super) fn is_forgotten(task: &Task) -> bool {
    task.trap_ignored.get() && !procfs::ignores(task.tid, libc::SIGTRAP)
}

impl Engine<'_> {
    /// A thread that is not traced any more has a SIGTRAP, which the kernel does not know to be ignored.
    pub(super) fn trapped_untraced(&mut self, task: &mut Task) -> io::Result<()> {
        match sys::signal_code(task.tid)? {
            // An instruction made it: that ends who ignores it.
            trap::KERNEL | trap::BREAKPOINT => self.go(task, libc::SIGTRAP),
            _ => self.go(task, 0),
        }
    }

    /// The thread has stopped because it was told to, and will be let go.
    pub(super) fn ignore_again(&mut self, task: &mut Task) -> io::Result<()> {
        if !is_forgotten(task) || sys::trap_is_pending(task.tid)? {
            return Ok(());
        }
        let text = match self.ignore_by_call(task) {
            Ok(()) if !is_forgotten(task) => return Ok(()),
            Ok(()) => "its call failed".to_owned(),
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Err(error),
            Err(error) => error.to_string(),
        };
        task.trap_ignored.set(false);
        self.warn(
            task.tid,
            &format!(
                "process {} ignored SIGTRAP, and does not any more: steps undo that, and it could not be set \
                 again ({text})",
                task.pid
            ),
        );
        Ok(())
    }

    fn ignore_by_call(&mut self, task: &Task) -> io::Result<()> {
        let tid = task.tid;
        let registers = sys::registers(tid)?;
        if !sys::is_64_bit(&registers) {
            return Err(io::Error::other("it runs 32-bit code"));
        }
        if procfs::restrictions(tid).0 {
            return Err(io::Error::other("a seccomp filter looks at its calls"));
        }
        let call = find_syscall(tid)
            .ok_or_else(|| io::Error::other("its code has no SYSCALL that can be seen"))?;
        let place = registers.rsp.wrapping_sub(BELOW_STACK) & !15;
        let mut kept = [0; 32];
        if memory::read(tid, place, &mut kept) != kept.len() {
            return Err(io::Error::other("it has no stack that can be read"));
        }
        let mut action = [0; 32];
        for (bytes, word) in action.chunks_exact_mut(8).zip(ACTION) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        memory::write(tid, place, &action)?;
        let mask = sys::signal_mask(tid)?;
        // Blocked, the one by which a call is refused would lose its handler.
        sys::set_signal_mask(tid, !(1 << (libc::SIGSYS - 1)))?;
        sys::set_registers(
            tid,
            &Registers {
                rip: call,
                rax: libc::SYS_rt_sigaction as u64,
                orig_rax: u64::MAX,
                rdi: libc::SIGTRAP as u64,
                rsi: place,
                rdx: 0,
                r10: 8,
                ..registers
            },
        )?;
        let mut signals = Vec::new();
        let at_call = |status| status == Status::Call;
        let made = self.go_to(tid, Go::Call, at_call, &mut signals)?
            && self.go_to(tid, Go::Call, at_call, &mut signals)?;
        memory::write(tid, place, &kept)?;
        sys::set_registers(tid, &registers)?;
        sys::set_signal_mask(tid, mask)?;
        // From a stop before signals are taken the kernel itself makes an interrupted call again, or lets it fail.
        sys::interrupt(tid)?;
        let at_stop = |status| matches!(status, Status::Event(libc::PTRACE_EVENT_STOP, _));
        self.go_to(tid, Go::Free, at_stop, &mut signals)?;
        for signal in signals {
            sys::send(task.pid, tid, signal)?;
        }
        match made {
            true => Ok(()),
            false => Err(io::Error::other(
                "its calls are refused, or too many stops came between",
            )),
        }
    }

    /// Lets the thread go on to a stop of this kind; the signals that come before it are for later.
    fn go_to(
        &mut self,
        tid: libc::pid_t,
        how: Go,
        wanted: impl Fn(Status) -> bool,
        signals: &mut Vec<i32>,
    ) -> io::Result<bool> {
        for _ in 0..OTHER_STOPS {
            sys::resume(tid, how, 0)?;
            let Some((_, status)) = sys::wait(tid)? else {
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            };
            match status {
                _ if wanted(status) => return Ok(true),
                // Not sent: the call is refused (PR_SET_SYSCALL_USER_DISPATCH), and what is behind it must not run.
                Status::Signal(libc::SIGSYS) if sys::signal_code(tid)? > 0 => return Ok(false),
                Status::Signal(signal) => signals.push(signal),
                Status::Ended(_) | Status::Event(libc::PTRACE_EVENT_EXIT, _) => {
                    // It was killed: the loop shall see that.
                    self.early.entry(tid).or_default().push(status);
                    self.newborn.push(tid);
                    return Err(io::Error::from_raw_os_error(libc::ESRCH));
                }
                Status::Event(..) | Status::Call => {}
            }
        }
        Ok(false)
    }
}

/// A SYSCALL instruction in the code of the process; the vDSO has one.
fn find_syscall(tid: libc::pid_t) -> Option<u64> {
    let mut mappings = maps::executable(tid)?;
    mappings.sort_by_key(|mapping| mapping.path != b"[vdso]");
    mappings.iter().find_map(|mapping| {
        let mut code = vec![0; (mapping.end - mapping.start).min(LOOKED_AT) as usize];
        let size = memory::read(tid, mapping.start, &mut code);
        let at = code[..size].windows(2).position(|two| two == SYSCALL)?;
        Some(mapping.start + at as u64)
    })
}
