//! Capture events: how tracers report what a program did.
//!
//! A record says what happened; `python/rtit/capture/events.py` documents the kinds and flags. Before code runs, a
//! tracer reports the bytes that the reader of the events lacks ([`code`]).

#![forbid(unsafe_code)]

#[cfg(unix)]
pub mod code;
mod kinds;

pub use kinds::{flag, EventKind, MessageKind, ResumeReason};

/// One event, or message of QEMU's plugin. `clock` is the number of instructions that all threads have retired,
/// including this one. `extra` is a value, or the index of a blob in the same batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record<K = EventKind> {
    pub kind: K,
    pub flags: u8,
    /// Length of the instruction at `ip` in bytes, 0 where there is none.
    pub length: u16,
    pub tid: u32,
    pub ip: u64,
    pub target: u64,
    pub clock: u64,
    pub extra: u64,
}

/// Bytes of a record.
pub const RECORD_SIZE: usize = 40;

impl<K: Copy + Into<u8>> Record<K> {
    pub fn new(kind: K, tid: u32) -> Record<K> {
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
    pub fn to_bytes(&self) -> [u8; RECORD_SIZE] {
        let mut bytes = [0u8; RECORD_SIZE];
        bytes[0] = self.kind.into();
        bytes[1] = self.flags;
        bytes[2..4].copy_from_slice(&self.length.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.tid.to_le_bytes());
        let words = [self.ip, self.target, self.clock, self.extra];
        for (into, word) in bytes[8..].chunks_exact_mut(8).zip(words) {
            into.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }
}

impl Record {
    /// Parses a record; None for another size than [`RECORD_SIZE`] or an unknown kind.
    pub fn from_bytes(bytes: &[u8]) -> Option<Record> {
        let bytes: &[u8; RECORD_SIZE] = bytes.try_into().ok()?;
        let word = |at: usize| {
            let bytes = bytes[at..at + 8].iter().rev();
            bytes.fold(0, |value, &byte| value << 8 | u64::from(byte))
        };
        Some(Record {
            kind: EventKind::from_u8(bytes[0])?,
            flags: bytes[1],
            length: u16::from_le_bytes([bytes[2], bytes[3]]),
            tid: (word(0) >> 32) as u32,
            ip: word(8),
            target: word(16),
            clock: word(24),
            extra: word(32),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_has_the_documented_bytes() {
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
        for bad in [&[0; 40][..], &[22; 40], &[1; 39]] {
            assert_eq!(Record::from_bytes(bad), None);
        }
    }
}
