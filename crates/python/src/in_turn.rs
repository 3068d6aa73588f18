//! Results in order, by one thread or by several.

use pyo3::prelude::*;
use rtit_flow::{
    BufferPoolGuard, Counts, CoverageLedger, OrderedDecoder, OrderedSink, ParallelConfig, Settings,
    Spaces, StreamDecoder, TimingSample,
};

use crate::advance::{advance, advance_in_turn, go_on};
use crate::ended::Ended;
use crate::raising::Raisers;
use crate::stream::Stream;

/// Where results in order come from.
pub(crate) enum InTurn<S: OrderedSink> {
    /// With the pool of the memory of batches.
    One(Box<StreamDecoder<Stream, S>>, BufferPoolGuard),
    Several(Box<OrderedDecoder<Stream, S>>),
    Ended(Box<Ended>),
}

impl<S: OrderedSink> InTurn<S> {
    /// `sink` is empty. By several threads if `config` says so and it can be.
    pub fn new(
        config: ParallelConfig,
        (stream, spaces, settings): (Stream, Spaces, Settings),
        sink: S,
    ) -> Self {
        let several = OrderedDecoder::<Stream, S>::can_divide(&spaces, &settings, &config);
        match several {
            true => {
                let all = OrderedDecoder::new(stream, spaces, &settings, config, sink);
                InTurn::Several(Box::new(all))
            }
            false => {
                let flow = StreamDecoder::with_sink(stream, spaces, &settings, sink);
                InTurn::One(Box::new(flow), BufferPoolGuard::new())
            }
        }
    }

    /// About `max` more rows, none of which are of two turns; None at the end. Without the GIL; raises what those raise
    /// who are asked for pages.
    pub fn next(
        &mut self,
        py: Python<'_>,
        raisers: &Raisers,
        max: usize,
    ) -> PyResult<Option<S::Batch>> {
        self.next_by(py, raisers, max, advance_in_turn)
    }

    /// As `next`, also over the borders of turns.
    pub fn next_of_all(
        &mut self,
        py: Python<'_>,
        raisers: &Raisers,
        max: usize,
    ) -> PyResult<Option<S::Batch>> {
        self.next_by(py, raisers, max, advance)
    }

    fn next_by(
        &mut self,
        py: Python<'_>,
        raisers: &Raisers,
        max: usize,
        advance: impl Fn(Python<'_>, &Raisers, &mut StreamDecoder<Stream, S>) -> PyResult<()>,
    ) -> PyResult<Option<S::Batch>> {
        let batch = match self {
            InTurn::One(flow, _) => {
                flow.sink_mut().set_limit(max.max(1));
                advance(py, raisers, flow)?;
                taken(py, flow)?
            }
            InTurn::Several(all) => several(py, raisers, all, max)?,
            InTurn::Ended(_) => return Ok(None),
        };
        if batch.is_none() {
            self.end();
        }
        Ok(batch)
    }

    /// All results have been taken.
    fn end(&mut self) {
        let (counts, ledger) = self.account();
        let ended = Ended {
            counts,
            ledger: ledger.clone(),
            turns: self.turns(),
            visited: Vec::new(),
            points: self.take_points(),
        };
        *self = InTurn::Ended(Box::new(ended));
    }

    /// How many turns have begun.
    pub fn turns(&self) -> usize {
        match self {
            InTurn::One(flow, _) => flow.intervals_begun(),
            InTurn::Several(_) => 0,
            InTurn::Ended(ended) => ended.turns,
        }
    }

    /// What timing packets told since the last time.
    pub fn take_points(&mut self) -> Vec<TimingSample> {
        match self {
            InTurn::One(flow, _) => flow.take_samples(),
            InTurn::Several(_) => Vec::new(),
            InTurn::Ended(ended) => std::mem::take(&mut ended.points),
        }
    }

    pub fn account(&self) -> (Counts, &CoverageLedger) {
        match self {
            InTurn::One(flow, _) => (flow.counts(), flow.ledger()),
            InTurn::Several(all) => (all.counts(), all.ledger()),
            InTurn::Ended(ended) => (ended.counts.clone(), &ended.ledger),
        }
    }
}

fn taken<S: OrderedSink>(
    py: Python<'_>,
    flow: &mut StreamDecoder<Stream, S>,
) -> PyResult<Option<S::Batch>> {
    if flow.sink_mut().is_empty() && flow.is_finished() {
        return Ok(None);
    }
    Ok(Some(py.detach(|| flow.sink_mut().take_batch())))
}

fn several<S: OrderedSink>(
    py: Python<'_>,
    raisers: &Raisers,
    all: &mut OrderedDecoder<Stream, S>,
    max: usize,
) -> PyResult<Option<S::Batch>> {
    loop {
        if let Some(batch) = all.next_batch() {
            return Ok(Some(batch));
        }
        if all.is_finished() {
            return Ok(None);
        }
        // a round should not end where the window does
        let (bytes, position) = (all.round_bytes(), all.position());
        all.stream_mut().hold(py, bytes, position)?;
        py.detach(|| all.advance(max));
        if all.is_starved() {
            let position = all.position();
            all.stream_mut().go_on(py, position)?;
        }
        go_on(py, raisers)?;
    }
}
