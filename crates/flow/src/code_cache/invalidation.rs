//! Invalidation of nodes when code changes, by the 4 KiB pages that nodes touch.
//!
//! Most code never changes, so the index by page is built at the first change and kept up to date from then on. A node
//! that ended where nothing was mapped, or where there was no instruction, dies too when bytes appear there.

use super::node::{CodeNode, NodeEnd};
use super::CodeCache;
use crate::hash::AddressMap;
use rtit_x86::MAX_LENGTH;

const PAGE_SHIFT: u32 = 12;

/// Where bytes would make a node longer: those of an instruction that is none, or was not known.
fn bytes_after_unknown(node: &CodeNode) -> Option<(u64, u64)> {
    let end = node.next.saturating_add(MAX_LENGTH as u64);
    (node.end == NodeEnd::Unknown).then_some((node.next, end))
}

impl CodeCache {
    /// A node was added.
    pub(super) fn add_to_pages(&mut self, index: u32) {
        if let Some(mut nodes_by_page) = self.nodes_by_page.take() {
            self.page_entries += self.add_node_to_pages(index, &mut nodes_by_page);
            self.nodes_by_page = Some(nodes_by_page);
        }
    }

    fn build_page_index(&mut self) -> AddressMap<Vec<u32>> {
        let mut nodes_by_page = AddressMap::default();
        let replace_dead = self.nodes.iter().zip(0..);
        let replace_dead = replace_dead.filter(|(node, _)| node.end != NodeEnd::Dead);
        self.page_entries = replace_dead
            .map(|(_, index)| self.add_node_to_pages(index, &mut nodes_by_page))
            .sum();
        nodes_by_page
    }

    /// In how many pages it was entered.
    fn add_node_to_pages(&self, index: u32, nodes_by_page: &mut AddressMap<Vec<u32>>) -> usize {
        let mut entered = 0;
        let node = self.node(index);
        // the last instruction may reach into the next page
        let own = self.code_ranges(node).iter();
        let own = own.map(|code_range| {
            (
                code_range.start,
                code_range.last.saturating_add(MAX_LENGTH as u64),
            )
        });
        for (start, end) in own.chain(bytes_after_unknown(node)) {
            for page in start >> PAGE_SHIFT..=(end - 1) >> PAGE_SHIFT {
                let nodes: &mut Vec<u32> = nodes_by_page.entry(page).or_default();
                if nodes.last() != Some(&index) {
                    nodes.push(index);
                    entered += 1;
                }
            }
        }
        entered
    }

    /// Marks the nodes dead that overlap `start..end`, or end where there was no instruction.
    pub(super) fn mark_dead(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        let (first, last) = (start >> PAGE_SHIFT, (end - 1) >> PAGE_SHIFT);
        let mut nodes_by_page = self
            .nodes_by_page
            .take()
            .unwrap_or_else(|| self.build_page_index());
        let build_page_index: Vec<u64> = if last - first < nodes_by_page.len() as u64 {
            (first..=last)
                .filter(|page| nodes_by_page.contains_key(page))
                .collect()
        } else {
            nodes_by_page
                .keys()
                .copied()
                .filter(|page| (first..=last).contains(page))
                .collect()
        };
        for page in build_page_index {
            let mut here = nodes_by_page.remove(&page).unwrap_or_default();
            let before = here.len();
            here.retain(|&index| {
                let node = &self.nodes[index as usize];
                if node.end == NodeEnd::Dead {
                    return false;
                }
                let hit = self.code_ranges(node).iter().any(|code_range| {
                    let length = self.lengths(code_range).last().copied().unwrap_or(0);
                    code_range.start < end && code_range.last.saturating_add(length.into()) > start
                });
                let hit = hit
                    || bytes_after_unknown(node).is_some_and(|(from, to)| from < end && to > start);
                if hit {
                    let (mode, at) = (node.mode, node.start);
                    self.nodes[index as usize].end = NodeEnd::Dead;
                    self.dead.push(index);
                    self.nodes_by_start[mode as usize].remove(&at);
                }
                !hit
            });
            self.page_entries -= before - here.len();
            if !here.is_empty() {
                nodes_by_page.insert(page, here);
            }
        }
        self.nodes_by_page = Some(nodes_by_page);
    }
}
