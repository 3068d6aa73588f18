//! What may be spent on passages: a part of what steps cost, and what passages have won.
//!
//! To look for passages where there are none, to keep them and to add them up costs as much as to take steps, or more,
//! and is worth that only if the same comes again, often enough. So no stream spends more on them than a part of what it
//! would cost without them, and what they won before: a stream that comes again is learned in some runs, each of which
//! knows more than the one before, and one that does not comes little later than without passages.
//!
//! Costs are in nanoseconds, about. They decide when something is done, never what is found.

/// A step, and what counts it later if it is taken with a passage.
const STEP: i64 = 8;
const STEP_COUNTED: i64 = 2;

/// A passage that is taken; so many of its bytes are compared for one.
const TAKE: i64 = 40;
const TAKE_BYTES: i64 = 4;

/// Looking for what does not follow what came last: an index of so many entries costs one more, as memory is far away.
const LOOK: i64 = 100;
const FAR: i64 = 16;
const MOST_FAR: i64 = 500;

/// A piece that is not known, and, for a byte, what finds its end and keeps it.
const TRY: i64 = 150;
const TRY_BYTE: i64 = 3;

/// What a stream costs at least, a packet or a step that is missing, and a step that is handed over.
const STREAM: i64 = 5_000;
const ENTRY: i64 = 400;
const HANDED_OVER: i64 = 10;

/// A step that becomes part of a sum; and the map that the first sum needs.
const SUM_STEP: i64 = 6;
const FIRST_SUM: i64 = 50_000;

/// What a byte costs as long as nothing is known of that.
const BYTE: i64 = 2;

/// With nothing left there must be this before it is tried again, twice as much each time: some pieces.
const FIRST_NEED: i64 = 4_000;

/// The kernel does not begin for less.
const LEAST_PAUSE: i64 = 256;

/// More is not kept for later: it would go into one stream.
const MOST: i64 = 1 << 21;

/// Fractions of what a byte costs.
const FRACTION: i64 = 256;

/// Bytes at once, at most, so that no sum is too large.
const MOST_BYTES: usize = 1 << 32;

#[derive(Debug, Default)]
pub(super) struct Purse {
    /// One of so many parts is put in; 0: everything is paid for.
    part: i64,
    left: i64,
    /// What must be there, as nothing is left or was; 0: it is being spent.
    need: i64,
    next_need: i64,
    /// What a byte costs without passages, in parts of `FRACTION`.
    byte: i64,
    has_sum: bool,
}

impl Purse {
    /// `part`: as `StepLimits` has it.
    pub fn new(part: usize) -> Purse {
        Purse {
            part: part.min(1 << 16) as i64,
            left: 0,
            need: 0,
            next_need: FIRST_NEED,
            byte: BYTE * FRACTION,
            has_sum: false,
        }
    }

    /// Another stream begins: what is there is spent at its beginning.
    pub fn start_again(&mut self) {
        (self.need, self.next_need) = (0, FIRST_NEED);
        self.costs(STREAM);
    }

    /// The kernel begins, as the walker took a packet or a step was made.
    #[inline]
    pub fn enters(&mut self) {
        self.costs(ENTRY);
    }

    /// So many steps were handed over.
    pub fn handed_over(&mut self, steps: usize) {
        self.costs(steps.min(MOST_BYTES) as i64 * HANDED_OVER);
    }

    fn costs(&mut self, cost: i64) {
        self.put(cost / self.part.max(1));
    }

    /// Bytes that are to be taken before passages are looked for; 0: they may be now.
    #[inline]
    pub fn pause(&mut self) -> usize {
        if self.part == 0 || self.left >= self.need.max(1) {
            self.need = 0;
            return 0;
        }
        if self.need == 0 {
            self.need = self.next_need;
            self.next_need = self.next_need.saturating_mul(2).min(MOST);
        }
        // so many that what is missing will be there, however it is rounded
        let (missing, byte) = (self.need - self.left, self.byte.max(1));
        ((missing * self.part * FRACTION + byte - 1) / byte).max(LEAST_PAUSE) as usize
    }

    /// So many bytes were taken, one way or another.
    #[inline]
    pub fn took(&mut self, bytes: usize) {
        self.costs(bytes.min(MOST_BYTES) as i64 * self.byte / FRACTION);
    }

    /// What begins somewhere was looked for in an index of so many entries.
    pub fn looked(&mut self, entries: usize) {
        self.put(-LOOK - (entries as i64 / FAR).min(MOST_FAR));
    }

    /// A piece of so many bytes was not known; `steps` if they were told.
    pub fn tried(&mut self, bytes: usize, steps: Option<usize>) {
        self.put(-TRY - bytes as i64 * TRY_BYTE);
        if let Some(steps) = steps.filter(|_| bytes != 0) {
            let byte = (steps as i64 * STEP * FRACTION / bytes as i64).max(FRACTION / 2);
            self.byte += (byte - self.byte) / 8;
        }
    }

    /// A passage of so many bytes and steps was taken.
    #[inline]
    pub fn won(&mut self, bytes: u32, steps: u32) {
        let cost = TAKE + i64::from(bytes) / TAKE_BYTES;
        self.put(i64::from(steps) * (STEP - STEP_COUNTED) - cost);
    }

    /// A sum was taken for so many steps, and has so many itself.
    pub fn won_by_sum(&mut self, steps: usize, own: usize) {
        self.put((steps as i64 - own as i64) * STEP_COUNTED);
    }

    /// Whether so many steps may be added up; then it is paid for.
    pub fn pays_sum(&mut self, steps: usize) -> bool {
        let first = i64::from(!self.has_sum) * FIRST_SUM;
        let cost = first + steps as i64 * SUM_STEP;
        let pays = self.part == 0 || self.left >= cost;
        if pays {
            self.left -= cost;
            self.has_sum = true;
        }
        pays
    }

    fn put(&mut self, amount: i64) {
        // what one stream has lost may not silence all that follow
        self.left = (self.left + amount).clamp(-MOST, MOST);
    }
}

#[cfg(test)]
impl Purse {
    pub fn left(&self) -> i64 {
        self.left
    }
}

#[cfg(test)]
mod tests;
