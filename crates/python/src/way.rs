//! The ways in which a `Flow` gives its results.

use pyo3::exceptions::PyValueError;
use pyo3::{PyErr, PyResult};
use rtit_flow::{
    AdditiveDecoder, BlockIdSink, BlockTable, BranchSink, CountingSink, Counts, CoverageLedger,
    HashedRunSink, InstructionSink, RunSink, Settings, Spaces, TimingSample, Totals,
};
use rtit_listing::{ByFunction, Calls, Lines};

use crate::ended::Ended;
use crate::in_turn::InTurn;
use crate::stream::Stream;

/// What the stream is decoded into: the first call that takes results decides.
pub(crate) enum Way {
    Open(Option<Box<(Stream, Spaces, Settings)>>),
    Rows(InTurn<RunSink>),
    Runs(InTurn<HashedRunSink>),
    Instructions(InTurn<InstructionSink>),
    Lines(Box<rtit_flow::StreamDecoder<Stream, Lines>>),
    Functions(Box<rtit_flow::StreamDecoder<Stream, ByFunction>>),
    Calls(Box<rtit_flow::StreamDecoder<Stream, Calls>>),
    Count(Box<AdditiveDecoder<Stream, CountingSink>>),
    Totals(Box<AdditiveDecoder<Stream, Totals>>),
    Branches(InTurn<BranchSink>),
    /// With the blocks of the ids.
    BlockIds(InTurn<BlockIdSink>, BlockTable),
    Ended(Whole, Box<Ended>),
}

/// Ways whose results have been taken as a whole.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Whole {
    Lines,
    Functions,
    Calls,
    Count,
    Totals,
}

impl Way {
    /// What a decoder is made of, once, if none has been made.
    pub fn take(&mut self) -> Option<(Stream, Spaces, Settings)> {
        match self {
            Way::Open(parts) => parts.take().map(|parts| *parts),
            _ => None,
        }
    }

    /// The decoder that gives lines; None when all have been taken. Raises ValueError if it gives something else.
    pub fn lines(&mut self) -> PyResult<Option<&mut rtit_flow::StreamDecoder<Stream, Lines>>> {
        match self {
            Way::Lines(flow) => Ok(Some(flow)),
            Way::Ended(Whole::Lines, _) => Ok(None),
            _ => Err(taken()),
        }
    }

    /// All results have been taken.
    pub fn end(&mut self, way: Whole) {
        let Some((counts, ledger)) = self.account() else {
            return;
        };
        let ledger = ledger.clone();
        let ended = Ended {
            counts,
            ledger,
            turns: self.turn(),
            visited: self.visited().to_vec(),
            points: self.take_points(),
        };
        *self = Way::Ended(way, Box::new(ended));
    }

    /// How many turns have begun.
    pub fn turn(&self) -> usize {
        match self {
            Way::Rows(flow) => flow.turns(),
            Way::Runs(flow) => flow.turns(),
            Way::Instructions(flow) => flow.turns(),
            Way::Branches(flow) => flow.turns(),
            Way::Ended(_, ended) => ended.turns,
            _ => 0,
        }
    }

    /// The turns in which anything ran.
    pub fn visited(&self) -> &[usize] {
        match self {
            Way::Count(flow) => flow.visited_intervals(),
            Way::Ended(_, ended) => &ended.visited,
            _ => &[],
        }
    }

    /// What timing packets told since the last time.
    pub fn take_points(&mut self) -> Vec<TimingSample> {
        match self {
            Way::Rows(flow) => flow.take_points(),
            Way::Instructions(flow) => flow.take_points(),
            Way::Branches(flow) => flow.take_points(),
            _ => Vec::new(),
        }
    }

    /// What the decoder has counted and knows of the bytes so far; None before one was made.
    pub fn account(&self) -> Option<(Counts, &CoverageLedger)> {
        Some(match self {
            Way::Open(_) => return None,
            Way::Rows(flow) => flow.account(),
            Way::Runs(flow) => flow.account(),
            Way::Instructions(flow) => flow.account(),
            Way::Lines(flow) => (flow.counts(), flow.ledger()),
            Way::Functions(flow) => (flow.counts(), flow.ledger()),
            Way::Calls(flow) => (flow.counts(), flow.ledger()),
            Way::Count(all) => (all.counts(), all.ledger()),
            Way::Totals(all) => (all.counts(), all.ledger()),
            Way::Branches(flow) => flow.account(),
            Way::BlockIds(flow, _) => flow.account(),
            Way::Ended(_, ended) => (ended.counts.clone(), &ended.ledger),
        })
    }
}

/// The decoder of one way, which is made of what `Way::Open` has if no way was taken; Err if another was.
macro_rules! by_way {
    ($way:expr, $name:ident, |$parts:ident| $made:expr) => {{
        if let Some($parts) = $way.take() {
            *$way = Way::$name($made);
        }
        match $way {
            Way::$name(flow) => Ok(flow),
            _ => Err(taken()),
        }
    }};
}
pub(crate) use by_way;

pub(crate) fn taken() -> PyErr {
    PyValueError::new_err("the results of this Flow are already being taken in another way")
}
