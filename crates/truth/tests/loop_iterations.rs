//! Loops that a decoded path leaves open: the truth may have more iterations, and nothing else may differ.

use rtit_truth::{
    compare_paths, CompareOptions, ComparisonOutcome, DifferenceReason, IdenticalPaths, PathFinder,
    PathRun, RunHash,
};

fn run(ips: &[u64]) -> PathRun {
    let mut hash = RunHash::default();
    ips.iter().for_each(|&ip| hash.push_instruction(ip));
    PathRun {
        start: ips.first().copied().unwrap_or(0),
        instructions: hash.instructions,
        hash: hash.hash,
    }
}

/// Returns the mark of a loop that may have any number of additional iterations.
fn open(iteration: &[u64]) -> Vec<PathRun> {
    let head = PathRun {
        hash: iteration.len() as u64,
        ..PathRun::default()
    };
    let ips = iteration.iter().map(|&start| PathRun {
        start,
        ..PathRun::default()
    });
    std::iter::once(head).chain(ips).collect()
}

fn outcome(truth: &[PathRun], decoded: &[PathRun]) -> ComparisonOutcome {
    let truth = truth.iter().copied().map(Ok::<PathRun, ()>);
    let decoded = decoded.iter().copied().map(Ok);
    compare_paths(truth, decoded, CompareOptions::default()).unwrap()
}

/// Returns the runs of a path that is cut at these indices.
fn cut(path: &[u64], cuts: &[usize]) -> Vec<PathRun> {
    let mut cuts: Vec<usize> = cuts.iter().map(|&at| at.min(path.len())).collect();
    cuts.extend([0, path.len()]);
    cuts.sort_unstable();
    cuts.dedup();
    cuts.windows(2)
        .map(|pair| run(&path[pair[0]..pair[1]]))
        .collect()
}

const LOOP: [u64; 4] = [0x1000, 0x1003, 0x1007, 0x1008];
const HANDLER: [u64; 3] = [0x5000, 0x5001, 0x5002];

/// Returns a decoded path: the loop up to its instruction number `left`, the handler.
fn decoded(left: usize) -> Vec<PathRun> {
    let mut iteration = LOOP;
    iteration.rotate_left(left);
    [
        vec![run(&LOOP[..left])],
        open(&iteration),
        vec![run(&HANDLER)],
    ]
    .concat()
}

/// Returns an executed path with additional iterations.
fn executed(left: usize, iterations: usize) -> Vec<u64> {
    [
        LOOP.repeat(iterations),
        LOOP[..left].to_vec(),
        HANDLER.to_vec(),
    ]
    .concat()
}

#[test]
fn additional_iterations_are_counted() {
    for iterations in [0, 1, 2, 1000] {
        let path = executed(2, iterations);
        let truth = cut(&path, &[4 * iterations + 2]);
        let expected = ComparisonOutcome::Identical(IdenticalPaths {
            instructions: path.len() as u64,
            runs: 2,
            repeated: 4 * iterations as u64,
            ..IdenticalPaths::default()
        });
        assert_eq!(
            outcome(&truth, &decoded(2)),
            expected,
            "{iterations} iterations"
        );
    }
}

/// The code may have changed by then, or the loop may be entered again.
#[test]
fn decoded_iteration_after_the_open_ones_is_not_counted_as_repeated() {
    let decoded = [
        vec![run(&[0x900])],
        open(&LOOP),
        vec![run(&LOOP), run(&HANDLER)],
    ]
    .concat();
    for iterations in 1..5 {
        let path = [&[0x900][..], &LOOP.repeat(iterations), &HANDLER].concat();
        let ends: Vec<usize> = (0..=iterations)
            .map(|iteration| 1 + 4 * iteration)
            .collect();
        let ComparisonOutcome::Identical(found) = outcome(&cut(&path, &ends), &decoded) else {
            panic!("{iterations} iterations");
        };
        let counts = (found.instructions, found.repeated);
        assert_eq!(counts, (path.len() as u64, 4 * (iterations as u64 - 1)));
    }
    let without = [&[0x900][..], &HANDLER].concat();
    assert!(matches!(
        outcome(&cut(&without, &[1]), &decoded),
        ComparisonOutcome::Different(_)
    ));
}

#[test]
fn additional_iterations_of_an_unmarked_loop_are_different() {
    let truth = cut(&executed(2, 1), &[6]);
    let decoded_runs: Vec<PathRun> = decoded(2)
        .into_iter()
        .filter(|run| run.instructions > 0)
        .collect();
    assert!(matches!(
        outcome(&truth, &decoded_runs),
        ComparisonOutcome::Different(_)
    ));
    // A mark without the instructions that it announces.
    let mut broken = decoded(2);
    broken.truncate(3);
    broken.push(run(&HANDLER));
    assert!(matches!(
        outcome(&truth, &broken),
        ComparisonOutcome::Different(_)
    ));
}

