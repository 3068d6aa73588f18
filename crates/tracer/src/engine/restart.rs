//! System calls that a stop interrupts, and the kernel makes again.

use std::io;

use libc::pid_t;

use crate::sys::{self, Registers};

/// Results that only a tracer sees: the call was interrupted and will be made again unless a handler runs.
pub(super) const RESTARTS: [i64; 4] = [-512, -513, -514, -516];

/// Calls that fail with EINTR when a thread is stopped in them, even if no signal came: epoll_wait, epoll_pwait,
/// epoll_pwait2, semop, semtimedop, rt_sigtimedwait, io_getevents, io_uring_enter.
const NEVER_RESTARTED: [i64; 8] = [
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_io_getevents,
    libc::SYS_io_uring_enter,
];
/// Makes the kernel start the call anew, or fail with EINTR if a handler runs.
const RESTART_WITHOUT_HANDLER: i64 = -514;

/// A call that only our stop has interrupted is made again.
pub(super) fn mend_interrupted(tid: pid_t, registers: &mut Registers) -> io::Result<()> {
    let failed = registers.rax as i64 == -i64::from(libc::EINTR);
    if !failed || !NEVER_RESTARTED.contains(&(registers.orig_rax as i64)) {
        return Ok(());
    }
    registers.rax = RESTART_WITHOUT_HANDLER as u64;
    sys::set_registers(tid, registers)
}
