//! Paths through several nodes: up to the instruction that a packet names, or to the next that a packet can bind to.
//!
//! A path crosses nodes that execution leaves without a packet. It is first followed without reporting (`NodePath`
//! counts its nodes), as its end decides whether the packet fits; then `run_path` reports it. A cycle of such nodes
//! never needs a packet and would not end: `CycleDetector` finds it. Before code that is not mapped, everything on the
//! path has run for certain, and is reported although the packet cannot be followed.
//!
//! # Loops without packets
//!
//! An event may strike in a loop that emits no packets. How often the loop ran is not in the trace: `loop_body` returns
//! the addresses of one iteration, for the ledger and the sink.

use super::{Interpreter, PacketStamp};
use crate::backpressure::UnreportedPath;
use crate::code_cache::{NodeEnd, NodePosition, NO_NODE};
use crate::counts::Counts;
use crate::errata::Erratum;
use crate::error::Cause;
use crate::sink::{RunEnd, Sink};

/// A path: the number of nodes before the last, and the last, at which a packet takes effect.
pub(super) struct NodePath {
    pub nodes: u32,
    pub last: u32,
}

impl Interpreter {
    /// Runs on until the instruction at `ip` is next.
    pub fn advance_to_ip<S: Sink>(
        &mut self,
        sink: &mut S,
        counts: &mut Counts,
        ip: u64,
        stamp: PacketStamp,
    ) -> Result<(), Cause> {
        if self.here() == ip {
            return Ok(());
        }
        let start = self.resolve()?;
        let mut chain = CycleDetector::new(start);
        let position = loop {
            let node = self.code.node(chain.node);
            if let Some(position) = self.code.find(node, ip) {
                // the first instruction of the first node is where we are, not where we go
                break Some(position);
            }
            if !node.end.continues_without_packet() {
                return Err(Cause::NotReached { ip });
            }
            if node.next == ip {
                break None;
            }
            let (from, last) = (chain.node, self.last_ip(chain.node));
            let next = match self.next_node(from) {
                Ok(next) => next,
                Err(Cause::Unmapped { ip: hole }) => {
                    let path = NodePath {
                        nodes: chain.steps,
                        last: chain.node,
                    };
                    self.run_to_unmapped(&path, sink, counts, stamp);
                    return Err(Cause::Unmapped { ip: hole });
                }
                Err(_) => return Err(Cause::NotReached { ip }),
            };
            chain
                .step(next, last)
                .map_err(|_| Cause::NotReached { ip })?;
        };
        self.run_path(
            &NodePath {
                nodes: chain.steps,
                last: chain.node,
            },
            sink,
            counts,
            stamp,
        );
        match position {
            Some(position) => self.report_prefix(chain.node, position, sink, counts, stamp),
            None => self.report_node(chain.node, sink, counts, stamp),
        }
        self.go_to(ip, self.time);
        Ok(())
    }

    /// TIP.PGD without FUP and without IP: the next branch or MOV CR3 turned tracing off. Returns that instruction's
    /// address, and the taken target if it is a conditional branch.
    pub fn end_at_branch<S: Sink>(
        &mut self,
        sink: &mut S,
        counts: &mut Counts,
        stamp: PacketStamp,
    ) -> Result<(u64, u64), Cause> {
        if let Some((path, code_ranges)) = self.first_exit_from_ranges() {
            counts.erratum(Erratum::Skl014);
            return Ok(self.end_at_transfer(&path, code_ranges, sink, counts, stamp));
        }
        let path = self.find_binding_node(sink, counts, stamp, |end| {
            matches!(end, NodeEnd::VmEntry | NodeEnd::MovCr3)
        })?;
        let (end, target) = {
            let node = self.code.node(path.last);
            (
                node.end,
                if node.end == NodeEnd::Conditional {
                    node.target
                } else {
                    0
                },
            )
        };
        if end == NodeEnd::SoftwareInterrupt {
            return Err(Cause::UnexpectedTarget {
                ip: self.last_ip(path.last),
            });
        }
        self.finish_path(&path, end, None, sink, counts, stamp);
        Ok((self.last_ip(path.last), target))
    }

