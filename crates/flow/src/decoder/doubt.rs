//! Code of which no packet tells whether it ran before or after a turn began.
//!
//! The estimate of time is a lower bound. If user code begins by it before a turn, and the next packet that tells the time
//! tells one after it, the code is the thread's of either side; it is told as the first one's.

/// Since when it is not certain whose turn it is.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Doubt {
    /// Offset of the packet with which the program came from somewhere else.
    pub from: Option<u64>,
    /// The last such packet, and whether it led into the kernel, where code goes on over a switch.
    pub last: u64,
    pub in_kernel: bool,
    /// Arrivals seen, and the turns that had begun.
    pub arrivals: u64,
    pub turns: usize,
    /// End of the last CYC, which tells the time of the packet behind it, and of those between. A TSC or MTC does not: the
    /// kernel may have run for long until tracing goes on.
    pub told: usize,
}
