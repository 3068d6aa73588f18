//! Decodes one stream on several threads: speculation on segments between PSBs, with the results of one thread.
//!
//! A PSB+ carries nearly all state of a decoder, and RET compression starts afresh there. Nearly: the clock rate, an
//! open transaction, the last PIP, the start of the current run and changes of code are missing. So a segment's decoder
//! starts some PSBs before its cut (the lead-in) and drops what it finds up to the cut. There its whole state is a
//! plain value ([`DecoderSnapshot`](crate::decoder::DecoderSnapshot)), which is compared with that of the decoder of
//! the segment before. Equal state, equal results from there on. If they differ, the result is discarded and the
//! segment is decoded again from the other's state. Results and ledger are therefore always those of one thread,
//! whatever the stream; damage costs time alone.
//!
//! A round decodes some segments per thread and ends when all are merged, in order; then the caller can cancel or
//! supply more of the stream. Each thread keeps its own code cache and tables, so no locks are needed, and code that
//! many segments run is decoded once per thread. Results of a round wait in memory until it is over, so rounds are
//! bounded ([`ParallelConfig`]): a segment with very many results or losses stops early, and those after it are
//! decoded again.
//!
//! Two kinds of results: [`OrderedDecoder`] returns batches in the order of the stream, [`AdditiveDecoder`] adds up.

mod additive;
mod ordered;
mod rounds;

pub use additive::{AdditiveDecoder, AdditiveSink};
pub use ordered::OrderedDecoder;
pub use rounds::ParallelConfig;
