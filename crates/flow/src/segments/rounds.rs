//! Rounds of parallel decoding: how a stream is divided among threads, when dividing it does not pay, and the threads.
//!
//! A round is divided into segments that are cut at PSBs (`plan_round`). The calling thread works, too, and polls for
//! cancellation while it waits for the others (`run_items_on_threads`).

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use rtit_packet::{find_psb, PSB};

use crate::cancellation::CancellationToken;
use crate::stream_decoder::StreamWindow;

/// Default limit of threads: each has its own tables.
const MAX_DEFAULT_THREADS: usize = 8;

/// Segments per thread of a round with results in order: all results of a round wait in memory.
const ORDERED_SEGMENTS_PER_THREAD: usize = 2;
/// The most segments per thread of a round with additive results. More than one, since segments take unequal time.
pub(super) const MAX_SEGMENTS_PER_THREAD: usize = 4;
/// Approximate bytes of a round: the results of all its segments exist at once.
const ROUND_BYTES: usize = 1 << 23;
/// Least size of a segment, beside which the lead-in that is decoded twice is short.
const MIN_SEGMENT_BYTES: usize = 1 << 16;
/// Limit of the bytes of results of all segments of a round.
const MAX_WAITING_BYTES: usize = 1 << 28;

/// How a stream is divided. Results do not depend on it, except for which block has which id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ParallelConfig {
    /// At least 1.
    pub threads: usize,
    /// Approximate size of a segment.
    pub segment_bytes: usize,
    /// Limit of the bytes before a segment that are decoded in addition: where PSBs are rarer the stream is not cut.
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

    #[cfg(test)]
    pub(super) fn for_test(threads: usize, segment_bytes: usize, max_lead_in: usize) -> Self {
        ParallelConfig {
            threads,
            segment_bytes,
            max_lead_in,
            max_result_bytes: 1,
            max_ledger_entries: 100,
        }
    }

    /// The approximate bytes of a round: a window should hold as many.
    pub fn round_bytes(&self) -> usize {
        self.segment_bytes
            .saturating_mul(self.round_segments(MAX_SEGMENTS_PER_THREAD))
    }

    /// Returns the segments of a round with results in order.
    pub(super) fn ordered_round_segments(&self) -> usize {
        let by_memory = MAX_WAITING_BYTES / self.max_result_bytes.max(1);
        self.threads
            .saturating_mul(ORDERED_SEGMENTS_PER_THREAD)
            .min(by_memory.max(self.threads))
    }

    /// Returns the segments of a round with `per_thread` for each thread.
    pub(super) fn round_segments(&self, per_thread: usize) -> usize {
        match self.threads {
            0 | 1 => 1,
            threads => threads.saturating_mul(per_thread),
        }
    }
}

/// Limit of the PSBs before its cut at which a segment's decoder starts.
const MAX_LEAD_IN_PSBS: usize = 8;
/// Limit of undivided rounds until dividing is tried again.
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
    pub fn should_divide_next_round(&self) -> bool {
        self.undivided_rounds == 0
    }

    pub fn note_undivided_round(&mut self) {
        self.undivided_rounds = self.undivided_rounds.saturating_sub(1);
    }

    /// `mismatches`: segments that were discarded because their state differed; `unused`: because an earlier segment
    /// had too many results. Both of `total`.
    pub fn note_divided_round(&mut self, mismatches: usize, unused: usize, total: usize) {
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

/// A segment, in stream offsets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct StreamSegment {
    /// The PSB before the cut at which its decoder starts. `None`: it starts at the cut, with a known state.
    pub lead_in: Option<usize>,
    pub cut: usize,
    pub until: usize,
}

impl StreamSegment {
    /// The next `size` bytes, from a known state.
    pub fn undivided_segment(cut: usize, size: usize) -> StreamSegment {
        StreamSegment {
            lead_in: None,
            cut,
            until: cut.saturating_add(size),
        }
    }
}

/// Returns the segments of a round, `count` at most, from `position` on. All but the first are cut at a PSB, and their
/// decoders start `lead_in_psbs` PSBs before that, or fewer where PSBs are rare.
pub(super) fn plan_round(
    window: StreamWindow<'_>,
    position: usize,
    config: &ParallelConfig,
    count: usize,
    lead_in_psbs: usize,
) -> Vec<StreamSegment> {
    let size = config.segment_bytes;
    let mut segments = vec![StreamSegment::undivided_segment(position, size)];
    let mut from = position;
    while segments.len() < count {
        let target = from.saturating_add(size);
        let Some(cut) = find_psb_from(window, target)
            .filter(|cut| cut + PSB.len() < window.packet_start_limit())
        else {
            break;
        };
        from = cut;
        let earliest = cut.saturating_sub(config.max_lead_in).max(window.base);
        let lead_in = find_nth_psb_before(window, cut, earliest, lead_in_psbs);
        let last = segments.last_mut();
        let Some((last, lead_in)) = last.zip(lead_in) else {
            continue;
        };
        last.until = cut;
        segments.push(StreamSegment {
            lead_in: Some(lead_in),
            ..StreamSegment::undivided_segment(cut, size)
        });
    }
    // The last segment covers what could not be cut.
    let missing = count - segments.len();
    if let Some(last) = segments.last_mut() {
        last.until = last.until.saturating_add(size.saturating_mul(missing));
    }
    segments
}

fn find_psb_from(window: StreamWindow<'_>, from: usize) -> Option<usize> {
    let at = find_psb(window.bytes, from.checked_sub(window.base)?)?;
    Some(at + window.base)
}