#[test]
fn partial_iteration_is_different() {
    // One instruction of the loop less, or twice, right before it was left.
    for path in [
        [&LOOP[..], &LOOP[..1], &HANDLER].concat(),
        [&LOOP[..], &LOOP[..2], &LOOP[1..2], &HANDLER].concat(),
    ] {
        let truth = cut(&path, &[path.len() - HANDLER.len()]);
        assert!(matches!(
            outcome(&truth, &decoded(2)),
            ComparisonOutcome::Different(_)
        ));
    }
}

#[test]
fn path_after_the_loop_is_compared() {
    let mut path = executed(2, 7);
    *path.last_mut().unwrap() += 1;
    let truth = cut(&path, &[30]);
    let ComparisonOutcome::Different(difference) = outcome(&truth, &decoded(2)) else {
        panic!("the handler's last instruction is another");
    };
    assert_eq!(difference.reason, DifferenceReason::Path { until: 33 });
    assert_eq!(difference.instructions, 30);
}

/// Pseudo-random numbers, the same in each run.
struct PseudoRandom(u64);

impl PseudoRandom {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) as usize % bound
    }

    fn cuts(&mut self) -> Vec<usize> {
        (0..self.below(30)).map(|_| self.below(100)).collect()
    }
}

/// The truth must have a cut where the loop was left. The program may return to the loop.
#[test]
fn open_loop_is_identical_however_the_truth_is_cut() {
    let mut random = PseudoRandom(1);
    for _ in 0..2000 {
        let (mut path, mut decoded_runs, mut at, mut extra) = (vec![], vec![], 0, 0);
        let mut cuts = random.cuts();
        for _ in 0..=random.below(4) {
            let (left, iterations) = (random.below(4), random.below(20));
            // from the current instruction of the loop to `left`, and whole iterations
            let there = (0..4).map(|i| (at + i) % 4).take_while(|&i| i != left);
            let first: Vec<u64> = there.map(|i| LOOP[i]).collect();
            let mut iteration = LOOP;
            iteration.rotate_left(left);
            path.extend(&first);
            path.extend(iteration.repeat(iterations));
            cuts.push(path.len());
            decoded_runs.push(run(&first));
            decoded_runs.extend(open(&iteration));
            extra += 4 * iterations as u64;
            if random.below(2) == 0 {
                path.extend(HANDLER);
                decoded_runs.push(run(&HANDLER));
                cuts.push(path.len());
            }
            at = left;
        }
        let found = outcome(&cut(&path, &cuts), &decoded_runs);
        let ComparisonOutcome::Identical(identical) = found else {
            panic!("{found:?}: {path:x?} {cuts:?} {decoded_runs:x?}");
        };
        assert_eq!(identical.instructions, path.len() as u64);
        assert_eq!(identical.repeated, extra);
    }
}

#[test]
fn other_instruction_anywhere_is_different() {
    let mut random = PseudoRandom(2);
    for _ in 0..2000 {
        let (left, iterations) = (random.below(4), random.below(9));
        let mut path = executed(left, iterations);
        let at = random.below(path.len());
        path[at] += 0x10_0000;
        let mut cuts = random.cuts();
        cuts.push(4 * iterations + left);
        let found = outcome(&cut(&path, &cuts), &decoded(left));
        assert!(
            matches!(found, ComparisonOutcome::Different(_)),
            "{path:x?} {found:?}"
        );
    }
}

/// A snapshot is a part of the truth, which may have additional iterations, too.
#[test]
fn part_of_the_truth_with_an_open_loop_is_found() {
    let before: Vec<u64> = (0..40).map(|at| 0x9000 + at).collect();
    let lead = [0x2000, 0x2004];
    for iterations in [0, 1, 1000] {
        let head = [before.clone(), lead.to_vec()].concat();
        let path = [head.clone(), executed(2, iterations), before.clone()].concat();
        let cuts = [
            20,
            40,
            42,
            42 + 4 * iterations + 2,
            path.len() - before.len(),
        ];
        let truth = cut(&path, &cuts);
        let find = |decoded: &[PathRun]| {
            let part =
                PathFinder::from_runs(decoded.iter().copied().map(Ok::<PathRun, ()>)).unwrap();
            let truth = || Ok(truth.iter().copied().map(Ok::<PathRun, ()>));
            part.find_with_open_loops(truth).unwrap()
        };
        let decoded_runs = [vec![run(&lead)], decoded(2)].concat();
        let found = find(&decoded_runs).unwrap();
        assert_eq!(found.instructions, (2 + 4 * iterations + 2 + 3) as u64);
        assert_eq!(
            (found.repeated, found.unchecked),
            (4 * iterations as u64, 0)
        );

        let elsewhere = [vec![run(&[0x2000, 0x2005])], decoded(2)].concat();
        assert_eq!(find(&elsewhere), None);
        let mut another = decoded_runs.clone();
        *another.last_mut().unwrap() = run(&[0x5000, 0x5001, 0x5003]);
        assert_eq!(find(&another), None);
        let closed: Vec<PathRun> = decoded_runs
            .into_iter()
            .filter(|run| run.instructions > 0)
            .collect();
        assert_eq!(find(&closed), None);
    }
}
