//! All results of a stream, with and without transitions.

use proptest::prelude::*;
use rtit_flow::{
    BranchColumns, BranchSink, CountingSink, EdgeCounter, EdgeTotal, HashedRun, HashedRunColumns,
    HashedRunSink, InstructionColumns, InstructionRun, InstructionSink, LedgerSpan, OrderedSink,
    PositionedEvent, RunColumns, RunSink, RunTotal, Settings, Sink, StreamDecoder, Totals,
    TransitionLimits,
};

use super::program::TracedProgram;
use crate::support::{eager_fusion, GrowingStream};

/// All results of a stream.
#[derive(Default)]
pub struct StreamResults {
    pub counts: Vec<String>,
    pub spans: Vec<LedgerSpan>,
    pub errors: [u64; 8],
    pub runs: Vec<InstructionRun>,
    pub events: Vec<PositionedEvent>,
    pub hashed: Vec<HashedRun>,
    pub ips: Vec<u64>,
    pub run_totals: Vec<RunTotal>,
    pub edge_totals: Vec<EdgeTotal>,
    pub edge_hits: Vec<EdgeTotal>,
    pub branches: Vec<(u64, u64, u8, u64, u64)>,
    pub instructions: Vec<(u64, u8, u64, u8, u8, u64)>,
}

impl StreamResults {
    pub fn add_branches(&mut self, batch: &BranchColumns) {
        self.branches.extend((0..batch.from.len()).map(|at| {
            let (from, to, kind) = (batch.from[at], batch.to[at], batch.kind[at]);
            (from, to, kind, batch.time[at], batch.offset[at])
        }));
    }

    pub fn add_instructions(&mut self, batch: &InstructionColumns) {
        self.ips.extend(&batch.ips);
        self.instructions.extend((0..batch.ips.len()).map(|at| {
            let (ip, length, time) = (batch.ips[at], batch.lengths[at], batch.times[at]);
            let (bits, in_tx) = (batch.bits[at], batch.in_tx[at]);
            (ip, length, time, bits, in_tx, batch.offsets[at])
        }));
    }

    pub fn add_runs(&mut self, batch: RunColumns) {
        self.runs.extend(batch.iter_runs());
        self.events.extend(batch.events);
    }

    pub fn add_hashed_runs(&mut self, batch: &HashedRunColumns) {
        self.hashed
            .extend((0..batch.start.len()).filter_map(|at| batch.run_at(at)));
    }

    /// Returns the first difference, found and expected.
    pub fn first_difference(&self, other: &StreamResults) -> Option<String> {
        first_unequal_item(&self.counts, &other.counts)
            .or_else(|| first_unequal_item(&self.spans, &other.spans))
            .or_else(|| first_unequal_item(&self.errors, &other.errors))
            .or_else(|| first_unequal_item(&self.runs, &other.runs))
            .or_else(|| first_unequal_item(&self.events, &other.events))
            .or_else(|| first_unequal_item(&self.hashed, &other.hashed))
            .or_else(|| first_unequal_item(&self.ips, &other.ips))
            .or_else(|| first_unequal_item(&self.run_totals, &other.run_totals))
            .or_else(|| first_unequal_item(&self.edge_totals, &other.edge_totals))
            .or_else(|| first_unequal_item(&self.edge_hits, &other.edge_hits))
            .or_else(|| first_unequal_item(&self.edge_hits, &self.edge_totals))
            .or_else(|| first_unequal_item(&self.branches, &other.branches))
            .or_else(|| first_unequal_item(&self.instructions, &other.instructions))
    }
}

fn first_unequal_item<T: PartialEq + std::fmt::Debug>(
    found: &[T],
    expected: &[T],
) -> Option<String> {
    let length = found.len().max(expected.len());
    let at = (0..length).find(|&at| found.get(at) != expected.get(at))?;
    let (found, expected) = (found.get(at), expected.get(at));
    Some(format!("at {at}: {found:?}, not {expected:?}"))
}