/// Returns the PSB `count` before the one at `end`, or the first after `earliest`.
fn find_nth_psb_before(
    window: StreamWindow<'_>,
    end: usize,
    earliest: usize,
    count: usize,
) -> Option<usize> {
    let mut found = Vec::new();
    let mut from = earliest;
    while let Some(at) = find_psb_from(window, from).filter(|&at| at < end) {
        found.push(at);
        from = at + PSB.len();
    }
    found.get(found.len().saturating_sub(count)).copied()
}

/// How often the waiting thread polls for cancellation.
const POLL_PERIOD: Duration = Duration::from_millis(50);

/// Runs all items, each thread with one of the workers, and returns the results in the order of the items. The calling
/// thread polls `watch` while it waits for the others.
pub(super) fn run_items_on_threads<W: Send, P: Sync, R: Send>(
    workers: &mut [W],
    items: &[P],
    watch: &CancellationToken,
    run: impl Fn(&mut W, &P) -> R + Sync,
) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<(usize, R)>> = Mutex::default();
    let run_items = |worker: &mut W| {
        while let Some((index, item)) = {
            let index = next.fetch_add(1, Ordering::Relaxed);
            items.get(index).map(|item| (index, item))
        } {
            let result = run(worker, item);
            let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
            done.push((index, result));
        }
    };
    if let Some((first_worker, others)) = workers.split_first_mut() {
        let busy = AtomicUsize::new(others.len());
        let waiting_thread = thread::current();
        thread::scope(|scope| {
            for worker in others {
                let spawned = thread::Builder::new().spawn_scoped(scope, || {
                    let _signals_end = ThreadEndSignal(&busy, &waiting_thread);
                    run_items(worker);
                });
                if spawned.is_err() {
                    // The other threads take its items.
                    busy.fetch_sub(1, Ordering::Release);
                }
            }
            run_items(first_worker);
            while busy.load(Ordering::Acquire) > 0 {
                thread::park_timeout(POLL_PERIOD);
                if busy.load(Ordering::Acquire) > 0 {
                    watch.is_cancelled();
                }
            }
        });
    }
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|&(index, _)| index);
    done.into_iter().map(|(_, result)| result).collect()
}

/// Signals the end of a thread, also after a panic.
struct ThreadEndSignal<'a>(&'a AtomicUsize, &'a thread::Thread);

impl Drop for ThreadEndSignal<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
        self.1.unpark();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::sync::{Arc, Barrier};

    use super::*;

    #[test]
    fn waiting_results_are_bounded_for_any_number_of_threads() {
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
            let is_undivided = !backoff.should_divide_next_round();
            backoff.note_undivided_round();
            is_undivided
        });
        rounds.count()
    }

    #[test]
    fn backoff_doubles_whatever_the_reason_of_discards() {
        for (mismatches, unused) in [(3, 0), (0, 3), (1, 1)] {
            let mut backoff = SpeculationBackoff::new();
            for expected in [1, 2, 4, 8, 16, 32, 64, 64] {
                backoff.note_divided_round(mismatches, unused, 3);
                assert_eq!(count_undivided_rounds(&mut backoff), expected);
            }
            backoff.note_divided_round(1, 0, 3);
            assert_eq!(count_undivided_rounds(&mut backoff), 0);
            backoff.note_divided_round(3, 0, 3);
            assert_eq!(count_undivided_rounds(&mut backoff), 1);
        }
    }

    #[test]
    fn segments_are_contiguous_and_cut_at_psbs() {
        let mut stream = Vec::new();
        for _ in 0..100 {
            stream.extend([0x02, 0x82].repeat(8));
            stream.extend([0x06; 34]);
        }
        let window = StreamWindow::of_whole_stream(&stream);
        let config = ParallelConfig::for_test(2, 400, 150);
        let segments = plan_round(window, 7, &config, 8, 2);
        assert_eq!(segments.len(), 8);
        for pair in segments.windows(2) {
            assert_eq!(pair[0].until, pair[1].cut);
            assert_eq!(pair[1].cut % 50, 0);
            assert_eq!(pair[1].lead_in, Some(pair[1].cut - 100));
        }
        let segments = plan_round(window, 3000, &config, 8, 1);
        assert!(segments
            .last()
            .is_some_and(|last| last.until >= stream.len()));
    }

    #[test]
    fn stream_with_rare_psbs_is_not_cut() {
        let mut stream = vec![0x06; 1000];
        stream.extend([0x02, 0x82].repeat(8));
        stream.extend([0x06; 1000]);
        let config = ParallelConfig::for_test(2, 400, 100);
        let segments = plan_round(StreamWindow::of_whole_stream(&stream), 0, &config, 8, 1);
        assert_eq!(segments, [StreamSegment::undivided_segment(0, 3200)]);
    }

    /// Signals arrive at the calling thread, which is idle here.
    #[test]
    fn waiting_thread_polls_for_cancellation() {
        let has_polled = Arc::new(AtomicBool::new(false));
        let set_polled = Arc::clone(&has_polled);
        let here = thread::current().id();
        let watch = CancellationToken::new(move || {
            assert_eq!(thread::current().id(), here);
            set_polled.store(true, Ordering::Relaxed);
            true
        });
        let both = Barrier::new(2);
        let found = run_items_on_threads(&mut [(), ()], &[1, 2], &watch, |(), item| {
            both.wait();
            while thread::current().id() != here && !has_polled.load(Ordering::Relaxed) {
                thread::yield_now();
            }
            *item
        });
        assert_eq!(found, [1, 2]);
    }
}
