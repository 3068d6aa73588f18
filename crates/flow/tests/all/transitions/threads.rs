//! Several threads against one: whatever the program, the packets, the cuts and the damage, all results are the same.

use proptest::prelude::*;
use rtit_flow::{
    AdditiveDecoder, AdditiveSink, BlockIdColumns, BlockIdSink, BlockTable, BranchSink,
    CountingSink, CoverageLedger, CpuModel, ErrorClass, HashedRunSink, InstructionSink,
    OrderedDecoder, OrderedSink, ParallelConfig, RunSink, Settings, StreamCounts, StreamDecoder,
    Totals, TransitionLimits,
};

use super::program::{execution_plan, ExecutionPlan, TracedProgram};
use super::proptest_config;
use super::results::{decode_windows, StreamResults};
use crate::support::{eager_fusion, GrowingStream};

/// How several threads decode.
#[derive(Clone, Copy, Debug)]
struct SegmentDivision {
    config: ParallelConfig,
    /// Bytes of windows.
    window: usize,
    /// Rows of a batch.
    batch_rows: usize,
}

const fn segment_division(
    threads: usize,
    segment_bytes: usize,
    window: usize,
    batch_rows: usize,
    max_result_bytes: usize,
    max_ledger_entries: usize,
) -> SegmentDivision {
    SegmentDivision {
        config: ParallelConfig {
            threads,
            segment_bytes,
            max_lead_in: 1000,
            max_result_bytes,
            max_ledger_entries,
        },
        window,
        batch_rows,
    }
}

const WHOLE: usize = usize::MAX;
const DIVISIONS: [SegmentDivision; 5] = [
    segment_division(1, 64, WHOLE, 10, WHOLE, 2),
    segment_division(2, 20, WHOLE, 1, WHOLE, 100),
    segment_division(3, 130, 2000, 7, 500, 1),
    segment_division(4, 400, WHOLE, 1000, WHOLE, 3),
    segment_division(2, 200, 90, 40, 2000, 100),
];

fn add_accounts(results: &mut StreamResults, counts: StreamCounts, ledger: &CoverageLedger) {
    results.counts.push(format!("{counts:?}"));
    results.spans = ledger.closed_spans().to_vec();
    results.errors = ErrorClass::ALL.map(|class| ledger.error_count(class));
}

/// Decodes a stream into an additive sink.
fn decode_additively<'a, S: AdditiveSink>(
    traced: &'a TracedProgram,
    settings: &Settings,
    division: SegmentDivision,
    results: &mut StreamResults,
) -> AdditiveDecoder<GrowingStream<'a>, S> {
    let windows = GrowingStream::new(&traced.stream, division.window);
    let mut all = AdditiveDecoder::new(windows, traced.view(), settings, division.config);
    while all.decode_round() {
        if all.needs_more_bytes() {
            let position = all.position();
            all.stream_mut().grow_window(position);
        }
    }
    add_accounts(results, all.counts(), all.coverage_ledger());
    all
}

/// Returns the batches of a stream by several threads.
fn parallel_batches<S: OrderedSink>(
    traced: &TracedProgram,
    settings: &Settings,
    division: SegmentDivision,
    sink: S,
    results: &mut StreamResults,
) -> Vec<S::Batch> {
    let windows = GrowingStream::new(&traced.stream, division.window);
    let mut all = OrderedDecoder::new(windows, traced.view(), settings, division.config, sink);
    let mut batches = Vec::new();
    loop {
        let has_more = all.decode_round(division.batch_rows);
        batches.extend(std::iter::from_fn(|| all.next_batch()));
        if all.needs_more_bytes() {
            let position = all.position();
            all.stream_mut().grow_window(position);
        }
        if !has_more {
            break;
        }
    }
    add_accounts(results, all.counts(), all.coverage_ledger());
    batches
}

