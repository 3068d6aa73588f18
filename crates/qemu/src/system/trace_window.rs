//! The recording window of a system: from the first execution of one address to that of another, on any processor.
//!
//! An edge is at the start of the block that contains its address. Outside the window TraceEn is 0.

use super::block::SystemBlock;
use crate::shared::config::SystemEdge;

pub(super) const BEFORE_START: u64 = 0;
const OPEN: u64 = 1;

/// The window as one processor follows it.
#[derive(Clone, Copy, Debug)]
pub(super) struct TraceWindow {
    /// Start and stop.
    edges: [Option<SystemEdge>; 2],
    phase: u64,
}

impl TraceWindow {
    pub(super) fn new(edges: [Option<SystemEdge>; 2]) -> TraceWindow {
        let mut window = TraceWindow {
            edges,
            phase: BEFORE_START,
        };
        window.enter_phase(BEFORE_START);
        window
    }

    #[inline(always)]
    pub(super) fn is_used(&self) -> bool {
        self.edges[0].is_some() || self.edges[1].is_some()
    }

    #[inline(always)]
    pub(super) fn is_open(&self) -> bool {
        self.phase == OPEN
    }

    pub(super) fn phase(&self) -> u64 {
        self.phase
    }

    /// Enters a phase, or a later one: a window without a start begins open.
    pub(super) fn enter_phase(&mut self, phase: u64) {
        self.phase = phase.max(u64::from(self.edges[0].is_none()));
    }

    /// Returns whether a block contains the edge that ends the phase. `moved`: by how much the kernel has moved itself,
    /// if that is known.
    pub(super) fn ends_phase(&self, block: &SystemBlock, moved: Option<u64>) -> bool {
        let edge = self.edges.get(self.phase as usize).copied().flatten();
        let address = edge.and_then(|edge| match edge.is_linked {
            true => Some(edge.address.wrapping_add(moved?)),
            false => Some(edge.address),
        });
        address.is_some_and(|address| block.instruction_index_at(address).is_some())
    }
}

#[cfg(test)]
mod tests {
    use rtit_unit::CodeWidth;

    use super::*;

    fn edge(address: u64, is_linked: bool) -> Option<SystemEdge> {
        Some(SystemEdge { address, is_linked })
    }

    /// Two instructions of one byte.
    fn block_at(start: u64) -> SystemBlock {
        SystemBlock::new(start, &[1, 1], &[0x90, 0x90], false, CodeWidth::Bits64)
    }

    #[test]
    fn window_opens_at_its_start_and_closes_at_its_stop() {
        let mut window = TraceWindow::new([edge(0x1001, true), edge(0x5000, false)]);
        assert!(window.is_used() && !window.is_open());
        assert!(!window.ends_phase(&block_at(0x1000), None));
        assert!(window.ends_phase(&block_at(0x3000), Some(0x2000)));
        assert!(!window.ends_phase(&block_at(0x5000), Some(0x2000)));
        window.enter_phase(window.phase() + 1);
        assert!(window.is_open());
        assert!(!window.ends_phase(&block_at(0x3000), Some(0x2000)));
        assert!(window.ends_phase(&block_at(0x5000), Some(0x2000)));
        window.enter_phase(window.phase() + 1);
        assert!(!window.is_open());
        assert!(!window.ends_phase(&block_at(0x5000), Some(0x2000)));
    }

    #[test]
    fn window_without_start_begins_open() {
        assert!(TraceWindow::new([None, edge(0x5000, false)]).is_open());
        let always = TraceWindow::new([None, None]);
        assert!(always.is_open() && !always.is_used());
    }
}
