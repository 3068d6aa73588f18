//! The rule that says when a decoded path equals the truth.

use rtit_truth::{
    compare_paths, CompareOptions, ComparisonOutcome, DifferenceReason, IdenticalPaths, PathRun,
    RunHash,
};

/// A run of instructions of four bytes each.
fn run(start: u64, instructions: u32) -> PathRun {
    let mut hash = RunHash::default();
    (0..u64::from(instructions)).for_each(|i| hash.push_instruction(start + 4 * i));
    PathRun {
        start,
        instructions,
        hash: hash.hash,
    }
}

fn outcome(truth: &[PathRun], decoded: &[PathRun], options: CompareOptions) -> ComparisonOutcome {
    let truth = truth.iter().copied().map(Ok::<PathRun, ()>);
    compare_paths(truth, decoded.iter().copied().map(Ok), options).unwrap()
}

fn exact(truth: &[PathRun], decoded: &[PathRun]) -> ComparisonOutcome {
    outcome(truth, decoded, CompareOptions::default())
}

fn reason(outcome: ComparisonOutcome) -> (u64, DifferenceReason) {
    match outcome {
        ComparisonOutcome::Different(difference) => (difference.instructions, difference.reason),
        ComparisonOutcome::Identical(identical) => panic!("{identical:?}"),
    }
}

fn identical(instructions: u64, runs: u64) -> ComparisonOutcome {
    ComparisonOutcome::Identical(IdenticalPaths {
        instructions,
        runs,
        ..IdenticalPaths::default()
    })
}

const ANY: CompareOptions = CompareOptions {
    shortfall: u64::MAX,
    excess: u64::MAX,
};

#[test]
fn equal_runs_are_identical() {
    let path = [run(0x1000, 5), run(0x2000, 1), run(0x1000, 300)];
    assert_eq!(exact(&path, &path), identical(306, 3));
    assert_eq!(exact(&[], &[]), identical(0, 0));
}

#[test]
fn paths_cut_at_other_instructions_are_identical() {
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
fn path_with_another_start_is_different() {
    let truth = [run(0x1000, 5), run(0x2000, 5)];
    let ComparisonOutcome::Different(difference) = exact(&truth, &[run(0x1000, 5), run(0x2004, 5)])
    else {
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
fn path_of_equal_start_and_count_by_other_addresses_is_different() {
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
fn missing_or_additional_instruction_is_different() {
    let truth = [run(0x1000, 5), run(0x2000, 5), run(0x3000, 5)];
    let short = [run(0x1000, 5), run(0x2000, 4), run(0x3000, 5)];
    let missing = |missing| DifferenceReason::DecodedEnds { missing };
    let extra = |extra| DifferenceReason::TruthEnds { extra };
    for (truth, decoded, expected) in [
        (&truth[..], &short[..], (5, missing(1))),
        (&short, &truth, (5, extra(1))),
        (&truth, &truth[..2], (10, missing(5))),
        (&truth[..2], &truth, (10, extra(5))),
        (&truth, &[], (0, missing(15))),
    ] {
        assert_eq!(reason(exact(truth, decoded)), expected);
    }
}

#[test]
fn killed_recording_may_end_early() {
    let truth = [run(0x1000, 5), run(0x2000, 5), run(0x3000, 5)];
    let bound = |shortfall| CompareOptions {
        shortfall,
        excess: 0,
    };
    let within = [run(0x1000, 5), run(0x2000, 2)];
    for (decoded, options, (instructions, runs, shortfall, unchecked)) in [
        (&truth[..2], ANY, (10, 2, 5, 0)),
        (&truth[..2], bound(5), (10, 2, 5, 0)),
        (&[], ANY, (0, 0, 15, 0)),
        (&within, ANY, (5, 1, 8, 2)),
    ] {
        let expected = IdenticalPaths {
            instructions,
            runs,
            shortfall,
            unchecked,
            ..IdenticalPaths::default()
        };
        let found = outcome(&truth, decoded, options);
        assert_eq!(found, ComparisonOutcome::Identical(expected));
    }
    assert_eq!(
        reason(outcome(&truth, &truth[..2], bound(4))),
        (10, DifferenceReason::DecodedEnds { missing: 5 })
    );
    // The truth may end early, too.
    let expected = IdenticalPaths {
        instructions: 5,
        runs: 1,
        excess: 5,
        ..IdenticalPaths::default()
    };
    let found = outcome(&truth[..1], &truth[..2], ANY);
    assert_eq!(found, ComparisonOutcome::Identical(expected));
}

#[test]
fn prefix_without_a_common_boundary_is_different() {
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
fn error_of_either_side_ends_the_comparison() {
    let good = || [Ok(run(0x1000, 5)), Ok(run(0x2000, 5))].into_iter();
    let bad = || [Ok(run(0x1000, 5)), Err("torn")].into_iter();
    assert_eq!(compare_paths(good(), bad(), ANY), Err("torn"));
    assert_eq!(compare_paths(bad(), good(), ANY), Err("torn"));
}
