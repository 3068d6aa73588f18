//! One segment by one decoder.

use super::plan::Piece;
use super::sum::Sum;
use crate::counts::Counts;
use crate::decoder::{Carry, Decoder};
use crate::ledger::Ledger;
use crate::spaces::Spaces;
use crate::window::Window;

/// What all segments of a round are decoded from.
pub(super) struct Job<'a> {
    pub window: Window<'a>,
    /// As they are at the beginning of the stream.
    pub spaces: &'a Spaces,
    /// The state where the round begins.
    pub carry: &'a Carry,
    /// As `Division` has it.
    pub changes: usize,
}

/// A segment, decoded: the state at its cut and at its end, and what was found in between, without what the steps of its
/// decoder have counted.
pub(super) struct Part<S> {
    pub begin: Carry,
    pub end: Carry,
    pub counts: Counts,
    pub ledger: Ledger,
    pub sink: S,
}

/// A sink without an end: what is in it may be taken off again.
pub(super) fn endless<S: Sum>() -> S {
    let mut sink = S::default();
    sink.keep(usize::MAX);
    sink
}

impl Job<'_> {
    pub fn part<S: Sum>(&self, decoder: &mut Decoder, piece: &Piece) -> Part<S> {
        let Some(psb) = piece.lead else {
            return self.part_from(decoder, self.carry, piece.until);
        };
        decoder.limit_parts(self.changes);
        decoder.restore(&self.carry.sometime_later(psb), self.spaces);
        decoder.idle(true);
        self.run(decoder, piece.cut, &mut S::default());
        decoder.idle(false);
        self.go_on(decoder, piece.until)
    }

    /// From a known state on.
    pub fn part_from<S: Sum>(&self, decoder: &mut Decoder, carry: &Carry, until: usize) -> Part<S> {
        decoder.limit_parts(self.changes);
        decoder.restore(carry, self.spaces);
        self.go_on(decoder, until)
    }

    fn go_on<S: Sum>(&self, decoder: &mut Decoder, until: usize) -> Part<S> {
        let begin = decoder.begin_part().without_time();
        let mut sink: S = endless();
        self.run(decoder, until, &mut sink);
        // it waits for all the others
        sink.settle();
        let (counts, ledger) = decoder.end_part();
        Part {
            begin,
            end: decoder.carry().without_time(),
            counts,
            ledger,
            sink,
        }
    }

    /// Decodes to the first packet at or after `until`, or until the ledger is full, whatever the decoder pauses at.
    fn run<S: Sum>(&self, decoder: &mut Decoder, until: usize, sink: &mut S) {
        while decoder.decode_until(self.window, until, sink)
            && decoder.is_paused()
            && decoder.position() < until
            && !decoder.ledger().is_full()
        {}
    }
}
