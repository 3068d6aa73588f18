//! Loops without packets: how many iterations the truth has where the decoder cannot know.

use std::collections::VecDeque;

use crate::hash::{combine_hashes, extend_hash};
use crate::{PathHash, PathRun};

/// Runs that can be put back.
pub(crate) struct PeekableRuns<I: Iterator> {
    runs: I,
    back: VecDeque<PathRun>,
}

impl<E, I: Iterator<Item = Result<PathRun, E>>> PeekableRuns<I> {
    pub(crate) fn new(runs: I) -> PeekableRuns<I> {
        PeekableRuns {
            runs,
            back: VecDeque::new(),
        }
    }

    pub(crate) fn next_run(&mut self) -> Result<Option<PathRun>, E> {
        match self.back.pop_front() {
            Some(run) => Ok(Some(run)),
            None => self.runs.next().transpose(),
        }
    }

    /// Puts a run back.
    pub(crate) fn put_run_back(&mut self, run: Option<PathRun>) {
        if let Some(run) = run {
            self.back.push_front(run);
        }
    }
}

/// How a path continues in a loop.
pub(crate) enum LoopContinuation {
    Leaves,
    /// At least one iteration, with a boundary at its end, and then it leaves the loop.
    OneIteration,
    /// It stays in the loop until the next mark.
    OpenAgain,
}

/// One iteration of a loop, from the point where the decoder left it.
pub(crate) struct LoopIteration {
    /// Hashes of the first 0, 1, 2, ... instructions.
    hashes: Vec<u64>,
}

impl LoopIteration {
    /// Reads the iteration that `head` announces; None if it is cut off or empty.
    pub(crate) fn read_loop_iteration<E, I: Iterator<Item = Result<PathRun, E>>>(
        head: PathRun,
        runs: &mut PeekableRuns<I>,
    ) -> Result<Option<LoopIteration>, E> {
        let mut hashes = vec![0];
        let mut hash = 0;
        for _ in 0..head.hash {
            match runs.next_run()? {
                Some(run) if run.instructions == 0 => hash = extend_hash(hash, run.start),
                other => {
                    runs.put_run_back(other);
                    return Ok(None);
                }
            }
            hashes.push(hash);
        }
        Ok(Some(LoopIteration { hashes }))
    }

    fn instructions_per_iteration(&self) -> u64 {
        self.hashes.len() as u64 - 1
    }

    /// Returns the hash of `count` instructions in the loop, from the first one on.
    fn hash_of_instructions(&self, count: u64) -> u64 {
        let whole = self.hashes.last().copied().unwrap_or(0);
        let (mut iterations, rest) = (
            count / self.instructions_per_iteration(),
            count % self.instructions_per_iteration(),
        );
        // Whole iterations, by doubling.
        let (mut done, mut all) = (0, 0);
        let (mut step, mut hash) = (self.instructions_per_iteration(), whole);
        while iterations != 0 {
            if iterations & 1 == 1 {
                (done, all) = (done + step, combine_hashes(all, step, hash));
            }
            (step, hash) = (step.wrapping_mul(2), combine_hashes(hash, step, hash));
            iterations >>= 1;
        }
        let first = self.hashes.get(rest as usize).copied().unwrap_or(0);
        combine_hashes(all, rest, first)
    }

    /// Returns how the decoded path continues in the loop, with `next` and `runs`.
    pub(crate) fn find_continuation<E, I: Iterator<Item = Result<PathRun, E>>>(
        &self,
        next: Option<PathRun>,
        runs: &mut PeekableRuns<I>,
    ) -> Result<LoopContinuation, E> {
        let mut at = PathHash::default();
        let mut seen = Vec::new();
        let mut run = next;
        let mut found = LoopContinuation::Leaves;
        while let Some(now) = run {
            if now.instructions == 0 && now.hash > 0 {
                if now.hash == self.instructions_per_iteration() {
                    found = LoopContinuation::OpenAgain;
                }
                break;
            }
            at.push_run(&now);
            let inside = at.hash == self.hash_of_instructions(at.instructions);
            if !inside || at.instructions > 2 * self.instructions_per_iteration() {
                break;
            }
            if at.instructions == self.instructions_per_iteration() {
                found = LoopContinuation::OneIteration;
            }
            run = runs.next_run()?;
            seen.extend(run);
        }
        for run in seen.into_iter().rev() {
            runs.put_run_back(Some(run));
        }
        Ok(found)
    }

    /// Returns the path of the truth at its last boundary after a whole number of iterations from `left`, the decoded
    /// path; with `leave_one`, at the last but one. None if there is no such boundary. `truth` is the path before
    /// `runs`. Runs after the result are put back, joined where they are inside of the loop.
    pub(crate) fn last_boundary_in_loop<E, I: Iterator<Item = Result<PathRun, E>>>(
        &self,
        left: PathHash,
        truth: PathHash,
        leave_one: bool,
        runs: &mut PeekableRuns<I>,
    ) -> Result<Option<PathHash>, E> {
        let mut at = truth;
        let (mut found, mut latest) = (None, None);
        // Runs up to the boundary found; from there to a later one; after that, inside of the loop; and the last one
        // read.
        let (mut before, mut between, mut inside) = (Vec::new(), Vec::new(), Vec::new());
        let mut last = None;
        while let Some(count) = at.instructions.checked_sub(left.instructions) {
            if combine_hashes(left.hash, count, self.hash_of_instructions(count)) != at.hash {
                break;
            }
            if let Some(run) = last.take() {
                push_joined_run(&mut inside, run);
            }
            if count % self.instructions_per_iteration() == 0 {
                if leave_one {
                    found = latest.replace(at);
                    move_joined_runs(&mut between, &mut before);
                    move_joined_runs(&mut inside, &mut between);
                } else {
                    found = Some(at);
                    move_joined_runs(&mut inside, &mut before);
                }
            }
            last = runs.next_run()?;
            let Some(run) = &last else {
                break;
            };
            at.push_run(run);
        }
        runs.put_run_back(last);
        for run in [inside, between, before]
            .into_iter()
            .flat_map(|part| part.into_iter().rev())
        {
            runs.put_run_back(Some(run));
        }
        Ok(found)
    }
}

fn move_joined_runs(from: &mut Vec<PathRun>, into: &mut Vec<PathRun>) {
    from.drain(..).for_each(|run| push_joined_run(into, run));
}

/// Appends a run, joined to the last one if that stays short enough. The boundary that is lost lies within the loop.
fn push_joined_run(runs: &mut Vec<PathRun>, run: PathRun) {
    if let Some(last) = runs.last_mut() {
        if let Some(instructions) = last.instructions.checked_add(run.instructions) {
            last.hash = combine_hashes(last.hash, run.instructions.into(), run.hash);
            last.instructions = instructions;
            return;
        }
    }
    runs.push(run);
}
