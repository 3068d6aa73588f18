//! Results in order by several threads against those of one: whatever the program, the packets, the cuts and the damage.

use proptest::prelude::*;
use rtit_flow::{
    BlockTable, Branches, Columns, Cpu, Division, ErrorClass, Flow, HashedRun, HashedRuns, InOrder,
    Instructions, Numbers, Run, Settings, StepLimits, TimedInstructions,
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
fn batches<S: InOrder>(
    traced: &Traced,
    settings: &Settings,
    way: Way,
    sink: S,
    results: &mut Results,
) -> Vec<S::Batch> {
    let division = Division {
        threads: way.threads,
        segment: way.segment,
        lead: 1000,
        results: way.results,
        changes: way.changes,
    };
    let pieces = Pieces::new(&traced.stream, way.size);
    let mut all = rtit_flow::Ordered::new(pieces, traced.view(), settings, division, sink);
    let mut batches = Vec::new();
    loop {
        let more = all.advance(way.limit);
        batches.extend(std::iter::from_fn(|| all.take()));
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
fn reference<S: InOrder>(
    traced: &Traced,
    settings: &Settings,
    mut sink: S,
    results: &mut Results,
) -> Vec<S::Batch> {
    sink.set_limit(usize::MAX);
    let mut flow = Flow::with_sink(&traced.stream[..], traced.view(), settings, sink);
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
    let rows = each!(Columns::default());
    let hashes = each!(HashedRuns::default());
    let instructions = each!(Instructions::default());
    let timed = each!(TimedInstructions::new(true));
    let branches = each!(Branches::new(true));
    for batch in rows {
        results.runs.extend((0..batch.start.len()).map(|at| Run {
            start: batch.start[at],
            last: batch.last[at],
            time: batch.time[at],
            offset: batch.offset[at],
            instructions: batch.instructions[at],
            end: batch.end[at],
            bits: batch.bits[at],
            in_tx: batch.in_tx[at] != 0,
        }));
        results.events.extend(batch.events);
    }
    for batch in hashes {
        results
            .hashed
            .extend((0..batch.start.len()).map(|at| HashedRun {
                start: batch.start[at],
                instructions: batch.instructions[at],
                hash: batch.hash[at],
            }));
    }
    for batch in instructions {
        results.ips.extend(batch.ips);
        results.lengths.extend(batch.lengths);
    }
    for all in timed {
        results.timed.extend((0..all.ips.len()).map(|at| {
            let (ip, length, time) = (all.ips[at], all.lengths[at], all.times[at]);
            (
                ip,
                length,
                time,
                all.bits[at],
                all.in_tx[at],
                all.offsets[at],
            )
        }));
    }
    for all in branches {
        results.branches.extend((0..all.from.len()).map(|at| {
            let (from, to, kind) = (all.from[at], all.to[at], all.kind[at]);
            (from, to, kind, all.time[at], all.offset[at])
        }));
    }
    results
}

/// What the numbers of blocks mean: runs as (start, last, instructions, end, bits).
fn expanded(table: &BlockTable, batches: &[Vec<u32>]) -> Vec<(u64, u64, u32, u8, u8)> {
    let blocks = table.since(0);
    let mut runs = Vec::new();
    for batch in batches {
        let mut open = None;
        for &number in batch {
            let block = blocks[number as usize];
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

/// Blocks by number, by several threads and by one, against rows.
fn check_numbers(
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
    let found = batches(traced, settings, way, Numbers::new(&table), &mut aside);
    prop_assert_eq!(&expanded(&table, &found), &expected, "{:?}", way);
    let table = BlockTable::default();
    let found = reference(traced, settings, Numbers::new(&table), &mut aside);
    prop_assert_eq!(&expanded(&table, &found), &expected);
    Ok(())
}

fn check_threads(traced: &Traced, settings: Settings) -> Result<(), TestCaseError> {
    let walked = Settings {
        steps: StepLimits::NONE,
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
        let eager = StepLimits {
            phrases: 0,
            ..StepLimits::default()
        };
        for steps in [StepLimits::default(), eager, StepLimits::NONE] {
            let settings = Settings { steps, ..settings };
            let found = results(traced, &settings, Some(way));
            let differs = found.differs(&expected);
            prop_assert!(differs.is_none(), "{differs:?}: {way:?}");
            check_numbers(traced, &settings, way, &expected.runs)?;
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
