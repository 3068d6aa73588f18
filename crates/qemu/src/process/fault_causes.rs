//! Finds which address a deadly signal is about.
//!
//! QEMU receives memory faults of the program as signals from the kernel. The plugin wraps QEMU's handlers for them,
//! notes the kernel's siginfo, and calls QEMU's handler. The wrapper does no more, since faults of QEMU itself come
//! here too. Signals that a process sent are redirected to one of the program's threads.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

use libc::{c_int, c_void, siginfo_t};

use crate::interface::signals::{SignalHandler, FAULT_SIGNALS};
use crate::interface::{guest_state, signals};
use crate::shared::block_ring::{self, RingPosition};
use crate::shared::shared_state::current_thread;
use crate::thread::thread_state::RecordedThread;
use crate::thread::translation_block::TranslationBlock;

// si_code, from the kernel's siginfo.h
const MAPERR: i32 = 1;
const ACCERR: i32 = 2;
const ILLOPN: i32 = 2;
const INTDIV: i32 = 1;
const SI_KERNEL: i32 = 0x80;

/// Why the kernel, or QEMU instead, sent a signal for an instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FaultCause {
    /// si_code
    pub(crate) code: i32,
    /// si_addr
    pub(crate) address: u64,
}

/// The last such signal of a thread, and the point of execution at which it came.
#[derive(Clone, Copy)]
struct NotedSignal {
    signal: c_int,
    cause: FaultCause,
    point: ExecutionPoint,
}

/// A point in the execution of a thread.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ExecutionPoint {
    InRing(RingPosition),
    Followed(*const TranslationBlock, u64),
}

impl ExecutionPoint {
    /// Returns the current point.
    ///
    /// # Safety
    /// `thread` is the calling thread.
    unsafe fn current_point(thread: *const RecordedThread) -> ExecutionPoint {
        match block_ring::current_position() {
            Some(mark) => ExecutionPoint::InRing(mark),
            None => ExecutionPoint::Followed((*thread).block, (*thread).retired_instructions()),
        }
    }
}

thread_local! {
    static LAST_SIGNAL: Cell<Option<NotedSignal>> = const { Cell::new(None) };
    /// Bits of `FAULT_SIGNALS` that a process has sent since `clear_signal_notes`, and that no instruction has caused
    /// after that.
    static SENT_SIGNALS: Cell<u8> = const { Cell::new(0) };
}

/// QEMU's handlers, in the order of `FAULT_SIGNALS`.
static QEMU_HANDLERS: [AtomicUsize; FAULT_SIGNALS.len()] =
    [const { AtomicUsize::new(0) }; FAULT_SIGNALS.len()];

/// Wraps QEMU's handlers. Call it after QEMU has installed them.
pub(super) fn wrap_fault_handlers() {
    FAULT_SIGNALS.into_iter().for_each(wrap_fault_handler);
}

/// Wraps QEMU's handler of `signal`, if it is one of these signals and has a handler.
pub(crate) fn wrap_fault_handler(signal: c_int) {
    let Some(index) = FAULT_SIGNALS.iter().position(|&each| each == signal) else {
        return;
    };
    signals::replace_handler(signal, fault_handler, |handler| {
        QEMU_HANDLERS[index].store(handler, Ordering::Relaxed);
        true
    });
}

extern "C" fn fault_handler(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    let thread = current_thread();
    // SAFETY: the kernel's siginfo and context, whose mask it restores, and the calling thread.
    unsafe {
        let code = info.as_ref().map_or(SI_KERNEL, |info| info.si_code);
        if code <= 0 && signals::forward_to_exec_thread(signal, info) {
            return;
        }
        if thread.is_null() && code <= 0 && code != libc::SI_TKILL {
            let blocked = (&raw mut (*context.cast::<libc::ucontext_t>()).uc_sigmask).cast::<u64>();
            if is_qemu_thread_mask(*blocked) {
                *blocked |= 1 << (signal - 1);
                return signals::resend_to_process(signal, info);
            }
        }
        if let (false, Some(info)) = (thread.is_null(), info.as_ref()) {
            LAST_SIGNAL.set(Some(NotedSignal {
                signal,
                cause: FaultCause {
                    code: info.si_code,
                    address: info.si_addr() as u64,
                },
                point: ExecutionPoint::current_point(thread),
            }));
            let bit = signal_bit(signal);
            let other_bits = SENT_SIGNALS.get() & !bit;
            SENT_SIGNALS.set(if code <= 0 {
                other_bits | bit
            } else {
                other_bits
            });
        }
        let index = FAULT_SIGNALS.iter().position(|&each| each == signal);
        let of_qemu = index.map_or(0, |index| QEMU_HANDLERS[index].load(Ordering::Relaxed));
        if of_qemu != 0 {
            let of_qemu: SignalHandler = std::mem::transmute(of_qemu);
            of_qemu(signal, info, context);
        }
    }
}

