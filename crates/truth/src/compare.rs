//! Compares a decoded path with the truth.
//!
//! Both paths are runs of one thread and may cut straight code differently. They are compared wherever both begin a run
//! at the same number of instructions: the hashes up to there, and the starts of the next runs, must be equal. Where
//! the decoder marks a loop without packets as possibly repeated, the truth may have more whole iterations.

use std::fmt;

use crate::loop_iterations::{LoopContinuation, LoopIteration, PeekableRuns};
use crate::{PathHash, PathRun};

/// Permitted differences at the end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CompareOptions {
    /// Instructions by which the decoded path may end early.
    pub shortfall: u64,
    /// Instructions by which it may exceed the truth: a killed recorder loses the truth that it has buffered.
    pub excess: u64,
}

/// The paths agree as far as both go.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct IdenticalPaths {
    /// Instructions that were compared and agree.
    pub instructions: u64,
    /// Runs of the truth that were compared.
    pub runs: u64,
    /// Instructions of the truth after the decoded path's end.
    pub shortfall: u64,
    /// Decoded instructions after the truth's end.
    pub excess: u64,
    /// Instructions of the truth in additional iterations of loops; `instructions` includes them.
    pub repeated: u64,
    /// Decoded instructions at the end that lie within a run of the truth, which no hash covers.
    pub unchecked: u64,
}

/// The first point at which the paths differ.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PathDifference {
    /// Instructions up to the last point at which they agree.
    pub instructions: u64,
    /// Indices, from 0, of the runs that follow there.
    pub truth_index: u64,
    pub decoded_index: u64,
    /// The runs that follow there; None at an end.
    pub truth: Option<PathRun>,
    pub decoded: Option<PathRun>,
    pub reason: DifferenceReason,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DifferenceReason {
    /// The next runs start at different addresses.
    Start,
    /// The paths differ before the next common boundary, a number of instructions.
    Path { until: u64 },
    /// The decoded path ends here, and the truth continues by more than is permitted.
    DecodedEnds { missing: u64 },
    /// The truth ends here, and the decoded path continues by more than is permitted.
    TruthEnds { extra: u64 },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ComparisonOutcome {
    Identical(IdenticalPaths),
    Different(PathDifference),
}

impl fmt::Display for DifferenceReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DifferenceReason::Start => write!(f, "the next runs start at different addresses"),
            DifferenceReason::Path { until } => {
                write!(f, "other addresses were passed up to instruction {until}")
            }
            DifferenceReason::DecodedEnds { missing } => {
                write!(f, "the decoded path ends {missing} instructions early")
            }
            DifferenceReason::TruthEnds { extra } => {
                write!(
                    f,
                    "the decoded path has {extra} instructions that were not executed"
                )
            }
        }
    }
}

/// One of the paths, and how far it has been read.
struct PathSide<I: Iterator> {
    runs: PeekableRuns<I>,
    /// Number of runs read.
    run_index: u64,
    chain: PathHash,
    next: Option<PathRun>,
    /// The path may mark loops as repeated; those before `next`.
    is_open: bool,
    open_loops: Vec<LoopIteration>,
}

impl<E, I: Iterator<Item = Result<PathRun, E>>> PathSide<I> {
    fn new(runs: I, is_open: bool) -> Result<Self, E> {
        let mut side = PathSide {
            is_open,
            runs: PeekableRuns::new(runs),
            run_index: 0,
            chain: PathHash::default(),
            next: None,
            open_loops: Vec::new(),
        };
        side.fetch_next_run()?;
        Ok(side)
    }

    fn fetch_next_run(&mut self) -> Result<(), E> {
        self.next = None;
        while let Some(run) = self.runs.next_run()? {
            if run.instructions > 0 {
                self.next = Some(run);
                break;
            }
            if self.is_open && run.hash > 0 {
                self.open_loops
                    .extend(LoopIteration::read_loop_iteration(run, &mut self.runs)?);
            }
        }
        Ok(())
    }

    /// Reads the next run; false at the end.
    fn advance_to_next_run(&mut self) -> Result<bool, E> {
        let Some(run) = self.next else {
            return Ok(false);
        };
        self.chain.push_run(&run);
        self.run_index += 1;
        self.fetch_next_run()?;
        Ok(true)
    }
}

/// Gives the decoded path as many iterations of open loops as the truth has here. Returns the number of instructions
/// added.
fn repeat_open_loops<E>(
    truth: &mut PathSide<impl Iterator<Item = Result<PathRun, E>>>,
    decoded: &mut PathSide<impl Iterator<Item = Result<PathRun, E>>>,
) -> Result<u64, E> {
    let mut added = 0;
    let iterations = std::mem::take(&mut decoded.open_loops);
    // Of several points in one loop the last counts: iterations added before might be missing there.
    if let Some(iteration) = iterations.last() {
        let leave_one = match iteration.find_continuation(decoded.next, &mut decoded.runs)? {
            LoopContinuation::OpenAgain => return Ok(0),
            LoopContinuation::OneIteration => true,
            LoopContinuation::Leaves => false,
        };
        while truth.chain.instructions < decoded.chain.instructions
            && truth.advance_to_next_run()?
        {}
        // The next run has been read already.
        truth.runs.put_run_back(truth.next.take());
        let found = iteration.last_boundary_in_loop(
            decoded.chain,
            truth.chain,
            leave_one,
            &mut truth.runs,
        )?;
        truth.fetch_next_run()?;
        if let Some(chain) = found {
            added += chain.instructions - decoded.chain.instructions;
            while truth.chain.instructions < chain.instructions && truth.advance_to_next_run()? {}
            decoded.chain = chain;
        }
    }
    Ok(added)
}

