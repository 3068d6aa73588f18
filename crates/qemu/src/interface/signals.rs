//! How QEMU handles signals for the program, and what the plugin corrects.
//!
//! QEMU installs handlers of its own and hands a signal to the program later, between two blocks. Three things go wrong
//! in a recording:
//!
//! * Later versions of QEMU (from 9 on) leave signals with a deadly default action to the kernel, which ends the
//!   process before the plugin can record the end of its threads. The plugin gives those signals the handler that QEMU
//!   still has for signals that dump core (`catch_terminating_signals`).
//! * A signal that the program ignores stays ignored over an exec. The kernel resets handlers at an exec, and QEMU has
//!   a handler where the program ignores. The plugin notes which signals the program ignores (`record_ignored_signal`)
//!   and ignores them again before an exec (`ignore_signals_for_next_program`).
//! * QEMU blocks all signals of a thread from the arrival of a signal until it hands the signal over. An exec in
//!   between would lose the signal and leave all signals blocked. The plugin wraps QEMU's handlers
//!   (`wrap_all_handlers`), notes undelivered signals, and sends them again for the new program
//!   (`hold_signals_for_exec`).
//!
//! QEMU renumbers real-time signals: the C library reserves 32 and 33, which a program may use, so QEMU maps them and
//! all later ones to higher numbers. The offset depends on its version and on QEMU_RTSIG_MAP. If the program changes
//! one real-time signal, the plugin therefore looks at all of them.
//!
//! The plugin reads what QEMU made of an action after rt_sigaction has returned. A lock serializes those calls;
//! otherwise a thread could store an older result last.

use std::cell::Cell;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering};
use std::thread::sleep;
use std::time::Duration;

use libc::{c_int, c_void, siginfo_t};

use crate::interface::guest_state;

/// The kernel's numbers. The C library refuses the first two.
pub(super) const REAL_TIME_SIGNALS: RangeInclusive<c_int> = 32..=64;

/// Returns whether the program's `signal` may be mapped to a real-time signal of the kernel.
pub(super) fn may_be_real_time(signal: c_int) -> bool {
    REAL_TIME_SIGNALS.contains(&signal) || signal == libc::SIGABRT
}

static ACTIONS_LOCKED: AtomicBool = AtomicBool::new(false);

/// Waits until no other thread changes a signal action. The process may end while a thread waits here.
pub(crate) fn lock_signal_actions() {
    while ACTIONS_LOCKED.swap(true, Ordering::Acquire) {
        sleep(Duration::from_micros(20));
    }
}

/// Allows other threads to change signal actions.
pub(crate) fn unlock_signal_actions() {
    ACTIONS_LOCKED.store(false, Ordering::Release);
}

/// Signals whose default action ends the process without a core dump.
const TERMINATING: [c_int; 12] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGPIPE,
    libc::SIGALRM,
    libc::SIGTERM,
    libc::SIGSTKFLT,
    libc::SIGVTALRM,
    libc::SIGPROF,
    libc::SIGIO,
    libc::SIGPWR,
];

/// Lets QEMU catch all of them. Call it after QEMU has installed its handlers.
pub(crate) fn catch_terminating_signals() {
    TERMINATING
        .into_iter()
        .chain(REAL_TIME_SIGNALS)
        .for_each(let_qemu_catch);
}

/// Lets QEMU catch the program's `signal` again after rt_sigaction.
pub(crate) fn catch_signal_after_sigaction(signal: c_int) {
    if may_be_real_time(signal) {
        REAL_TIME_SIGNALS.for_each(let_qemu_catch);
    } else if TERMINATING.contains(&signal) {
        let_qemu_catch(signal);
    }
}

/// Installs QEMU's handler for `signal` if its action is the default one.
fn let_qemu_catch(signal: c_int) {
    // SAFETY: actions are read into and from values that live long enough.
    unsafe {
        let mut of_qemu: libc::sigaction = std::mem::zeroed();
        let mut now: libc::sigaction = std::mem::zeroed();
        libc::sigaction(libc::SIGQUIT, std::ptr::null(), &mut of_qemu);
        libc::sigaction(signal, std::ptr::null(), &mut now);
        let catches = !matches!(of_qemu.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN);
        if catches && now.sa_sigaction == libc::SIG_DFL {
            libc::sigaction(signal, &of_qemu, std::ptr::null_mut());
        }
    }
}

/// One bit for each signal of the kernel.
static IGNORED: AtomicU64 = AtomicU64::new(0);

