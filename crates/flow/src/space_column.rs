//! The column of address spaces of rows, kept as changes, since most streams have one space.
//!
//! A row belongs to one space: the fragments carry their space, so a sink that starts in the middle of a stream needs
//! no announcement. A stream that never leaves space 0 has no column.

/// The space of the rows that a sink gathers.
#[derive(Clone, Debug, Default)]
pub(crate) struct InSpace {
    /// Of the first row.
    first: u32,
    now: u32,
    changes: Vec<(usize, u32)>,
}

impl InSpace {
    /// The space of the next row.
    #[inline(always)]
    pub fn now(&self) -> u32 {
        self.now
    }

    /// From this row on, the next one, they are in another.
    #[cold]
    pub fn change(&mut self, row: usize, space: u32) {
        self.now = space;
        match self.changes.last_mut() {
            Some((last, to)) if *last == row => *to = space,
            _ => self.changes.push((row, space)),
        }
    }

    /// A number for each of these rows, which are all that have been gathered; none if all are in space 0. It begins
    /// anew.
    pub fn take(&mut self, rows: usize) -> Vec<u32> {
        let mut found = Vec::new();
        if self.first != 0 || !self.changes.is_empty() {
            let mut space = self.first;
            for (row, next) in self.changes.drain(..) {
                found.resize(row.min(rows), space);
                space = next;
            }
            found.resize(rows, space);
        }
        self.first = self.now;
        found
    }

    /// Nothing has been gathered, and the next row is in this one.
    pub fn go_on_in(&mut self, space: u32) {
        self.first = space;
        self.now = space;
        self.changes.clear();
    }
}
