//! The system calls of a tracer with Rust types. They act on threads that the calling thread traces, and on their
//! memory.

use std::{io, mem, ptr};

use libc::{c_int, c_long, c_void, iovec, pid_t};

pub(crate) type Registers = libc::user_regs_struct;

/// CS of 64-bit user code, and of 32-bit code.
const CODE64: u64 = 0x33;
const CODE32: u64 = 0x23;
/// EFLAGS.TF
pub(crate) const TRAP_FLAG: u64 = 1 << 8;

/// si_code of a SIGTRAP, by origin.
pub(crate) mod trap {
    /// A step over a system call, or INT1.
    pub(crate) const BREAKPOINT: i32 = 1;
    pub(crate) const STEP: i32 = 2;
    pub(crate) const HARDWARE: i32 = 4;
    /// The stop at the first instruction of a handler: si_code is the signal number.
    pub(crate) const HANDLER: i32 = libc::SIGTRAP;
    /// INT3.
    pub(crate) const KERNEL: i32 = 0x80;
}

/// How to resume a thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ResumeMode {
    /// For one instruction.
    Step,
    /// Until the entry or exit of a system call.
    UntilSyscall,
    /// Without stops.
    Free,
    /// Stay stopped with the group, until SIGCONT.
    Listen,
}

/// What waitpid reported about a thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum StopStatus {
    /// The thread has ended, with this wait status.
    Ended(i32),
    /// A PTRACE_EVENT, with its signal.
    Event(c_int, c_int),
    /// Entry to or exit from a system call.
    Syscall,
    Signal(c_int),
}

impl StopStatus {
    fn from_raw(raw: c_int) -> StopStatus {
        if !libc::WIFSTOPPED(raw) {
            return StopStatus::Ended(raw);
        }
        match (raw >> 16, libc::WSTOPSIG(raw)) {
            (0, signal) if signal == libc::SIGTRAP | 0x80 => StopStatus::Syscall,
            (0, signal) => StopStatus::Signal(signal),
            (event, signal) => StopStatus::Event(event, signal),
        }
    }
}

/// Waits for one (or, with -1, any) of this thread's children and tracees; None if there are none.
///
/// `__WNOTHREAD` leaves children of other threads of this process alone.
pub(crate) fn wait_for_stop(tid: pid_t) -> io::Result<Option<(pid_t, StopStatus)>> {
    match wait_with_options(tid, 0)? {
        WaitResult::Status(tid, status) => Ok(Some((tid, status))),
        WaitResult::NoneStopped | WaitResult::NoTracees => Ok(None),
    }
}

/// The result of [`poll_for_stop`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WaitResult {
    Status(pid_t, StopStatus),
    /// All of them run.
    NoneStopped,
    /// There is no child and no tracee.
    NoTracees,
}

/// As [`wait_for_stop`] for any, without waiting.
pub(crate) fn poll_for_stop() -> io::Result<WaitResult> {
    wait_with_options(-1, libc::WNOHANG)
}

fn wait_with_options(tid: pid_t, options: c_int) -> io::Result<WaitResult> {
    let mut raw = 0;
    let options = options | libc::__WALL | libc::__WNOTHREAD;
    loop {
        // SAFETY: `raw` outlives the call.
        let got = unsafe { libc::waitpid(tid, &mut raw, options) };
        if got > 0 {
            return Ok(WaitResult::Status(got, StopStatus::from_raw(raw)));
        }
        if got == 0 {
            return Ok(WaitResult::NoneStopped);
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EINTR) => {}
            Some(libc::ECHILD) => return Ok(WaitResult::NoTracees),
            _ => return Err(error),
        }
    }
}

/// Returns the result of a system call, or its error.
fn check_result(result: c_long) -> io::Result<c_long> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(result)
}

/// Fills a struct by a ptrace request.
fn read_struct<T>(request: u32, tid: pid_t, address: usize) -> io::Result<T> {
    // SAFETY: all are structs of integers.
    let mut value: T = unsafe { mem::zeroed() };
    ptrace_request(request, tid, address, ptr::from_mut(&mut value) as usize)?;
    Ok(value)
}

fn ptrace_request(request: u32, tid: pid_t, address: usize, data: usize) -> io::Result<()> {
    // SAFETY: only requests that take plain values, or pointers that the callers below keep alive, come here.
    let result = unsafe {
        libc::ptrace(
            request as _,
            tid,
            address as *mut c_void,
            data as *mut c_void,
        )
    };
    check_result(result).map(drop)
}

