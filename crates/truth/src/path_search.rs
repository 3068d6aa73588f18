//! Finds a decoded path within the truth. A snapshot holds the end of a thread's path, or some other part.
//!
//! The part is found by its hash: the hash over instructions a..b follows from those over 0..a and 0..b.

use std::collections::{HashMap, VecDeque};

use crate::hash::combine_hashes;
use crate::{compare_paths, CompareOptions, ComparisonOutcome, IdenticalPaths, PathHash, PathRun};

/// Instructions at both ends of a decoded path for which all boundaries of runs are kept.
const KEPT_INSTRUCTIONS: u64 = 1 << 16;
/// Boundaries of the truth after the last common one. A decoded path may end with a run that ends at no branch; more
/// such runs mean that the paths differ.
const MAX_MISSED: u32 = 2;
/// Limits for a path with open loops: runs kept, and starts tried, the last ones in the truth.
const MAX_OPEN_RUNS: usize = 1 << 20;
const MAX_TRIED: usize = 64;

/// Skips the first `instructions` of a path. A run across that point is returned whole, so that no decoded path equals
/// the rest.
pub struct RunsAfter<I> {
    runs: I,
    left: u64,
}

impl<I> RunsAfter<I> {
    pub fn new(runs: I, instructions: u64) -> RunsAfter<I> {
        RunsAfter {
            runs,
            left: instructions,
        }
    }
}

impl<E, I: Iterator<Item = Result<PathRun, E>>> Iterator for RunsAfter<I> {
    type Item = Result<PathRun, E>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let run = match self.runs.next()? {
                Ok(run) => run,
                error => return Some(error),
            };
            let count = u64::from(run.instructions);
            if count > self.left {
                self.left = 0;
                return Some(Ok(run));
            }
            if self.left == 0 {
                continue; // a run without instructions
            }
            self.left -= count;
        }
    }
}

/// The facts about a decoded path that are necessary to find it, in bounded memory.
#[derive(Default)]
pub struct PathFinder {
    chain: PathHash,
    start: u64,
    /// Number of instructions -> hash, at the boundaries of runs near the start and near the end.
    head: HashMap<u64, u64>,
    tail: VecDeque<(u64, u64)>,
    open: OpenLoopRuns,
}

/// The runs of a path that may have open loops (see [`Run`]).
#[derive(Default)]
struct OpenLoopRuns {
    /// Instructions before the first open loop.
    since: Option<u64>,
    runs: Vec<PathRun>,
}

impl PathFinder {
    /// Reads a decoded path.
    ///
    /// # Errors Those of the iterator.
    pub fn from_runs<E>(
        decoded: impl Iterator<Item = Result<PathRun, E>>,
    ) -> Result<PathFinder, E> {
        let mut part = PathFinder::default();
        for run in decoded {
            part.push_run(&run?);
        }
        Ok(part)
    }

    fn push_run(&mut self, run: &PathRun) {
        if self.open.runs.len() <= MAX_OPEN_RUNS {
            self.open.runs.push(*run);
        }
        if run.instructions == 0 {
            self.open.since.get_or_insert(self.chain.instructions);
            return;
        }
        if self.chain.instructions == 0 {
            self.start = run.start;
        }
        self.chain.push_run(run);
        let PathHash { instructions, hash } = self.chain;
        if instructions <= KEPT_INSTRUCTIONS {
            self.head.insert(instructions, hash);
        }
        self.tail.push_back((instructions, hash));
        while self
            .tail
            .front()
            .is_some_and(|&(at, _)| at + KEPT_INSTRUCTIONS < instructions)
        {
            self.tail.pop_front();
        }
    }

    pub fn instruction_count(&self) -> u64 {
        self.chain.instructions
    }

    /// Finds this path in `truth`. It must start where a run of the truth does. Its last instructions may lie within a
    /// run of the truth, which no hash covers; they count as `unchecked`.
    ///
    /// # Errors Those of the iterator.
    pub fn find_path_in_truth<E>(
        &self,
        truth: impl Iterator<Item = Result<PathRun, E>>,
    ) -> Result<Option<IdenticalPaths>, E> {
        let tail: HashMap<u64, u64> = self.tail.iter().copied().collect();
        let first_kept = self
            .tail
            .front()
            .map_or(0, |&(at, _)| at.max(KEPT_INSTRUCTIONS + 1));
        let total = self.chain.instructions;
        let mut candidates: VecDeque<StartCandidate> = VecDeque::new();
        let mut chain = PathHash::default();
        let mut runs = 0;
        for run in truth {
            let run = run?;
            if run.instructions == 0 {
                continue;
            }
            if run.start == self.start {
                candidates.push_back(StartCandidate::new(chain, runs));
            }
            chain.push_run(&run);
            runs += 1;
            let distance =
                |candidate: &StartCandidate| chain.instructions - candidate.before.instructions;
            for candidate in candidates.iter_mut().rev() {
                if distance(candidate) > KEPT_INSTRUCTIONS.min(total) {
                    break;
                }
                candidate.check_boundary_hash(&self.head, chain);
            }
            for candidate in &mut candidates {
                let at = distance(candidate);
                if at < first_kept {
                    break;
                }
                if at <= total {
                    candidate.check_boundary_hash(&tail, chain);
                }
            }
            while let Some(candidate) = candidates.front() {
                if candidate.alive && distance(candidate) < total {
                    break;
                }
                if self.accepts_candidate(candidate) {
                    return Ok(Some(self.matched_path_of(candidate, runs)));
                }
                candidates.pop_front();
            }
        }
        // The truth has ended first, as that of a killed recorder does: it counts only near the end of the path.
        let mut left = candidates.iter();
        let candidate = left
            .find(|candidate| self.accepts_candidate(candidate) && candidate.agreed > total / 2);
        Ok(candidate.map(|candidate| self.matched_path_of(candidate, runs)))
    }

