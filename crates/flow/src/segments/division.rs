//! How many threads, and how much each takes at a time.

use std::num::NonZeroUsize;

/// More threads than these are not used unless they are asked for: each has tables of its own.
const MOST_THREADS: usize = 8;

/// Segments of a round for each thread, where order matters: their results wait all at once.
const PIECES: usize = 2;
/// And where it does not, at most: they do not take the same time.
pub(super) const MOST_EACH: usize = 4;
/// Bytes of a round, about: what was found in all its segments is there at once.
const ROUND: usize = 1 << 23;
/// A segment is not shorter than these bytes for that: what leads to it is decoded twice.
const LEAST: usize = 1 << 16;
/// Bytes of results that wait at most, of all segments of a round.
const WAITING: usize = 1 << 28;

/// How a stream is divided. Results are the same, whatever is set here, but for which block has which number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Division {
    /// So many threads decode, at least 1.
    pub threads: usize,
    /// Bytes of a segment, about.
    pub segment: usize,
    /// Bytes before a segment that are decoded in addition, at most: where PSBs are rarer there are no segments.
    pub lead: usize,
    /// Bytes of results that a segment may give: where it gives more, those behind it are decoded again.
    pub results: usize,
    /// Times that what is known of the bytes of a segment may change: where it changes more often, those behind it are
    /// decoded again.
    pub changes: usize,
}

impl Division {
    /// For so many threads; 0: for as many as the machine runs at once, 8 at most.
    pub fn of(threads: usize) -> Division {
        let threads = match threads {
            0 => std::thread::available_parallelism()
                .map_or(1, NonZeroUsize::get)
                .min(MOST_THREADS),
            threads => threads,
        };
        Division {
            threads,
            segment: (ROUND / (threads * MOST_EACH)).clamp(LEAST, 1 << 19),
            lead: 1 << 17,
            results: (1 << 25).min(WAITING / threads),
            changes: 1 << 14,
        }
    }

    /// Bytes that are decoded between two pauses, about: a window should hold as many.
    pub fn round(&self) -> usize {
        self.segment.saturating_mul(self.pieces(MOST_EACH))
    }

    /// Segments of a round whose results are taken in order.
    pub(super) fn pieces_in_order(&self) -> usize {
        let most = WAITING / self.results.max(1);
        self.threads
            .saturating_mul(PIECES)
            .min(most.max(self.threads))
    }

    /// Segments of a round with so many for each thread.
    pub(super) fn pieces(&self, each: usize) -> usize {
        match self.threads {
            0 | 1 => 1,
            threads => threads.saturating_mul(each),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_is_bounded_for_any_number_of_threads() {
        for threads in 1..=255 {
            let division = Division::of(threads);
            let pieces = division.pieces_in_order();
            assert!(pieces >= threads);
            assert!(pieces * division.results <= WAITING, "{division:?}");
        }
    }

    #[test]
    fn a_round_has_an_end_for_any_number_of_threads() {
        for threads in 1..=255 {
            let division = Division::of(threads);
            assert!(
                division.round() <= ROUND.max(threads * MOST_EACH * LEAST),
                "{division:?}"
            );
        }
        assert_eq!(Division::of(2).segment, 1 << 19);
        assert_eq!(Division::of(8).round(), 1 << 23);
    }
}
