//! How a stream is divided among threads, and when dividing it does not pay.

use std::num::NonZeroUsize;

/// Threads that are used unless more are asked for: each has tables of its own.
const MAX_DEFAULT_THREADS: usize = 8;

/// AdditiveDecoder per thread of a round with results in order: all results of a round wait in memory.
const ORDERED_SEGMENTS_PER_THREAD: usize = 2;
/// The most segments per thread of a round with additive results. More than one, since segments take unequal time.
pub(super) const MAX_SEGMENTS_PER_THREAD: usize = 4;
/// Bytes of a round, about: the results of all its segments exist at once.
const ROUND_BYTES: usize = 1 << 23;
/// Least size of a segment, beside which the lead-in that is decoded twice is short.
const MIN_SEGMENT_BYTES: usize = 1 << 16;
/// Bytes of results of all segments of a round, at most.
const MAX_WAITING_BYTES: usize = 1 << 28;

/// How a stream is divided. Results do not depend on it, except for which block has which id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ParallelConfig {
    /// At least 1.
    pub threads: usize,
    /// Size of a segment, about.
    pub segment_bytes: usize,
    /// Bytes before a segment that are decoded in addition, at most: where PSBs are rarer the stream is not cut.
    pub max_lead_in: usize,
    /// Bytes of results that a segment may produce. If it produces more, the segments after it are decoded again.
    pub max_result_bytes: usize,
    /// Entries that a segment may add to the ledger. If it adds more, the segments after it are decoded again.
    pub max_ledger_entries: usize,
}

impl ParallelConfig {
    /// Returns the configuration for `threads` threads; 0: as many as the machine runs at once, 8 at most.
    pub fn for_threads(threads: usize) -> ParallelConfig {
        let threads = match threads {
            0 => std::thread::available_parallelism()
                .map_or(1, NonZeroUsize::get)
                .min(MAX_DEFAULT_THREADS),
            threads => threads,
        };
        let segment_bytes = ROUND_BYTES / (threads * MAX_SEGMENTS_PER_THREAD);
        ParallelConfig {
            threads,
            segment_bytes: segment_bytes.clamp(MIN_SEGMENT_BYTES, 1 << 19),
            max_lead_in: 1 << 17,
            max_result_bytes: (1 << 25).min(MAX_WAITING_BYTES / threads),
            max_ledger_entries: 1 << 14,
        }
    }

    /// Bytes of a round, about: a window should hold as many.
    pub fn round_bytes(&self) -> usize {
        self.segment_bytes
            .saturating_mul(self.round_segments(MAX_SEGMENTS_PER_THREAD))
    }

    /// AdditiveDecoder of a round with results in order.
    pub(super) fn ordered_round_segments(&self) -> usize {
        let by_memory = MAX_WAITING_BYTES / self.max_result_bytes.max(1);
        self.threads
            .saturating_mul(ORDERED_SEGMENTS_PER_THREAD)
            .min(by_memory.max(self.threads))
    }

    /// AdditiveDecoder of a round with so many for each thread.
    pub(super) fn round_segments(&self, per_thread: usize) -> usize {
        match self.threads {
            0 | 1 => 1,
            threads => threads.saturating_mul(per_thread),
        }
    }
}

/// PSBs before its cut at which a segment's decoder starts, at most.
const MAX_LEAD_IN_PSBS: usize = 8;
/// Undivided rounds until dividing is tried again, at most.
const MAX_BACKOFF_ROUNDS: usize = 64;

/// Reacts to discarded segments: the lead-in grows, and if most of a round was discarded, the next rounds are not
/// divided, twice as many each time. A stream that cannot be divided (CYCs without TSC or MTC, a damaged one) then
/// costs little more than with one thread.
pub(super) struct SpeculationBackoff {
    /// PSBs before its cut at which a segment's decoder starts.
    pub lead_in_psbs: usize,
    /// Undivided rounds that are left, and how many the next failure adds.
    undivided_rounds: usize,
    next_backoff: usize,
}

impl SpeculationBackoff {
    pub fn new() -> SpeculationBackoff {
        SpeculationBackoff {
            lead_in_psbs: 1,
            undivided_rounds: 0,
            next_backoff: 1,
        }
    }

    /// Whether the next round should be divided.
    pub fn should_divide(&self) -> bool {
        self.undivided_rounds == 0
    }

    pub fn after_undivided_round(&mut self) {
        self.undivided_rounds = self.undivided_rounds.saturating_sub(1);
    }

    /// `mismatches`: segments that were discarded because their state differed; `unused`: because an earlier segment
    /// had too many results. Both of `total`.
    pub fn after_divided_round(&mut self, mismatches: usize, unused: usize, total: usize) {
        if mismatches > 0 {
            self.lead_in_psbs = (self.lead_in_psbs * 2).min(MAX_LEAD_IN_PSBS);
        }
        if (mismatches + unused) * 2 > total {
            self.undivided_rounds = self.next_backoff;
            self.next_backoff = (self.next_backoff * 2).min(MAX_BACKOFF_ROUNDS);
        } else {
            self.next_backoff = 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_that_wait_are_bounded_for_any_number_of_threads() {
        for threads in 1..=255 {
            let config = ParallelConfig::for_threads(threads);
            let segments = config.ordered_round_segments();
            assert!(segments >= threads);
            let bytes = segments * config.max_result_bytes;
            assert!(bytes <= MAX_WAITING_BYTES, "{config:?}");
        }
    }

    #[test]
    fn round_is_bounded_for_any_number_of_threads() {
        for threads in 1..=255 {
            let config = ParallelConfig::for_threads(threads);
            let least = threads * MAX_SEGMENTS_PER_THREAD * MIN_SEGMENT_BYTES;
            assert!(config.round_bytes() <= ROUND_BYTES.max(least), "{config:?}");
        }
        assert_eq!(ParallelConfig::for_threads(2).segment_bytes, 1 << 19);
        assert_eq!(ParallelConfig::for_threads(8).round_bytes(), 1 << 23);
    }

    fn count_undivided_rounds(backoff: &mut SpeculationBackoff) -> usize {
        let rounds = (0..).take_while(|_| {
            let is_undivided = !backoff.should_divide();
            backoff.after_undivided_round();
            is_undivided
        });
        rounds.count()
    }

    #[test]
    fn backoff_doubles_whatever_the_reason_of_discards() {
        for (mismatches, unused) in [(3, 0), (0, 3), (1, 1)] {
            let mut backoff = SpeculationBackoff::new();
            for expected in [1, 2, 4, 8, 16, 32, 64, 64] {
                backoff.after_divided_round(mismatches, unused, 3);
                assert_eq!(count_undivided_rounds(&mut backoff), expected);
            }
            backoff.after_divided_round(1, 0, 3);
            assert_eq!(count_undivided_rounds(&mut backoff), 0);
            backoff.after_divided_round(3, 0, 3);
            assert_eq!(count_undivided_rounds(&mut backoff), 1);
        }
    }
}
