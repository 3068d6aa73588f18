//! A signal that QEMU has taken from the kernel and not yet handed to the program.
//!
//! QEMU hands it over between two blocks, and until then its thread takes no other: it has all blocked. An exec before
//! that would lose the signal, and leave all signals blocked in the new program. QEMU's handlers are wrapped: what they
//! take is noted, and an exec sends it again, to itself, for the program that comes.

use std::cell::Cell;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

use libc::{c_int, c_void, siginfo_t};

use crate::interface::real_time;

/// SIGSEGV and SIGBUS are QEMU's at any time.
const NEVER_BLOCKED: u64 = bit(libc::SIGSEGV) | bit(libc::SIGBUS);
/// The C library keeps these two, and the kernel SIGKILL and SIGSTOP.
const KEPT: u64 = bit(32) | bit(33) | bit(libc::SIGKILL) | bit(libc::SIGSTOP);
const ALL: u64 = !(NEVER_BLOCKED | KEPT);

/// Signals whose handlers are wrapped by `faults`: they are about what the program executes.
const OF_INSTRUCTIONS: [c_int; 4] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE];

#[derive(Clone, Copy)]
struct Taken {
    signal: c_int,
    /// What the thread blocked before.
    mask: u64,
}

thread_local! {
    static LAST: Cell<Option<Taken>> = const { Cell::new(None) };
}

/// QEMU's handler, the same for all signals.
static OF_QEMU: AtomicUsize = AtomicUsize::new(0);
/// The thread that is about to run another program, 0 before.
static LEAVES: AtomicI32 = AtomicI32::new(0);

/// Wraps QEMU's handlers, once it has set them up.
pub(crate) fn watch() {
    (1..=64).for_each(wrap);
}

/// Wraps what QEMU has put in place for the program's `signal`, for which an action has been installed.
pub(crate) fn installed(signal: c_int) {
    wrap(signal);
    if real_time::may_be(signal) {
        real_time::OF_KERNEL.for_each(wrap);
    }
}

/// Whether this is the wrapped handler.
pub(super) fn is_wrapped(handler: usize) -> bool {
    handler == took as extern "C" fn(c_int, *mut siginfo_t, *mut c_void) as usize
}

/// Wraps QEMU's handler of the kernel's `signal`, if it has one now.
fn wrap(signal: c_int) {
    if OF_INSTRUCTIONS.contains(&signal) {
        return;
    }
    let ours = took as extern "C" fn(c_int, *mut siginfo_t, *mut c_void) as usize;
    // SAFETY: actions are read into and from a value that lives long enough.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        if libc::sigaction(signal, std::ptr::null(), &mut action) != 0 {
            return;
        }
        let handler = action.sa_sigaction;
        if matches!(handler, libc::SIG_DFL | libc::SIG_IGN) || is_wrapped(handler) {
            return;
        }
        let known = OF_QEMU.compare_exchange(0, handler, Ordering::Relaxed, Ordering::Relaxed);
        if action.sa_flags & libc::SA_SIGINFO != 0
            && known.map_or_else(|of| of == handler, |_| true)
        {
            action.sa_sigaction = ours;
            libc::sigaction(signal, &action, std::ptr::null_mut());
        }
    }
}

extern "C" fn took(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel's siginfo and context, whose mask it restores; and QEMU's handler.
    unsafe {
        if passed_on(signal, info) {
            return;
        }
        let mask = (&raw const (*context.cast::<libc::ucontext_t>()).uc_sigmask).cast::<u64>();
        LAST.set(Some(Taken {
            signal,
            mask: *mask,
        }));
        let of_qemu: extern "C" fn(c_int, *mut siginfo_t, *mut c_void) =
            std::mem::transmute(OF_QEMU.load(Ordering::Relaxed));
        of_qemu(signal, info, context);
    }
}

/// A signal that somebody sent goes to the thread that is about to run another program, which has it wait: the calling
/// one is over, or as good as over. False if there is none.
///
/// # Safety
/// `info` is the kernel's.
pub(crate) unsafe fn passed_on(signal: c_int, info: *mut siginfo_t) -> bool {
    let to = LEAVES.load(Ordering::SeqCst);
    if to == 0 {
        return false;
    }
    let pid = libc::getpid();
    // With what came along, where the kernel allows it: it wants to say itself who calls kill.
    if libc::syscall(libc::SYS_rt_tgsigqueueinfo, pid, to, signal, info) != 0 {
        libc::syscall(libc::SYS_tgkill, pid, to, signal);
    }
    true
}

/// A signal that somebody sent to the process is sent to it once more.
///
/// # Safety
/// `info` is the kernel's.
pub(crate) unsafe fn send_again(signal: c_int, info: *mut siginfo_t) {
    let pid = libc::getpid();
    if libc::syscall(libc::SYS_rt_sigqueueinfo, pid, signal, info) != 0 {
        libc::syscall(libc::SYS_kill, pid, signal);
    }
}

/// A handler of the calling thread begins.
pub(crate) fn handed_over() {
    LAST.set(None);
}

/// The calling process is a fork's child: it stays, though its parent may be about to run another program.
pub(crate) fn forked() {
    LAST.set(None);
    LEAVES.store(0, Ordering::SeqCst);
}

/// The calling thread is about to run another program: from now on signals wait for that. Gives what that blocks.
pub(crate) fn keep_for_exec() -> u64 {
    let mask = set_mask(u64::MAX);
    // SAFETY: no arguments.
    let tid = unsafe { libc::gettid() };
    LEAVES.store(tid, Ordering::SeqCst);
    match LAST.get() {
        Some(taken) if mask & ALL == ALL => {
            // SAFETY: no pointers.
            unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), tid, taken.signal) };
            taken.mask
        }
        _ => mask,
    }
}

/// Blocks these signals in the calling thread, and no others; gives those that were.
pub(crate) fn set_mask(mask: u64) -> u64 {
    let mut before = 0u64;
    // SAFETY: two words, which is what the kernel's masks are. The C library would leave some signals out.
    unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            &raw const mask,
            &raw mut before,
            std::mem::size_of::<u64>(),
        );
    }
    before
}

const fn bit(signal: c_int) -> u64 {
    1 << (signal - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_qemu_blocks_while_it_keeps_one() {
        // /proc/PID/status of such a thread
        assert_eq!(ALL, 0xffff_fffe_7ffb_fabf);
    }

    #[test]
    fn masks_come_back() {
        let before = set_mask(bit(libc::SIGUSR1));
        assert_eq!(set_mask(before), bit(libc::SIGUSR1));
    }
}
