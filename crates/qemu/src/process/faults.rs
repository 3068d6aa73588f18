//! What made an instruction fail: the address that a deadly signal is about.
//!
//! QEMU learns of most memory faults of the program as the kernel's signals to itself. Its handlers for them are wrapped:
//! what the kernel says is noted, and they are called. No more than a note is made, since QEMU's own faults come here, too.
//! What somebody sent goes to one of the program's threads.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

use libc::{c_int, c_void, siginfo_t};

use crate::interface::{memory, taken};
use crate::shared::ring::{self, Mark};
use crate::shared::threads::current;
use crate::thread::block::Block;
use crate::thread::state::Thread;

const SIGNALS: [c_int; 4] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE];

// si_code, as in the kernel's siginfo.h
const MAPERR: i32 = 1;
const ACCERR: i32 = 2;
const ILLOPN: i32 = 2;
const INTDIV: i32 = 1;
const SI_KERNEL: i32 = 0x80;

/// Why the kernel, or QEMU in its place, sent a signal for an instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Cause {
    /// si_code
    pub(crate) code: i32,
    /// si_addr
    pub(crate) address: u64,
}

/// The last such signal of this thread, and where the thread was.
#[derive(Clone, Copy)]
struct Note {
    signal: c_int,
    cause: Cause,
    place: Place,
}

/// How far a thread has come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Kept(Mark),
    Followed(*const Block, u64),
}

impl Place {
    /// # Safety
    /// `thread` is the calling one.
    unsafe fn of(thread: *const Thread) -> Place {
        match ring::mark() {
            Some(mark) => Place::Kept(mark),
            None => Place::Followed((*thread).block, (*thread).retired()),
        }
    }
}

thread_local! {
    static LAST: Cell<Option<Note>> = const { Cell::new(None) };
    /// Bits of `SIGNALS` that somebody has sent since the last `forget`, and that nothing here has caused after that.
    static SENT: Cell<u8> = const { Cell::new(0) };
}

/// QEMU's handlers, in the order of `SIGNALS`.
static OF_QEMU: [AtomicUsize; SIGNALS.len()] = [const { AtomicUsize::new(0) }; SIGNALS.len()];

/// Wraps QEMU's handlers, once it has set them up.
pub(super) fn watch() {
    SIGNALS.into_iter().for_each(wrap);
}

/// Wraps QEMU's handler of this signal, if it is one of them and has one now.
pub(crate) fn wrap(signal: c_int) {
    let Some(index) = SIGNALS.iter().position(|&each| each == signal) else {
        return;
    };
    let ours = noted as extern "C" fn(c_int, *mut siginfo_t, *mut c_void) as usize;
    // SAFETY: actions are read into and from a value that lives long enough.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &mut action);
        let handler = action.sa_sigaction;
        let handles = !matches!(handler, libc::SIG_DFL | libc::SIG_IGN) && handler != ours;
        if handles && action.sa_flags & libc::SA_SIGINFO != 0 {
            OF_QEMU[index].store(handler, Ordering::Relaxed);
            action.sa_sigaction = ours;
            libc::sigaction(signal, &action, std::ptr::null_mut());
        }
    }
}

extern "C" fn noted(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    let thread = current();
    // SAFETY: the kernel's siginfo and context, whose mask it restores, and the calling thread.
    unsafe {
        let code = info.as_ref().map_or(SI_KERNEL, |info| info.si_code);
        if code <= 0 && taken::passed_on(signal, info) {
            return;
        }
        if thread.is_null() && code <= 0 && code != libc::SI_TKILL {
            let blocked = (&raw mut (*context.cast::<libc::ucontext_t>()).uc_sigmask).cast::<u64>();
            if is_of_qemu(*blocked) {
                *blocked |= 1 << (signal - 1);
                return taken::send_again(signal, info);
            }
        }
        if let (false, Some(info)) = (thread.is_null(), info.as_ref()) {
            LAST.set(Some(Note {
                signal,
                cause: Cause {
                    code: info.si_code,
                    address: info.si_addr() as u64,
                },
                place: Place::of(thread),
            }));
            let bit = bit_of(signal);
            let others = SENT.get() & !bit;
            SENT.set(if code <= 0 { others | bit } else { others });
        }
        let index = SIGNALS.iter().position(|&each| each == signal);
        let of_qemu = index.map_or(0, |index| OF_QEMU[index].load(Ordering::Relaxed));
        if of_qemu != 0 {
            let of_qemu: extern "C" fn(c_int, *mut siginfo_t, *mut c_void) =
                std::mem::transmute(of_qemu);
            of_qemu(signal, info, context);
        }
    }
}