/// As `parallel_batches`, by a decoder without segments.
fn whole_batch<S: OrderedSink>(
    traced: &TracedProgram,
    settings: &Settings,
    mut sink: S,
    results: &mut StreamResults,
) -> Vec<S::Batch> {
    sink.set_row_limit(usize::MAX);
    let mut flow = StreamDecoder::with_sink(&traced.stream[..], traced.view(), settings, sink);
    while flow.decode_until_full() {}
    add_accounts(results, flow.counts(), flow.coverage_ledger());
    vec![flow.sink_mut().take_batch()]
}

/// Returns all results in order; `division` None: those of a decoder without segments.
fn ordered_results(
    traced: &TracedProgram,
    settings: &Settings,
    division: Option<SegmentDivision>,
) -> StreamResults {
    let mut results = StreamResults::default();
    macro_rules! all_batches {
        ($sink:expr) => {
            match division {
                Some(division) => parallel_batches(traced, settings, division, $sink, &mut results),
                None => whole_batch(traced, settings, $sink, &mut results),
            }
        };
    }
    let runs = all_batches!(RunSink::default());
    let hashed = all_batches!(HashedRunSink::default());
    let instructions = all_batches!(InstructionSink::new(true));
    let branches = all_batches!(BranchSink::new(true));
    runs.into_iter().for_each(|batch| results.add_runs(batch));
    hashed
        .iter()
        .for_each(|batch| results.add_hashed_runs(batch));
    instructions
        .iter()
        .for_each(|batch| results.add_instructions(batch));
    branches
        .iter()
        .for_each(|batch| results.add_branches(batch));
    results
}

/// Returns the runs that block ids stand for, as (start, last, instructions, end, bits).
fn expand_block_ids(
    table: &BlockTable,
    batches: &[BlockIdColumns],
) -> Vec<(u64, u64, u32, u8, u8)> {
    let blocks = table.blocks_from_id(0);
    let mut runs = Vec::new();
    for batch in batches {
        let mut open = None;
        for &id in &batch.ids {
            let block = blocks[id as usize];
            let (start, before, bits) = open.unwrap_or((block.start, 0, block.bits));
            let count = before + block.instructions;
            open = Some((start, count, bits));
            if !block.continues {
                runs.push((start, block.last, count, block.end as u8, bits));
                open = None;
            }
        }
        assert_eq!(open, None, "a batch has whole runs");
    }
    runs
}

/// Compares results in order with those of one thread without transition tables.
fn check_ordered(traced: &TracedProgram, settings: Settings) -> Result<(), TestCaseError> {
    let interpreted = Settings {
        transitions: TransitionLimits::NONE,
        ..settings
    };
    let expected = ordered_results(traced, &interpreted, None);
    let runs = expected.runs.iter();
    let runs: Vec<_> = runs
        .map(|run| (run.start, run.last, run.instructions, run.end, run.bits))
        .collect();
    let mut unused = StreamResults::default();
    for division in DIVISIONS {
        for transitions in [
            TransitionLimits::default(),
            eager_fusion(),
            TransitionLimits::NONE,
        ] {
            let settings = Settings {
                transitions,
                ..settings
            };
            let found = ordered_results(traced, &settings, Some(division));
            let difference = found.first_difference(&expected);
            prop_assert!(difference.is_none(), "{difference:?}: {division:?}");

            let table = BlockTable::default();
            let sink = BlockIdSink::with_table(&table);
            let found = parallel_batches(traced, &settings, division, sink, &mut unused);
            prop_assert_eq!(&expand_block_ids(&table, &found), &runs, "{:?}", division);
            let table = BlockTable::default();
            let sink = BlockIdSink::with_table(&table);
            let found = whole_batch(traced, &settings, sink, &mut unused);
            prop_assert_eq!(&expand_block_ids(&table, &found), &runs);
        }
    }
    Ok(())
}