/// The last point at which both paths agreed.
#[derive(Clone, Copy)]
struct LastAgreement {
    instructions: u64,
    truth_index: u64,
    decoded_index: u64,
    truth: Option<PathRun>,
    decoded: Option<PathRun>,
}

impl LastAgreement {
    fn difference_since_agreement(&self, reason: DifferenceReason) -> ComparisonOutcome {
        ComparisonOutcome::Different(PathDifference {
            instructions: self.instructions,
            truth_index: self.truth_index,
            decoded_index: self.decoded_index,
            truth: self.truth,
            decoded: self.decoded,
            reason,
        })
    }
}

/// Compares a decoded path with the truth in constant memory. Runs without instructions are ignored. An error of either
/// iterator ends the comparison.
pub fn compare_paths<E>(
    truth: impl Iterator<Item = Result<PathRun, E>>,
    decoded: impl Iterator<Item = Result<PathRun, E>>,
    options: CompareOptions,
) -> Result<ComparisonOutcome, E> {
    let mut truth = PathSide::new(truth, false)?;
    let mut decoded = PathSide::new(decoded, true)?;
    let mut repeated = repeat_open_loops(&mut truth, &mut decoded)?;
    loop {
        let agreed = LastAgreement {
            instructions: truth.chain.instructions,
            truth_index: truth.run_index,
            decoded_index: decoded.run_index,
            truth: truth.next,
            decoded: decoded.next,
        };
        match (truth.next, decoded.next) {
            (Some(t), Some(d)) if t.start != d.start => {
                return Ok(agreed.difference_since_agreement(DifferenceReason::Start))
            }
            (Some(_), Some(_)) => {}
            _ => return judge_path_end(truth, decoded, agreed, options, repeated),
        }
        truth.advance_to_next_run()?;
        decoded.advance_to_next_run()?;
        repeated += repeat_open_loops(&mut truth, &mut decoded)?;
        while truth.chain.instructions != decoded.chain.instructions {
            let more = if truth.chain.instructions < decoded.chain.instructions {
                truth.advance_to_next_run()?
            } else {
                decoded.advance_to_next_run()?
            };
            if !more {
                return judge_path_end(truth, decoded, agreed, options, repeated);
            }
            repeated += repeat_open_loops(&mut truth, &mut decoded)?;
        }
        if truth.chain.hash != decoded.chain.hash {
            return Ok(agreed.difference_since_agreement(DifferenceReason::Path {
                until: truth.chain.instructions,
            }));
        }
    }
}

/// Reads the rest of both paths after one of them has ended, and judges the difference.
fn judge_path_end<E>(
    mut truth: PathSide<impl Iterator<Item = Result<PathRun, E>>>,
    mut decoded: PathSide<impl Iterator<Item = Result<PathRun, E>>>,
    agreed: LastAgreement,
    options: CompareOptions,
    repeated: u64,
) -> Result<ComparisonOutcome, E> {
    // Runs of each path since the last agreement. If each has several without a common boundary, the paths differed
    // before the end: an early end leaves one unfinished run on one side.
    let truth_runs = truth.run_index - agreed.truth_index;
    let decoded_runs = decoded.run_index - agreed.decoded_index;
    let (truth_at, decoded_at) = (truth.chain.instructions, decoded.chain.instructions);
    while truth.advance_to_next_run()? {}
    while decoded.advance_to_next_run()? {
        decoded.open_loops.clear();
    }
    let (all, got) = (truth.chain.instructions, decoded.chain.instructions);
    let (shortfall, excess) = (all.saturating_sub(got), got.saturating_sub(all));
    if shortfall > options.shortfall {
        return Ok(
            agreed.difference_since_agreement(DifferenceReason::DecodedEnds { missing: shortfall })
        );
    }
    if excess > options.excess {
        return Ok(agreed.difference_since_agreement(DifferenceReason::TruthEnds { extra: excess }));
    }
    if truth_runs > 1 && decoded_runs > 1 {
        return Ok(agreed.difference_since_agreement(DifferenceReason::Path {
            until: truth_at.min(decoded_at),
        }));
    }
    Ok(ComparisonOutcome::Identical(IdenticalPaths {
        instructions: agreed.instructions,
        runs: agreed.truth_index,
        shortfall,
        excess,
        repeated,
        unchecked: all.min(got).saturating_sub(agreed.instructions),
    }))
}
