//! Where a thread counts, if blocks are counted, and what becomes of it.

use crate::shared::state::{shared, Shared};
use crate::shared::tally::Tallies;
use crate::thread::block::Block;
use crate::thread::state::Thread;
use crate::thread::tally::Tally;

/// Where a thread that begins is to count.
pub(crate) fn table(shared: &Shared, tid: u32) -> Tally {
    let cells = shared.with(|locked| Some(locked.tallies.as_mut()?.table(tid)));
    // SAFETY: tables have a cell for each number; where nothing is counted nobody asks.
    cells.map_or_else(Tally::default, |cells| unsafe { Tally::new(cells, part) })
}

fn part(block: &Block, count: u32) -> u32 {
    let number = |tallies: &mut Tallies| tallies.part(block, count);
    shared().with(|locked| locked.tallies.as_mut().map_or(0, number))
}

impl Thread {
    /// The thread, which ends or goes on in another program, has counted so many instructions; None where nothing is counted.
    pub(super) fn end_tally(&self, shared: &Shared) -> Option<u64> {
        let cells = self.tally.cells();
        shared.with(|locked| Some(locked.tallies.as_mut()?.end(self.tid, cells)))
    }
}
