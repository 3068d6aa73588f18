//! Does a decoded path equal the truth?
//!
//! Both sides are runs of one thread. They may cut a sequential stretch differently, so they are compared at the
//! instruction counts at which both begin a run: there the chain hashes and the starts of the next runs must agree.
//! Where the decoded path says that a loop may have gone round more often, the truth may have whole rounds more.

use std::fmt;

use crate::rounds::{Ahead, Next, Round};
use crate::{Chain, Run};

/// What may differ at the end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Options {
    /// Instructions by which the decoded path may end before the truth.
    pub shortfall: u64,
    /// Instructions by which it may go on after the truth (a killed recorder loses the truth that it had buffered).
    pub excess: u64,
}

/// The paths agree as far as both go.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Identical {
    /// Instructions that were compared and are equal.
    pub instructions: u64,
    /// Runs of the truth that were compared.
    pub runs: u64,
    /// Instructions of the truth after the decoded path's end.
    pub shortfall: u64,
    /// Decoded instructions after the truth's end.
    pub excess: u64,
    /// Instructions of the truth in whole rounds of loops that the decoded path leaves open; they are among
    /// `instructions`.
    pub repeated: u64,
    /// Decoded instructions at the end that lie inside a run of the truth, where no hash can tell.
    pub unchecked: u64,
}

/// The first place where the paths part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Difference {
    /// Instructions up to the last place where they agree.
    pub instructions: u64,
    /// Run numbers, from 0, of the runs that follow there.
    pub truth_index: u64,
    pub decoded_index: u64,
    /// The runs that follow there; None at an end.
    pub truth: Option<Run>,
    pub decoded: Option<Run>,
    pub reason: Reason,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reason {
    /// The next runs start at different addresses.
    Start,
    /// The paths from there to the next common boundary (a count of instructions) pass other addresses.
    Path { until: u64 },
    /// The decoded path ends here and the truth goes on by more than may be.
    DecodedEnds { missing: u64 },
    /// The truth ends here and the decoded path goes on by more than may be.
    TruthEnds { extra: u64 },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    Identical(Identical),
    Different(Difference),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Start => write!(f, "the next runs start at different addresses"),
            Reason::Path { until } => {
                write!(f, "other addresses were passed up to instruction {until}")
            }
            Reason::DecodedEnds { missing } => {
                write!(f, "the decoded path ends {missing} instructions early")
            }
            Reason::TruthEnds { extra } => {
                write!(
                    f,
                    "the decoded path has {extra} instructions that were not executed"
                )
            }
        }
    }
}

/// One side: its runs and how far it has been read.
struct Side<I: Iterator> {
    runs: Ahead<I>,
    /// Runs taken so far.
    taken: u64,
    chain: Chain,
    next: Option<Run>,
    /// It may say what could come again; of that, what stands before `next`.
    is_open: bool,
    rounds: Vec<Round>,
}

impl<E, I: Iterator<Item = Result<Run, E>>> Side<I> {
    fn new(runs: I, is_open: bool) -> Result<Self, E> {
        let mut side = Side {
            is_open,
            runs: Ahead::new(runs),
            taken: 0,
            chain: Chain::default(),
            next: None,
            rounds: Vec::new(),
        };
        side.fetch()?;
        Ok(side)
    }

    fn fetch(&mut self) -> Result<(), E> {
        self.next = None;
        while let Some(run) = self.runs.next()? {
            if run.instructions > 0 {
                self.next = Some(run);
                break;
            }
            if self.is_open && run.hash > 0 {
                self.rounds.extend(Round::read(run, &mut self.runs)?);
            }
        }
        Ok(())
    }

    /// Passes the next run; false at the end.
    fn step(&mut self) -> Result<bool, E> {
        let Some(run) = self.next else {
            return Ok(false);
        };
        self.chain.push(&run);
        self.taken += 1;
        self.fetch()?;
        Ok(true)
    }
}

