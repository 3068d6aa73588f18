//! When and where in the stream.

/// The packet at work: its offset, and the time estimate when it came.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stamp {
    pub offset: u64,
    pub time: u64,
}
