//! Loops that a decoded path leaves open: how often the truth went round.

use std::collections::VecDeque;

use crate::hash::{combine, extend};
use crate::{Chain, Run};

/// Runs, some of which have been looked at before their turn.
pub(crate) struct Ahead<I: Iterator> {
    runs: I,
    back: VecDeque<Run>,
}

impl<E, I: Iterator<Item = Result<Run, E>>> Ahead<I> {
    pub(crate) fn new(runs: I) -> Ahead<I> {
        Ahead {
            runs,
            back: VecDeque::new(),
        }
    }

    pub(crate) fn next(&mut self) -> Result<Option<Run>, E> {
        match self.back.pop_front() {
            Some(run) => Ok(Some(run)),
            None => self.runs.next().transpose(),
        }
    }

    /// The run that comes next was taken too early.
    pub(crate) fn give_back(&mut self, run: Option<Run>) {
        if let Some(run) = run {
            self.back.push_front(run);
        }
    }
}

/// What a path does that is in a loop.
pub(crate) enum Next {
    Leaves,
    /// At least one round, with a boundary at its end, and then it leaves.
    GoesRoundOnce,
    /// It stays in the loop until that is left open again.
    IsOpenAgain,
}

/// One round of a loop, from the place where the decoded path left it.
pub(crate) struct Round {
    /// Hash of the first so many instructions; the last is that of the whole round.
    hashes: Vec<u64>,
}

impl Round {
    /// The round that `head` announces; None if it is cut off or empty.
    pub(crate) fn read<E, I: Iterator<Item = Result<Run, E>>>(
        head: Run,
        runs: &mut Ahead<I>,
    ) -> Result<Option<Round>, E> {
        let mut hashes = vec![0];
        let mut hash = 0;
        for _ in 0..head.hash {
            match runs.next()? {
                Some(run) if run.instructions == 0 => hash = extend(hash, run.start),
                other => {
                    runs.give_back(other);
                    return Ok(None);
                }
            }
            hashes.push(hash);
        }
        Ok(Some(Round { hashes }))
    }

    fn length(&self) -> u64 {
        self.hashes.len() as u64 - 1
    }

    /// Hash of `count` instructions from the round's first on.
    fn hash(&self, count: u64) -> u64 {
        let whole = self.hashes.last().copied().unwrap_or(0);
        let (mut rounds, rest) = (count / self.length(), count % self.length());
        // rounds by doubling
        let (mut done, mut all) = (0, 0);
        let (mut step, mut hash) = (self.length(), whole);
        while rounds != 0 {
            if rounds & 1 == 1 {
                (done, all) = (done + step, combine(all, step, hash));
            }
            (step, hash) = (step.wrapping_mul(2), combine(hash, step, hash));
            rounds >>= 1;
        }
        let first = self.hashes.get(rest as usize).copied().unwrap_or(0);
        combine(all, rest, first)
    }

    /// What the decoded path does with the loop next: `next` and `runs` follow.
    pub(crate) fn goes_on<E, I: Iterator<Item = Result<Run, E>>>(
        &self,
        next: Option<Run>,
        runs: &mut Ahead<I>,
    ) -> Result<Next, E> {
        let mut at = Chain::default();
        let mut seen = Vec::new();
        let mut run = next;
        let mut found = Next::Leaves;
        while let Some(now) = run {
            if now.instructions == 0 && now.hash > 0 {
                if now.hash == self.length() {
                    found = Next::IsOpenAgain;
                }
                break;
            }
            at.push(&now);
            let inside = at.hash == self.hash(at.instructions);
            if !inside || at.instructions > 2 * self.length() {
                break;
            }
            if at.instructions == self.length() {
                found = Next::GoesRoundOnce;
            }
            run = runs.next()?;
            seen.extend(run);
        }
        for run in seen.into_iter().rev() {
            runs.give_back(Some(run));
        }
        Ok(found)
    }

    /// The chain at the last boundary of the truth at which it has gone round as a whole after `left`, where the decoded
    /// path is; `truth` is the chain before `runs`. With `but_one` it is the last one but one. None where it has no
    /// boundary like that. What was looked at and lies behind the answer is given back: runs inside the loop as few as
    /// possible.
    pub(crate) fn most<E, I: Iterator<Item = Result<Run, E>>>(
        &self,
        left: Chain,
        truth: Chain,
        but_one: bool,
        runs: &mut Ahead<I>,
    ) -> Result<Option<Chain>, E> {
        let mut at = truth;
        let (mut found, mut latest) = (None, None);
        // Runs up to the boundary found, those from there to the latest one if it is another, those after that which are
        // inside the loop, too, and the one looked at last.
        let (mut before, mut between, mut inside) = (Vec::new(), Vec::new(), Vec::new());
        let mut last = None;
        while let Some(count) = at.instructions.checked_sub(left.instructions) {
            if combine(left.hash, count, self.hash(count)) != at.hash {
                break;
            }
            if let Some(run) = last.take() {
                push_joined(&mut inside, run);
            }
            if count % self.length() == 0 {
                if but_one {
                    found = latest.replace(at);
                    move_joined(&mut between, &mut before);
                    move_joined(&mut inside, &mut between);
                } else {
                    found = Some(at);
                    move_joined(&mut inside, &mut before);
                }
            }
            last = runs.next()?;
            let Some(run) = &last else {
                break;
            };
            at.push(run);
        }
        runs.give_back(last);
        for run in [inside, between, before]
            .into_iter()
            .flat_map(|part| part.into_iter().rev())
        {
            runs.give_back(Some(run));
        }
        Ok(found)
    }
}

fn move_joined(from: &mut Vec<Run>, into: &mut Vec<Run>) {
    from.drain(..).for_each(|run| push_joined(into, run));
}

/// Appends a run, to the last one if that stays short enough. A boundary that is lost so lies within the loop.
fn push_joined(runs: &mut Vec<Run>, run: Run) {
    if let Some(last) = runs.last_mut() {
        if let Some(instructions) = last.instructions.checked_add(run.instructions) {
            last.hash = combine(last.hash, run.instructions.into(), run.hash);
            last.instructions = instructions;
            return;
        }
    }
    runs.push(run);
}
