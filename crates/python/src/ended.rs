//! What is left of a decoder that has come to the end.

use rtit_flow::{Counts, CoverageLedger, TimingSample};

/// The account of a stream whose results have all been taken. There may be thousands of streams, and what their
/// decoders learned of the code is not needed any more.
pub(crate) struct Ended {
    pub counts: Counts,
    pub ledger: CoverageLedger,
    pub turns: usize,
    pub visited: Vec<usize>,
    pub points: Vec<TimingSample>,
}
