//! The path of one packet through the code: the meaning of a transition.
//!
//! [`PacketPath`] follows a packet from a node over the nodes and links of the code cache, once, when its transition is
//! built. It follows plain branches only. Everything that is an event or an error, waits for another packet or may
//! enter another address space gives `None`: then there is no transition, and the interpreter decodes the packet.

use rtit_image::View;

use super::node_visits::MAX_NODE;
use crate::code_cache::{CodeCache, NodeEnd};

/// Nodes on a path before the one at which a packet takes effect. The interpreter handles longer chains; it also
/// detects those that never end.
const MAX_CHAIN: usize = 16;

/// Entries of the return stack.
pub(super) const STACK_DEPTH: usize = 64;

/// How a node on a path ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BranchOutcome {
    /// Execution continued without a packet.
    Continued,
    NotTaken,
    Taken,
    /// A compressed RET to the call site with this number.
    Returned(u32),
    /// A TIP gave the target. `TipReturn`: of a RET.
    Tip(u64),
    TipReturn(u64),
}

/// Where a packet leads from a node, or as far as it leads without the return stack. Reused for every new transition.
#[derive(Default)]
pub(super) struct PacketPath {
    /// RETs may be compressed.
    has_retc: bool,
    /// There is one address space and no thread schedule, so far transfers stay in the space.
    has_single_space: bool,
    /// The nodes on the path, and how each ended.
    pub visits: Vec<(u32, BranchOutcome)>,
    /// Call sites without a RET on the path; the last 64 matter.
    pub pushes: Vec<u32>,
    /// How many were open at once, at most 64.
    pub peak: usize,
    /// The next node; the node with the RET if the path ends before a RET.
    pub next: u32,
    /// Set if the path ends before a RET that returns to a call before the path: the outcomes after that of the RET,
    /// as a short TNT byte or 0.
    pub pending_tnt: Option<u8>,
}

impl PacketPath {
    pub fn new(has_retc: bool, has_single_space: bool) -> PacketPath {
        PacketPath {
            has_retc,
            has_single_space,
            ..PacketPath::default()
        }
    }

    pub fn has_single_space(&self) -> bool {
        self.has_single_space
    }

    fn start_at(&mut self, node: u32) {
        self.visits.clear();
        self.pushes.clear();
        self.peak = 0;
        self.next = node;
        self.pending_tnt = None;
    }

    fn visit(&mut self, code: &CodeCache, node: u32, outcome: BranchOutcome) -> Option<()> {
        if node > MAX_NODE {
            return None;
        }
        self.visits.push((node, outcome));
        let (first, calls) = code.calls(code.node(node));
        self.pushes.extend((first..).take(calls.len()));
        self.peak = self.peak.max(self.pushes.len()).min(STACK_DEPTH);
        Some(())
    }

    /// Follows a short TNT byte.
    pub fn follow_tnt(
        &mut self,
        code: &mut CodeCache,
        view: &View,
        start: u32,
        tnt: u8,
    ) -> Option<()> {
        self.start_at(start);
        let (bits, count) = tnt_outcomes(tnt);
        for left in (0..count).rev() {
            let taken = bits >> left & 1 != 0;
            self.follow_chain(code, view, NodeEnd::continues_without_packet)?;
            let node = self.next;
            match code.node(node).end {
                NodeEnd::Conditional => {
                    let outcome = if taken {
                        BranchOutcome::Taken
                    } else {
                        BranchOutcome::NotTaken
                    };
                    self.visit(code, node, outcome)?;
                    self.next = code.node_after_branch(view, node, taken)?;
                }
                NodeEnd::Return if taken && self.has_retc => {
                    if self.pushes.is_empty() && code.calls(code.node(node)).1.is_empty() {
                        self.pending_tnt = Some(short_tnt_of(bits, left));
                        return Some(());
                    }
                    self.visit(code, node, BranchOutcome::Continued)?;
                    if self.pushes.len() > STACK_DEPTH {
                        return None;
                    }
                    let site = self.pushes.pop()?;
                    if let Some(last) = self.visits.last_mut() {
                        last.1 = BranchOutcome::Returned(site);
                    }
                    self.next = code.return_node(view, node, site)?;
                }
                _ => return None,
            }
        }
        Some(())
    }

    /// Follows a TIP to `ip`. Sets `pending_tnt` to 0 if it is the target of a RET that returns to a call before the
    /// path.
    pub fn follow_tip(
        &mut self,
        code: &mut CodeCache,
        view: &View,
        start: u32,
        ip: u64,
    ) -> Option<()> {
        self.start_at(start);
        self.follow_chain(code, view, |stop| {
            stop.continues_without_packet() && stop != NodeEnd::VmEntry
        })?;
        let node = self.next;
        let (stop, mode) = (code.node(node).end, code.node(node).mode);
        match stop {
            NodeEnd::Far | NodeEnd::Syscall if !self.has_single_space => return None,
            NodeEnd::IndirectJump | NodeEnd::IndirectCall | NodeEnd::Far | NodeEnd::Syscall => {
                self.visit(code, node, BranchOutcome::Tip(ip))?;
            }
            NodeEnd::Return => {
                self.visit(code, node, BranchOutcome::TipReturn(ip))?;
                if self.pushes.len() > STACK_DEPTH {
                    return None;
                }
                if self.pushes.pop().is_none() {
                    self.pending_tnt = Some(0);
                }
            }
            _ => return None,
        }
        self.next = code.lookup(view, ip, mode).ok()?;
        Some(())
    }

    /// Follows the compressed RET at the end of a node to a call site.
    pub fn follow_return(
        &mut self,
        code: &mut CodeCache,
        view: &View,
        start: u32,
        site: u32,
    ) -> Option<()> {
        self.start_at(start);
        self.visit(code, start, BranchOutcome::Returned(site))?;
        self.next = code.return_node(view, start, site)?;
        Some(())
    }

    /// Follows nodes after which execution continues without a packet.
    fn follow_chain(
        &mut self,
        code: &mut CodeCache,
        view: &View,
        continues: impl Fn(NodeEnd) -> bool,
    ) -> Option<()> {
        for _ in 0..MAX_CHAIN {
            if !continues(code.node(self.next).end) {
                return Some(());
            }
            let node = self.next;
            self.visit(code, node, BranchOutcome::Continued)?;
            self.next = code.node_after(view, node)?;
        }
        None
    }
}

/// Returns the outcomes of a short TNT byte, the oldest in the highest bit, and their number.
#[inline]
pub(crate) fn tnt_outcomes(tnt: u8) -> (u64, u8) {
    let count = (6 - (tnt | 2).leading_zeros() as i32).max(0) as u8;
    (u64::from(tnt >> 1) & ((1 << count) - 1), count)
}

/// Returns the short TNT byte of the last `count` of these outcomes; 0 if there is none.
fn short_tnt_of(outcomes: u64, count: u8) -> u8 {
    match count {
        0 => 0,
        _ => ((1 << count | outcomes & ((1 << count) - 1)) << 1) as u8,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_tnt_round_trips_through_its_outcomes() {
        assert_eq!(tnt_outcomes(0b0000_0110), (1, 1));
        assert_eq!(tnt_outcomes(0b1010_0110), (0b01_0011, 6));
        assert_eq!(tnt_outcomes(0), (0, 0));
        for tnt in (4..=254u8).step_by(2) {
            let (bits, count) = tnt_outcomes(tnt);
            assert_eq!(short_tnt_of(bits, count), tnt);
        }
        assert_eq!(short_tnt_of(0b101, 0), 0);
        assert_eq!(short_tnt_of(0b101, 2), 0b1010);
    }
}
