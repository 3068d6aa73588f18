//! Recognizes the entry of a signal handler, and the instruction that the signal interrupted.
//!
//! A block at the address of a handler may also be reached by a call. It is a handler's entry if the registers point at
//! a signal frame as the kernel (and QEMU) builds it: for a signal with this handler, with its restorer as return
//! address.

use crate::interface::guest_state::{self, HandlerRegisters};

/// A handler that was installed at some time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SignalHandler {
    pub(crate) signal: u64,
    pub(crate) address: u64,
    flags: u64,
    restorer: u64,
}

impl SignalHandler {
    fn registration_key(&self) -> [u64; 3] {
        [self.signal, self.address, self.restorer]
    }
}

#[derive(Default)]
pub(crate) struct SignalHandlers(Vec<SignalHandler>);

/// What a signal frame shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SignalInterruption {
    /// The instruction at which the program continues when the handler returns.
    pub(crate) ip: u64,
    /// That instruction caused the signal and did not retire.
    pub(crate) faulted: bool,
}

// struct rt_sigframe: return address, ucontext, siginfo.
const CONTEXT: u64 = 8;
const REGISTERS: u64 = 40;
const RDI: usize = 8;
const RSI: usize = 9;
const RDX: usize = 12;
const RSP: usize = 15;
const RIP: usize = 16;
const SA_SIGINFO: u64 = 4;
/// An upper bound for the size of a frame's ucontext.
const CONTEXT_SIZE: u64 = 4096;
/// Frames of signals that arrived together; the handler of the last one runs first.
const NESTED: usize = 64;

const SIG_DFL: u64 = 0;
const SIG_IGN: u64 = 1;

impl SignalHandlers {
    /// Notes the sigaction structure at `address`, which rt_sigaction is about to install. Returns the handler if it is
    /// new.
    pub(crate) fn record_action(&mut self, signal: u64, address: u64) -> Option<SignalHandler> {
        let handler = SignalHandler {
            signal,
            address: guest_state::read_u64(address)?,
            flags: guest_state::read_u64(address + 8)?,
            restorer: guest_state::read_u64(address + 16)?,
        };
        if matches!(handler.address, SIG_DFL | SIG_IGN) || self.0.contains(&handler) {
            return None;
        }
        // The kernel builds frames by the current flags.
        self.0
            .retain(|other| other.registration_key() != handler.registration_key());
        self.0.push(handler);
        Some(handler)
    }

    pub(crate) fn has_handler_at(&self, ip: u64) -> bool {
        self.0.iter().any(|handler| handler.address == ip)
    }

    /// Returns what was interrupted by the handler that is about to start at `ip`; None for an ordinary call. `sent`
    /// returns whether a signal was sent by a process, for frames that do not show it.
    pub(crate) fn interruption_by_handler_at(
        &self,
        ip: u64,
        registers: HandlerRegisters,
        sent: impl Fn(i32) -> bool,
    ) -> Option<SignalInterruption> {
        let mut found = self.parse_frame(ip, registers, &sent)?;
        let mut innermost = found.0;
        for _ in 0..NESTED {
            // Another handler may have been interrupted at its first instruction.
            let Some(next) = self.parse_frame(innermost.ip, found.1, &sent) else {
                break;
            };
            found = next;
            innermost = found.0;
        }
        Some(innermost)
    }

    fn parse_frame(
        &self,
        ip: u64,
        registers: HandlerRegisters,
        sent: &impl Fn(i32) -> bool,
    ) -> Option<(SignalInterruption, HandlerRegisters)> {
        if !self.has_handler_at(ip) || registers.rdx != registers.rsp.wrapping_add(CONTEXT) {
            return None;
        }
        let signal = registers.rdi & 0xffff_ffff;
        let restorer = guest_state::read_u64(registers.rsp)?;
        let known = |handler: &&SignalHandler| handler.registration_key() == [signal, ip, restorer];
        let handler = self.0.iter().find(known)?;
        if registers.rsi.wrapping_sub(registers.rdx) >= CONTEXT_SIZE {
            return None;
        }
        let saved = |index: usize| {
            guest_state::read_u64(registers.rdx.wrapping_add(REGISTERS + 8 * index as u64))
        };
        // QEMU fills in siginfo only for handlers with SA_SIGINFO, and sets the vector (trapno) to -1.
        let caused = if handler.flags & SA_SIGINFO != 0 {
            if guest_state::read_u64(registers.rsi)? & 0xffff_ffff != signal {
                return None;
            }
            guest_state::read_u64(registers.rsi.wrapping_add(8))? as u32 as i32 > 0
        } else {
            !sent(signal as i32)
        };
        let interrupted = SignalInterruption {
            ip: saved(RIP)?,
            faulted: caused && is_fault_signal(signal as i32),
        };
        let before = HandlerRegisters {
            rdi: saved(RDI)?,
            rsi: saved(RSI)?,
            rdx: saved(RDX)?,
            rsp: saved(RSP)?,
        };
        Some((interrupted, before))
    }
}