const EVENTS: c_int = libc::PTRACE_O_TRACESYSGOOD
    | libc::PTRACE_O_TRACECLONE
    | libc::PTRACE_O_TRACEFORK
    | libc::PTRACE_O_TRACEVFORK
    | libc::PTRACE_O_TRACEEXEC
    | libc::PTRACE_O_TRACEEXIT;

/// Traces `tid` and all that it starts. They are killed if this thread ends.
pub(crate) fn seize_new_child(tid: pid_t) -> io::Result<()> {
    let options = EVENTS | libc::PTRACE_O_EXITKILL;
    ptrace_request(libc::PTRACE_SEIZE, tid, 0, options as usize)
}

/// Traces a running thread and all that it starts. They outlive this thread.
pub(crate) fn seize_running_thread(tid: pid_t) -> io::Result<()> {
    ptrace_request(libc::PTRACE_SEIZE, tid, 0, EVENTS as usize)
}

/// Stops a thread, also one that waits in a system call.
pub(crate) fn interrupt_thread(tid: pid_t) -> io::Result<()> {
    ptrace_request(libc::PTRACE_INTERRUPT, tid, 0, 0)
}

/// Detaches from a stopped thread, clearing the trap flag that a step sets.
pub(crate) fn detach_thread(tid: pid_t, signal: c_int) -> io::Result<()> {
    ptrace_request(libc::PTRACE_DETACH, tid, 0, signal as usize)
}

/// Returns whether the trap of a step is pending for the thread: without a tracer it would kill the program.
pub(crate) fn is_step_trap_pending(tid: pid_t) -> io::Result<bool> {
    const AT_ONCE: usize = 32;
    // SAFETY: structs of integers.
    let mut found: [libc::siginfo_t; AT_ONCE] = unsafe { mem::zeroed() };
    // SAFETY: a struct of plain numbers, for which zeros are values.
    let mut from: libc::ptrace_peeksiginfo_args = unsafe { mem::zeroed() };
    from.nr = AT_ONCE as i32;
    // The kernel's own signals are first in a thread's queue or early in it: one look is enough.
    // SAFETY: as many siginfos as `nr` says can be written.
    let count = unsafe {
        libc::ptrace(
            libc::PTRACE_PEEKSIGINFO as _,
            tid,
            ptr::from_mut(&mut from),
            found.as_mut_ptr(),
        )
    };
    check_result(count)?;
    Ok(found.iter().take(count as usize).any(|info| {
        info.si_signo == libc::SIGTRAP && matches!(info.si_code, trap::STEP | trap::HARDWARE)
    }))
}

/// Resumes a stopped thread and delivers `signal` unless 0.
pub(crate) fn resume_thread(tid: pid_t, go: ResumeMode, signal: c_int) -> io::Result<()> {
    let code = match go {
        ResumeMode::Step => libc::PTRACE_SINGLESTEP,
        ResumeMode::UntilSyscall => libc::PTRACE_SYSCALL,
        ResumeMode::Free => libc::PTRACE_CONT,
        ResumeMode::Listen => libc::PTRACE_LISTEN,
    };
    ptrace_request(code, tid, 0, signal as usize)
}

pub(crate) fn read_registers(tid: pid_t) -> io::Result<Registers> {
    read_struct(libc::PTRACE_GETREGS, tid, 0)
}

pub(crate) fn write_registers(tid: pid_t, registers: &Registers) -> io::Result<()> {
    let registers = ptr::from_ref(registers) as usize;
    ptrace_request(libc::PTRACE_SETREGS, tid, 0, registers)
}

pub(crate) fn runs_64_bit_code(registers: &Registers) -> bool {
    registers.cs == CODE64
}

/// Returns whether the code runs in a segment that the program made: its base and width can be any.
pub(crate) fn is_custom_code_segment(registers: &Registers) -> bool {
    ![CODE64, CODE32].contains(&registers.cs)
}

/// Returns si_code of the signal that stopped the thread.
pub(crate) fn signal_code_of_stop(tid: pid_t) -> io::Result<i32> {
    siginfo_of_stop(tid).map(|info| info.si_code)
}

/// Returns siginfo of the signal that stopped the thread.
pub(crate) fn siginfo_of_stop(tid: pid_t) -> io::Result<libc::siginfo_t> {
    read_struct(libc::PTRACE_GETSIGINFO, tid, 0)
}

