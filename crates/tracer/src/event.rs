//! The events that a tracer reports: records of 40 bytes, and blobs for what does not fit.

use rtit_events::RECORD_SIZE;
pub use rtit_events::{flag, EventKind, ResumeReason};

/// One event. `clock` is the number of instructions that all threads have retired, including this one. `extra` is a
/// value, or the index of a blob in the same batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record {
    pub kind: EventKind,
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
    pub const SIZE: usize = RECORD_SIZE;

    pub(crate) fn new(kind: EventKind, tid: u32) -> Record {
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
            kind: EventKind::from_u8(bytes[0])?,
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

/// The blob of [`EventKind::Mmap`].
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
    /// Little-endian: offset u64, protection, flags, major, minor u32, inode, inode generation (always 0) u64, path,
    /// NUL.
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
    fn a_record_survives_its_bytes() {
        let record = Record {
            kind: EventKind::SoftInt,
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
