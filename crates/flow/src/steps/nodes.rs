//! Totals by the numbers of nodes and call sites, which hold until the code cache is emptied.

use super::how::How;
use crate::code::Code;
use crate::sink::End;
use crate::tally::Tally;
use crate::totals::Totals;

#[derive(Clone, Copy, Default)]
struct NodeTotal {
    all: u64,
    taken: u64,
}

#[derive(Default)]
pub(crate) struct NodeTotals {
    nodes: Vec<NodeTotal>,
    /// By node and target.
    tips: Tally<(u32, u64)>,
    /// By node and call site.
    returns: Tally<(u32, u32)>,
}

/// Targets of nodes that wait to be moved, at most: what comes of them has an end.
const MOST_TARGETS: usize = 1 << 19;

impl NodeTotals {
    /// It is time to move everything.
    #[inline]
    pub fn is_large(&self) -> bool {
        self.tips.len() + self.returns.len() > MOST_TARGETS
    }

    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// A node ran `count` times and ended like this.
    pub fn add(&mut self, node: u32, how: How, count: u64) {
        let index = node as usize;
        if index >= self.nodes.len() {
            self.nodes
                .resize((index + 1).next_power_of_two(), NodeTotal::default());
        }
        let total = &mut self.nodes[index];
        total.all += count;
        match how {
            How::Pass | How::NotTaken => {}
            How::Taken => total.taken += count,
            How::Returned(site) => self.returns.add((node, site), count),
            How::Tip(ip) | How::TipReturn(ip) => self.tips.add((node, ip), count),
        }
    }

    /// Moves everything to the addresses.
    pub fn move_to(&mut self, code: &Code, totals: &mut Totals) {
        let moved = std::mem::take(self);
        for (index, total) in moved.nodes.iter().enumerate() {
            if total.all == 0 {
                continue;
            }
            let node = code.node(index as u32);
            for (at, piece) in code.pieces(node).iter().enumerate() {
                totals.add_run(piece.start, piece.count, total.all);
                if piece.end != End::Cut {
                    let to = code.after_piece(node, at);
                    totals.add_edge(piece.last, to, piece.end, total.all);
                }
            }
            if node.end == End::Conditional {
                let last = code.last_ip(node);
                totals.add_edge(last, node.target, End::Conditional, total.taken);
                totals.add_edge(last, node.next, End::Cut, total.all - total.taken);
            }
        }
        for ((index, ip), count) in moved.tips.into_sorted() {
            let node = code.node(index);
            totals.add_edge(code.last_ip(node), ip, node.end, count);
        }
        for ((index, site), count) in moved.returns.into_sorted() {
            let node = code.node(index);
            let ip = code.call(site).map_or(0, |call| call.return_ip);
            totals.add_edge(
                code.last_ip(node),
                node.mode.truncate(ip),
                End::Return,
                count,
            );
        }
    }
}
