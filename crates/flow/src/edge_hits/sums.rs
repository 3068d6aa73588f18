//! Many steps as one, with what they add to a map.

use std::collections::HashMap;

/// The place of an edge that is in none.
pub(super) const NO_CELL: u32 = u32::MAX;

/// Steps and places that are kept of sums, at most about.
const MOST: usize = 1 << 20;

/// In a larger map the steps of a sum are looked at one by one.
const LARGEST_MAP: u32 = 1 << 20;

#[derive(Clone, Debug)]
struct Known {
    /// Its steps among those of all.
    parts: (u32, u32),
    /// Likewise its cells, if they have been found.
    cells: Option<(u32, u32)>,
    hits: u64,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Sums {
    /// By the number of the sum: which one it is.
    numbers: HashMap<u32, usize>,
    all: Vec<Known>,
    /// Numbers of steps, with how often the sum has each.
    parts: Vec<(u32, u32)>,
    /// Places in a map, with how much the sum adds to each: no place twice.
    cells: Vec<(u32, u32)>,
    /// Those with hits.
    hit: Vec<usize>,
    /// What a sum adds to a map, while it is found; else 0.
    map: Vec<u32>,
}

impl Sums {
    pub fn size(&self) -> usize {
        self.parts.len() + self.cells.len()
    }

    pub fn is_full(&self) -> bool {
        self.size() > MOST
    }

    pub fn find(&self, number: u32) -> Option<usize> {
        self.numbers.get(&number).copied()
    }

    /// Keeps a sum: the numbers of its steps, and how often it has each.
    pub fn keep(&mut self, number: u32, parts: &[(u32, u32)]) -> usize {
        let first = self.parts.len() as u32;
        self.parts.extend_from_slice(parts);
        self.numbers.insert(number, self.all.len());
        self.all.push(Known {
            parts: (first, self.parts.len() as u32),
            cells: None,
            hits: 0,
        });
        self.all.len() - 1
    }

    pub fn hit(&mut self, at: usize, times: u64) {
        let hits = &mut self.all[at].hits;
        if *hits == 0 {
            self.hit.push(at);
        }
        *hits += times;
    }

    pub fn clear(&mut self) {
        for at in self.hit.drain(..) {
            self.all[at].hits = 0;
        }
    }

    /// There is another map.
    pub fn forget_cells(&mut self) {
        self.cells.clear();
        self.all.iter_mut().for_each(|sum| sum.cells = None);
    }

    /// Hands over the steps that have hits, with how many.
    pub fn each_hit(&self, mut take: impl FnMut(u32, u64)) {
        for sum in self.hit.iter().map(|&at| &self.all[at]) {
            for &(number, times) in part(&self.parts, sum.parts) {
                take(number, sum.hits * u64::from(times));
            }
        }
    }

    /// Hands over places in a map of `mask` + 1 counters, with what is to be added. `cells` are those of the edges of all
    /// steps, and `steps` says which of them are a step's.
    pub fn each_cell(
        &mut self,
        steps: &[(u32, u32)],
        cells: &[u32],
        mask: u32,
        mut take: impl FnMut(u64, u64),
    ) {
        if mask >= LARGEST_MAP {
            self.each_hit(|number, times| {
                let cells = part(cells, steps[number as usize]).iter();
                let cells = cells.filter(|&&cell| cell != NO_CELL);
                cells.for_each(|&cell| take(cell.into(), times));
            });
            return;
        }
        for at in 0..self.hit.len() {
            let sum = self.hit[at];
            let range = match self.all[sum].cells {
                Some(range) => range,
                None => self.find_cells(sum, steps, cells, mask),
            };
            let hits = self.all[sum].hits;
            for &(cell, times) in part(&self.cells, range) {
                take(cell.into(), hits * u64::from(times));
            }
        }
    }