    /// Finds a path with open loops, for which the truth may have more iterations. Reads the truth again for each
    /// candidate. None also for a path without open loops, and for one that is too long.
    ///
    /// # Errors Those of the iterators, and of `truth`.
    pub fn find_with_open_loops<E, I: Iterator<Item = Result<PathRun, E>>>(
        &self,
        mut truth: impl FnMut() -> Result<I, E>,
    ) -> Result<Option<IdenticalPaths>, E> {
        let Some(since) = self
            .open
            .since
            .filter(|_| self.open.runs.len() <= MAX_OPEN_RUNS)
        else {
            return Ok(None);
        };
        let options = CompareOptions {
            shortfall: u64::MAX,
            excess: 0,
        };
        for candidate in self.find_candidate_starts(truth()?, since)? {
            let decoded = self.open.runs.iter().map(|run| Ok(*run));
            let outcome = compare_paths(RunsAfter::new(truth()?, candidate), decoded, options)?;
            if let ComparisonOutcome::Identical(found) = outcome {
                if found.instructions > 0 && found.unchecked <= KEPT_INSTRUCTIONS {
                    return Ok(Some(IdenticalPaths {
                        shortfall: 0,
                        ..found
                    }));
                }
            }
        }
        Ok(None)
    }

    /// Returns the numbers of instructions in the truth before which the path may start. Its first `since` instructions
    /// are exact.
    fn find_candidate_starts<E>(
        &self,
        truth: impl Iterator<Item = Result<PathRun, E>>,
        since: u64,
    ) -> Result<VecDeque<u64>, E> {
        let certain = since.min(KEPT_INSTRUCTIONS);
        let exact = self.head.iter().filter(|&(&at, _)| at <= certain);
        let exact: HashMap<u64, u64> = exact.map(|(&at, &hash)| (at, hash)).collect();
        let mut found = VecDeque::new();
        let mut candidates: VecDeque<StartCandidate> = VecDeque::new();
        let mut chain = PathHash::default();
        let mut passed = |candidate: StartCandidate| {
            if candidate.alive {
                found.push_back(candidate.before.instructions);
                if found.len() > MAX_TRIED {
                    found.pop_front();
                }
            }
        };
        for run in truth {
            let run = run?;
            if run.instructions == 0 {
                continue;
            }
            if run.start == self.start {
                candidates.push_back(StartCandidate::new(chain, 0));
            }
            chain.push_run(&run);
            for candidate in &mut candidates {
                candidate.check_boundary_hash(&exact, chain);
            }
            let distance =
                |candidate: &StartCandidate| chain.instructions - candidate.before.instructions;
            while candidates
                .front()
                .is_some_and(|candidate| !candidate.alive || distance(candidate) >= certain)
            {
                candidates.pop_front().into_iter().for_each(&mut passed);
            }
        }
        candidates.into_iter().for_each(passed);
        Ok(found)
    }

    fn accepts_candidate(&self, candidate: &StartCandidate) -> bool {
        let near = self.chain.instructions - candidate.agreed <= KEPT_INSTRUCTIONS;
        candidate.alive && candidate.agreed > 0 && candidate.missed <= MAX_MISSED && near
    }

    fn matched_path_of(&self, candidate: &StartCandidate, runs: u64) -> IdenticalPaths {
        IdenticalPaths {
            instructions: candidate.agreed,
            runs: runs - candidate.runs,
            unchecked: self.chain.instructions - candidate.agreed,
            ..IdenticalPaths::default()
        }
    }
}

/// A point of the truth at which the decoded path may start.
struct StartCandidate {
    before: PathHash,
    runs: u64,
    /// Instructions up to the last boundary at which both agree.
    agreed: u64,
    /// Boundaries of the truth since then.
    missed: u32,
    alive: bool,
}

impl StartCandidate {
    fn new(before: PathHash, runs: u64) -> StartCandidate {
        StartCandidate {
            before,
            runs,
            agreed: 0,
            missed: 0,
            alive: true,
        }
    }

    /// Checks a boundary of the truth at `chain`: a boundary of the decoded path there must have the same hash.
    fn check_boundary_hash(&mut self, boundaries: &HashMap<u64, u64>, chain: PathHash) {
        let count = chain.instructions - self.before.instructions;
        if let Some(&hash) = boundaries.get(&count) {
            self.alive = self.alive && combine_hashes(self.before.hash, count, hash) == chain.hash;
            self.agreed = count;
            self.missed = 0;
        } else {
            self.missed += 1;
        }
    }
}
