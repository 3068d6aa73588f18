//! One change of an address space.

use crate::bytes::Bytes;

#[derive(Clone, Debug)]
pub(crate) enum Action {
    /// Bytes appear at `address`, over whatever was there (a mapping, or code that was written).
    Put { address: u64, bytes: Bytes },
    /// `start..end` can no longer be read.
    Remove { start: u64, end: u64 },
    /// Nothing can be read any more.
    Clear,
}

#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub time: u64,
    pub action: Action,
}