    /// TIP.PGD without FUP, with an IP: the next direct branch to `ip`, or the next branch that needs a packet.
    pub fn end_at_target<S: Sink>(
        &mut self,
        sink: &mut S,
        counts: &mut Counts,
        ip: u64,
        stamp: PacketStamp,
    ) -> Result<u64, Cause> {
        let mut chain = CycleDetector::new(self.resolve()?);
        let code_ranges = loop {
            let node = self.code.node(chain.node);
            if let Some(code_ranges) = self.code.find_transfer_to(node, ip) {
                break code_ranges;
            }
            if !node.end.continues_without_packet() || node.end == NodeEnd::VmEntry {
                let path = NodePath {
                    nodes: chain.steps,
                    last: chain.node,
                };
                let end = node.end;
                // a taken one that leaves gives no IP, and yet some processors do; one that falls through may
                let is_elsewhere =
                    end == NodeEnd::Conditional && ip != node.target && ip != node.next;
                if is_elsewhere || end == NodeEnd::SoftwareInterrupt {
                    return Err(Cause::NotReached { ip });
                }
                self.finish_path(&path, end, Some(ip), sink, counts, stamp);
                return Ok(self.last_ip(path.last));
            }
            let (from, last) = (chain.node, self.last_ip(chain.node));
            let next = match self.next_node(from) {
                Ok(next) => next,
                Err(cause) => {
                    let path = NodePath {
                        nodes: chain.steps,
                        last: chain.node,
                    };
                    if let Cause::Unmapped { .. } = cause {
                        self.run_to_unmapped(&path, sink, counts, stamp);
                    }
                    return Err(cause);
                }
            };
            chain.step(next, last)?;
        };
        let path = NodePath {
            nodes: chain.steps,
            last: chain.node,
        };
        Ok(self
            .end_at_transfer(&path, code_ranges, sink, counts, stamp)
            .0)
    }

    /// Tracing ends with the direct transfer after `code_ranges` pieces of the last node: its address and target.
    fn end_at_transfer<S: Sink>(
        &mut self,
        path: &NodePath,
        code_ranges: usize,
        sink: &mut S,
        counts: &mut Counts,
        stamp: PacketStamp,
    ) -> (u64, u64) {
        self.run_path(path, sink, counts, stamp);
        let node = self.code.node(path.last);
        let own = self.code.code_ranges(node);
        let last = own
            .get(code_ranges - 1)
            .map_or(0, |code_range| code_range.last);
        let target = own
            .get(code_ranges)
            .map_or(node.next, |code_range| code_range.start);
        let position = NodePosition {
            code_ranges,
            instructions: 0,
        };
        self.report_prefix(path.last, position, sink, counts, stamp);
        (last, target)
    }

    /// Finds the first direct transfer on the path that leaves the filter ranges: nothing after it was traced.
    pub(super) fn first_exit_from_ranges(&mut self) -> Option<(NodePath, usize)> {
        let ranges = self.ranges;
        let mut chain = CycleDetector::new(self.resolve().ok()?);
        loop {
            let node = self.code.node(chain.node);
            if let Some(code_ranges) = self.code.find_transfer_out(node, |ip| ranges.excludes(ip)) {
                let path = NodePath {
                    nodes: chain.steps,
                    last: chain.node,
                };
                return Some((path, code_ranges));
            }
            if !node.end.continues_without_packet()
                || matches!(node.end, NodeEnd::VmEntry | NodeEnd::MovCr3)
            {
                return None;
            }
            let (from, last) = (chain.node, self.last_ip(chain.node));
            let next = self.next_node(from).ok()?;
            chain.step(next, last).ok()?;
        }
    }

    /// Whether execution reaches `ip` from here without a packet.
    pub fn can_reach_ip(&mut self, ip: u64) -> bool {
        let Ok(start) = self.resolve() else {
            return false;
        };
        let mut chain = CycleDetector::new(start);
        loop {
            let node = self.code.node(chain.node);
            if node.start == ip || self.code.find(node, ip).is_some() {
                return true;
            }
            if !node.end.continues_without_packet() {
                return false;
            }
            let (from, last) = (chain.node, self.last_ip(chain.node));
            let next = self.next_node(from);
            let Ok(()) = next.and_then(|next| chain.step(next, last)) else {
                return false;
            };
        }
    }

    /// The node of the instruction that is next, if that is a VM entry.
    pub fn vm_entry_here(&mut self) -> Option<u32> {
        let index = self.resolve().ok()?;
        let node = self.code.node(index);
        (node.end == NodeEnd::VmEntry && node.instructions == 1).then_some(index)
    }

    /// Runs the VM entry that `vm_entry_here` found.
    pub fn run_vm_entry<S: Sink>(
        &mut self,
        entry: u32,
        sink: &mut S,
        counts: &mut Counts,
        stamp: PacketStamp,
    ) {
        let path = NodePath {
            nodes: 0,
            last: entry,
        };
        self.finish_path(&path, NodeEnd::VmEntry, None, sink, counts, stamp);
    }

    /// `target`: where the last instruction went, if known.
    fn finish_path<S: Sink>(
        &mut self,
        path: &NodePath,
        end: NodeEnd,
        target: Option<u64>,
        sink: &mut S,
        counts: &mut Counts,
        stamp: PacketStamp,
    ) {
        self.run_path(path, sink, counts, stamp);
        self.report_node(path.last, sink, counts, stamp);
        sink.end_run(end.run_end(), stamp.offset);
        if end != NodeEnd::MovCr3 {
            if let (true, Some(target)) = (S::NEEDS_EDGES, target) {
                let node = self.code.node(path.last);
                let falls = end == NodeEnd::Conditional && target != node.target;
                let kind = if falls { RunEnd::Cut } else { end.run_end() };
                sink.edge(self.last_ip(path.last), target, kind);
            }
            self.count_transfer(end, counts);
        }
    }

