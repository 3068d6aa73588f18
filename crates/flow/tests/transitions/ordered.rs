//! Results in order by several threads against those of one: whatever the program, the packets, the cuts and the
//! damage.

use proptest::prelude::*;
use rtit_flow::{
    BlockIdColumns, BlockIdSink, BlockTable, BranchSink, Cpu, ErrorClass, HashedRunSink,
    InstructionSink, OrderedSink, ParallelConfig, Run, RunSink, Settings, StreamDecoder,
    TransitionLimits,
};

use super::config;
use super::program::{plan, Plan, Traced};
use super::same::{Pieces, Results};

/// Who decodes, and how much at a time.
#[derive(Clone, Copy, Debug)]
struct Way {
    threads: usize,
    segment: usize,
    /// Of windows.
    size: usize,
    /// Rows of a batch.
    limit: usize,
    /// Bytes of results of a segment, at most.
    results: usize,
    /// Changes of what is known of a segment's bytes, at most.
    changes: usize,
}

/// The batches of a stream; counts and ledger go into the results.
fn batches<S: OrderedSink>(
    traced: &Traced,
    settings: &Settings,
    way: Way,
    sink: S,
    results: &mut Results,
) -> Vec<S::Batch> {
    let division = ParallelConfig {
        threads: way.threads,
        segment_bytes: way.segment,
        max_lead_in: 1000,
        max_result_bytes: way.results,
        max_ledger_entries: way.changes,
    };
    let pieces = Pieces::new(&traced.stream, way.size);
    let mut all = rtit_flow::OrderedDecoder::new(pieces, traced.view(), settings, division, sink);
    let mut batches = Vec::new();
    loop {
        let more = all.advance(way.limit);
        batches.extend(std::iter::from_fn(|| all.next_batch()));
        if all.is_starved() {
            let position = all.position();
            all.stream_mut().go_on(position);
        }
        if !more {
            break;
        }
    }
    results.counts.push(format!("{:?}", all.counts()));
    results.spans = all.ledger().spans().to_vec();
    results.errors = ErrorClass::ALL.map(|class| all.ledger().errors(class));
    batches
}

/// As `batches`, by the decoder that knows no segments.
fn reference<S: OrderedSink>(
    traced: &Traced,
    settings: &Settings,
    mut sink: S,
    results: &mut Results,
) -> Vec<S::Batch> {
    sink.set_limit(usize::MAX);
    let mut flow = StreamDecoder::with_sink(&traced.stream[..], traced.view(), settings, sink);
    while flow.advance() {}
    results.counts.push(format!("{:?}", flow.counts()));
    results.spans = flow.ledger().spans().to_vec();
    results.errors = ErrorClass::ALL.map(|class| flow.ledger().errors(class));
    vec![flow.sink_mut().take_batch()]
}

/// All results; `way` None: those of the reference.
fn results(traced: &Traced, settings: &Settings, way: Option<Way>) -> Results {
    let mut results = Results::default();
    macro_rules! each {
        ($sink:expr) => {
            match way {
                Some(way) => batches(traced, settings, way, $sink, &mut results),
                None => reference(traced, settings, $sink, &mut results),
            }
        };
    }
    let runs = each!(RunSink::default());
    let hashed = each!(HashedRunSink::default());
    let instructions = each!(InstructionSink::new(true));
    let branches = each!(BranchSink::new(true));
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
fn expanded(table: &BlockTable, batches: &[BlockIdColumns]) -> Vec<(u64, u64, u32, u8, u8)> {
    let blocks = table.since(0);
    let mut runs = Vec::new();
    for batch in batches {
        let mut open = None;
        for &id in &batch.ids {
            let block = blocks[id as usize];
            let (start, before, bits) = open.unwrap_or((block.start, 0, block.bits));
            let count = before + block.instructions;
            open = Some((start, count, bits));
            if !block.goes_on {
                runs.push((start, block.last, count, block.end as u8, bits));
                open = None;
            }
        }
        assert_eq!(open, None, "a batch has whole runs");
    }
    runs
}

/// Block ids, by several threads and by one, against rows.
fn check_block_ids(
    traced: &Traced,
    settings: &Settings,
    way: Way,
    rows: &[Run],
) -> Result<(), TestCaseError> {
    let expected: Vec<_> = rows
        .iter()
        .map(|run| (run.start, run.last, run.instructions, run.end, run.bits))
        .collect();
    let mut aside = Results::default();
    let table = BlockTable::default();
    let found = batches(
        traced,
        settings,
        way,
        BlockIdSink::with_table(&table),
        &mut aside,
    );
    prop_assert_eq!(&expanded(&table, &found), &expected, "{:?}", way);
    let table = BlockTable::default();
    let found = reference(
        traced,
        settings,
        BlockIdSink::with_table(&table),
        &mut aside,
    );
    prop_assert_eq!(&expanded(&table, &found), &expected);
    Ok(())
}

fn check_threads(traced: &Traced, settings: Settings) -> Result<(), TestCaseError> {
    let walked = Settings {
        transitions: TransitionLimits::NONE,
        ..settings
    };
    let expected = results(traced, &walked, None);
    let whole = usize::MAX;
    for (threads, segment, size, limit, most, changes) in [
        (1, 64, whole, 10, whole, 100),
        (2, 20, whole, 1, whole, 100),
        (3, 130, 2000, 7, 500, 1),
        (4, 400, whole, 1000, whole, 3),
        (2, 200, 90, 40, 2000, 100),
    ] {
        let way = Way {
            threads,
            segment,
            size,
            limit,
            results: most,
            changes,
        };
        let eager = TransitionLimits {
            fusion_warm_up: 0,
            ..TransitionLimits::default()
        };
        for transitions in [TransitionLimits::default(), eager, TransitionLimits::NONE] {
            let settings = Settings {
                transitions,
                ..settings
            };
            let found = results(traced, &settings, Some(way));
            let differs = found.differs(&expected);
            prop_assert!(differs.is_none(), "{differs:?}: {way:?}");
            check_block_ids(traced, &settings, way, &expected.runs)?;
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(config(500))]

    #[test]
    fn whole_streams(plan in plan()) {
        check_threads(&plan.trace(), plan.settings())?;
    }

    #[test]
    fn damaged_streams(plan in plan(), flips in proptest::collection::vec((any::<usize>(), any::<u8>()), 1..6)) {
        let mut traced = plan.trace();
        traced.damage(flips);
        check_threads(&traced, plan.settings())?;
    }

    #[test]
    fn cut_and_spliced_streams(plan in plan(), other in plan(), cut in any::<usize>(), from in any::<usize>()) {
        let mut traced = plan.trace();
        traced.splice(cut, &other.trace(), from);
        check_threads(&traced, plan.settings())?;
    }

    #[test]
    fn wrong_settings(
        plan in plan(),
        no_retcomp in any::<bool>(),
        model in proptest::option::of(prop_oneof![Just(0x3d), Just(0x4e), Just(0x5c), any::<u16>()]),
    ) {
        let cpu = model.map(|model| Cpu { family: 6, model, stepping: 3 });
        let settings = Settings { no_retcomp, cpu, ..Plan::default().settings() };
        check_threads(&plan.trace(), settings)?;
    }
}
