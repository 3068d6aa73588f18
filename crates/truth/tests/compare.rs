//! The rule that says when a decoded path equals the truth.

use rtit_truth::{
    compare, CompareOptions, DifferenceReason, Identical, Outcome, Run, RunHash, Selector,
};

/// A run of instructions of four bytes each.
fn run(start: u64, instructions: u32) -> Run {
    let mut hash = RunHash::default();
    (0..u64::from(instructions)).for_each(|i| hash.push(start + 4 * i));
    Run {
        start,
        instructions,
        hash: hash.hash,
    }
}

fn outcome(truth: &[Run], decoded: &[Run], options: CompareOptions) -> Outcome {
    let truth = truth.iter().copied().map(Ok::<Run, ()>);
    compare(truth, decoded.iter().copied().map(Ok), options).unwrap()
}

fn exact(truth: &[Run], decoded: &[Run]) -> Outcome {
    outcome(truth, decoded, CompareOptions::default())
}

fn reason(outcome: Outcome) -> (u64, DifferenceReason) {
    match outcome {
        Outcome::Different(difference) => (difference.instructions, difference.reason),
        Outcome::Identical(identical) => panic!("{identical:?}"),
    }
}

fn identical(instructions: u64, runs: u64) -> Outcome {
    Outcome::Identical(Identical {
        instructions,
        runs,
        ..Identical::default()
    })
}

const ANY: CompareOptions = CompareOptions {
    shortfall: u64::MAX,
    excess: u64::MAX,
};

#[test]
fn the_same_runs() {
    let path = [run(0x1000, 5), run(0x2000, 1), run(0x1000, 300)];
    assert_eq!(exact(&path, &path), identical(306, 3));
    assert_eq!(exact(&[], &[]), identical(0, 0));
}

#[test]
fn sequential_cuts_on_either_side() {
    let whole = [run(0x1000, 10), run(0x2000, 6)];
    let cut = [
        run(0x1000, 3),
        run(0x100c, 0),
        run(0x100c, 7),
        run(0x2000, 5),
        run(0x2014, 1),
    ];
    assert_eq!(exact(&whole, &cut), identical(16, 2));
    assert_eq!(exact(&cut, &whole), identical(16, 4));
    let other = [
        run(0x1000, 6),
        run(0x1018, 4),
        run(0x2000, 2),
        run(0x2008, 4),
    ];
    assert_eq!(exact(&cut, &other), identical(16, 4));
}

#[test]
fn another_start() {
    let truth = [run(0x1000, 5), run(0x2000, 5)];
    let Outcome::Different(difference) = exact(&truth, &[run(0x1000, 5), run(0x2004, 5)]) else {
        panic!("they differ");
    };
    assert_eq!(
        (difference.instructions, difference.reason),
        (5, DifferenceReason::Start)
    );
    assert_eq!((difference.truth_index, difference.decoded_index), (1, 1));
    assert_eq!(
        (difference.truth, difference.decoded),
        (Some(run(0x2000, 5)), Some(run(0x2004, 5)))
    );
}

#[test]
fn the_same_start_and_count_by_other_addresses() {
    let truth = [run(0x1000, 5), run(0x2000, 5), run(0x3000, 1)];
    let decoded = [
        run(0x1000, 5),
        run(0x2000, 4),
        run(0x2011, 1),
        run(0x3000, 1),
    ];
    assert_eq!(
        reason(exact(&truth, &decoded)),
        (5, DifferenceReason::Path { until: 10 })
    );
}

#[test]
fn an_instruction_too_few() {
    let truth = [run(0x1000, 5), run(0x2000, 5), run(0x3000, 5)];
    let short = [run(0x1000, 5), run(0x2000, 4), run(0x3000, 5)];
    assert_eq!(
        reason(exact(&truth, &short)),
        (5, DifferenceReason::DecodedEnds { missing: 1 })
    );
    assert_eq!(
        reason(exact(&short, &truth)),
        (5, DifferenceReason::TruthEnds { extra: 1 })
    );
    assert_eq!(
        reason(exact(&truth, &truth[..2])),
        (10, DifferenceReason::DecodedEnds { missing: 5 })
    );
    assert_eq!(
        reason(exact(&truth[..2], &truth)),
        (10, DifferenceReason::TruthEnds { extra: 5 })
    );
    assert_eq!(
        reason(exact(&truth, &[])),
        (0, DifferenceReason::DecodedEnds { missing: 15 })
    );
}