/// Returns whether the signal reports that an instruction could not be executed. SIGTRAP comes after an instruction.
pub(crate) fn is_fault_signal(signal: i32) -> bool {
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

    /// Builds a frame for `signal` as the kernel lays it out, and the registers at the handler's entry.
    fn signal_frame(
        signal: u64,
        code: u32,
        rip: u64,
        before: HandlerRegisters,
    ) -> (Box<[u64; 80]>, HandlerRegisters) {
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
        let registers = HandlerRegisters {
            rdi: signal,
            rsi: rsp + 60 * 8,
            rdx: rsp + 8,
            rsp,
        };
        (words, registers)
    }

    fn test_handlers() -> SignalHandlers {
        let action = [HANDLER, SA_SIGINFO, RESTORER, 0];
        let mut handlers = SignalHandlers::default();
        assert!(handlers.record_action(10, action.as_ptr() as u64).is_some());
        assert!(handlers.record_action(11, action.as_ptr() as u64).is_some());
        assert!(handlers.record_action(10, action.as_ptr() as u64).is_none());
        handlers
    }

    fn interruption_by_handler(registers: HandlerRegisters) -> Option<SignalInterruption> {
        test_handlers().interruption_by_handler_at(HANDLER, registers, |_| false)
    }

    const NOWHERE: HandlerRegisters = HandlerRegisters {
        rdi: 1,
        rsi: 2,
        rdx: 3,
        rsp: 0x1000,
    };

    #[test]
    fn frame_shows_the_interrupted_instruction_and_fault() {
        let (_words, registers) = signal_frame(10, 0, 0x1234, NOWHERE);
        let found = interruption_by_handler(registers).unwrap();
        assert_eq!((found.ip, found.faulted), (0x1234, false));
        let (_words, registers) = signal_frame(11, 1, 0x1234, NOWHERE);
        assert!(interruption_by_handler(registers).unwrap().faulted);
    }

    #[test]
    fn ordinary_call_of_a_handler_is_no_entry() {
        assert_eq!(interruption_by_handler(NOWHERE), None);
        let (mut words, registers) = signal_frame(10, 0, 0x1234, NOWHERE);
        assert_eq!(
            test_handlers().interruption_by_handler_at(HANDLER + 1, registers, |_| false),
            None
        );
        words[0] = 7;
        assert_eq!(interruption_by_handler(registers), None);
    }

    #[test]
    fn nested_frames_show_the_first_interruption() {
        let (_outer, before) = signal_frame(11, 0, 0x1234, NOWHERE);
        let (_inner, registers) = signal_frame(10, 0, HANDLER, before);
        assert_eq!(interruption_by_handler(registers).unwrap().ip, 0x1234);
    }

    #[test]
    fn without_siginfo_an_unsent_signal_is_a_fault() {
        for (flags, code, sent, faulted) in [
            (0, 0, false, true),
            (0, 1, true, false),
            (SA_SIGINFO, 1, true, true),
            (SA_SIGINFO, 0, false, false),
        ] {
            let mut handlers = test_handlers();
            let action = [HANDLER, flags, RESTORER, 0];
            handlers.record_action(11, action.as_ptr() as u64);
            let (_words, registers) = signal_frame(11, code, 0x1234, NOWHERE);
            let found = handlers
                .interruption_by_handler_at(HANDLER, registers, |signal| sent && signal == 11);
            assert_eq!(found.unwrap().faulted, faulted);
        }
    }
}