    /// A packet without FUP binds to the next instruction of its kind, here `wanted`, if it comes before anything
    /// that needs a packet; a PIP may also be that of a VM entry. Returns its address.
    pub fn advance_past<S: Sink>(
        &mut self,
        wanted: NodeEnd,
        sink: &mut S,
        counts: &mut Counts,
        stamp: PacketStamp,
    ) -> Option<u64> {
        let path = self
            .find_binding_node(sink, counts, stamp, |end| {
                end == wanted || (end == NodeEnd::VmEntry && wanted == NodeEnd::MovCr3)
            })
            .ok()?;
        if self.code.node(path.last).end != wanted {
            return None;
        }
        self.run_path(&path, sink, counts, stamp);
        self.report_node(path.last, sink, counts, stamp);
        self.go_to(self.code.node(path.last).next, self.time);
        Some(self.last_ip(path.last))
    }

    /// Whether `advance_past` would find an instruction.
    pub fn can_advance_past(&mut self, wanted: NodeEnd) -> bool {
        let path = self.find_binding_node_quietly(|end| end == wanted || end == NodeEnd::VmEntry);
        path.is_ok_and(|path| self.code.node(path.last).end == wanted)
    }

    /// Runs `count` instructions on, if no packet is needed in between. Returns the address of the next.
    pub fn advance_by_count<S: Sink>(
        &mut self,
        count: u64,
        sink: &mut S,
        counts: &mut Counts,
        stamp: PacketStamp,
    ) -> Option<u64> {
        self.expect_no_pending_results().ok()?;
        let mut left = count;
        let mut chain = CycleDetector::new(self.resolve().ok()?);
        let (position, ip) = loop {
            let node = self.code.node(chain.node);
            if let Some(found) = self.code.nth(node, left) {
                break found;
            }
            if !node.end.continues_without_packet() {
                return None;
            }
            left -= u64::from(node.instructions);
            let (from, last) = (chain.node, self.last_ip(chain.node));
            let next = self.next_node(from).ok()?;
            chain.step(next, last).ok()?;
        };
        let path = NodePath {
            nodes: chain.steps,
            last: chain.node,
        };
        self.run_path(&path, sink, counts, stamp);
        self.report_prefix(path.last, position, sink, counts, stamp);
        self.go_to(ip, self.time);
        Some(ip)
    }

    /// The node at which a packet takes effect: the first that does not let the flow pass, or that `binds`. Whatever
    /// runs before code that is not mapped has run: the packet is of an instruction from there on.
    pub(super) fn find_binding_node<S: Sink>(
        &mut self,
        sink: &mut S,
        counts: &mut Counts,
        stamp: PacketStamp,
        binds: impl Fn(NodeEnd) -> bool,
    ) -> Result<NodePath, Cause> {
        let path = self.find_binding_node_quietly(binds);
        path.map_err(|(cause, path)| {
            if let (Cause::Unmapped { .. }, Some(path)) = (cause, path) {
                self.run_to_unmapped(&path, sink, counts, stamp);
            }
            cause
        })
    }

    fn find_binding_node_quietly(
        &mut self,
        binds: impl Fn(NodeEnd) -> bool,
    ) -> Result<NodePath, (Cause, Option<NodePath>)> {
        let mut chain = CycleDetector::new(self.resolve().map_err(|cause| (cause, None))?);
        loop {
            let path = NodePath {
                nodes: chain.steps,
                last: chain.node,
            };
            let end = self.code.node(chain.node).end;
            if !end.continues_without_packet() || binds(end) {
                return Ok(path);
            }
            let (from, last) = (chain.node, self.last_ip(chain.node));
            match self.next_node(from) {
                Ok(next) => chain.step(next, last).map_err(|cause| (cause, None))?,
                Err(cause) => return Err((cause, Some(path))),
            }
        }
    }

    /// What the next packet that says nothing of a place could be of, if the code on the way is known.
    pub fn next_binding_end(&mut self) -> Option<NodeEnd> {
        let path =
            self.find_binding_node_quietly(|end| matches!(end, NodeEnd::VmEntry | NodeEnd::MovCr3));
        path.ok().map(|path| self.code.node(path.last).end)
    }

    /// Reports a path up to an unmapped address.
    fn run_to_unmapped<S: Sink>(
        &mut self,
        path: &NodePath,
        sink: &mut S,
        counts: &mut Counts,
        stamp: PacketStamp,
    ) {
        self.run_path(path, sink, counts, stamp);
        self.report_node(path.last, sink, counts, stamp);
        self.go_to(self.code.node(path.last).next, self.time);
    }

