//! How often passages were taken, and what many of them one after the other add up to.
//!
//! A stream that comes again takes hundreds of passages in the order of their numbers. So their numbers are counted by
//! ranges, and a range is taken apart into parts of 8, 64, 512 or 4096 passages that begin at multiples of that. A part
//! that comes for the second time is added up, if what was won pays for it (`purse`): then it is one list of steps, each
//! with how often the part takes it.

use std::mem::size_of;

use super::hits::Hits;
use super::passages::Passages;
use super::visit::Visits;
use crate::counts::Counts;

/// Passages in a part, as a power of two of each level.
const BITS: u32 = 3;

/// The largest parts have 4096.
const MOST_LEVEL: u32 = 4;

/// Steps in all sums, at most.
const MOST: usize = 1 << 19;

/// Of the memory for passages one part in so many may be ranges.
const FOR_RANGES: usize = 8;

#[derive(Clone, Copy, Default)]
struct Part {
    hits: u32,
    /// It has come before.
    seen: bool,
    /// One more than the number of its sum.
    sum: u32,
}

/// Steps, with how often each is taken.
pub(super) struct Sum {
    /// No other has this number, ever.
    pub number: u32,
    pub steps: Vec<(u32, u32)>,
    counts: Counts,
}

#[derive(Default)]
pub(super) struct Sums {
    /// Numbers of passages, from one to before another, that were taken one after the other.
    ranges: Vec<(u32, u32)>,
    /// The parts of a level by their number.
    levels: Vec<Vec<Part>>,
    /// Those with hits.
    touched: Vec<(u8, u32)>,
    all: Vec<Sum>,
    /// Steps in them.
    steps: usize,
    /// How many there have ever been.
    made: u32,
    /// To count the steps of a part.
    part: Hits,
}

impl Sums {
    /// All are forgotten.
    pub fn clear(&mut self) {
        *self = Sums {
            made: self.made,
            ..Sums::default()
        };
    }

    /// How many words they take.
    pub fn words(&self) -> usize {
        let parts: usize = self.levels.iter().map(Vec::len).sum();
        2 * self.steps + 3 * parts
    }

    /// How many words wait to be added up, a part of what passages may take at most.
    pub fn waiting(&self) -> usize {
        2 * self.ranges.len()
    }

    /// A passage was taken. False: what was counted must be added up now, or it takes more than its part of `limit` bytes.
    #[inline]
    pub fn count(&mut self, number: u32, limit: usize) -> bool {
        match self.ranges.last_mut() {
            Some(last) if last.1 == number => {
                last.1 += 1;
                true
            }
            _ => {
                self.ranges.push((number, number + 1));
                self.ranges.len() < limit / FOR_RANGES / size_of::<(u32, u32)>()
            }
        }
    }

    pub fn sum(&self, index: u32) -> Option<&Sum> {
        self.all.get(index as usize)
    }

    /// Adds all that was counted to the hits of steps, but for sums, which are given with how often they came.
    pub fn spread(
        &mut self,
        passages: &mut Passages,
        visits: &Visits,
        hits: &mut Hits,
        whole: bool,
    ) -> Vec<(u32, u32)> {
        for (mut at, end) in std::mem::take(&mut self.ranges) {
            while at < end {
                let level = at.trailing_zeros().min(31 - (end - at).leading_zeros()) / BITS;
                let level = level.min(MOST_LEVEL);
                self.touch(level as u8, at >> (level * BITS));
                at += 1 << (level * BITS);
            }
        }
        let mut sums = Vec::new();
        for (level, part) in std::mem::take(&mut self.touched) {
            let bits = u32::from(level) * BITS;
            let (first, last) = (part << bits, ((part + 1) << bits) - 1);
            let Some(entry) = self.levels[usize::from(level)].get_mut(part as usize) else {
                continue;
            };
            let times = std::mem::take(&mut entry.hits);
            let trail = match (
                passages.all.get(first as usize),
                passages.all.get(last as usize),
            ) {
                (Some(first), Some(last)) => (first.steps.0, last.steps.1),
                _ => continue,
            };
            let again = std::mem::replace(&mut entry.seen, true);
            let steps = (trail.1 - trail.0) as usize;
            let is_new = whole && level > 0 && again && entry.sum == 0 && self.steps < MOST;
            if is_new && passages.purse.pays_sum(steps) {
                entry.sum = self.all.len() as u32 + 1;
                self.made += 1;
                let sum = Sum::of(self.made, &mut self.part, hits, trail, visits);
                self.steps += sum.steps.len();
                self.all.push(sum);
            }
            match entry.sum.checked_sub(1) {
                Some(sum) if whole => {
                    let own = self.all.get(sum as usize).map_or(0, |sum| sum.steps.len());
                    passages.purse.won_by_sum(steps, own);
                    sums.push((sum, times));
                }
                _ => hits.count_trail(trail, times),
            }
        }
        sums
    }

