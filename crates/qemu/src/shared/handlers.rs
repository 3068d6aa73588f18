//! Is this the entry of a signal handler, and what did the signal interrupt?
//!
//! A block that starts where a handler does may have been called. It is an entry if the registers point at a signal
//! frame as the kernel (and QEMU) builds it, for a signal that has this handler, with its restorer as return address.

use crate::interface::cpu::Registers;
use crate::interface::memory;

/// A handler that was installed at some time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Handler {
    pub(crate) signal: u64,
    pub(crate) address: u64,
    flags: u64,
    restorer: u64,
}

impl Handler {
    fn key(&self) -> [u64; 3] {
        [self.signal, self.address, self.restorer]
    }
}

#[derive(Default)]
pub(crate) struct Handlers(Vec<Handler>);

/// What a frame tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Interrupted {
    /// The instruction that goes on when the handler returns.
    pub(crate) ip: u64,
    /// The signal comes from that instruction, which did not finish.
    pub(crate) faulted: bool,
}

// struct rt_sigframe: return address, ucontext, siginfo
const CONTEXT: u64 = 8;
const REGISTERS: u64 = 40;
const RDI: usize = 8;
const RSI: usize = 9;
const RDX: usize = 12;
const RSP: usize = 15;
const RIP: usize = 16;
const SA_SIGINFO: u64 = 4;
/// A frame's context is shorter.
const CONTEXT_SIZE: u64 = 4096;
/// Frames of signals that arrived together, the last one's handler first.
const NESTED: usize = 64;

const SIG_DFL: u64 = 0;
const SIG_IGN: u64 = 1;

impl Handlers {
    /// rt_sigaction is about to install the action at `address`; the handler, if it is a new one.
    pub(crate) fn install(&mut self, signal: u64, address: u64) -> Option<Handler> {
        let handler = Handler {
            signal,
            address: memory::word(address)?,
            flags: memory::word(address + 8)?,
            restorer: memory::word(address + 16)?,
        };
        if matches!(handler.address, SIG_DFL | SIG_IGN) || self.0.contains(&handler) {
            return None;
        }
        // Frames are made by the flags that it has now.
        self.0.retain(|other| other.key() != handler.key());
        self.0.push(handler);
        Some(handler)
    }

    pub(crate) fn start_at(&self, ip: u64) -> bool {
        self.0.iter().any(|handler| handler.address == ip)
    }

    /// What was interrupted for the handler that is about to start at `ip`; None if it is an ordinary call. `sent` says of
    /// a signal whether somebody sent it, where the frame does not.
    pub(crate) fn entered(
        &self,
        ip: u64,
        registers: Registers,
        sent: impl Fn(i32) -> bool,
    ) -> Option<Interrupted> {
        let mut found = self.frame(ip, registers, &sent)?;
        let mut innermost = found.0;
        for _ in 0..NESTED {
            // Another handler, at whose first instruction this signal arrived?
            let Some(next) = self.frame(innermost.ip, found.1, &sent) else {
                break;
            };
            found = next;
            innermost = found.0;
        }
        Some(innermost)
    }

    fn frame(
        &self,
        ip: u64,
        registers: Registers,
        sent: &impl Fn(i32) -> bool,
    ) -> Option<(Interrupted, Registers)> {
        if !self.start_at(ip) || registers.rdx != registers.rsp.wrapping_add(CONTEXT) {
            return None;
        }
        let signal = registers.rdi & 0xffff_ffff;
        let restorer = memory::word(registers.rsp)?;
        let known = |handler: &&Handler| handler.key() == [signal, ip, restorer];
        let handler = self.0.iter().find(known)?;
        if registers.rsi.wrapping_sub(registers.rdx) >= CONTEXT_SIZE {
            return None;
        }
        let saved =
            |index: usize| memory::word(registers.rdx.wrapping_add(REGISTERS + 8 * index as u64));
        // QEMU fills in the siginfo for those handlers only that get it, and leaves the vector out (trapno is -1).
        let caused = if handler.flags & SA_SIGINFO != 0 {
            if memory::word(registers.rsi)? & 0xffff_ffff != signal {
                return None;
            }
            memory::word(registers.rsi.wrapping_add(8))? as u32 as i32 > 0
        } else {
            !sent(signal as i32)
        };
        let interrupted = Interrupted {
            ip: saved(RIP)?,
            faulted: caused && is_fault(signal as i32),
        };
        let before = Registers {
            rdi: saved(RDI)?,
            rsi: saved(RSI)?,
            rdx: saved(RDX)?,
            rsp: saved(RSP)?,
        };
        Some((interrupted, before))
    }
}