/// Sets the siginfo that the thread's handler gets for the current signal.
pub(crate) fn set_signal_info(tid: pid_t, info: &libc::siginfo_t) -> io::Result<()> {
    let info = ptr::from_ref(info) as usize;
    ptrace_request(libc::PTRACE_SETSIGINFO, tid, 0, info)
}

/// Sends a signal to one thread.
pub(crate) fn send_signal(pid: pid_t, tid: pid_t, signal: c_int) -> io::Result<()> {
    // SAFETY: no pointers.
    let result = unsafe { libc::syscall(libc::SYS_tgkill, pid, tid, signal) };
    check_result(result).map(drop)
}

/// Sends a signal to one thread again, with as much of its siginfo as the kernel permits.
pub(crate) fn requeue_signal(pid: pid_t, tid: pid_t, info: &libc::siginfo_t) -> io::Result<()> {
    if info.si_code >= 0 || info.si_code == libc::SI_TKILL {
        return send_signal(pid, tid, info.si_signo);
    }
    let signal = info.si_signo;
    // SAFETY: reads one siginfo.
    let result = unsafe {
        libc::syscall(
            libc::SYS_rt_tgsigqueueinfo,
            pid,
            tid,
            signal,
            ptr::from_ref(info),
        )
    };
    check_result(result).map(drop)
}

/// SIGTRAP in a signal set.
pub(crate) const SIGTRAP_BIT: u64 = 1 << (libc::SIGTRAP - 1);

pub(crate) fn read_signal_mask(tid: pid_t) -> io::Result<u64> {
    read_struct(libc::PTRACE_GETSIGMASK, tid, mem::size_of::<u64>())
}

pub(crate) fn set_signal_mask(tid: pid_t, mask: u64) -> io::Result<()> {
    let address = ptr::from_ref(&mask) as usize;
    ptrace_request(libc::PTRACE_SETSIGMASK, tid, mem::size_of::<u64>(), address)
}

/// Removes SIGTRAP from the signals that the thread blocks; returns whether it was blocked.
///
/// A step while SIGTRAP is blocked would make the kernel drop the program's handler for it.
pub(crate) fn unblock_sigtrap(tid: pid_t) -> io::Result<bool> {
    let mask = read_signal_mask(tid)?;
    let blocked = mask & SIGTRAP_BIT != 0;
    if blocked {
        set_signal_mask(tid, mask & !SIGTRAP_BIT)?;
    }
    Ok(blocked)
}

/// Adds SIGTRAP to the signals that the thread blocks.
pub(crate) fn block_sigtrap(tid: pid_t) -> io::Result<()> {
    set_signal_mask(tid, read_signal_mask(tid)? | SIGTRAP_BIT)
}

/// Returns the message of an event stop: the tid of a new thread, or the former tid of one that called exec.
pub(crate) fn event_stop_message(tid: pid_t) -> io::Result<u64> {
    read_struct(libc::PTRACE_GETEVENTMSG, tid, 0)
}

/// Writes debug register `index`.
pub(crate) fn set_debug_register(tid: pid_t, index: usize, value: u64) -> io::Result<()> {
    let offset = mem::offset_of!(libc::user, u_debugreg) + 8 * index;
    ptrace_request(libc::PTRACE_POKEUSER, tid, offset, value as usize)
}

/// Reads a word of memory, also where the thread itself may not read.
pub(crate) fn peek_word(tid: pid_t, address: u64) -> io::Result<u64> {
    let mut word: c_long = 0;
    // The raw system call stores the word; the library's function returns it, with -1 standing for both.
    // SAFETY: `word` outlives the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_ptrace,
            libc::PTRACE_PEEKDATA as c_long,
            c_long::from(tid),
            address,
            ptr::from_mut(&mut word),
        )
    };
    check_result(result)?;
    Ok(word as u64)
}

/// Restricts thread `tid` (0: this one) to the CPUs of `mask`.
pub(crate) fn set_affinity(tid: pid_t, mask: &[u8]) -> io::Result<()> {
    // SAFETY: the mask is readable for its length.
    let result =
        unsafe { libc::syscall(libc::SYS_sched_setaffinity, tid, mask.len(), mask.as_ptr()) };
    check_result(result).map(drop)
}

/// Returns the CPUs on which this thread may run, one bit each.
pub(crate) fn read_affinity() -> io::Result<Vec<u8>> {
    let mut mask = vec![0u8; 8192];
    // SAFETY: the mask is writable for its length.
    let size = unsafe {
        libc::syscall(
            libc::SYS_sched_getaffinity,
            0,
            mask.len(),
            mask.as_mut_ptr(),
        )
    };
    check_result(size)?;
    mask.truncate(size as usize);
    Ok(mask)
}

