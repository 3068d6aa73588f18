//! What is learned from segments that were decoded in vain.

/// PSBs before its cut at which a segment's decoder begins, at most.
const MOST_LEAD: usize = 8;
/// After so many rounds of segments in vain another is tried.
const MOST_PATIENCE: usize = 64;

pub(super) struct Patience {
    /// PSBs before its cut at which a segment's decoder begins.
    pub lead: usize,
    /// Rounds without segments that are left, and how many there are after the next failure.
    waits: usize,
    patience: usize,
}

impl Patience {
    pub fn new() -> Patience {
        Patience {
            lead: 1,
            waits: 0,
            patience: 1,
        }
    }

    /// Whether the next round has segments.
    pub fn divides(&self) -> bool {
        self.waits == 0
    }

    /// A round without segments is over.
    pub fn waited(&mut self) {
        self.waits = self.waits.saturating_sub(1);
    }

    /// From a round with segments: how many were decoded in vain as their state was another, and how many as those before
    /// gave too much, of how many.
    pub fn learn(&mut self, failures: usize, unused: usize, of: usize) {
        if failures > 0 {
            self.lead = (self.lead * 2).min(MOST_LEAD);
        }
        if (failures + unused) * 2 > of {
            self.waits = self.patience;
            self.patience = (self.patience * 2).min(MOST_PATIENCE);
        } else {
            self.patience = 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rounds without segments until the next one with them.
    fn waits(patience: &mut Patience) -> usize {
        let rounds = (0..).take_while(|_| {
            let waits = !patience.divides();
            patience.waited();
            waits
        });
        rounds.count()
    }

    #[test]
    fn it_waits_longer_each_time_whatever_was_in_vain() {
        for (failures, unused) in [(3, 0), (0, 3), (1, 1)] {
            let mut patience = Patience::new();
            for expected in [1, 2, 4, 8, 16, 32, 64, 64] {
                patience.learn(failures, unused, 3);
                assert_eq!(waits(&mut patience), expected);
            }
            patience.learn(1, 0, 3);
            assert_eq!(waits(&mut patience), 0);
            patience.learn(3, 0, 3);
            assert_eq!(waits(&mut patience), 1);
        }
    }
}