    /// Reports the nodes before the last of a path.
    pub(super) fn run_path<S: Sink>(
        &mut self,
        path: &NodePath,
        sink: &mut S,
        counts: &mut Counts,
        stamp: PacketStamp,
    ) {
        let Ok(mut index) = self.resolve() else {
            return;
        };
        for left in (1..=path.nodes).rev() {
            if S::DEFERS_PATHS && sink.is_full() {
                self.defer_path(index, left, sink, counts, stamp);
                return;
            }
            self.report_node(index, sink, counts, stamp);
            match self.next_node(index) {
                Ok(next) => index = next,
                Err(_) => return,
            }
        }
    }

    /// Runs through nodes that the sink gets later.
    #[cold]
    pub(super) fn defer_path<S: Sink>(
        &mut self,
        first: u32,
        nodes: u32,
        sink: &mut S,
        counts: &mut Counts,
        stamp: PacketStamp,
    ) {
        let node = self.code.node(first);
        let (ip, mode) = (node.start, node.mode);
        let before = counts.instructions;
        let mut index = first;
        for _ in 0..nodes {
            self.count_node(index, counts);
            match self.next_node(index) {
                Ok(next) => index = next,
                Err(_) => break,
            }
        }
        sink.defer_path(UnreportedPath {
            view: self.view.clone(),
            space: self.code.space(),
            ip,
            mode,
            instructions: counts.instructions - before,
            time: self.time,
            offset: stamp.offset,
        });
    }

    /// Whether a call is open at the end of a path.
    pub(super) fn has_open_call(&mut self, path: &NodePath) -> bool {
        if !self.stack.is_empty() {
            return true;
        }
        let Ok(mut index) = self.resolve() else {
            return false;
        };
        for left in (0..=path.nodes).rev() {
            if !self.code.calls(self.code.node(index)).1.is_empty() {
                return true;
            }
            match self.next_node(index) {
                Ok(next) if left > 0 => index = next,
                _ => break,
            }
        }
        false
    }

    /// Returns the node after one that execution leaves without a packet.
    pub(super) fn next_node(&mut self, index: u32) -> Result<u32, Cause> {
        let node = self.code.node(index);
        let (fall, ip, mode) = (node.fall, node.next, node.mode);
        if self.cancellation.check_at_node() {
            return Err(Cause::EndlessLoop { ip });
        }
        if fall != NO_NODE && self.code.node(fall).end != NodeEnd::Dead {
            return Ok(fall);
        }
        let next = self.code.lookup(&self.view, ip, mode)?;
        self.code.node_mut(index).fall = next;
        Ok(next)
    }
}

/// Follows nodes and detects a cycle (Brent's algorithm).
struct CycleDetector {
    node: u32,
    steps: u32,
    mark: u32,
    next_mark: u32,
}

impl CycleDetector {
    fn new(node: u32) -> CycleDetector {
        CycleDetector {
            node,
            steps: 0,
            mark: node,
            next_mark: 1,
        }
    }

    fn step(&mut self, next: u32, last_ip: u64) -> Result<(), Cause> {
        if next == self.mark {
            return Err(Cause::EndlessLoop { ip: last_ip });
        }
        self.node = next;
        self.steps += 1;
        if self.steps == self.next_mark {
            self.mark = next;
            self.next_mark = self.next_mark.saturating_mul(2);
        }
        Ok(())
    }
}

/// Limit of the instructions of a loop body.
const MAX_LOOP_BODY: usize = 4096;

impl Interpreter {
    /// The addresses of one round, if the code leads from the next instruction back to it without a packet. A way that
    /// leaves the filter ranges makes packets.
    pub fn loop_body(&mut self) -> Option<Vec<u64>> {
        let loop_body = self.loop_body_unfiltered()?;
        self.first_exit_from_ranges().is_none().then_some(loop_body)
    }

    fn loop_body_unfiltered(&mut self) -> Option<Vec<u64>> {
        let here = self.here();
        let mut index = self.resolve().ok()?;
        let mut ips = Vec::new();
        loop {
            let node = self.code.node(index);
            // only these two go on without anything that some setting makes a packet of
            if !matches!(node.end, NodeEnd::Loop | NodeEnd::Full) {
                return None;
            }
            for code_range in self.code.code_ranges(node) {
                let mut at = code_range.start;
                for &length in self.code.fragment(code_range, node.mode).lengths {
                    if at == here && !ips.is_empty() {
                        return Some(ips);
                    }
                    if ips.len() == MAX_LOOP_BODY {
                        return None;
                    }
                    ips.push(at);
                    at = at.wrapping_add(length.into());
                }
            }
            index = self.next_node(index).ok()?;
        }
    }
}
