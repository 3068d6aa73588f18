//! Capture events: what a thread did, 40 bytes a record, little endian.

use crate::error::Error;

/// Bytes of a record.
pub const RECORD: usize = 40;

/// What happened (see the fields of `Event` for where).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    Conditional = 1,
    Jump,
    Call,
    IndirectJump,
    IndirectCall,
    Return,
    Far,
    Syscall,
    Interrupt,
    Fault,
    SoftInt,
    Resume,
    Switch,
    Thread,
    Exit,
    /// What follows is for the files beside the trace.
    Exec,
    Comm,
    Mmap,
    Code,
    Warning,
    End,
}

const KINDS: [Kind; 21] = [
    Kind::Conditional,
    Kind::Jump,
    Kind::Call,
    Kind::IndirectJump,
    Kind::IndirectCall,
    Kind::Return,
    Kind::Far,
    Kind::Syscall,
    Kind::Interrupt,
    Kind::Fault,
    Kind::SoftInt,
    Kind::Resume,
    Kind::Switch,
    Kind::Thread,
    Kind::Exit,
    Kind::Exec,
    Kind::Comm,
    Kind::Mmap,
    Kind::Code,
    Kind::Warning,
    Kind::End,
];

/// The part of a record that packets come from: `ip` is the instruction's own address, `length` its bytes, `clock` the
/// retired instructions with it. Bit 0 of `flags`: taken (Conditional), interrupted in user mode (Switch).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Event {
    pub kind: Kind,
    pub flags: u8,
    pub length: u16,
    pub ip: u64,
    pub target: u64,
    pub clock: u64,
}

impl Event {
    /// # Errors
    /// `Error::UnknownKind`.
    pub fn from_bytes(record: &[u8; RECORD]) -> Result<Event, Error> {
        let [kind, flags, low, high, ..] = *record;
        let found = KINDS.get(usize::from(kind).wrapping_sub(1));
        let word = |at: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&record[at..at + 8]);
            u64::from_le_bytes(bytes)
        };
        Ok(Event {
            kind: *found.ok_or(Error::UnknownKind(kind))?,
            flags,
            length: u16::from_le_bytes([low, high]),
            ip: word(8),
            target: word(16),
            clock: word(24),
        })
    }

    /// The instruction after this one.
    pub fn next_ip(&self) -> u64 {
        self.ip.wrapping_add(self.length.into())
    }
}
