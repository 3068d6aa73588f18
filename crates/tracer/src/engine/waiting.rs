//! A SIGTRAP that the program blocks, to take it itself: by sigwait, from a signalfd.
//!
//! It waits with us, because the kernel must not know it as blocked. A call that could take it finds it in the kernel's
//! queue, where it would be; what is not taken comes back by a stop of its own.

use std::io;
use std::{mem, ptr};

use libc::pid_t;

use crate::engine::state::Engine;
use crate::sys;
use crate::task::{Call, Task};
use crate::{memory, procfs};

/// Files that one call is believed to wait for.
const MOST_FILES: u64 = 4096;

impl Engine<'_> {
    /// A call begins.
    pub(super) fn hand_back(&mut self, task: &mut Task, call: &Call) -> io::Result<()> {
        task.lets_trap = task.trap_blocked && !call.compat && lets_trap(task.tid, call);
        if call.compat || (task.trap.is_none() && !self.trap_waits(task.pid)) {
            return Ok(());
        }
        if task.trap_blocked && !task.lets_trap && !takes(task.tid, call) {
            return Ok(());
        }
        self.take_trap(task);
        if let Some(trap) = &mut task.trap {
            if !trap.sent {
                sys::queue(task.pid, task.tid, &trap.info)?;
                trap.sent = true;
            }
        }
        Ok(())
    }

    /// It has ended, with this result.
    pub(super) fn handed_back(
        &mut self,
        task: &mut Task,
        call: &Call,
        result: i64,
    ) -> io::Result<()> {
        if task.trap.is_none() && !self.trap_waits(task.pid) {
            return Ok(());
        }
        if let Some(trap) = task.trap {
            if trap.sent && !procfs::is_pending(task.tid, libc::SIGTRAP) {
                task.trap = None;
                tell(task.tid, call, result, &trap.info)?;
            }
        }
        let asked = call.number as i64 == libc::SYS_rt_sigpending && !call.compat;
        if asked && result == 0 && task.trap_blocked {
            let at = call.arguments[0];
            if let Some(set) = memory::read_u64(task.tid, at) {
                memory::write(task.tid, at, &(set | sys::TRAP).to_le_bytes())?;
            }
        }
        Ok(())
    }
}

/// The call has taken the signal, which came from us: it tells from whom it was.
fn tell(tid: pid_t, call: &Call, result: i64, info: &libc::siginfo_t) -> io::Result<()> {
    let [_, at, ..] = call.arguments;
    // SAFETY: a structure of integers that is read as bytes.
    let bytes = unsafe {
        std::slice::from_raw_parts(ptr::from_ref(info).cast::<u8>(), mem::size_of_val(info))
    };
    match call.number as i64 {
        libc::SYS_rt_sigtimedwait if at != 0 && result == i64::from(libc::SIGTRAP) => {
            memory::write(tid, at, bytes)
        }
        libc::SYS_read if result > 0 => {
            let all = mem::size_of::<libc::signalfd_siginfo>() as u64;
            let mut each = (0..result as u64 / all).map(|index| at.wrapping_add(index * all));
            let is_trap = |at: &u64| {
                memory::read_u64(tid, *at).is_some_and(|word| word as u32 == libc::SIGTRAP as u32)
            };
            // code, process and user: in a siginfo there is padding behind the code
            let who = [&bytes[8..12], &bytes[16..24]].concat();
            each.find(is_trap)
                .map_or(Ok(()), |at| memory::write(tid, at.wrapping_add(8), &who))
        }
        _ => Ok(()),
    }
}

/// Whether the call has a mask of its own for as long as it waits, without SIGTRAP.
fn lets_trap(tid: pid_t, call: &Call) -> bool {
    let set = match call.number as i64 {
        libc::SYS_rt_sigsuspend => Some(call.arguments[0]),
        libc::SYS_ppoll => Some(call.arguments[3]),
        libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2 => Some(call.arguments[4]),
        // a structure: where the mask is, and its size
        libc::SYS_pselect6 if call.arguments[5] != 0 => memory::read_u64(tid, call.arguments[5]),
        _ => None,
    };
    let set = set.filter(|&at| at != 0);
    set.and_then(|at| memory::read_u64(tid, at))
        .is_some_and(|set| set & sys::TRAP == 0)
}

/// Whether the call takes a pending SIGTRAP, or tells that there is one, before it does anything else.
pub(super) fn takes(tid: pid_t, call: &Call) -> bool {
    let [first, second, ..] = call.arguments;
    let gives = |fd: u64| procfs::is_of_signals(tid, fd as i32, sys::TRAP);
    let bit = |set: u64, fd: u64| {
        let word = memory::read_u64(tid, set.wrapping_add(fd / 64 * 8));
        word.is_some_and(|word| word >> (fd % 64) & 1 == 1)
    };
    match call.number as i64 {
        libc::SYS_rt_sigtimedwait => {
            memory::read_u64(tid, first).is_some_and(|set| set & sys::TRAP != 0)
        }
        libc::SYS_read | libc::SYS_readv => gives(first),
        // struct pollfd: the file, then what is waited for
        libc::SYS_poll | libc::SYS_ppoll => (0..second.min(MOST_FILES)).any(|index| {
            let entry = memory::read_u64(tid, first.wrapping_add(8 * index));
            entry.is_some_and(|entry| {
                entry >> 32 & libc::POLLIN as u64 != 0 && gives(entry & 0xffff_ffff)
            })
        }),
        libc::SYS_select | libc::SYS_pselect6 if second != 0 => {
            (0..first.min(MOST_FILES)).any(|fd| bit(second, fd) && gives(fd))
        }
        libc::SYS_epoll_wait | libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2 => {
            procfs::watched(tid, first as i32).into_iter().any(gives)
        }
        _ => false,
    }
}
