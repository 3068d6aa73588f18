//! Code of several address spaces at the same addresses: CR3 and NR say whose runs.

#[path = "spaces/later.rs"]
mod later;
#[path = "spaces/world.rs"]
mod world;

use proptest::prelude::*;
use rtit_flow::{
    BranchSink, ByteStatus, CountingSink, EdgeCounter, HashedRunColumns, InstructionSink,
    OrderedDecoder, OrderedSink, ParallelConfig, ReusableDecoder, RunColumns, RunSink, Settings,
    Spaces, StreamDecoder, TransitionLimits,
};
use world::{programs, run, spaces};

/// All batches of a sink, by one thread or by two.
fn all<S: OrderedSink>(
    stream: &[u8],
    spaces: Spaces,
    settings: &Settings,
    sink: S,
) -> [Vec<S::Batch>; 2] {
    let mut flow = StreamDecoder::with_sink(stream, spaces.clone(), settings, sink.fresh());
    flow.sink_mut().set_limit(7);
    let mut one = Vec::new();
    while flow.advance() {
        one.push(flow.sink_mut().take_batch());
    }
    one.push(flow.sink_mut().take_batch());
    let division = ParallelConfig {
        threads: 2,
        segment_bytes: 64,
        max_lead_in: 400,
        max_result_bytes: 1 << 20,
        max_ledger_entries: 100,
    };
    let mut flow = OrderedDecoder::new(stream, spaces, settings, division, sink);
    let mut several = Vec::new();
    loop {
        let goes_on = flow.advance(7);
        several.extend(std::iter::from_fn(|| flow.next_batch()));
        if !goes_on {
            return [one, several];
        }
    }
}

/// A column that is empty where all are 0.
fn filled(column: &[u32], rows: usize) -> Vec<u32> {
    match column.len() {
        0 => vec![0; rows],
        _ => column.to_vec(),
    }
}

proptest! {
    #[test]
    fn rows_know_their_space(
        programs in programs(),
        turns in prop::collection::vec(0..3_usize, 1..120),
        results in prop::collection::vec(any::<bool>(), 1..50),
    ) {
        let (expected, stream) = run(&programs, &turns, &results, 8, &[]);
        for transitions in [TransitionLimits::NONE, TransitionLimits::default()] {
            let settings = Settings { transitions, ..Settings::default() };
            for batches in all(&stream, spaces(&programs), &settings, InstructionSink::new(false)) {
                let ips: Vec<u64> = batches.iter().flat_map(|batch| batch.ips.clone()).collect();
                prop_assert_eq!(&ips, &expected.ips);
                let found: Vec<u32> =
                    batches.iter().flat_map(|batch| filled(&batch.space, batch.ips.len())).collect();
                prop_assert_eq!(&found, &expected.spaces);
            }
            for batches in all(&stream, spaces(&programs), &settings, RunSink::default()) {
                let found: Vec<u32> = batches
                    .iter()
                    .flat_map(|batch| {
                        let spaces = filled(&batch.space, batch.start.len());
                        let counts = batch.instructions.clone();
                        spaces.into_iter().zip(counts).flat_map(|(space, count)| vec![space; count as usize])
                    })
                    .collect();
                prop_assert_eq!(&found, &expected.spaces);
            }
            for batches in all(&stream, spaces(&programs), &settings, BranchSink::new(false)) {
                let found: Vec<(u64, u32)> = batches
                    .iter()
                    .flat_map(|batch| {
                        let spaces = filled(&batch.space, batch.from.len());
                        batch.from.clone().into_iter().zip(spaces)
                    })
                    .collect();
                prop_assert_eq!(&found, &expected.branches);
                // a MOV CR3 is no branch
                prop_assert!(batches.iter().all(|batch| batch.target_space.is_empty()));
            }
        }
    }

    #[test]
    fn code_is_that_of_the_last_pip(
        programs in programs(),
        turns in prop::collection::vec(0..3_usize, 1..120),
        results in prop::collection::vec(any::<bool>(), 1..50),
    ) {
        let (expected, stream) = run(&programs, &turns, &results, 8, &[]);
        let mut walked = None;
        let eager = TransitionLimits { fusion_warm_up: 0, ..TransitionLimits::default() };
        let whole = Settings::default().cache_limit;
        // at the end of little memory all that waits is let go of
        for (transitions, cache_limit) in [
            (TransitionLimits::NONE, whole),
            (TransitionLimits::default(), whole),
            (TransitionLimits::default(), 1 << 14),
            (eager, 1 << 12),
        ] {
            let settings = Settings { transitions, cache_limit, ..Settings::default() };
            let mut flow = StreamDecoder::instructions(&stream[..], spaces(&programs), &settings);
            let mut ips = Vec::new();
            while let Some(batch) = flow.next_batch(50) {
                ips.extend(batch.ips);
            }
            prop_assert_eq!(&ips, &expected.ips);
            prop_assert!(flow.ledger().spans().iter().all(|span| span.status == ByteStatus::Exact));

            let mut flow = StreamDecoder::with_sink(&stream[..], spaces(&programs), &settings, CountingSink);
            while flow.advance() {}
            prop_assert_eq!(flow.counts().instructions, expected.ips.len() as u64);

            let mut flow = StreamDecoder::adding_up(&stream[..], spaces(&programs), &settings);
            while flow.advance() {}
            let runs = flow.totals().runs();
            let total: u64 = runs.iter().map(|run| u64::from(run.instructions) * run.count).sum();
            prop_assert_eq!(total, expected.ips.len() as u64);

            let edges = flow.totals().edges();
            let mut decoder = ReusableDecoder::new(spaces(&programs), &settings);
            let mut hits = EdgeCounter::default();
            for _ in 0..3 {
                decoder.run(&stream, &mut hits);
                prop_assert_eq!(hits.take(), edges.clone());
                prop_assert_eq!(decoder.counts().instructions, expected.ips.len() as u64);
            }

            let mut flow = StreamDecoder::new(&stream[..], spaces(&programs), &settings);
            let rows: Vec<RunColumns> =
                std::iter::from_fn(|| flow.next_batch(1 << 20)).collect();
            let mut flow = StreamDecoder::hashed(&stream[..], spaces(&programs), &settings);
            let runs: Vec<HashedRunColumns> =
                std::iter::from_fn(|| flow.next_batch(1 << 20)).collect();
            prop_assert_eq!(walked.get_or_insert((rows.clone(), runs.clone())), &mut (rows, runs));
        }
    }
}