/// Compares additive results with those of one thread without transition tables.
fn check_additive(traced: &TracedProgram, settings: Settings) -> Result<(), TestCaseError> {
    let interpreted = Settings {
        transitions: TransitionLimits::NONE,
        ..settings
    };
    let mut expected = StreamResults::default();
    let one = &mut expected;
    decode_windows(traced, &interpreted, WHOLE, CountingSink, one, |_, _| {});
    let totals = Totals::default();
    decode_windows(traced, &interpreted, WHOLE, totals, one, |flow, one| {
        one.run_totals = flow.totals().sorted_runs();
        one.edge_totals = flow.totals().sorted_edges();
        one.edge_hits = one.edge_totals.clone();
        one.errors = ErrorClass::ALL.map(|class| flow.coverage_ledger().error_count(class));
    });
    let uncounted = |max_counters: usize| {
        let runs = expected.run_totals.get(max_counters..).unwrap_or(&[]);
        let edges = expected.edge_totals.get(max_counters..).unwrap_or(&[]);
        let mut kinds = [0; 16];
        for edge in edges {
            kinds[usize::from(edge.kind)] += edge.count;
        }
        (runs.iter().map(|run| run.count).sum::<u64>(), kinds)
    };
    for division in DIVISIONS {
        for transitions in [
            TransitionLimits::default(),
            eager_fusion(),
            TransitionLimits::NONE,
        ] {
            let settings = Settings {
                transitions,
                ..settings
            };
            let mut found = StreamResults::default();
            decode_additively::<CountingSink>(traced, &settings, division, &mut found);
            let mut totals = decode_additively::<Totals>(traced, &settings, division, &mut found);
            found.run_totals = totals.take_result().sorted_runs();
            found.edge_totals = totals.take_result().sorted_edges();
            found.edge_hits = found.edge_totals.clone();
            let difference = found.first_difference(&expected);
            prop_assert!(difference.is_none(), "{difference:?}: {division:?}");

            let max_counters = [1, 40, 7][division.config.threads % 3];
            let settings = Settings {
                max_counters,
                ..settings
            };
            let mut totals = decode_additively::<Totals>(traced, &settings, division, &mut found);
            let totals = totals.take_result();
            let first = |count: usize| ..max_counters.min(count);
            let (runs, edges) = (&expected.run_totals, &expected.edge_totals);
            prop_assert_eq!(&totals.sorted_runs(), &runs[first(runs.len())]);
            prop_assert_eq!(&totals.sorted_edges(), &edges[first(edges.len())]);
            let found = (totals.uncounted_runs(), totals.uncounted_edges());
            prop_assert_eq!(found, uncounted(max_counters));
        }
    }
    Ok(())
}

fn check_threads(traced: &TracedProgram, settings: Settings) -> Result<(), TestCaseError> {
    check_ordered(traced, settings)?;
    check_additive(traced, settings)
}

proptest! {
    #![proptest_config(proptest_config(500))]

    #[test]
    fn threads_equal_one_thread_on_whole_streams(plan in execution_plan()) {
        check_threads(&plan.trace_execution(), plan.decoder_settings())?;
    }

    #[test]
    fn threads_equal_one_thread_on_damaged_streams(
        plan in execution_plan(),
        flips in proptest::collection::vec((any::<usize>(), any::<u8>()), 1..6),
    ) {
        let mut traced = plan.trace_execution();
        traced.flip_bits(flips);
        check_threads(&traced, plan.decoder_settings())?;
    }

    #[test]
    fn threads_equal_one_thread_on_cut_and_spliced_streams(
        plan in execution_plan(),
        other in execution_plan(),
        cut in any::<usize>(),
        from in any::<usize>(),
    ) {
        let mut traced = plan.trace_execution();
        traced.splice_streams(cut, &other.trace_execution(), from);
        check_threads(&traced, plan.decoder_settings())?;
    }

    #[test]
    fn threads_equal_one_thread_with_wrong_settings(
        plan in execution_plan(),
        no_retcomp in any::<bool>(),
        model in proptest::option::of(prop_oneof![Just(0x3d), Just(0x4e), Just(0x5c), any::<u16>()]),
    ) {
        let cpu = model.map(|model| CpuModel { family: 6, model, stepping: 3 });
        let settings = Settings { no_retcomp, cpu, ..ExecutionPlan::default().decoder_settings() };
        check_threads(&plan.trace_execution(), settings)?;
    }
}
