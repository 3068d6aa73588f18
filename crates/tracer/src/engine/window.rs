//! From where to where the program is traced.

use crate::options::Edge;

/// The phase between the two edges.
pub(super) const TRACED: usize = 1;

/// The edges, and how many of them were passed.
#[derive(Clone, Debug)]
pub(super) struct Window {
    pub(super) edges: [Option<Edge>; 2],
    pub(super) phase: usize,
    /// Retired instructions at the start.
    pub(super) started: u64,
}

impl Window {
    pub(super) fn new(start: Option<Edge>, stop: Option<Edge>) -> Window {
        Window {
            phase: usize::from(start.is_none()),
            edges: [start, stop],
            started: 0,
        }
    }

    /// Threads begin with tracing off.
    pub(super) fn waits(&self) -> bool {
        self.edges[0].is_some()
    }

    pub(super) fn used(&self) -> bool {
        self.edges != [None, None]
    }
}
