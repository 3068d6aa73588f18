//! Immutable bytes that many spaces share: a slice of one allocation.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// A cheaply cloned slice of shared bytes. Files are copied in, not mapped: a file that shrinks
/// while it is mapped kills the reader, and executable segments are small.
#[derive(Clone)]
pub struct SharedBytes {
    data: Arc<Vec<u8>>,
    start: usize,
    end: usize,
}

impl SharedBytes {
    /// The part `range` of these bytes, counted from their start; `None` if it reaches outside.
    pub fn slice_of_range(&self, range: Range<usize>) -> Option<SharedBytes> {
        if range.start > range.end || range.end > self.len() {
            return None;
        }
        Some(self.slice_of_clamped_range(range.start, range.end))
    }

    /// As `slice_of_range`, with the range clamped to what there is.
    pub(crate) fn slice_of_clamped_range(&self, start: usize, end: usize) -> SharedBytes {
        let end = end.min(self.len());
        let start = start.min(end);
        SharedBytes {
            data: Arc::clone(&self.data),
            start: self.start + start,
            end: self.start + end,
        }
    }

    pub fn as_slice(&self) -> &[u8] {
        self.data.get(self.start..self.end).unwrap_or(&[])
    }

    pub fn len(&self) -> usize {
        self.end - self.start
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// True if both are the same part of one allocation: equal without comparing a byte.
    pub(crate) fn is_same_allocation_part(&self, other: &SharedBytes) -> bool {
        Arc::ptr_eq(&self.data, &other.data) && self.start == other.start && self.end == other.end
    }
}

impl PartialEq for SharedBytes {
    fn eq(&self, other: &SharedBytes) -> bool {
        self.is_same_allocation_part(other) || self.as_slice() == other.as_slice()
    }
}

impl From<Vec<u8>> for SharedBytes {
    fn from(data: Vec<u8>) -> SharedBytes {
        let end = data.len();
        SharedBytes {
            data: Arc::new(data),
            start: 0,
            end,
        }
    }
}

impl From<&[u8]> for SharedBytes {
    fn from(data: &[u8]) -> SharedBytes {
        data.to_vec().into()
    }
}

impl fmt::Debug for SharedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bytes({} bytes)", self.len())
    }
}
