//! How the process ends: every thread stops where it is.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::process::faults;
use crate::shared::handlers::is_fault;
use crate::shared::link::{Kind, Message, OF_PROCESS, TOOK_SIGNAL};
use crate::shared::ring;
use crate::shared::state::shared;
use crate::shared::threads::current;
use crate::thread::state::{Legacy, Thread, CLAIMED, KERNEL, PARKED, STOP, USER};

/// No thread may begin any more.
static ENDING: AtomicBool = AtomicBool::new(false);

/// How long the end of a process waits for its other threads.
const PATIENCE: Duration = Duration::from_secs(2);
/// After this time a thread that QEMU stopped is not about to enter or leave a system call.
const EXCLUDED: Duration = Duration::from_millis(50);

/// Goes on only if the process is not ending.
pub(super) fn wait_if_ending() {
    if ENDING.load(Ordering::SeqCst) {
        wait_for_the_end();
    }
}

/// The calling process is a fork's child: it lives, though its parent may be ending.
pub(super) fn forked() {
    ENDING.store(false, Ordering::SeqCst);
}

/// All threads but the calling one end where they are.
pub(crate) fn stop_others(status: u32) {
    stop_each(false, |thread| thread.end(status, OF_PROCESS));
}

/// The process is about to run another program, in its first thread. What that one leaves.
pub(crate) fn leave_for_exec(thread: &mut Thread) -> Legacy {
    let pid = shared().pid();
    let mut legacy = shared().with(|locked| locked.leaders);
    stop_each(false, |other| {
        if other.tid == pid {
            legacy = other.leave_for_exec();
        } else {
            other.end(0, 0);
        }
    });
    if thread.tid == pid {
        return thread.leave_for_exec();
    }
    thread.end(0, 0);
    legacy
}

/// The process dies of a signal, in this thread.
///
/// # Safety
/// `thread` is the calling one.
pub(crate) unsafe fn killed(thread: *mut Thread, signal: i32) {
    let told = faults::told(thread, signal);
    ring::close(thread);
    let thread = &mut *thread;
    if let (false, Some(ip)) = (thread.is_out(), thread.cpu.rip()) {
        if let Some(cause) = faults::cause(thread, signal, ip, told) {
            let mut message = Message::new(Kind::Fault, thread.tid, thread.now());
            message.ip = ip;
            message.target = cause.address;
            message.extra = u64::from(signal as u32) | u64::from(cause.code as u32) << 32;
            shared().send(message, &[]);
        }
    }
    thread.interrupt_where_it_is(is_fault(signal));
    stop_each(dumps_core(signal), |other| {
        other.end(signal as u32, OF_PROCESS);
    });
    thread.end(signal as u32, OF_PROCESS | TOOK_SIGNAL);
}

/// Every other thread stops, and `work` is done with each. `excluded`: QEMU has stopped them already, between two
/// blocks, unless they are in a system call.
fn stop_each(excluded: bool, mut work: impl FnMut(&mut Thread)) {
    let shared = shared();
    let me = current();
    ENDING.store(true, Ordering::SeqCst);
    let others: Vec<*mut Thread> = shared.with(|locked| {
        let others = locked
            .live
            .iter()
            .copied()
            .filter(|&thread| thread != me)
            .collect();
        locked.live.retain(|&thread| thread == me);
        others
    });
    for &thread in &others {
        // SAFETY: threads are never freed; the field is atomic.
        unsafe { (*thread).attention.fetch_or(STOP, Ordering::AcqRel) };
    }
    let begun = Instant::now();
    for &thread in &others {
        // SAFETY: as above.
        let mode = unsafe { &(*thread).mode };
        loop {
            let claimed =
                mode.compare_exchange(KERNEL, CLAIMED, Ordering::AcqRel, Ordering::Acquire);
            if claimed.is_ok() || mode.load(Ordering::Acquire) == PARKED {
                // SAFETY: it has stopped and does not touch its state any more.
                work(unsafe { &mut *thread });
                break;
            }
            if excluded && begun.elapsed() > EXCLUDED {
                // SAFETY: QEMU keeps it from running until the process is gone.
                let thread = unsafe { &mut *thread };
                thread.interrupt_where_it_is(false);
                work(thread);
                break;
            }
            if begun.elapsed() > PATIENCE {
                // SAFETY: the tid never changes.
                let message = Message::new(
                    Kind::Warning,
                    unsafe { (*thread).tid },
                    shared.clock.latest(),
                );
                shared.send(
                    message,
                    b"a thread ran on while its process ended: its end is missing",
                );
                break;
            }
            std::thread::sleep(Duration::from_micros(50));
        }
    }
}

/// The calling thread has stopped in user code before the instruction at `ip`, until the process ends.
pub(crate) fn park(thread: &mut Thread, ip: u64) -> ! {
    thread.stop_at(ip);
    thread.mode.store(PARKED, Ordering::Release);
    wait_for_the_end()
}

/// A system call is over; if another thread ended the process meanwhile, so is this thread.
pub(crate) fn leave_kernel(thread: *mut Thread) {
    // SAFETY: the field is atomic.
    let mode = unsafe { &(*thread).mode };
    if mode
        .compare_exchange(KERNEL, USER, Ordering::AcqRel, Ordering::Acquire)
        .is_err()
    {
        wait_for_the_end();
    }
}

/// Signals for which QEMU stops all threads before it ends the process.
fn dumps_core(signal: i32) -> bool {
    use libc::{SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGQUIT, SIGSEGV, SIGTRAP};
    [SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGQUIT, SIGSEGV, SIGTRAP].contains(&signal)
}

fn wait_for_the_end() -> ! {
    loop {
        // SAFETY: waits for a signal.
        unsafe { libc::pause() };
    }
}
