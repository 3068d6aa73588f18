//! The events that a tracer reports: records of 40 bytes, and blobs for what does not fit.

/// The kind of a record. The comments name the fields that matter besides `tid` and `clock`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Kind {
    /// Jcc, JCXZ, LOOP at `ip` with taken target `target`; flags [`TAKEN`].
    Conditional = 1,
    Jump = 2,
    Call = 3,
    IndirectJump = 4,
    IndirectCall = 5,
    Return = 6,
    /// A far transfer that stays in user mode; flags [`TO_NARROW`].
    Far = 7,
    /// SYSCALL at `ip`: user code is left.
    Syscall = 8,
    /// A signal before the instruction at `ip`; `extra` is its number.
    Interrupt = 9,
    /// The instruction at `ip` did not retire; `extra` is the signal, with its si_code from bit 32 on; `target` is its
    /// si_addr.
    Fault = 10,
    /// INT3, INT1 or INT n at `ip`; `extra` is the vector. Not counted as retired.
    SoftInt = 11,
    /// User code continues at `target`; `flags` is a [`Resume`], perhaps with [`NARROW`]. Here, and at branches, system
    /// calls, switches and exits, `extra` is the number of instructions that the thread has retired.
    Resume = 12,
    /// The thread is switched out and in at `ip`; flags [`IN_CONTEXT`], [`TURNS_ON`], [`TURNS_OFF`].
    Switch = 13,
    /// A new thread: `ip` is its process, `target` the parent's tid, `extra` the parent's process; flags [`SHARES_MEMORY`],
    /// [`WAITS`].
    Thread = 14,
    /// A thread ended; `ip` is its wait status; flags [`DETACHED`], [`TOOK_SIGNAL`].
    Exit = 15,
    /// A new program in process `ip`; the blob is its path.
    Exec = 16,
    /// The thread's name, a blob; `ip` is its process; flags [`BY_EXEC`].
    Comm = 17,
    /// `target` bytes of executable mapping at `ip`; the blob is a [`Mapping`]; flags [`WITH_CONTENTS`].
    Mmap = 18,
    /// Code bytes at `ip`, the blob; flags [`OF_MAPPING`].
    Code = 19,
    /// A text, in the blob.
    Warning = 20,
    /// Nothing follows. `ip` is the wait status of the first program, `target` how many edges of the window were passed
    /// (without a start edge: one more); flags [`KILLED`].
    End = 21,
}

/// [`Kind::Conditional`]: the branch was taken.
pub const TAKEN: u8 = 1;
/// [`Kind::Far`]: `target` is 32-bit code.
pub const TO_NARROW: u8 = 1;
/// [`Kind::Resume`]: `target` is 32-bit code.
pub const NARROW: u8 = 0x80;
/// [`Kind::Switch`]: user code was interrupted at `ip`, which is not yet executed.
pub const IN_CONTEXT: u8 = 1;
/// [`Kind::Switch`]: tracing is on from here on; or off.
pub const TURNS_ON: u8 = 2;
pub const TURNS_OFF: u8 = 4;
/// [`Kind::Thread`]: it runs in its parent's address space.
pub const SHARES_MEMORY: u8 = 1;
/// [`Kind::Thread`]: tracing is off until a Switch turns it on.
pub const WAITS: u8 = 2;
/// [`Kind::Comm`]: the name comes from exec.
pub const BY_EXEC: u8 = 1;
/// [`Kind::Exit`]: the thread lives on untraced.
pub const DETACHED: u8 = 1;
/// [`Kind::Exit`]: this thread took the signal that ended the process.
pub const TOOK_SIGNAL: u8 = 2;
/// [`Kind::Mmap`]: the blob continues with the first bytes of the file, and the next record has the mapped bytes. The
/// reader may find another file by this path, or a changed one.
pub const WITH_CONTENTS: u8 = 1;
/// [`Kind::Code`]: the bytes are those of a mapping [`WITH_CONTENTS`].
pub const OF_MAPPING: u8 = 1;
/// [`Kind::End`]: the tracer killed the program.
pub const KILLED: u8 = 1;

/// Why user code continues ([`Kind::Resume`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Resume {
    SystemCall = 0,
    Handler = 1,
    Exec = 2,
    Thread = 3,
    Other = 4,
}

