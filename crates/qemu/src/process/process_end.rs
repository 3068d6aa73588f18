//! Ends the recording of a process: every thread stops where it is, by exit, a deadly signal or an exec.

use rtit_events::{flag, EventKind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::process::fault_causes;
use crate::shared::block_ring;
use crate::shared::recorder_link::new_message;
use crate::shared::shared_state::shared;
use crate::shared::signal_frames::is_fault_signal;
use crate::shared::thread_table::current_thread;
use crate::thread::thread_state::{
    InheritedState, Thread, ATTEND_STOP, MODE_CLAIMED, MODE_KERNEL, MODE_PARKED, MODE_USER,
};

/// Set when no thread may start any more.
static ENDING: AtomicBool = AtomicBool::new(false);

/// How long the end of the process waits for its other threads.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);
/// A thread that QEMU has stopped does not enter or leave a system call after this time.
const QEMU_STOP_TIME: Duration = Duration::from_millis(50);

/// Returns only if the process is not ending.
pub(super) fn wait_if_ending() {
    if ENDING.load(Ordering::SeqCst) {
        wait_for_process_end();
    }
}

/// Resets the state in a forked child, which lives on even if its parent is ending.
pub(super) fn reset_in_child() {
    ENDING.store(false, Ordering::SeqCst);
}

/// Ends the recording of all threads but the calling one.
pub(crate) fn stop_others(status: u32) {
    stop_other_threads(false, |thread| {
        thread.end_trace(status, flag::EXIT_WHOLE_PROCESS)
    });
}

/// Ends the recording of all threads before an exec, and returns the state for the new program, which runs in the first
/// thread.
pub(crate) fn stop_for_exec(thread: &mut Thread) -> InheritedState {
    let pid = shared().pid();
    let mut inherited = shared().with_locked(|locked| locked.first_thread_state);
    stop_other_threads(false, |other| {
        if other.tid == pid {
            inherited = other.end_trace_for_exec();
        } else {
            other.end_trace(0, 0);
        }
    });
    if thread.tid == pid {
        return thread.end_trace_for_exec();
    }
    thread.end_trace(0, 0);
    inherited
}

/// Ends the recording of a process that dies of a signal in this thread.
///
/// # Safety
/// `thread` is the calling thread.
pub(crate) unsafe fn end_by_signal(thread: *mut Thread, signal: i32) {
    let told = fault_causes::kernel_report(thread, signal);
    block_ring::close(thread);
    let thread = &mut *thread;
    if let (false, Some(ip)) = (thread.is_outside(), thread.cpu.rip()) {
        if let Some(cause) = fault_causes::fault_cause(thread, signal, ip, told) {
            let mut message = new_message(EventKind::Fault, thread.tid, thread.now());
            message.ip = ip;
            message.target = cause.address;
            message.extra = u64::from(signal as u32) | u64::from(cause.code as u32) << 32;
            shared().send(message, &[]);
        }
    }
    thread.leave_at_current_ip(is_fault_signal(signal));
    stop_other_threads(dumps_core(signal), |other| {
        other.end_trace(signal as u32, flag::EXIT_WHOLE_PROCESS);
    });
    thread.end_trace(
        signal as u32,
        flag::EXIT_WHOLE_PROCESS | flag::EXIT_TOOK_SIGNAL,
    );
}

/// Stops every other thread and calls `work` for each. `excluded`: QEMU has stopped them already, between two blocks,
/// unless they are in a system call.
fn stop_other_threads(excluded: bool, mut work: impl FnMut(&mut Thread)) {
    let shared = shared();
    let me = current_thread();
    ENDING.store(true, Ordering::SeqCst);
    let others: Vec<*mut Thread> = shared.with_locked(|locked| {
        let others = locked
            .live_threads
            .iter()
            .copied()
            .filter(|&thread| thread != me)
            .collect();
        locked.live_threads.retain(|&thread| thread == me);
        others
    });
    for &thread in &others {
        // SAFETY: threads are never freed; the field is atomic.
        unsafe { (*thread).attention.fetch_or(ATTEND_STOP, Ordering::AcqRel) };
    }
    let begun = Instant::now();
    for &thread in &others {
        // SAFETY: as above.
        let mode = unsafe { &(*thread).mode };
        loop {
            let claimed = mode.compare_exchange(
                MODE_KERNEL,
                MODE_CLAIMED,
                Ordering::AcqRel,
                Ordering::Acquire,
            );
            if claimed.is_ok() || mode.load(Ordering::Acquire) == MODE_PARKED {
                // SAFETY: it has stopped and does not touch its state any more.
                work(unsafe { &mut *thread });
                break;
            }
            if excluded && begun.elapsed() > QEMU_STOP_TIME {
                // SAFETY: QEMU keeps it from running until the process is gone.
                let thread = unsafe { &mut *thread };
                thread.leave_at_current_ip(false);
                work(thread);
                break;
            }
            if begun.elapsed() > STOP_TIMEOUT {
                // SAFETY: the tid never changes.
                let message = new_message(
                    EventKind::Warning,
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

/// Stops the calling thread before the instruction at `ip`, until the process ends.
pub(crate) fn park_thread(thread: &mut Thread, ip: u64) -> ! {
    thread.stop_before(ip);
    thread.mode.store(MODE_PARKED, Ordering::Release);
    wait_for_process_end()
}

/// Returns to user mode after a system call; waits for the end if another thread is ending the process.
pub(crate) fn leave_kernel(thread: *mut Thread) {
    // SAFETY: the field is atomic.
    let mode = unsafe { &(*thread).mode };
    if mode
        .compare_exchange(MODE_KERNEL, MODE_USER, Ordering::AcqRel, Ordering::Acquire)
        .is_err()
    {
        wait_for_process_end();
    }
}

/// Returns whether QEMU stops all threads before it ends the process by this signal.
fn dumps_core(signal: i32) -> bool {
    use libc::{SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGQUIT, SIGSEGV, SIGTRAP};
    [SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGQUIT, SIGSEGV, SIGTRAP].contains(&signal)
}

fn wait_for_process_end() -> ! {
    loop {
        // SAFETY: waits for a signal.
        unsafe { libc::pause() };
    }
}