    fn touch(&mut self, level: u8, part: u32) {
        let at = usize::from(level);
        if at >= self.levels.len() {
            self.levels.resize_with(at + 1, Vec::new);
        }
        let parts = &mut self.levels[at];
        if part as usize >= parts.len() {
            parts.resize((part as usize + 1).next_power_of_two(), Part::default());
        }
        let entry = &mut parts[part as usize];
        if entry.hits == 0 {
            self.touched.push((level, part));
        }
        entry.hits += 1;
    }
}

impl Sum {
    pub fn add_to(&self, counts: &mut Counts, times: u64) {
        counts.instructions += self.counts.instructions * times;
        counts.conditional += self.counts.conditional * times;
        counts.indirect += self.counts.indirect * times;
        counts.returns += self.counts.returns * times;
        counts.compressed_returns += self.counts.compressed_returns * times;
    }

    fn of(number: u32, part: &mut Hits, hits: &Hits, trail: (u32, u32), visits: &Visits) -> Sum {
        let steps = hits.trail.get(trail.0 as usize..trail.1 as usize);
        for &step in steps.unwrap_or(&[]) {
            part.reach(step);
            part.count(step);
        }
        let steps: Vec<(u32, u32)> = part.drain().collect();
        let mut counts = Counts::default();
        for &(step, times) in &steps {
            visits.weight(step).add_to(&mut counts, times.into());
        }
        Sum {
            number,
            steps,
            counts,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_counts_as_often_as_it_comes() {
        let counts = |instructions, conditional, indirect, returns, compressed_returns| Counts {
            instructions,
            conditional,
            indirect,
            returns,
            compressed_returns,
            ..Counts::default()
        };
        let sum = Sum {
            number: 1,
            steps: Vec::new(),
            counts: counts(2, 3, 5, 7, 11),
        };
        let mut all = counts(100, 200, 300, 400, 500);
        sum.add_to(&mut all, 10);
        let expected = counts(120, 230, 350, 470, 610);
        assert_eq!(format!("{all:?}"), format!("{expected:?}"));
    }

    #[test]
    fn words_are_those_of_steps_and_parts() {
        let sums = Sums {
            levels: vec![vec![Part::default(); 8], vec![Part::default(); 64]],
            steps: 5,
            ..Sums::default()
        };
        let bytes = 72 * size_of::<Part>() + 5 * size_of::<(u32, u32)>();
        assert_eq!(sums.words() * size_of::<u32>(), bytes);
    }

    /// Passages that take turns are a range each.
    #[test]
    fn ranges_have_an_end() {
        let limit = 1 << 12;
        let mut sums = Sums::default();
        let taken = (0..).find(|&at| !sums.count(at % 2 * 7, limit));
        assert!(taken.is_some());
        assert!(sums.waiting() * size_of::<u32>() <= limit / FOR_RANGES);
        // one after the other they are one
        let mut sums = Sums::default();
        assert!((0..100_000).all(|number| sums.count(number, limit)));
        assert_eq!(sums.waiting(), 2);
    }
}
