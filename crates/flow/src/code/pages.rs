//! Nodes by the 4 KiB pages that they touch, for code that changes. Most code never does: they are sorted when it does first.

use rtit_x86::MAX_LENGTH;

use super::cache::Code;
use super::node::{Node, Stop};
use crate::hash::AddressMap;

const PAGE_SHIFT: u32 = 12;

/// Where bytes would make a node longer: those of an instruction that is none, or was not known.
fn missing(node: &Node) -> Option<(u64, u64)> {
    let end = node.next.saturating_add(MAX_LENGTH as u64);
    (node.stop == Stop::Unknown).then_some((node.next, end))
}

impl Code {
    /// A node was added.
    pub(super) fn enter_pages(&mut self, index: u32) {
        if let Some(mut by_page) = self.by_page.take() {
            self.paged += self.enter(index, &mut by_page);
            self.by_page = Some(by_page);
        }
    }

    fn pages(&mut self) -> AddressMap<Vec<u32>> {
        let mut by_page = AddressMap::default();
        let live = self.nodes.iter().zip(0..);
        let live = live.filter(|(node, _)| node.stop != Stop::Dead);
        self.paged = live.map(|(_, index)| self.enter(index, &mut by_page)).sum();
        by_page
    }

    /// In how many pages it was entered.
    fn enter(&self, index: u32, by_page: &mut AddressMap<Vec<u32>>) -> usize {
        let mut entered = 0;
        let node = self.node(index);
        // the last instruction may reach into the next page
        let own = self.pieces(node).iter();
        let own = own.map(|piece| (piece.start, piece.last.saturating_add(MAX_LENGTH as u64)));
        for (start, end) in own.chain(missing(node)) {
            for page in start >> PAGE_SHIFT..=(end - 1) >> PAGE_SHIFT {
                let nodes: &mut Vec<u32> = by_page.entry(page).or_default();
                if nodes.last() != Some(&index) {
                    nodes.push(index);
                    entered += 1;
                }
            }
        }
        entered
    }

    /// Marks the nodes dead that overlap `start..end`, or end where there was no instruction.
    pub(super) fn kill(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        let (first, last) = (start >> PAGE_SHIFT, (end - 1) >> PAGE_SHIFT);
        let mut by_page = self.by_page.take().unwrap_or_else(|| self.pages());
        let pages: Vec<u64> = if last - first < by_page.len() as u64 {
            (first..=last)
                .filter(|page| by_page.contains_key(page))
                .collect()
        } else {
            by_page
                .keys()
                .copied()
                .filter(|page| (first..=last).contains(page))
                .collect()
        };
        for page in pages {
            let mut here = by_page.remove(&page).unwrap_or_default();
            let before = here.len();
            here.retain(|&index| {
                let node = &self.nodes[index as usize];
                if node.stop == Stop::Dead {
                    return false;
                }
                let hit = self.pieces(node).iter().any(|piece| {
                    let length = self.lengths(piece).last().copied().unwrap_or(0);
                    piece.start < end && piece.last.saturating_add(length.into()) > start
                });
                let hit = hit || missing(node).is_some_and(|(from, to)| from < end && to > start);
                if hit {
                    let (mode, at) = (node.mode, node.start);
                    self.nodes[index as usize].stop = Stop::Dead;
                    self.dead.push(index);
                    self.by_start[mode as usize].remove(&at);
                }
                !hit
            });
            self.paged -= before - here.len();
            if !here.is_empty() {
                by_page.insert(page, here);
            }
        }
        self.by_page = Some(by_page);
    }
}
