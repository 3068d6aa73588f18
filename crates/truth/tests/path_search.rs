//! A decoded path is found as a part of the truth, and no other path is.

use std::convert::Infallible;

use rtit_truth::{PathFinder, PathRun, RunHash, RunsAfter};

/// Returns a path of `runs` runs through a few addresses, which `seed` chooses.
fn path(seed: u64, runs: u64) -> Vec<Vec<u64>> {
    let mut state = seed;
    let mut next = |below: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) % below
    };
    (0..runs)
        .map(|_| {
            let start = 0x1000 + 16 * next(5);
            (0..=next(6)).map(|at| start + at).collect()
        })
        .collect()
}

fn run(ips: &[u64]) -> Result<PathRun, Infallible> {
    let mut hash = RunHash::default();
    ips.iter().for_each(|ip| hash.push_instruction(*ip));
    Ok(PathRun {
        start: ips[0],
        instructions: hash.instructions,
        hash: hash.hash,
    })
}

fn runs(path: &[Vec<u64>]) -> impl Iterator<Item = Result<PathRun, Infallible>> + '_ {
    path.iter().map(|ips| run(ips))
}

/// Returns the same path with groups of runs joined; a run begins at each index in `at`.
fn joined(path: &[Vec<u64>], every: usize, at: &[usize]) -> Vec<Vec<u64>> {
    let mut all: Vec<Vec<u64>> = Vec::new();
    for (index, ips) in path.iter().enumerate() {
        match all.last_mut() {
            Some(last) if index % every != 0 && !at.contains(&index) => last.extend(ips),
            _ => all.push(ips.clone()),
        }
    }
    all
}

fn count(path: &[Vec<u64>]) -> u64 {
    path.iter().map(|ips| ips.len() as u64).sum()
}

#[test]
fn part_of_the_truth_is_found() {
    for seed in 0..200 {
        let whole = path(seed, 400);
        let (from, to) = (seed as usize, 250 + seed as usize / 2);
        let part = PathFinder::from_runs(runs(&whole[from..to])).unwrap();
        let truth = joined(&whole, 1 + seed as usize % 9, &[from]);
        let found = part.find_path_in_truth(runs(&truth)).unwrap().unwrap();
        assert_eq!(
            found.instructions + found.unchecked,
            count(&whole[from..to])
        );
        // At most a run of the truth.
        assert!(found.unchecked < 9 * 6);
        assert!(found.instructions > 0);
    }
}

#[test]
fn path_with_one_other_run_is_not_found() {
    for seed in 0..200 {
        let whole = path(seed, 400);
        let mut other = whole[100..300].to_vec();
        let changed = (7 * seed as usize) % 190;
        other[changed] = vec![0x5000, 0x5001];
        let part = PathFinder::from_runs(runs(&other)).unwrap();
        assert_eq!(part.find_path_in_truth(runs(&whole)).unwrap(), None);
    }
}

#[test]
fn path_without_one_run_is_not_found() {
    for seed in 0..100 {
        let whole = path(seed, 400);
        let mut other = whole[100..300].to_vec();
        other.remove(3 + seed as usize);
        // Without this run the path may be executed, too.
        if whole[100..].windows(other.len()).any(|each| each == other) {
            continue;
        }
        let part = PathFinder::from_runs(runs(&other)).unwrap();
        assert_eq!(
            part.find_path_in_truth(runs(&whole)).unwrap(),
            None,
            "{seed}"
        );
    }
}

#[test]
fn change_at_either_end_of_a_long_path_is_not_found() {
    let whole = path(1, 200_000);
    let inner = &whole[30_000..150_000];
    let truth = joined(&whole, 300, &[30_000]);
    let part = PathFinder::from_runs(runs(inner)).unwrap();
    assert!(part.instruction_count() > 4 << 16);
    assert!(part.find_path_in_truth(runs(&truth)).unwrap().is_some());
    // No boundary in the middle is kept, but the hash differs.
    let mut other = inner.to_vec();
    other[60_000] = vec![0x5000; inner[60_000].len()];
    let part = PathFinder::from_runs(runs(&other)).unwrap();
    assert_eq!(part.find_path_in_truth(runs(&truth)).unwrap(), None);
}

#[test]
fn path_that_ends_shortly_after_the_truth_is_found() {
    let whole = path(5, 400);
    let part = PathFinder::from_runs(runs(&whole[100..])).unwrap();
    let found = part
        .find_path_in_truth(runs(&whole[..396]))
        .unwrap()
        .unwrap();
    assert_eq!(found.unchecked, count(&whole[396..]));
}

#[test]
fn runs_after_an_instruction_count_begin_at_a_run() {
    let whole = path(9, 50);
    let passed = count(&whole[..20]);
    let left: Vec<PathRun> = RunsAfter::new(runs(&whole), passed)
        .map(Result::unwrap)
        .collect();
    let wanted: Vec<PathRun> = runs(&whole[20..]).map(Result::unwrap).collect();
    assert_eq!(left, wanted);
    // Within a run: the whole run, which starts elsewhere.
    let long = whole.iter().position(|ips| ips.len() > 2).unwrap();
    let inside = RunsAfter::new(runs(&whole), count(&whole[..long]) + 1).next();
    assert_eq!(inside, Some(run(&whole[long])));
}
