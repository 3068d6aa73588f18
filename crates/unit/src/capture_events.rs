//! Capture events as input of the unit, and the part of an operating system's driver that the unit plays for them: it
//! enables tracing before a thread's first instruction, and disables and enables it where the thread is switched out
//! and in, which puts an exact TSC into the stream.

use crate::error::Error;
use crate::unit::TraceUnit;

use rtit_events::flag;
pub use rtit_events::{EventKind, RECORD_SIZE};

/// The fields of a record from which packets follow. `ip` and `length`: the instruction; `clock`: retired instructions
/// including it. Bit 0 of `flags`: taken (Conditional), or interrupted in user mode (Switch).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CaptureEvent {
    pub kind: EventKind,
    pub flags: u8,
    pub length: u16,
    pub ip: u64,
    pub target: u64,
    pub clock: u64,
}

impl CaptureEvent {
    /// Parses a record.
    ///
    /// # Errors `Error::UnknownKind`.
    pub fn from_bytes(record: &[u8; RECORD_SIZE]) -> Result<CaptureEvent, Error> {
        let [kind, flags, low, high, ..] = *record;
        let found = EventKind::from_u8(kind);
        let word = |at: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&record[at..at + 8]);
            u64::from_le_bytes(bytes)
        };
        Ok(CaptureEvent {
            kind: found.ok_or(Error::UnknownKind(kind))?,
            flags,
            length: u16::from_le_bytes([low, high]),
            ip: word(8),
            target: word(16),
            clock: word(24),
        })
    }

    /// Returns the address of the next instruction in memory.
    pub fn next_ip(&self) -> u64 {
        self.ip.wrapping_add(self.length.into())
    }
}

/// Instructions for which a thread in the kernel counts as scheduled.
const LONGEST_SCHEDULED: u64 = 4096;

impl TraceUnit {
    /// Applies the capture events of one thread, records of `RECORD_SIZE` bytes. Skips those that emit no packets.
    ///
    /// # Errors `Error::TruncatedRecord`; `Error::Record` with the cause. The records before the bad one have been
    /// applied.
    pub fn feed_records(&mut self, records: &[u8]) -> Result<(), Error> {
        for (index, record) in records.chunks(RECORD_SIZE).enumerate() {
            let offset = index * RECORD_SIZE;
            let Some(whole) = record.first_chunk() else {
                let size = record.len();
                return Err(Error::TruncatedRecord { offset, size });
            };
            let taken = CaptureEvent::from_bytes(whole).and_then(|event| self.apply_event(&event));
            taken.map_err(|cause| Error::Record {
                offset,
                cause: Box::new(cause),
            })?;
        }
        Ok(())
    }

    /// Applies one event, at its clock.
    ///
    /// # Errors As `TraceUnit::advance_clock`.
    pub fn apply_event(&mut self, event: &CaptureEvent) -> Result<(), Error> {
        if event.kind as u8 <= EventKind::Far as u8 {
            self.advance_clock(event.clock)?;
        } else if event.kind as u8 <= EventKind::Exit as u8 {
            self.advance_clock_until(event.clock)?;
        }
        match event.kind {
            EventKind::Conditional => {
                self.conditional(
                    event.next_ip(),
                    event.target,
                    event.flags & flag::CONDITIONAL_TAKEN != 0,
                );
            }
            EventKind::Jump => self.jump(event.target),
            EventKind::Call => self.call(event.next_ip(), event.target),
            EventKind::IndirectJump => self.indirect_jump(event.target),
            EventKind::IndirectCall => self.indirect_call(event.next_ip(), event.target),
            EventKind::Return => self.ret(event.target),
            EventKind::Far => self.emit_far_branch(event.target),
            EventKind::Syscall => self.syscall(),
            EventKind::Interrupt => self.interrupt(event.ip),
            EventKind::Fault => self.exception(event.ip),
            EventKind::SoftInt => self.software_interrupt(event.ip),
            EventKind::Resume => self.switch_thread_in(event.target),
            EventKind::Switch => self.switch_thread_out_and_in(
                (event.flags & flag::SWITCH_IN_USER != 0).then_some(event.ip),
            ),
            EventKind::Exit => self.disable_tracing(),
            EventKind::Thread
            | EventKind::Exec
            | EventKind::Comm
            | EventKind::Mmap
            | EventKind::Code
            | EventKind::Warning
            | EventKind::End => {}
        }
        Ok(())
    }

    /// Advances the clock, as `advance_clock`. A thread that stays in the kernel for more than `LONGEST_SCHEDULED` was
    /// switched out on entry: TraceEn is 0 until `switch_thread_in`, so that waiting emits no timing packets.
    ///
    /// # Errors As `TraceUnit::advance_clock`.
    pub fn advance_clock_until(&mut self, clock: u64) -> Result<(), Error> {
        if !self.core.user && clock.saturating_sub(self.clock_in_instructions()) > LONGEST_SCHEDULED
        {
            self.disable_tracing();
        }
        self.advance_clock(clock)
    }

    /// Continues, or starts, user code at `target`.
    pub fn switch_thread_in(&mut self, target: u64) {
        self.enable_unless_stopped();
        self.resume_user_code(target);
    }

    /// Switches the thread out and in, before the instruction at `ip` in user mode or in the kernel. New address ranges
    /// take effect.
    pub fn switch_thread_out_and_in(&mut self, ip: Option<u64>) {
        if let Some(ip) = ip {
            self.interrupt(ip);
        }
        self.disable_tracing();
        self.enable_unless_stopped();
        if let Some(ip) = ip {
            self.resume_user_code(ip);
        }
    }

    /// A trace that TraceStop or a full region has stopped stays stopped.
    fn enable_unless_stopped(&mut self) {
        if !self.is_stopped() {
            self.enable_tracing();
        }
    }
}