/// Signals by which an instruction says that it could not be executed. SIGTRAP comes after one.
pub(crate) fn is_fault(signal: i32) -> bool {
    matches!(
        signal,
        libc::SIGSEGV | libc::SIGBUS | libc::SIGILL | libc::SIGFPE
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const HANDLER: u64 = 0x40_1000;
    const RESTORER: u64 = 0x40_2000;

    /// A frame for `signal` as the kernel lays it out, and the registers at the handler's entry.
    fn frame(signal: u64, code: u32, rip: u64, before: Registers) -> (Box<[u64; 80]>, Registers) {
        let mut words = Box::new([0u64; 80]);
        let rsp = words.as_ptr() as u64;
        words[0] = RESTORER;
        let register = |index: usize| 1 + 5 + index;
        words[register(RDI)] = before.rdi;
        words[register(RSI)] = before.rsi;
        words[register(RDX)] = before.rdx;
        words[register(RSP)] = before.rsp;
        words[register(RIP)] = rip;
        words[60] = signal;
        words[61] = u64::from(code);
        let registers = Registers {
            rdi: signal,
            rsi: rsp + 60 * 8,
            rdx: rsp + 8,
            rsp,
        };
        (words, registers)
    }

    fn handlers() -> Handlers {
        let action = [HANDLER, SA_SIGINFO, RESTORER, 0];
        let mut handlers = Handlers::default();
        assert!(handlers.install(10, action.as_ptr() as u64).is_some());
        assert!(handlers.install(11, action.as_ptr() as u64).is_some());
        assert!(handlers.install(10, action.as_ptr() as u64).is_none());
        handlers
    }

    fn entered(registers: Registers) -> Option<Interrupted> {
        handlers().entered(HANDLER, registers, |_| false)
    }

    const NOWHERE: Registers = Registers {
        rdi: 1,
        rsi: 2,
        rdx: 3,
        rsp: 0x1000,
    };

    #[test]
    fn a_frame_tells_what_was_interrupted() {
        let (_words, registers) = frame(10, 0, 0x1234, NOWHERE);
        let found = entered(registers).unwrap();
        assert_eq!((found.ip, found.faulted), (0x1234, false));
        let (_words, registers) = frame(11, 1, 0x1234, NOWHERE);
        assert!(entered(registers).unwrap().faulted);
    }

    #[test]
    fn a_call_of_a_handler_is_no_entry() {
        assert_eq!(entered(NOWHERE), None);
        let (mut words, registers) = frame(10, 0, 0x1234, NOWHERE);
        assert_eq!(handlers().entered(HANDLER + 1, registers, |_| false), None);
        words[0] = 7;
        assert_eq!(entered(registers), None);
    }

    #[test]
    fn of_two_signals_at_once_the_first_tells() {
        let (_outer, before) = frame(11, 0, 0x1234, NOWHERE);
        let (_inner, registers) = frame(10, 0, HANDLER, before);
        assert_eq!(entered(registers).unwrap().ip, 0x1234);
    }

    #[test]
    fn without_a_siginfo_what_is_not_sent_is_caused() {
        for (flags, code, sent, faulted) in [
            (0, 0, false, true),
            (0, 1, true, false),
            (SA_SIGINFO, 1, true, true),
            (SA_SIGINFO, 0, false, false),
        ] {
            let mut handlers = handlers();
            let action = [HANDLER, flags, RESTORER, 0];
            handlers.install(11, action.as_ptr() as u64);
            let (_words, registers) = frame(11, code, 0x1234, NOWHERE);
            let found = handlers.entered(HANDLER, registers, |signal| sent && signal == 11);
            assert_eq!(found.unwrap().faulted, faulted);
        }
    }
}
