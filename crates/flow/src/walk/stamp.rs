//! When and where in the stream.

/// The packet at work: its offset, and the time when it came.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stamp {
    pub offset: u64,
    /// As rows get it: see `Clock::stamp`.
    pub time: u64,
    /// The estimate itself.
    pub now: u64,
}
