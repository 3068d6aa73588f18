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

    /// From how many of the segments were decoded in vain as their state was another.
    pub fn learn(&mut self, failures: usize, of: usize) {
        if failures > 0 {
            self.lead = (self.lead * 2).min(MOST_LEAD);
        }
        self.learn_use(failures, of);
    }

    /// From how many of the segments were decoded in vain, for whatever reason.
    pub fn learn_use(&mut self, vain: usize, of: usize) {
        if vain * 2 > of {
            self.waits = self.patience;
            self.patience = (self.patience * 2).min(MOST_PATIENCE);
        } else {
            self.patience = 1;
        }
    }
}