/// Opens a descriptor that refers to this process and to no later one with its number.
pub(crate) fn pidfd_open(pid: pid_t) -> io::Result<std::os::fd::OwnedFd> {
    use std::os::fd::{FromRawFd, OwnedFd};
    // SAFETY: no pointers.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    check_result(fd)?;
    // SAFETY: the kernel has just made it for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as c_int) })
}

pub(crate) fn pidfd_signal(fd: &std::os::fd::OwnedFd, signal: c_int) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    // SAFETY: a null siginfo is allowed.
    let result = unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            fd.as_raw_fd(),
            signal,
            ptr::null::<c_void>(),
            0,
        )
    };
    check_result(result).map(drop)
}

const PAGE: u64 = 4096;

fn io_vectors(local: *mut u8, address: u64, length: usize) -> (iovec, iovec) {
    let local = iovec {
        iov_base: local.cast::<c_void>(),
        iov_len: length,
    };
    let remote = iovec {
        iov_base: address as *mut c_void,
        iov_len: length,
    };
    (local, remote)
}

/// Reads from `address` to the first unreadable page and returns the number of bytes.
pub(crate) fn read_bytes(tid: pid_t, address: u64, out: &mut [u8]) -> usize {
    let mut done = 0;
    while done < out.len() {
        let at = address.wrapping_add(done as u64);
        // Page by page: a transfer over a missing page may fail as a whole.
        let in_page = (PAGE - at % PAGE) as usize;
        let end = out.len().min(done + in_page);
        let got = read_page(tid, at, &mut out[done..end]);
        done += got;
        if done < end {
            break;
        }
    }
    done
}

fn read_page(tid: pid_t, address: u64, out: &mut [u8]) -> usize {
    let (local, remote) = io_vectors(out.as_mut_ptr(), address, out.len());
    // SAFETY: `local` describes `out`.
    let got = unsafe { libc::process_vm_readv(tid, &local, 1, &remote, 1, 0) };
    if got > 0 {
        return got as usize;
    }
    peek_words(tid, address, out)
}

/// A tracer can read execute-only pages by words.
fn peek_words(tid: pid_t, address: u64, out: &mut [u8]) -> usize {
    let mut done = 0;
    while done < out.len() {
        let at = address.wrapping_add(done as u64);
        let Ok(word) = peek_word(tid, at & !7) else {
            break;
        };
        let skip = (at & 7) as usize;
        let bytes = word.to_le_bytes();
        let count = (8 - skip).min(out.len() - done);
        out[done..done + count].copy_from_slice(&bytes[skip..skip + count]);
        done += count;
    }
    done
}

pub(crate) fn read_u64(tid: pid_t, address: u64) -> Option<u64> {
    let mut bytes = [0u8; 8];
    (read_bytes(tid, address, &mut bytes) == 8).then(|| u64::from_le_bytes(bytes))
}

/// Writes to memory that the thread itself may write.
pub(crate) fn write_bytes(tid: pid_t, address: u64, bytes: &[u8]) -> io::Result<()> {
    let (local, remote) = io_vectors(bytes.as_ptr().cast_mut(), address, bytes.len());
    // SAFETY: `local` describes `bytes`, which the call only reads.
    let put = unsafe { libc::process_vm_writev(tid, &local, 1, &remote, 1, 0) };
    if put < 0 || put as usize != bytes.len() {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_statuses_are_parsed() {
        assert_eq!(StopStatus::from_raw(0x0000), StopStatus::Ended(0));
        assert_eq!(StopStatus::from_raw(0x0300), StopStatus::Ended(0x300));
        assert_eq!(StopStatus::from_raw(0x0089), StopStatus::Ended(0x89));
        assert_eq!(
            StopStatus::from_raw(0x057f),
            StopStatus::Signal(libc::SIGTRAP)
        );
        assert_eq!(StopStatus::from_raw(0x857f), StopStatus::Syscall);
        assert_eq!(
            StopStatus::from_raw(0x4057f),
            StopStatus::Event(libc::PTRACE_EVENT_EXEC, libc::SIGTRAP)
        );
        assert_eq!(
            StopStatus::from_raw(0x80137f),
            StopStatus::Event(libc::PTRACE_EVENT_STOP, libc::SIGSTOP)
        );
    }
}
