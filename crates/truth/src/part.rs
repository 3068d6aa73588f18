//! Is a decoded path a part of the truth? A snapshot holds the end of a thread's path, or some part of it.
//!
//! The part is found by its hash: the chain hash over instructions a..b follows from those over 0..a and 0..b.

use std::collections::{HashMap, VecDeque};

use crate::hash::combine;
use crate::{compare, Chain, Identical, Options, Outcome, Run};

/// Instructions at either end of a decoded path of which every run's boundary is kept.
const KEPT: u64 = 1 << 16;
/// Boundaries of the truth behind the last common one. What is told of a path in one go ends with a run that need not
/// end at a branch; more than such ones say that the paths have parted.
const MISSED: u32 = 2;
/// Of a path that leaves loops open so many runs are kept, and so many places are tried, the last ones in the truth.
const MOST_OPEN: usize = 1 << 20;
const MOST_TRIED: usize = 64;

/// Passes over the first `instructions` of a path. A run that begins before them and ends after them is not cut: it
/// comes whole, so that no decoded path equals what is left.
pub struct Behind<I> {
    runs: I,
    left: u64,
}

impl<I> Behind<I> {
    pub fn new(runs: I, instructions: u64) -> Behind<I> {
        Behind {
            runs,
            left: instructions,
        }
    }
}

impl<E, I: Iterator<Item = Result<Run, E>>> Iterator for Behind<I> {
    type Item = Result<Run, E>;

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

/// What has to be known of a decoded path to find it, in bounded memory.
#[derive(Default)]
pub struct Part {
    chain: Chain,
    start: u64,
    /// Instructions -> chain hash, at the boundaries between runs near the beginning and near the end.
    head: HashMap<u64, u64>,
    tail: VecDeque<(u64, u64)>,
    open: Open,
}

/// What is kept of a path in case that it leaves a loop open (`HashedRun` of the decoder says how that is told).
#[derive(Default)]
struct Open {
    /// Instructions before the first loop that is.
    since: Option<u64>,
    runs: Vec<Run>,
}

impl Part {
    /// Reads a decoded path.
    ///
    /// # Errors
    /// Those of the iterator.
    pub fn of<E>(decoded: impl Iterator<Item = Result<Run, E>>) -> Result<Part, E> {
        let mut part = Part::default();
        for run in decoded {
            part.push(&run?);
        }
        Ok(part)
    }

    fn push(&mut self, run: &Run) {
        if self.open.runs.len() <= MOST_OPEN {
            self.open.runs.push(*run);
        }
        if run.instructions == 0 {
            self.open.since.get_or_insert(self.chain.instructions);
            return;
        }
        if self.chain.instructions == 0 {
            self.start = run.start;
        }
        self.chain.push(run);
        let Chain { instructions, hash } = self.chain;
        if instructions <= KEPT {
            self.head.insert(instructions, hash);
        }
        self.tail.push_back((instructions, hash));
        while self
            .tail
            .front()
            .is_some_and(|&(at, _)| at + KEPT < instructions)
        {
            self.tail.pop_front();
        }
    }

    pub fn instructions(&self) -> u64 {
        self.chain.instructions
    }

    /// Looks for this path in `truth`. It must begin where a run of the truth does. Its last instructions may lie inside
    /// a run of the truth: no hash tells of those, and the answer counts them as `unchecked`.
    ///
    /// # Errors
    /// Those of the iterator.
    pub fn find<E>(
        &self,
        truth: impl Iterator<Item = Result<Run, E>>,
    ) -> Result<Option<Identical>, E> {
        let tail: HashMap<u64, u64> = self.tail.iter().copied().collect();
        let first_kept = self.tail.front().map_or(0, |&(at, _)| at.max(KEPT + 1));
        let total = self.chain.instructions;
        let mut places: VecDeque<Place> = VecDeque::new();
        let mut chain = Chain::default();
        let mut runs = 0;
        for run in truth {
            let run = run?;
            if run.instructions == 0 {
                continue;
            }
            if run.start == self.start {
                places.push_back(Place::at(chain, runs));
            }
            chain.push(&run);
            runs += 1;
            let behind = |place: &Place| chain.instructions - place.before.instructions;
            for place in places.iter_mut().rev() {
                if behind(place) > KEPT.min(total) {
                    break;
                }
                place.check(&self.head, chain);
            }
            for place in &mut places {
                let at = behind(place);
                if at < first_kept {
                    break;
                }
                if at <= total {
                    place.check(&tail, chain);
                }
            }
            while let Some(place) = places.front() {
                if place.alive && behind(place) < total {
                    break;
                }
                if self.accepts(place) {
                    return Ok(Some(self.found(place, runs)));
                }
                places.pop_front();
            }
        }
        // The truth has ended first, as that of a killed recorder does: near the end of the path, or it tells nothing.
        let mut left = places.iter();
        let place = left.find(|place| self.accepts(place) && place.agreed > total / 2);
        Ok(place.map(|place| self.found(place, runs)))
    }

