//! The account of a stream: every byte range is exact, resumed, lost or somebody else's, and every loss has its error.

use crate::error::{ErrorClass, FlowError};

/// What is known of a byte range of the stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Trust {
    /// Decoded, and the state it began with came from a PSB.
    Exact = 0,
    /// Decoded from an IP that a packet gave after a loss, no PSB having confirmed the state since.
    Resumed = 1,
    /// Not decoded into code that ran.
    Lost = 2,
    /// What ran was not to be followed: it was another thread's turn.
    Elsewhere = 3,
}

impl Trust {
    pub const fn name(self) -> &'static str {
        match self {
            Trust::Exact => "exact",
            Trust::Resumed => "resumed",
            Trust::Lost => "lost",
            Trust::Elsewhere => "elsewhere",
        }
    }
}

/// Bytes `from..to` of the stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    pub from: u64,
    pub to: u64,
    pub trust: Trust,
    /// Why the span is lost.
    pub error: Option<FlowError>,
}

/// The list stops growing here (a malicious stream can fail every few bytes); the last span then takes in the rest.
const MAX_SPANS: usize = 1 << 18;

/// From `offset` on bytes are of a trust.
#[derive(Clone, Copy, Debug)]
struct Turn {
    offset: u64,
    trust: Trust,
    error: Option<FlowError>,
}

/// Spans in stream order, without gaps.
#[derive(Clone, Debug)]
pub struct Ledger {
    spans: Vec<Span>,
    /// The span that is still open; its `to` is not yet known.
    open: Span,
    errors: [u64; ErrorClass::COUNT],
    bytes: [u64; 4],
    /// Of a part of a stream: there are no spans before what came before it is known (`join`).
    turns: Option<Vec<Turn>>,
    /// So many of them make a part full.
    most: usize,
}

impl Ledger {
    pub(crate) fn new(start: Span) -> Ledger {
        Ledger {
            spans: Vec::new(),
            open: start,
            errors: [0; ErrorClass::COUNT],
            bytes: [0; 4],
            turns: None,
            most: usize::MAX,
        }
    }

    /// Sets how many turns make a part full (`is_full`), one at least: there is to be some way on.
    pub(crate) fn limit(&mut self, most: usize) {
        self.most = most.max(1);
    }

    /// That of the part of a stream from `offset` on, where `trust` is known.
    pub(crate) fn part(&self, offset: u64, trust: Trust) -> Ledger {
        let start = Span {
            from: offset,
            to: offset,
            trust,
            error: None,
        };
        Ledger {
            turns: Some(Vec::new()),
            most: self.most,
            ..Ledger::new(start)
        }
    }

    /// Goes on with the part that follows.
    pub(crate) fn join(&mut self, part: Ledger) {
        for (sum, more) in self.errors.iter_mut().zip(part.errors) {
            *sum += more;
        }
        for turn in part.turns.unwrap_or_default() {
            self.turn(turn.offset, turn.trust, turn.error);
        }
    }

    /// Whether it is that of a part that should end here.
    pub(crate) fn is_full(&self) -> bool {
        self.turns
            .as_ref()
            .is_some_and(|turns| turns.len() >= self.most)
    }

    pub(crate) fn trust(&self) -> Trust {
        self.open.trust
    }

    /// From `offset` on nothing can be said.
    pub(crate) fn fail(&mut self, offset: u64, error: FlowError) {
        self.errors[error.cause.class() as usize] += 1;
        self.turn(offset, Trust::Lost, Some(error));
    }

    /// Something is not known at `offset`, though no byte is lost by it.
    pub(crate) fn remark(&mut self, offset: u64, error: FlowError) {
        self.errors[error.cause.class() as usize] += 1;
        let trust = self.trust();
        self.turn(offset, trust, Some(error));
        self.turn(offset, trust, None);
    }

    /// From `offset` on the flow is known (again).
    pub(crate) fn go_on(&mut self, offset: u64, trust: Trust) {
        if self.open.trust != trust {
            self.turn(offset, trust, None);
        }
    }

    /// The stream ended.
    pub(crate) fn finish(&mut self, offset: u64) {
        self.turn(offset, self.open.trust, None);
    }

    fn turn(&mut self, offset: u64, trust: Trust, error: Option<FlowError>) {
        if let Some(turns) = &mut self.turns {
            turns.push(Turn {
                offset,
                trust,
                error,
            });
            self.open.trust = trust;
            return;
        }
        let offset = offset.max(self.open.from);
        // a span without bytes stays only if it has an error to tell
        if offset > self.open.from || self.open.error.is_some() {
            self.close(offset);
        }
        self.open = Span {
            from: offset,
            to: offset,
            trust,
            error,
        };
    }

    fn close(&mut self, offset: u64) {
        let span = Span {
            to: offset,
            ..self.open
        };
        self.bytes[span.trust as usize] += span.to - span.from;
        let full = self.spans.len() >= MAX_SPANS;
        match self.spans.last_mut() {
            Some(last) if full => {
                last.to = span.to;
                last.trust = Trust::Lost;
            }
            Some(last)
                if last.trust == span.trust && span.error.is_none() && last.error.is_none() =>
            {
                last.to = span.to;
            }
            _ => self.spans.push(span),
        }
    }

    /// The closed spans: all of them once the stream has ended.
    pub fn spans(&self) -> &[Span] {
        &self.spans
    }

    /// Number of errors of a class, counted also where the list of spans was cut.
    pub fn errors(&self, class: ErrorClass) -> u64 {
        self.errors[class as usize]
    }

    /// Number of bytes of a trust in the closed spans.
    pub fn bytes(&self, trust: Trust) -> u64 {
        self.bytes[trust as usize]
    }
}
