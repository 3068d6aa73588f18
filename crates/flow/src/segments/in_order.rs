//! Sinks of which the order matters.

use std::fmt::Debug;

use crate::sink::Sink;

/// A sink that gathers results in the order of the stream, to be taken in batches.
pub trait InOrder: Sink + Send {
    type Batch: Send;
    /// What the sink knows of what came before, but for what it has gathered: where it is equal and the decoder's state, too,
    /// equal results follow.
    type Seam: Clone + PartialEq + Default + Debug + Send + Sync;

    /// Bytes of a row in a batch, about.
    const ROW: usize;

    /// Another for the same results, with nothing in it.
    fn fresh(&self) -> Self;
    /// Decoding pauses when so many rows wait.
    fn set_limit(&mut self, limit: usize);
    /// Whether nothing has been gathered.
    fn is_empty(&self) -> bool;
    /// What has been gathered; it begins anew.
    fn take_batch(&mut self) -> Self::Batch;
    fn seam(&self) -> Self::Seam;
    /// Nothing has been gathered, and this is what came before.
    fn go_on_from(&mut self, seam: &Self::Seam);
    /// What can be said of a place somewhat later in the stream.
    fn sometime_later(seam: &Self::Seam) -> Self::Seam;
    /// How many rows are in a batch.
    fn rows(batch: &Self::Batch) -> usize;
    /// So many rows come before those after the seam that the sink has gone on from.
    fn shift(_batch: &mut Self::Batch, _rows: u64) {}
}