/// Returns whether a thread with this mask is one of QEMU's own. Those block all signals but the fault signals. Where
/// the program's threads block the fault signals, the kernel chooses QEMU's thread, in which QEMU's handler would
/// crash. The wrapper therefore blocks the signal in that thread, and the kernel chooses again or keeps it pending.
/// Threads of the program never block SIGBUS.
fn is_qemu_thread_mask(blocked: u64) -> bool {
    blocked >> (libc::SIGBUS - 1) & 1 != 0
}

/// Returns the kernel's siginfo for a signal at this point, or for one that was sent, on which QEMU may act a block
/// later. Call it before the ring is closed.
///
/// # Safety
/// `thread` is the calling thread.
pub(crate) unsafe fn kernel_siginfo_of_signal(
    thread: *const RecordedThread,
    signal: c_int,
) -> Option<FaultCause> {
    let point = ExecutionPoint::current_point(thread);
    let sent = |note: &NotedSignal| note.cause.code <= 0;
    let here = |note: &NotedSignal| note.signal == signal && (note.point == point || sent(note));
    LAST_SIGNAL.get().filter(here).map(|note| note.cause)
}

/// Returns whether a process has sent the signal for which a handler begins. QEMU delivers it at the end of the block
/// in which it arrives; a blocked one is delivered at a system call.
pub(crate) fn was_signal_sent_by_process(signal: c_int) -> bool {
    SENT_SIGNALS.get() & signal_bit(signal) != 0
}

fn signal_bit(signal: c_int) -> u8 {
    let index = FAULT_SIGNALS.iter().position(|&each| each == signal);
    index.map_or(0, |index| 1 << index)
}

/// Forgets the signals so far: a handler or a system call begins, so they have ended nothing.
pub(crate) fn clear_signal_notes() {
    LAST_SIGNAL.set(None);
    SENT_SIGNALS.set(0);
}

/// Returns why the instruction at `ip` ends the thread by `signal`; None if the signal was sent. `report` is the result
/// of `kernel_siginfo_of_signal`.
pub(crate) fn fault_cause(
    thread: &RecordedThread,
    signal: c_int,
    ip: u64,
    kernel_report: Option<FaultCause>,
) -> Option<FaultCause> {
    let started = thread.block.instruction_index_at(ip).is_some();
    explain_fault(signal, ip, kernel_report, started, || {
        guest_state::read_bytes(ip, &mut [0u8]) == 1
    })
}

/// `report` is the kernel's siginfo, `started` whether the instruction was fetched, `readable` whether it could be
/// fetched.
fn explain_fault(
    signal: c_int,
    ip: u64,
    kernel_report: Option<FaultCause>,
    started: bool,
    readable: impl FnOnce() -> bool,
) -> Option<FaultCause> {
    match (signal, kernel_report) {
        (_, Some(kernel_report)) if kernel_report.code <= 0 => None,
        (libc::SIGSEGV | libc::SIGBUS, Some(kernel_report)) if started => Some(kernel_report),
        // QEMU itself finds code that cannot be fetched.
        (libc::SIGSEGV, _) if !started => Some(FaultCause {
            code: if readable() { ACCERR } else { MAPERR },
            address: ip,
        }),
        // A general protection fault has no address.
        (libc::SIGSEGV, _) => Some(FaultCause {
            code: SI_KERNEL,
            address: 0,
        }),
        (libc::SIGILL, _) => Some(FaultCause {
            code: ILLOPN,
            address: ip,
        }),
        (libc::SIGFPE, _) => Some(FaultCause {
            code: INTDIV,
            address: ip,
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IP: u64 = 0x40_1000;

    #[test]
    fn mask_distinguishes_qemu_threads_from_program_threads() {
        // SigBlk in /proc/PID/task/*/status under QEMU 7.2: QEMU's own thread; a program that blocks everything; one
        // that has just received a signal.
        assert!(is_qemu_thread_mask(0xffff_fffe_7ffb_fa77));
        assert!(!is_qemu_thread_mask(0xffff_fff8_7ffb_fabf));
        assert!(!is_qemu_thread_mask(0xffff_fffe_7ffb_fabf));
    }

    #[test]
    fn cause_of_a_deadly_signal() {
        let cause = |code, address| Some(FaultCause { code, address });
        let access = cause(MAPERR, 0x10);
        for (signal, report, started, readable, expected) in [
            (libc::SIGSEGV, access, true, true, access),
            // A fetch fault has the address of the instruction, a protection fault none.
            (libc::SIGSEGV, None, false, false, cause(MAPERR, IP)),
            (libc::SIGSEGV, None, false, true, cause(ACCERR, IP)),
            (libc::SIGSEGV, None, true, true, cause(SI_KERNEL, 0)),
            (libc::SIGTERM, None, true, true, None),
        ] {
            let found = explain_fault(signal, IP, report, started, || readable);
            assert_eq!(found, expected);
        }
        let sent = cause(libc::SI_USER, 0x1234);
        for signal in FAULT_SIGNALS {
            assert_eq!(explain_fault(signal, IP, sent, true, || true), None);
        }
    }
}