/// Whether a thread that blocks these is QEMU's own. Those block all but the signals of instructions, so that the kernel
/// chooses them where the program's threads block these, and QEMU's handler crashes there. So such a thread blocks them as
/// well, and the kernel has to choose again, or to let the signal wait. The program's never block SIGBUS.
fn is_of_qemu(blocked: u64) -> bool {
    blocked >> (libc::SIGBUS - 1) & 1 != 0
}

/// The kernel's word to QEMU of a signal here, or that it was sent, which QEMU acts on a block later if it likes. Before
/// the ring is closed.
///
/// # Safety
/// `thread` is the calling one.
pub(crate) unsafe fn told(thread: *const Thread, signal: c_int) -> Option<Cause> {
    let place = Place::of(thread);
    let sent = |note: &Note| note.cause.code <= 0;
    let here = |note: &Note| note.signal == signal && (note.place == place || sent(note));
    LAST.get().filter(here).map(|note| note.cause)
}

/// A handler of the calling thread begins, and whether it does for a signal that was sent is asked: QEMU acts on one at the
/// end of the block in which it comes. What waits longer, as it is blocked, waits for a system call.
pub(crate) fn was_sent(signal: c_int) -> bool {
    SENT.get() & bit_of(signal) != 0
}

fn bit_of(signal: c_int) -> u8 {
    let index = SIGNALS.iter().position(|&each| each == signal);
    index.map_or(0, |index| 1 << index)
}

/// A handler of the calling thread begins, or a system call: the signals so far have ended nothing.
pub(crate) fn forget() {
    LAST.set(None);
    SENT.set(0);
}

/// Why the instruction at `ip` ends the thread by `signal`, of which this was `told`; None if the signal was sent.
pub(crate) fn cause(thread: &Thread, signal: c_int, ip: u64, told: Option<Cause>) -> Option<Cause> {
    let started = thread.block.index_of(ip).is_some();
    explain(signal, ip, told, started, || {
        memory::read(ip, &mut [0u8]) == 1
    })
}

/// `told` is the kernel's word to QEMU, `started` whether the instruction was fetched, `readable` whether it could be.
fn explain(
    signal: c_int,
    ip: u64,
    told: Option<Cause>,
    started: bool,
    readable: impl FnOnce() -> bool,
) -> Option<Cause> {
    match (signal, told) {
        (_, Some(told)) if told.code <= 0 => None,
        (libc::SIGSEGV | libc::SIGBUS, Some(told)) if started => Some(told),
        // QEMU finds out by itself what cannot be fetched.
        (libc::SIGSEGV, _) if !started => Some(Cause {
            code: if readable() { ACCERR } else { MAPERR },
            address: ip,
        }),
        // A general protection fault has no address.
        (libc::SIGSEGV, _) => Some(Cause {
            code: SI_KERNEL,
            address: 0,
        }),
        (libc::SIGILL, _) => Some(Cause {
            code: ILLOPN,
            address: ip,
        }),
        (libc::SIGFPE, _) => Some(Cause {
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
    fn threads_of_qemu_and_of_the_program() {
        // SigBlk of /proc/PID/task/*/status under QEMU 7.2: its own thread; a program that blocks all; one that has just
        // got a signal
        assert!(is_of_qemu(0xffff_fffe_7ffb_fa77));
        assert!(!is_of_qemu(0xffff_fff8_7ffb_fabf));
        assert!(!is_of_qemu(0xffff_fffe_7ffb_fabf));
    }

    #[test]
    fn what_the_kernel_tells_of_an_access_counts() {
        let told = Cause {
            code: MAPERR,
            address: 0x10,
        };
        let found = explain(libc::SIGSEGV, IP, Some(told), true, || true);
        assert_eq!(found, Some(told));
    }

    #[test]
    fn what_cannot_be_fetched_is_at_the_instruction() {
        for (readable, code) in [(false, MAPERR), (true, ACCERR)] {
            let found = explain(libc::SIGSEGV, IP, None, false, || readable);
            assert_eq!(found, Some(Cause { code, address: IP }));
        }
    }

    #[test]
    fn a_protection_fault_has_no_address() {
        let found = explain(libc::SIGSEGV, IP, None, true, || true).unwrap();
        assert_eq!((found.code, found.address), (SI_KERNEL, 0));
    }

    #[test]
    fn a_signal_that_was_sent_has_no_cause() {
        let sent = Cause {
            code: libc::SI_USER,
            address: 0x1234,
        };
        for signal in SIGNALS {
            assert_eq!(explain(signal, IP, Some(sent), true, || true), None);
        }
        assert_eq!(explain(libc::SIGTERM, IP, None, true, || true), None);
    }
}
