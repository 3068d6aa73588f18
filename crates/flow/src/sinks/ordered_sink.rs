//! Sinks of which the order matters.

use std::fmt::Debug;

use crate::sink::Sink;

/// A sink that gathers results in the order of the stream, to be taken in batches.
pub trait OrderedSink: Sink + Send {
    type Batch: Send;
    /// What the sink knows of the flow before the results that it has gathered: where two sinks have equal states, and
    /// their decoders, too, equal results follow.
    type State: Clone + PartialEq + Default + Debug + Send + Sync;

    /// Bytes of a row in a batch, about.
    const ROW_BYTES: usize;

    /// Returns an empty sink for the same results.
    fn fresh(&self) -> Self;
    /// Decoding pauses when so many rows wait.
    fn set_limit(&mut self, limit: usize);
    /// Returns whether there are no results to take.
    fn is_empty(&self) -> bool;
    /// Takes the results that were gathered.
    fn take_batch(&mut self) -> Self::Batch;
    fn state(&self) -> Self::State;
    /// Drops all results, and goes on from this state.
    fn resume_from(&mut self, state: &Self::State);
    /// Returns what is known of the state somewhat later in the stream.
    fn later_state(state: &Self::State) -> Self::State;
    /// Returns the number of rows in a batch.
    fn rows(batch: &Self::Batch) -> usize;
    /// Renumbers a batch: so many rows come before the state that the sink went on from.
    fn shift_rows(_batch: &mut Self::Batch, _rows: u64) {}
}