/// One event. `clock` is the number of instructions that all threads have retired, including this one. `extra` is a
/// value, or the index of a blob in the same batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record {
    pub kind: Kind,
    pub flags: u8,
    /// Length of the instruction at `ip` in bytes, 0 where there is none.
    pub length: u16,
    pub tid: u32,
    pub ip: u64,
    pub target: u64,
    pub clock: u64,
    pub extra: u64,
}

impl Record {
    /// Bytes of a record.
    pub const SIZE: usize = 40;

    pub(crate) fn new(kind: Kind, tid: u32) -> Record {
        Record {
            kind,
            flags: 0,
            length: 0,
            tid,
            ip: 0,
            target: 0,
            clock: 0,
            extra: 0,
        }
    }

    /// Little-endian: kind u8, flags u8, length u16, tid u32, ip, target, clock, extra u64.
    pub fn to_bytes(&self) -> [u8; Record::SIZE] {
        let mut bytes = [0u8; Record::SIZE];
        bytes[0] = self.kind as u8;
        bytes[1] = self.flags;
        bytes[2..4].copy_from_slice(&self.length.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.tid.to_le_bytes());
        for (at, value) in [
            (8, self.ip),
            (16, self.target),
            (24, self.clock),
            (32, self.extra),
        ] {
            bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        bytes
    }

    /// Parses a record; None for another size than [`Record::SIZE`] or an unknown kind.
    pub fn from_bytes(bytes: &[u8]) -> Option<Record> {
        let bytes: &[u8; Record::SIZE] = bytes.try_into().ok()?;
        let word = |at: usize| {
            bytes[at..at + 8]
                .iter()
                .rev()
                .fold(0, |v, &b| v << 8 | u64::from(b))
        };
        Some(Record {
            kind: Kind::from_u8(bytes[0])?,
            flags: bytes[1],
            length: u16::from_le_bytes([bytes[2], bytes[3]]),
            tid: word(0).wrapping_shr(32) as u32,
            ip: word(8),
            target: word(16),
            clock: word(24),
            extra: word(32),
        })
    }
}

impl Kind {
    /// All kinds, in the order of their numbers from 1.
    pub const ALL: [Kind; 21] = [
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

    fn from_u8(value: u8) -> Option<Kind> {
        Kind::ALL.get(usize::from(value).checked_sub(1)?).copied()
    }
}

/// The blob of [`Kind::Mmap`].
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct Mapping {
    pub start: u64,
    pub end: u64,
    /// File offset of `start`, bytes.
    pub offset: u64,
    /// PROT_ bits.
    pub protection: u32,
    /// MAP_ bits: private or shared, and anonymous.
    pub flags: u32,
    pub major: u32,
    pub minor: u32,
    pub inode: u64,
    /// The file, or a name in brackets, or "//anon".
    pub path: Vec<u8>,
}

impl Mapping {
    /// Little-endian: offset u64, protection, flags, major, minor u32, inode, inode generation (always 0) u64, path, NUL.
    pub fn to_blob(&self) -> Vec<u8> {
        let mut blob = Vec::with_capacity(41 + self.path.len());
        blob.extend_from_slice(&self.offset.to_le_bytes());
        for value in [self.protection, self.flags, self.major, self.minor] {
            blob.extend_from_slice(&value.to_le_bytes());
        }
        blob.extend_from_slice(&self.inode.to_le_bytes());
        blob.extend_from_slice(&0u64.to_le_bytes());
        blob.extend_from_slice(&self.path);
        blob.push(0);
        blob
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_numbered_in_order() {
        for (index, kind) in Kind::ALL.iter().enumerate() {
            assert_eq!(*kind as usize, index + 1);
        }
    }

    #[test]
    fn a_record_survives_its_bytes() {
        let record = Record {
            kind: Kind::SoftInt,
            flags: 0x81,
            length: 0x0203,
            tid: 0x0405_0607,
            ip: 0x1122_3344_5566_7788,
            target: u64::MAX,
            clock: 1,
            extra: 0x80,
        };
        let bytes = record.to_bytes();
        assert_eq!(
            bytes[..12],
            [11, 0x81, 3, 2, 7, 6, 5, 4, 0x88, 0x77, 0x66, 0x55]
        );
        assert_eq!(Record::from_bytes(&bytes), Some(record));
    }

    #[test]
    fn bad_bytes_are_no_record() {
        assert_eq!(Record::from_bytes(&[0; 40]), None);
        assert_eq!(Record::from_bytes(&[22; 40]), None);
        assert_eq!(Record::from_bytes(&[1; 39]), None);
    }
}