    #[cold]
    fn find_cells(
        &mut self,
        sum: usize,
        steps: &[(u32, u32)],
        cells: &[u32],
        mask: u32,
    ) -> (u32, u32) {
        if self.map.len() <= mask as usize {
            self.map.resize(mask as usize + 1, 0);
        }
        let first = self.cells.len();
        for &(number, times) in part(&self.parts, self.all[sum].parts) {
            for &cell in part(cells, steps[number as usize]) {
                let Some(counter) = self.map.get_mut(cell as usize) else {
                    continue;
                };
                if *counter == 0 {
                    self.cells.push((cell, 0));
                }
                *counter += times;
            }
        }
        for (cell, times) in &mut self.cells[first..] {
            *times = std::mem::take(&mut self.map[*cell as usize]);
        }
        let range = (first as u32, self.cells.len() as u32);
        self.all[sum].cells = Some(range);
        range
    }
}

fn part<T>(all: &[T], (first, end): (u32, u32)) -> &[T] {
    &all[first as usize..end as usize]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of step 0 one edge has a place and one has none, step 1 has two edges at one place.
    const STEPS: [(u32, u32); 2] = [(0, 2), (2, 4)];
    const CELLS: [u32; 4] = [5, NO_CELL, 3, 3];

    /// Two of step 0 and three of step 1, four and six times.
    fn hit_twice() -> Sums {
        let mut sums = Sums::default();
        assert_eq!(sums.keep(9, &[(1, 7)]), 0);
        assert_eq!(sums.keep(7, &[(0, 2), (1, 3)]), 1);
        assert_eq!((sums.find(7), sums.find(1)), (Some(1), None));
        sums.hit(1, 4);
        sums.hit(1, 6);
        sums
    }

    fn cells(sums: &mut Sums, cells: &[u32], mask: u32) -> Vec<(u64, u64)> {
        let mut found = Vec::new();
        sums.each_cell(&STEPS, cells, mask, |cell, times| found.push((cell, times)));
        found.sort_unstable();
        found
    }

    #[test]
    fn all_hits_of_a_sum_come_at_once() {
        let mut sums = hit_twice();
        let mut found = Vec::new();
        sums.each_hit(|step, times| found.push((step, times)));
        assert_eq!(found, [(0, 20), (1, 30)]);
        assert_eq!(cells(&mut sums, &CELLS, 7), [(3, 60), (5, 20)]);
        sums.clear();
        assert_eq!(cells(&mut sums, &CELLS, 7), []);
        sums.hit(1, 1);
        assert_eq!(cells(&mut sums, &CELLS, 7), [(3, 6), (5, 2)]);
    }

    #[test]
    fn another_map_has_other_places() {
        let mut sums = hit_twice();
        let steps = sums.size();
        assert_eq!(cells(&mut sums, &CELLS, 7), [(3, 60), (5, 20)]);
        sums.forget_cells();
        // those of the map before are let go of
        assert_eq!(sums.size(), steps);
        let others = [0, 1, 1, NO_CELL];
        assert_eq!(cells(&mut sums, &others, 1), [(0, 20), (1, 50)]);
    }

    /// Step by step, and no memory of the size of the map is taken for it.
    #[test]
    fn a_large_map_has_the_same_places() {
        let mut sums = hit_twice();
        assert_eq!(
            cells(&mut sums, &CELLS, LARGEST_MAP),
            [(3, 30), (3, 30), (5, 20)]
        );
        assert!(sums.map.is_empty());
        // one that is not large is gone over once for all edges of a place
        assert_eq!(
            cells(&mut sums, &CELLS, LARGEST_MAP - 1),
            [(3, 60), (5, 20)]
        );
    }

    #[test]
    fn what_is_kept_has_an_end() {
        let mut sums = Sums::default();
        sums.keep(1, &vec![(0, 1); MOST]);
        assert!(!sums.is_full());
        sums.keep(2, &[(0, 1)]);
        assert!(sums.is_full());
    }
}