/// Lets the decoded path go round as often as the truth did, as far as that can be seen here. Returns the instructions
/// that it is given.
fn go_round<E>(
    truth: &mut Side<impl Iterator<Item = Result<Run, E>>>,
    decoded: &mut Side<impl Iterator<Item = Result<Run, E>>>,
) -> Result<u64, E> {
    let mut given = 0;
    let rounds = std::mem::take(&mut decoded.rounds);
    // Of several places in one loop the last counts: what is given before may be missing there.
    if let Some(round) = rounds.last() {
        let but_one = match round.goes_on(decoded.next, &mut decoded.runs)? {
            Next::IsOpenAgain => return Ok(0),
            Next::GoesRoundOnce => true,
            Next::Leaves => false,
        };
        while truth.chain.instructions < decoded.chain.instructions && truth.step()? {}
        // The next run has been taken out already.
        truth.runs.give_back(truth.next.take());
        let found = round.most(decoded.chain, truth.chain, but_one, &mut truth.runs)?;
        truth.fetch()?;
        if let Some(chain) = found {
            given += chain.instructions - decoded.chain.instructions;
            while truth.chain.instructions < chain.instructions && truth.step()? {}
            decoded.chain = chain;
        }
    }
    Ok(given)
}

/// The last place where both sides agreed.
#[derive(Clone, Copy)]
struct Agreed {
    instructions: u64,
    truth_index: u64,
    decoded_index: u64,
    truth: Option<Run>,
    decoded: Option<Run>,
}

impl Agreed {
    fn differ(&self, reason: Reason) -> Outcome {
        Outcome::Different(Difference {
            instructions: self.instructions,
            truth_index: self.truth_index,
            decoded_index: self.decoded_index,
            truth: self.truth,
            decoded: self.decoded,
            reason,
        })
    }
}

/// Compares a decoded path with the truth in constant memory. Runs without instructions count as absent. An error of
/// either iterator ends the comparison.
pub fn compare<E>(
    truth: impl Iterator<Item = Result<Run, E>>,
    decoded: impl Iterator<Item = Result<Run, E>>,
    options: Options,
) -> Result<Outcome, E> {
    let mut truth = Side::new(truth, false)?;
    let mut decoded = Side::new(decoded, true)?;
    let mut repeated = go_round(&mut truth, &mut decoded)?;
    loop {
        let agreed = Agreed {
            instructions: truth.chain.instructions,
            truth_index: truth.taken,
            decoded_index: decoded.taken,
            truth: truth.next,
            decoded: decoded.next,
        };
        match (truth.next, decoded.next) {
            (Some(t), Some(d)) if t.start != d.start => return Ok(agreed.differ(Reason::Start)),
            (Some(_), Some(_)) => {}
            _ => return finish(truth, decoded, agreed, options, repeated),
        }
        truth.step()?;
        decoded.step()?;
        repeated += go_round(&mut truth, &mut decoded)?;
        while truth.chain.instructions != decoded.chain.instructions {
            let more = if truth.chain.instructions < decoded.chain.instructions {
                truth.step()?
            } else {
                decoded.step()?
            };
            if !more {
                return finish(truth, decoded, agreed, options, repeated);
            }
            repeated += go_round(&mut truth, &mut decoded)?;
        }
        if truth.chain.hash != decoded.chain.hash {
            return Ok(agreed.differ(Reason::Path {
                until: truth.chain.instructions,
            }));
        }
    }
}

/// At least one side has ended: counts what the other still has and judges it.
fn finish<E>(
    mut truth: Side<impl Iterator<Item = Result<Run, E>>>,
    mut decoded: Side<impl Iterator<Item = Result<Run, E>>>,
    agreed: Agreed,
    options: Options,
    repeated: u64,
) -> Result<Outcome, E> {
    // Runs on each side since the last agreement. When each has several and no boundary is common, the paths have
    // parted before the end: an honest cut leaves one unfinished run on one side.
    let truth_runs = truth.taken - agreed.truth_index;
    let decoded_runs = decoded.taken - agreed.decoded_index;
    let (truth_at, decoded_at) = (truth.chain.instructions, decoded.chain.instructions);
    while truth.step()? {}
    while decoded.step()? {
        decoded.rounds.clear();
    }
    let (all, got) = (truth.chain.instructions, decoded.chain.instructions);
    let (shortfall, excess) = (all.saturating_sub(got), got.saturating_sub(all));
    if shortfall > options.shortfall {
        return Ok(agreed.differ(Reason::DecodedEnds { missing: shortfall }));
    }
    if excess > options.excess {
        return Ok(agreed.differ(Reason::TruthEnds { extra: excess }));
    }
    if truth_runs > 1 && decoded_runs > 1 {
        return Ok(agreed.differ(Reason::Path {
            until: truth_at.min(decoded_at),
        }));
    }
    Ok(Outcome::Identical(Identical {
        instructions: agreed.instructions,
        runs: agreed.truth_index,
        shortfall,
        excess,
        repeated,
        unchecked: all.min(got).saturating_sub(agreed.instructions),
    }))
}