    /// As `find`, of a path that leaves loops open: there the truth may have gone round more often. It is read again for each
    /// place that is tried. None also for a path without such loops, and for one that is too long.
    ///
    /// # Errors
    /// Those of the iterators, and of `truth`.
    pub fn find_open<E, I: Iterator<Item = Result<Run, E>>>(
        &self,
        mut truth: impl FnMut() -> Result<I, E>,
    ) -> Result<Option<Identical>, E> {
        let Some(since) = self
            .open
            .since
            .filter(|_| self.open.runs.len() <= MOST_OPEN)
        else {
            return Ok(None);
        };
        let options = Options {
            shortfall: u64::MAX,
            excess: 0,
        };
        for place in self.beginnings(truth()?, since)? {
            let decoded = self.open.runs.iter().map(|run| Ok(*run));
            let outcome = compare(Behind::new(truth()?, place), decoded, options)?;
            if let Outcome::Identical(found) = outcome {
                if found.instructions > 0 && found.unchecked <= KEPT {
                    return Ok(Some(Identical {
                        shortfall: 0,
                        ..found
                    }));
                }
            }
        }
        Ok(None)
    }

    /// Where the path may begin in the truth: instructions before it. Its first `since` instructions are told exactly.
    fn beginnings<E>(
        &self,
        truth: impl Iterator<Item = Result<Run, E>>,
        since: u64,
    ) -> Result<VecDeque<u64>, E> {
        let certain = since.min(KEPT);
        let exact = self.head.iter().filter(|&(&at, _)| at <= certain);
        let exact: HashMap<u64, u64> = exact.map(|(&at, &hash)| (at, hash)).collect();
        let mut found = VecDeque::new();
        let mut places: VecDeque<Place> = VecDeque::new();
        let mut chain = Chain::default();
        let mut passed = |place: Place| {
            if place.alive {
                found.push_back(place.before.instructions);
                if found.len() > MOST_TRIED {
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
                places.push_back(Place::at(chain, 0));
            }
            chain.push(&run);
            for place in &mut places {
                place.check(&exact, chain);
            }
            let behind = |place: &Place| chain.instructions - place.before.instructions;
            while places
                .front()
                .is_some_and(|place| !place.alive || behind(place) >= certain)
            {
                places.pop_front().into_iter().for_each(&mut passed);
            }
        }
        places.into_iter().for_each(passed);
        Ok(found)
    }

    fn accepts(&self, place: &Place) -> bool {
        let near = self.chain.instructions - place.agreed <= KEPT;
        place.alive && place.agreed > 0 && place.missed <= MISSED && near
    }

    fn found(&self, place: &Place, runs: u64) -> Identical {
        Identical {
            instructions: place.agreed,
            runs: runs - place.runs,
            unchecked: self.chain.instructions - place.agreed,
            ..Identical::default()
        }
    }
}

/// Where the decoded path may begin.
struct Place {
    before: Chain,
    runs: u64,
    /// Instructions up to the last boundary at which both agree.
    agreed: u64,
    /// Boundaries of the truth since then.
    missed: u32,
    alive: bool,
}

impl Place {
    fn at(before: Chain, runs: u64) -> Place {
        Place {
            before,
            runs,
            agreed: 0,
            missed: 0,
            alive: true,
        }
    }

    /// The truth has a boundary where `chain` is. Does the decoded path have one there too, it must have the same hash.
    fn check(&mut self, boundaries: &HashMap<u64, u64>, chain: Chain) {
        let count = chain.instructions - self.before.instructions;
        if let Some(&hash) = boundaries.get(&count) {
            self.alive = self.alive && combine(self.before.hash, count, hash) == chain.hash;
            self.agreed = count;
            self.missed = 0;
        } else {
            self.missed += 1;
        }
    }
}
