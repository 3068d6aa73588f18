//! How often steps were taken, by their numbers, and which were taken at all: what it costs to ask goes by what ran.

#[derive(Default)]
pub(crate) struct Hits {
    /// By number.
    counts: Vec<u32>,
    /// The numbers of those with a count; what follows the first `len` means nothing. As long as `counts`, and one more.
    touched: Vec<u32>,
    len: usize,
}

impl Hits {
    /// There are steps with numbers up to this.
    pub fn reach(&mut self, number: u32) {
        let count = number as usize + 1;
        if self.counts.len() < count {
            self.counts.resize(count, 0);
            self.touched.resize(count + 1, 0);
        }
    }

    /// Forgets the numbers.
    pub fn clear(&mut self) {
        self.counts.clear();
        self.touched.clear();
        self.len = 0;
    }

    /// To count some.
    #[inline(always)]
    pub fn counting(&mut self) -> Counting<'_> {
        Counting {
            counts: &mut self.counts,
            touched: &mut self.touched,
            at: self.len,
            len: &mut self.len,
        }
    }

    /// Counts one.
    pub fn count(&mut self, number: u32) {
        let mut counting = self.counting();
        counting.count(number);
        counting.end();
    }

    /// The numbers of those that have hits, and how many.
    pub fn all(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        let touched = self.touched.iter().take(self.len);
        touched.map(|&number| (number, self.counts[number as usize]))
    }

    /// As `all`, and begins at 0.
    pub fn drain(&mut self) -> impl Iterator<Item = (u32, u32)> + '_ {
        let touched = self.touched.iter().take(std::mem::take(&mut self.len));
        let counts = &mut self.counts;
        touched.map(|&number| (number, std::mem::take(&mut counts[number as usize])))
    }
}

/// `Hits` while a kernel runs: it ends with `end`.
pub(super) struct Counting<'a> {
    counts: &'a mut [u32],
    touched: &'a mut [u32],
    at: usize,
    len: &'a mut usize,
}

impl Counting<'_> {
    /// Without a branch: whether a step is there for the first time is hard to guess.
    #[inline(always)]
    pub fn count(&mut self, number: u32) {
        let count = &mut self.counts[number as usize];
        self.touched[self.at] = number;
        self.at += usize::from(*count == 0);
        *count = count.wrapping_add(1);
    }

    pub fn end(self) {
        *self.len = self.at;
    }
}
