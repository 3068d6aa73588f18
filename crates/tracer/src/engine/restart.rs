//! System calls that a stop interrupts, and the kernel makes again.

use std::io;

use libc::pid_t;

use crate::procfs;
use crate::sys::{self, Registers};
use crate::task::Task;

/// Results that only a tracer sees: the call was interrupted and will be made again unless a handler runs.
pub(super) const RESTARTS: [i64; 4] = [-512, -513, -514, -516];

/// Calls that fail with EINTR when a thread is stopped in them, even if no signal came; those from `read` on if their
/// socket has a time limit.
const NEVER_RESTARTED: [i64; 18] = [
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_io_getevents,
    libc::SYS_io_uring_enter,
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_accept,
    libc::SYS_accept4,
];
/// Makes the kernel start the call anew, or fail with EINTR if a handler runs.
const RESTART_WITHOUT_HANDLER: i64 = -514;
const EINTR: i64 = -(libc::EINTR as i64);

/// Whether a call with this result was interrupted.
pub(super) fn was_interrupted(result: i64) -> bool {
    result == EINTR || RESTARTS.contains(&result)
}

/// Whether the call has failed because it was interrupted, though it might go on.
pub(super) fn may_restart(registers: &Registers) -> bool {
    registers.rax as i64 == EINTR && NEVER_RESTARTED.contains(&(registers.orig_rax as i64))
}

/// Whether signals have interrupted the thread of which it would know nothing without a tracer: the kernel wakes a
/// thread that is traced also for what it ignores.
pub(super) fn nothing_for_program(task: &Task) -> bool {
    const fn bit(signal: i32) -> u64 {
        1 << (signal - 1)
    }
    /// Without a handler they do nothing.
    const OF_NO_EFFECT: u64 =
        bit(libc::SIGCHLD) | bit(libc::SIGURG) | bit(libc::SIGWINCH) | bit(libc::SIGCONT);
    let Some(signals) = procfs::signals(task.tid) else {
        return false;
    };
    let mut unseen = signals.ignored | OF_NO_EFFECT & !signals.caught;
    if task.trap_ignored.get() || task.trap_blocked && !task.lets_trap {
        unseen |= sys::TRAP;
    }
    let came = signals.pending & !signals.blocked;
    came != 0 && came & !unseen == 0
}

/// A call that only a stop of ours has interrupted is made again.
pub(super) fn restart(tid: pid_t, registers: &mut Registers) -> io::Result<()> {
    registers.rax = RESTART_WITHOUT_HANDLER as u64;
    sys::set_registers(tid, registers)
}