#[test]
fn a_killed_recording_ends_early() {
    let truth = [run(0x1000, 5), run(0x2000, 5), run(0x3000, 5)];
    let ends = |shortfall, unchecked, instructions, runs| {
        Outcome::Identical(Identical {
            instructions,
            runs,
            shortfall,
            excess: 0,
            repeated: 0,
            unchecked,
        })
    };
    assert_eq!(outcome(&truth, &truth[..2], ANY), ends(5, 0, 10, 2));
    assert_eq!(outcome(&truth, &[], ANY), ends(15, 0, 0, 0));
    assert_eq!(
        outcome(&truth, &[run(0x1000, 5), run(0x2000, 2)], ANY),
        ends(8, 2, 5, 1)
    );
    let bound = CompareOptions {
        shortfall: 4,
        excess: 0,
    };
    assert_eq!(
        reason(outcome(&truth, &truth[..2], bound)),
        (10, DifferenceReason::DecodedEnds { missing: 5 })
    );
    let bound = CompareOptions {
        shortfall: 5,
        excess: 0,
    };
    assert_eq!(outcome(&truth, &truth[..2], bound), ends(5, 0, 10, 2));
}

#[test]
fn the_truth_may_end_early_too() {
    let path = [run(0x1000, 5), run(0x2000, 5)];
    let expected = Identical {
        instructions: 5,
        runs: 1,
        excess: 5,
        ..Identical::default()
    };
    assert_eq!(
        outcome(&path[..1], &path, ANY),
        Outcome::Identical(expected)
    );
}

#[test]
fn a_prefix_that_lost_step_is_different() {
    let truth = [
        run(0x1000, 5),
        run(0x2000, 5),
        run(0x3000, 5),
        run(0x4000, 5),
    ];
    let drifted = [run(0x1000, 4), run(0x2000, 4), run(0x3000, 4)];
    assert_eq!(
        reason(outcome(&truth, &drifted, ANY)),
        (0, DifferenceReason::Path { until: 12 })
    );
    let elsewhere = [run(0x1000, 5), run(0x2004, 2)];
    assert_eq!(
        reason(outcome(&truth, &elsewhere, ANY)),
        (5, DifferenceReason::Start)
    );
}

#[test]
fn an_error_of_either_side_ends_it() {
    let good = || [Ok(run(0x1000, 5)), Ok(run(0x2000, 5))].into_iter();
    let bad = || [Ok(run(0x1000, 5)), Err("torn")].into_iter();
    assert_eq!(compare(good(), bad(), ANY), Err("torn"));
    assert_eq!(compare(bad(), good(), ANY), Err("torn"));
}

#[test]
fn no_ranges_keep_everything() {
    let mut selector = Selector::default();
    assert!(selector.is_traced(&run(0, 1)) && selector.is_traced(&run(u64::MAX, 1)));
}

#[test]
fn a_run_is_kept_by_where_it_starts() {
    let mut selector = Selector::new(vec![(0x1000, 0x10ff), (0x3000, 0x3000)], vec![]);
    assert!(!selector.is_traced(&run(0xffc, 3))); // enters the range sequentially
    assert!(selector.is_traced(&run(0x1000, 1)));
    assert!(selector.is_traced(&run(0x10ff, 900))); // leaves it sequentially
    assert!(!selector.is_traced(&run(0x1100, 1)));
    assert!(selector.is_traced(&run(0x3000, 1)));
    assert!(!selector.is_traced(&run(0x3001, 1)));
}

#[test]
fn trace_stop_is_for_good() {
    let mut selector = Selector::new(vec![(0x1000, 0x2fff)], vec![(0x2000, 0x20ff)]);
    assert!(selector.is_traced(&run(0x1000, 1)));
    assert!(selector.is_traced(&run(0x1ff0, 100))); // enters the stop range sequentially
    assert!(!selector.is_stopped());
    assert!(!selector.is_traced(&run(0x2080, 1))); // the overlap acts as stop range
    assert!(selector.is_stopped());
    assert!(!selector.is_traced(&run(0x1000, 1)));
}

#[test]
fn trace_stop_outside_the_filter_ranges() {
    let mut selector = Selector::new(vec![(0x1000, 0x1fff)], vec![(0x5000, 0x5fff)]);
    assert!(!selector.is_traced(&run(0x5000, 1)));
    assert!(!selector.is_traced(&run(0x1000, 1)));
}