/// Notes which signals the kernel ignores at start. Call it before QEMU installs handlers.
pub(crate) fn record_inherited_ignores() {
    let ignored = (1..=64).filter(|&signal| handler_of_host_signal(signal) == Some(libc::SIG_IGN));
    IGNORED.store(
        ignored
            .map(signal_bit)
            .fold(0, |all, signal_bit| all | signal_bit),
        Ordering::Relaxed,
    );
}

/// Returns whether the sigaction structure at `address` ignores its signal; None if it is unreadable.
pub(crate) fn sigaction_ignores_signal(address: u64) -> Option<bool> {
    guest_state::read_u64(address).map(|handler| handler == libc::SIG_IGN as u64)
}

/// Notes whether the program ignores `signal`, after its rt_sigaction and before QEMU's new handlers are wrapped.
pub(crate) fn record_ignored_signal(signal: c_int, ignores: bool) {
    if (1..*REAL_TIME_SIGNALS.start()).contains(&signal) {
        set_signal_ignored(signal, ignores);
    }
    if !may_be_real_time(signal) {
        return;
    }
    for signal in REAL_TIME_SIGNALS {
        match handler_of_host_signal(signal) {
            // The program did not change this one: QEMU's handlers of signals that were ignored are all wrapped.
            None => {}
            Some(handler) if is_plugin_handler(handler) => {}
            Some(handler) => set_signal_ignored(signal, handler == libc::SIG_IGN),
        }
    }
}

fn set_signal_ignored(signal: c_int, ignores: bool) {
    if ignores {
        IGNORED.fetch_or(signal_bit(signal), Ordering::Relaxed);
    } else {
        IGNORED.fetch_and(!signal_bit(signal), Ordering::Relaxed);
    }
}

/// Ignores for the next program what this one ignores. No other thread runs any more, and QEMU will catch no faults.
pub(crate) fn ignore_signals_for_next_program() {
    let all = IGNORED.load(Ordering::Relaxed);
    for signal in (1..=64).filter(|&signal| all & signal_bit(signal) != 0) {
        if handler_of_host_signal(signal) != Some(libc::SIG_IGN) {
            // SAFETY: no handler.
            unsafe { libc::signal(signal, libc::SIG_IGN) };
        }
    }
}

fn handler_of_host_signal(signal: c_int) -> Option<usize> {
    // SAFETY: an action is read into a value that lives long enough.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        (libc::sigaction(signal, std::ptr::null(), &mut action) == 0).then_some(action.sa_sigaction)
    }
}

const fn signal_bit(signal: c_int) -> u64 {
    1 << (signal - 1)
}

/// QEMU catches these at any time.
const NEVER_BLOCKED: u64 = signal_bit(libc::SIGSEGV) | signal_bit(libc::SIGBUS);
/// The C library reserves the first two; the kernel refuses to block the others.
const NEVER_BLOCKABLE: u64 =
    signal_bit(32) | signal_bit(33) | signal_bit(libc::SIGKILL) | signal_bit(libc::SIGSTOP);
const BLOCKED_WHILE_UNDELIVERED: u64 = !(NEVER_BLOCKED | NEVER_BLOCKABLE);

/// `fault_causes` wraps the handlers of these.
pub(crate) const FAULT_SIGNALS: [c_int; 4] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE];

#[derive(Clone, Copy)]
struct UndeliveredSignal {
    signal: c_int,
    /// The thread's signal mask before QEMU blocked everything.
    mask: u64,
}

thread_local! {
    static UNDELIVERED: Cell<Option<UndeliveredSignal>> = const { Cell::new(None) };
}

/// QEMU's handler, which is the same for all signals.
static QEMU_HANDLER: AtomicUsize = AtomicUsize::new(0);
/// The thread that is about to run another program; 0 if there is none.
static EXEC_THREAD: AtomicI32 = AtomicI32::new(0);

/// Wraps QEMU's handlers. Call it after QEMU has installed them.
pub(crate) fn wrap_all_handlers() {
    (1..=64).for_each(wrap_handler);
}

/// Wraps the handlers that QEMU has installed for the program's `signal`.
pub(crate) fn wrap_handlers_after_sigaction(signal: c_int) {
    wrap_handler(signal);
    if may_be_real_time(signal) {
        REAL_TIME_SIGNALS.for_each(wrap_handler);
    }
}

/// Returns whether `handler` is the plugin's wrapper.
fn is_plugin_handler(handler: usize) -> bool {
    handler == signal_handler_wrapper as SignalHandler as usize
}

/// Wraps QEMU's handler of the kernel's `signal`, if QEMU has one.
fn wrap_handler(signal: c_int) {
    if FAULT_SIGNALS.contains(&signal) {
        return;
    }
    replace_handler(signal, signal_handler_wrapper, |handler| {
        let order = Ordering::Relaxed;
        let known = QEMU_HANDLER.compare_exchange(0, handler, order, order);
        known.map_or_else(|of_qemu| of_qemu == handler, |_| true)
    });
}

