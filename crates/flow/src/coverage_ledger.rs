//! The coverage ledger: accounts for every byte of a stream as exact, resumed, lost or elsewhere, and for every loss
//! its error.
//!
//! Spans lie in stream order without gaps. A decoder of a segment does not know the span that is open at its start; its
//! ledger lists changes instead (`new_segment_ledger`), which `append_segment_ledger` replays on the ledger before it,
//! with the same result as one decoder.

use crate::error::{ErrorClass, FlowError};

named_enum! {
    /// What is known of a byte range of the stream.
    ByteStatus {
        /// Decoded, and the state it began with came from a PSB.
        Exact = 0, "exact";
        /// Decoded from an IP that a packet gave after a loss, no PSB having confirmed the state since.
        Resumed = 1, "resumed";
        /// Not decoded into code that ran.
        Lost = 2, "lost";
        /// Of a thread that is not decoded.
        Elsewhere = 3, "elsewhere";
    }
}

/// Bytes `from..to` of the stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LedgerSpan {
    pub from: u64,
    pub to: u64,
    pub status: ByteStatus,
    /// Why the span is lost.
    pub error: Option<FlowError>,
}

/// The list stops growing here (a malicious stream can fail every few bytes); the last span then takes in the rest.
const MAX_SPANS: usize = 1 << 18;

/// From `offset` on the bytes have another status.
#[derive(Clone, Copy, Debug)]
struct StatusChange {
    offset: u64,
    status: ByteStatus,
    error: Option<FlowError>,
}

/// Spans in stream order, without gaps.
#[derive(Clone, Debug)]
pub struct CoverageLedger {
    spans: Vec<LedgerSpan>,
    /// The span that is still open; its `to` is not yet known.
    open: LedgerSpan,
    errors: [u64; ErrorClass::COUNT],
    bytes: [u64; 4],
    /// In the ledger of a segment: its changes, from which `append_segment_ledger` makes spans.
    changes: Option<Vec<StatusChange>>,
    /// The number of changes from which on the segment should end.
    max_changes: usize,
}

impl CoverageLedger {
    pub(crate) fn new(start: LedgerSpan) -> CoverageLedger {
        CoverageLedger {
            spans: Vec::new(),
            open: start,
            errors: [0; ErrorClass::COUNT],
            bytes: [0; 4],
            changes: None,
            max_changes: usize::MAX,
        }
    }

    /// Sets how many changes make the ledger of a segment full (`is_full`); at least one, so that decoding proceeds.
    pub(crate) fn limit_status_changes(&mut self, max_changes: usize) {
        self.max_changes = max_changes.max(1);
    }

    /// Returns the ledger of a segment that begins at `offset` with `status`.
    pub(crate) fn new_segment_ledger(&self, offset: u64, status: ByteStatus) -> CoverageLedger {
        let start = LedgerSpan {
            from: offset,
            to: offset,
            status,
            error: None,
        };
        CoverageLedger {
            changes: Some(Vec::new()),
            max_changes: self.max_changes,
            ..CoverageLedger::new(start)
        }
    }

    /// Appends the ledger of the segment that follows.
    pub(crate) fn append_segment_ledger(&mut self, segment: CoverageLedger) {
        for (sum, more) in self.errors.iter_mut().zip(segment.errors) {
            *sum += more;
        }
        for change in segment.changes.unwrap_or_default() {
            self.change_status(change.offset, change.status, change.error);
        }
    }

    /// Whether this is the ledger of a segment that should end here.
    pub(crate) fn is_full(&self) -> bool {
        self.changes
            .as_ref()
            .is_some_and(|changes| changes.len() >= self.max_changes)
    }

    pub(crate) fn current_status(&self) -> ByteStatus {
        self.open.status
    }

    /// From `offset` on the flow is unknown.
    pub(crate) fn record_loss(&mut self, offset: u64, error: FlowError) {
        self.errors[error.cause.error_class() as usize] += 1;
        self.change_status(offset, ByteStatus::Lost, Some(error));
    }

    /// Adds an error at `offset` that loses no byte.
    pub(crate) fn record_harmless_error(&mut self, offset: u64, error: FlowError) {
        self.errors[error.cause.error_class() as usize] += 1;
        let status = self.current_status();
        self.change_status(offset, status, Some(error));
        self.change_status(offset, status, None);
    }

    /// From `offset` on the bytes have `status`, without an error.
    pub(crate) fn enter_status(&mut self, offset: u64, status: ByteStatus) {
        if self.open.status != status {
            self.change_status(offset, status, None);
        }
    }

    /// The stream ended.
    pub(crate) fn finish_ledger(&mut self, offset: u64) {
        self.change_status(offset, self.open.status, None);
    }

    fn change_status(&mut self, offset: u64, status: ByteStatus, error: Option<FlowError>) {
        if let Some(changes) = &mut self.changes {
            changes.push(StatusChange {
                offset,
                status,
                error,
            });
            self.open.status = status;
            return;
        }
        let offset = offset.max(self.open.from);
        // a span without bytes stays only if it has an error
        if offset > self.open.from || self.open.error.is_some() {
            self.close_current_span(offset);
        }
        self.open = LedgerSpan {
            from: offset,
            to: offset,
            status,
            error,
        };
    }

    fn close_current_span(&mut self, offset: u64) {
        let span = LedgerSpan {
            to: offset,
            ..self.open
        };
        self.bytes[span.status as usize] += span.to - span.from;
        let full = self.spans.len() >= MAX_SPANS;
        match self.spans.last_mut() {
            Some(last) if full => {
                last.to = span.to;
                last.status = ByteStatus::Lost;
            }
            Some(last)
                if last.status == span.status && span.error.is_none() && last.error.is_none() =>
            {
                last.to = span.to;
            }
            _ => self.spans.push(span),
        }
    }

    /// The closed spans: all of them once the stream has ended.
    pub fn closed_spans(&self) -> &[LedgerSpan] {
        &self.spans
    }

    /// Number of errors of a class, counted also where the list of spans was cut.
    pub fn error_count(&self, class: ErrorClass) -> u64 {
        self.errors[class as usize]
    }

    /// Number of bytes with a status in the closed spans.
    pub fn byte_count(&self, status: ByteStatus) -> u64 {
        self.bytes[status as usize]
    }
}
