//! Several threads against one: whatever the program, the packets, the cuts and the damage, all results are the same.

use proptest::prelude::*;
use rtit_flow::{
    AdditiveDecoder, AdditiveSink, CountingSink, Cpu, ErrorClass, ParallelConfig, Settings, Totals,
    TransitionLimits,
};

use super::config;
use super::program::{plan, Plan, Traced};
use super::same::{follow, Pieces, Results};

fn first<T>(all: &[T], most: usize) -> &[T] {
    &all[..most.min(all.len())]
}

/// Decodes all of it.
fn each<'a, S: AdditiveSink>(
    traced: &'a Traced,
    settings: &Settings,
    division: ParallelConfig,
    size: usize,
    results: &mut Results,
) -> AdditiveDecoder<Pieces<'a>, S> {
    let pieces = Pieces::new(&traced.stream, size);
    let mut all = AdditiveDecoder::new(pieces, traced.view(), settings, division);
    loop {
        let more = all.advance();
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
    all
}

/// What several threads add up.
fn summed(traced: &Traced, settings: &Settings, division: ParallelConfig, size: usize) -> Results {
    let mut results = Results::default();
    each::<CountingSink>(traced, settings, division, size, &mut results);
    let mut totals = each::<Totals>(traced, settings, division, size, &mut results);
    results.run_totals = totals.result().runs();
    results.edge_totals = totals.result().edges();
    results.edge_hits = results.edge_totals.clone();
    results
}

/// Compares what several threads find with what one finds.
fn check_threads(traced: &Traced, settings: Settings) -> Result<(), TestCaseError> {
    let walked = Settings {
        transitions: TransitionLimits::NONE,
        ..settings
    };
    let mut reference = Results::default();
    let one = &mut reference;
    follow(traced, &walked, usize::MAX, CountingSink, one, |_, _| {});
    let totals = Totals::default();
    follow(traced, &walked, usize::MAX, totals, one, |flow, one| {
        one.run_totals = flow.totals().runs();
        one.edge_totals = flow.totals().edges();
        one.edge_hits = one.edge_totals.clone();
        one.errors = ErrorClass::ALL.map(|class| flow.ledger().errors(class));
    });
    let beyond = |max_counters: usize| {
        let runs = reference.run_totals.get(max_counters..).unwrap_or(&[]);
        let edges = reference.edge_totals.get(max_counters..).unwrap_or(&[]);
        let mut kinds = [0; 16];
        for edge in edges {
            kinds[usize::from(edge.kind)] += edge.count;
        }
        (runs.iter().map(|run| run.count).sum::<u64>(), kinds)
    };
    for (threads, segment, size, changes) in [
        (1, 64, usize::MAX, 2),
        (2, 20, usize::MAX, 100),
        (3, 130, 2000, 1),
        (4, 400, usize::MAX, 3),
        (2, 200, 90, 100),
    ] {
        let division = ParallelConfig {
            threads,
            segment_bytes: segment,
            max_lead_in: 1000,
            max_result_bytes: 1,
            max_ledger_entries: changes,
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
            let found = summed(traced, &settings, division, size);
            let differs = found.differs(&reference);
            prop_assert!(differs.is_none(), "{differs:?}: {division:?} {size}");
            let max_counters = [1, 40, 7][threads % 3];
            let settings = Settings {
                max_counters,
                ..settings
            };
            let mut totals =
                each::<Totals>(traced, &settings, division, size, &mut Results::default());
            let totals = totals.result();
            prop_assert_eq!(totals.runs(), first(&reference.run_totals, max_counters));
            prop_assert_eq!(totals.edges(), first(&reference.edge_totals, max_counters));
            prop_assert_eq!(
                (totals.uncounted_runs(), totals.uncounted_edges()),
                beyond(max_counters)
            );
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
