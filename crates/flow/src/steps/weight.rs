//! What steps add to the counts.

use super::how::How;
use crate::counts::Counts;

/// Instructions and branches of a step.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Weight {
    pub instructions: u32,
    /// 16 bits each: conditional branches, indirect ones, RETs, compressed RETs; of each a packet has six at most, and a
    /// phrase 96.
    branches: u64,
}

const CONDITIONAL: u32 = 0;
const INDIRECT: u32 = 16;
const RETURNS: u32 = 32;
const COMPRESSED: u32 = 48;

/// The number at a place in `branches`.
fn part(branches: u64, place: u32) -> u64 {
    branches >> place & 0xffff
}

impl Weight {
    /// One more node, of so many instructions, which ended so.
    pub fn count(&mut self, instructions: u32, how: How) {
        self.instructions += instructions;
        self.branches += match how {
            How::Pass => 0,
            How::NotTaken | How::Taken => 1 << CONDITIONAL,
            How::Returned(_) => 1 << RETURNS | 1 << COMPRESSED,
            How::Tip(_) => 1 << INDIRECT,
            How::TipReturn(_) => 1 << RETURNS,
        };
    }

    /// As much more.
    pub fn add(&mut self, more: Weight) {
        self.instructions += more.instructions;
        self.branches += more.branches;
    }

    /// A step without leads to a RET, which is a step of its own.
    #[inline(always)]
    pub fn has_branches(self) -> bool {
        self.branches != 0
    }

    pub fn add_to(self, counts: &mut Counts, times: u64) {
        counts.instructions += u64::from(self.instructions) * times;
        counts.conditional += part(self.branches, CONDITIONAL) * times;
        counts.indirect += part(self.branches, INDIRECT) * times;
        counts.returns += part(self.branches, RETURNS) * times;
        counts.compressed_returns += part(self.branches, COMPRESSED) * times;
    }
}

/// The weights of some steps one after the other, `MOST_SUMMED` at most.
#[derive(Default)]
pub(crate) struct Weights {
    instructions: u64,
    branches: u64,
}

/// 96 times as many fit into 16 bits.
pub(crate) const MOST_SUMMED: usize = 1 << 8;

impl Weights {
    #[inline(always)]
    pub fn add(&mut self, weight: Weight) {
        self.instructions += u64::from(weight.instructions);
        self.branches += weight.branches;
    }

    pub fn add_to(self, counts: &mut Counts) {
        let all = Weight {
            instructions: 0,
            branches: self.branches,
        };
        all.add_to(counts, 1);
        counts.instructions += self.instructions;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_as_are_summed_do_not_run_into_each_other() {
        let mut weight = Weight::default();
        for _ in 0..96 {
            weight.count(7, How::Returned(0));
        }
        let mut weights = Weights::default();
        let steps = MOST_SUMMED as u64;
        for _ in 0..steps {
            weights.add(weight);
        }
        let mut counts = Counts::default();
        weights.add_to(&mut counts);
        assert_eq!(counts.instructions, 7 * 96 * steps);
        assert_eq!((counts.conditional, counts.indirect), (0, 0));
        assert_eq!(counts.returns, 96 * steps);
        assert_eq!(counts.compressed_returns, 96 * steps);
    }
}
