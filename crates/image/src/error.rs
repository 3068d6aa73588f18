//! The error of this crate.

use std::fmt;

/// Why bytes are not an ELF file that can be used. Offsets are in bytes from the start of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ElfError {
    /// The file does not begin with an ELF header of class 32 or 64; `magic` is what its first
    /// bytes are.
    NotElf { magic: u32 },
    /// The part `what`, said to be at `offset`, is cut off or contradicts itself.
    Malformed {
        what: &'static str,
        offset: u64,
        reason: String,
    },
}

impl ElfError {
    pub fn offset(&self) -> u64 {
        match self {
            ElfError::NotElf { .. } => 0,
            ElfError::Malformed { offset, .. } => *offset,
        }
    }

    /// The bad value, if it is a number.
    pub fn value(&self) -> Option<u64> {
        match self {
            ElfError::NotElf { magic } => Some(u64::from(*magic)),
            ElfError::Malformed { .. } => None,
        }
    }
}

impl fmt::Display for ElfError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ElfError::NotElf { .. } => write!(f, "not an ELF file"),
            ElfError::Malformed { what, reason, .. } => write!(f, "bad ELF {what}: {reason}"),
        }
    }
}

impl std::error::Error for ElfError {}