pub(crate) type SignalHandler = extern "C" fn(c_int, *mut siginfo_t, *mut c_void);

/// Installs `ours` in place of a handler for `signal` with siginfo, if there is one and `accept` accepts it.
pub(crate) fn replace_handler(
    signal: c_int,
    ours: SignalHandler,
    accept: impl FnOnce(usize) -> bool,
) {
    // SAFETY: actions are read into and from a value that lives long enough.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        let failed = libc::sigaction(signal, std::ptr::null(), &mut action) != 0;
        let handler = action.sa_sigaction;
        if failed || [libc::SIG_DFL, libc::SIG_IGN, ours as usize].contains(&handler) {
            return;
        }
        if action.sa_flags & libc::SA_SIGINFO != 0 && accept(handler) {
            action.sa_sigaction = ours as usize;
            libc::sigaction(signal, &action, std::ptr::null_mut());
        }
    }
}

extern "C" fn signal_handler_wrapper(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel's siginfo and context, whose mask it restores; and QEMU's handler.
    unsafe {
        if forward_to_exec_thread(signal, info) {
            return;
        }
        let mask = (&raw const (*context.cast::<libc::ucontext_t>()).uc_sigmask).cast::<u64>();
        UNDELIVERED.set(Some(UndeliveredSignal {
            signal,
            mask: *mask,
        }));
        let of_qemu: SignalHandler = std::mem::transmute(QEMU_HANDLER.load(Ordering::Relaxed));
        of_qemu(signal, info, context);
    }
}

/// Forwards a signal that a process sent to the thread that is about to run another program, where it stays pending:
/// the calling thread is about to end. False if there is no such thread.
///
/// # Safety
/// `info` is the kernel's.
pub(crate) unsafe fn forward_to_exec_thread(signal: c_int, info: *mut siginfo_t) -> bool {
    let to = EXEC_THREAD.load(Ordering::SeqCst);
    if to == 0 {
        return false;
    }
    let pid = libc::getpid();
    // With its siginfo where the kernel permits that; the kernel wants to fill in the sender of kill itself.
    if libc::syscall(libc::SYS_rt_tgsigqueueinfo, pid, to, signal, info) != 0 {
        libc::syscall(libc::SYS_tgkill, pid, to, signal);
    }
    true
}

/// Sends a signal to the process again.
///
/// # Safety
/// `info` is the kernel's.
pub(crate) unsafe fn resend_to_process(signal: c_int, info: *mut siginfo_t) {
    let pid = libc::getpid();
    if libc::syscall(libc::SYS_rt_sigqueueinfo, pid, signal, info) != 0 {
        libc::syscall(libc::SYS_kill, pid, signal);
    }
}

/// The handler of the program begins, so its signal has been delivered.
pub(crate) fn clear_undelivered_signal() {
    UNDELIVERED.set(None);
}

/// Forgets the parent's undelivered signal and exec in a forked child.
pub(crate) fn reset_signals_in_child() {
    UNDELIVERED.set(None);
    EXEC_THREAD.store(0, Ordering::SeqCst);
}

/// Blocks all signals of the calling thread, which is about to run another program, and returns the mask for that
/// program. An undelivered signal becomes pending again.
pub(crate) fn hold_signals_for_exec() -> u64 {
    let mask = set_signal_mask(u64::MAX);
    // SAFETY: no arguments.
    let tid = unsafe { libc::gettid() };
    EXEC_THREAD.store(tid, Ordering::SeqCst);
    match UNDELIVERED.get() {
        Some(undelivered) if mask & BLOCKED_WHILE_UNDELIVERED == BLOCKED_WHILE_UNDELIVERED => {
            // SAFETY: no pointers.
            unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), tid, undelivered.signal) };
            undelivered.mask
        }
        _ => mask,
    }
}

/// Sets the signal mask of the calling thread and returns the old one.
pub(crate) fn set_signal_mask(mask: u64) -> u64 {
    let mut before = 0u64;
    // SAFETY: two words, the size of the kernel's masks. The C library would leave some signals out.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mask_of_a_thread_with_an_undelivered_signal() {
        // SigBlk in /proc/PID/status of a thread with an undelivered signal, QEMU 7.2.
        assert_eq!(BLOCKED_WHILE_UNDELIVERED, 0xffff_fffe_7ffb_fabf);
    }

    #[test]
    fn set_signal_mask_returns_the_old_mask() {
        let before = set_signal_mask(signal_bit(libc::SIGUSR1));
        assert_eq!(set_signal_mask(before), signal_bit(libc::SIGUSR1));
    }
}