pub fn decode_windows<S: Sink>(
    traced: &TracedProgram,
    settings: &Settings,
    size: usize,
    sink: S,
    results: &mut StreamResults,
    mut take: impl FnMut(&mut StreamDecoder<GrowingStream<'_>, S>, &mut StreamResults),
) {
    let windows = GrowingStream::new(&traced.stream, size);
    let mut flow = StreamDecoder::with_sink(windows, traced.spaces(), settings, sink);
    loop {
        let more = flow.decode_up_to_bytes(size);
        take(&mut flow, results);
        if flow.needs_next_window() {
            let position = flow.position();
            flow.stream_mut().grow_window(position);
        }
        if !more {
            break;
        }
    }
    results.counts.push(format!("{:?}", flow.counts()));
    results.spans = flow.coverage_ledger().closed_spans().to_vec();
}

fn sum_edges(some: &[EdgeTotal], more: &[EdgeTotal]) -> Vec<EdgeTotal> {
    let mut all = std::collections::BTreeMap::new();
    for edge in some.iter().chain(more) {
        *all.entry((edge.from, edge.to, edge.kind)).or_insert(0) += edge.count;
    }
    let total = |((from, to, kind), count)| EdgeTotal {
        from,
        to,
        kind,
        count,
    };
    all.into_iter().map(total).collect()
}

/// Returns all results. `size`: of windows; `limit`: rows of a batch.
pub fn all_results(
    traced: &TracedProgram,
    settings: &Settings,
    size: usize,
    limit: usize,
) -> StreamResults {
    let mut results = StreamResults::default();
    let all = &mut results;
    decode_windows(traced, settings, size, CountingSink, all, |_, _| {});
    let totals = Totals::default();
    decode_windows(traced, settings, size, totals, all, |flow, all| {
        all.run_totals = flow.totals().sorted_runs();
        all.edge_totals = flow.totals().sorted_edges();
    });
    let counter = EdgeCounter::default();
    decode_windows(traced, settings, size, counter, all, |flow, all| {
        let more = flow.sink_mut().take_edges();
        all.edge_hits = sum_edges(&all.edge_hits, &more);
    });
    let mut branches = BranchSink::new(true);
    branches.set_row_limit(limit);
    decode_windows(traced, settings, size, branches, all, |flow, all| {
        all.add_branches(&flow.sink_mut().take_batch());
    });
    let mut instructions = InstructionSink::new(true);
    instructions.set_row_limit(limit);
    decode_windows(traced, settings, size, instructions, all, |flow, all| {
        all.add_instructions(&flow.sink_mut().take_batch());
    });
    let mut runs = RunSink::default();
    runs.set_row_limit(limit);
    decode_windows(traced, settings, size, runs, all, |flow, all| {
        all.add_runs(flow.sink_mut().take_batch());
    });
    let mut hashed = HashedRunSink::default();
    hashed.set_row_limit(limit);
    decode_windows(traced, settings, size, hashed, all, |flow, all| {
        all.add_hashed_runs(&flow.sink_mut().take_batch());
    });
    results
}

/// Compares all results with those of the interpreter. Returns the instructions.
pub fn check_against_interpreter(
    traced: &TracedProgram,
    settings: Settings,
) -> Result<Vec<u64>, TestCaseError> {
    let interpreted = Settings {
        transitions: TransitionLimits::NONE,
        ..settings
    };
    let reference = all_results(traced, &interpreted, usize::MAX, usize::MAX);
    let whole = TransitionLimits::default();
    let tiny = TransitionLimits {
        entries: 256,
        stride: 5,
        words: 40,
        fusion_warm_up: 0,
    };
    let small = TransitionLimits {
        entries: 128,
        stride: 40,
        ..eager_fusion()
    };
    let cases = [
        (usize::MAX, usize::MAX, settings.cache_limit, whole),
        (100, 3, settings.cache_limit, whole),
        (usize::MAX, 2, settings.cache_limit, TransitionLimits::NONE),
        // every transition evicts another; the decode loop stops after each packet, or after a few; tables are cleared
        (
            usize::MAX,
            50,
            2000,
            TransitionLimits {
                entries: 128,
                ..whole
            },
        ),
        (
            7,
            usize::MAX,
            1 << 20,
            TransitionLimits { stride: 1, ..whole },
        ),
        (usize::MAX, 1, 8000, tiny),
        // fused transitions wherever that is possible
        (usize::MAX, 20, settings.cache_limit, eager_fusion()),
        (50, usize::MAX, 2000, small),
    ];
    for (size, limit, cache_limit, transitions) in cases {
        let settings = Settings {
            transitions,
            cache_limit,
            ..settings
        };
        let found = all_results(traced, &settings, size, limit);
        let difference = found.first_difference(&reference);
        prop_assert!(
            difference.is_none(),
            "{:?}: {settings:?} {size} {limit}",
            difference
        );
    }
    let total: u64 = reference
        .run_totals
        .iter()
        .map(|run| u64::from(run.instructions) * run.count)
        .sum();
    prop_assert_eq!(total, reference.ips.len() as u64);
    Ok(reference.ips)
}
