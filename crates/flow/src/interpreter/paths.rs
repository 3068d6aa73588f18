//! Paths through several nodes: up to the instruction that a packet names, or to the next that a packet can bind to.
//!
//! A path crosses nodes that execution leaves without a packet. It is first followed without reporting
//! ([`NodePath`]), as its end decides whether the packet fits; then `report_path_before_last_node` reports it. A cycle
//! of such nodes never needs a packet and would not end: [`NodePath`] detects it. Before code that is not mapped,
//! everything on the path has run for certain, and is reported although the packet cannot be followed.
//!
//! # Loops without packets
//!
//! An event may strike in a loop that emits no packets. How often the loop ran is not in the trace: `loop_body` returns
//! the addresses of one iteration, for the ledger and the sink.

use super::Interpreter;
use crate::backpressure::UnreportedPath;
use crate::code_cache::{NodeEnd, NodePosition, NO_NODE};
use crate::error::ErrorCause;
use crate::settings::Erratum;
use crate::sink::{RunEnd, Sink};

/// A path: the number of nodes before the last, and the last, at which a packet takes effect. Detects cycles by Brent's
/// algorithm.
pub(super) struct NodePath {
    pub nodes: u32,
    pub last: u32,
    mark: u32,
    next_mark: u32,
}

impl NodePath {
    fn new(node: u32) -> NodePath {
        NodePath {
            nodes: 0,
            last: node,
            mark: node,
            next_mark: 1,
        }
    }

    /// Appends a node. Returns false if the path is a cycle.
    fn append_node(&mut self, next: u32) -> bool {
        if next == self.mark {
            return false;
        }
        self.last = next;
        self.nodes += 1;
        if self.nodes == self.next_mark {
            self.mark = next;
            self.next_mark = self.next_mark.saturating_mul(2);
        }
        true
    }
}

impl Interpreter {
    fn start_path(&mut self) -> Result<NodePath, ErrorCause> {
        self.resolve_next_node().map(NodePath::new)
    }

    /// Appends the next node to a path.
    fn extend_path(&mut self, path: &mut NodePath) -> Result<(), ErrorCause> {
        let ip = self.last_ip(path.last);
        let next = self.next_node_without_packet(path.last)?;
        match path.append_node(next) {
            true => Ok(()),
            false => Err(ErrorCause::EndlessLoop { ip }),
        }
    }

    /// As `extend_path`; reports the path up to an unmapped address.
    fn extend_path_or_report<S: Sink>(
        &mut self,
        path: &mut NodePath,
        sink: &mut S,
    ) -> Result<(), ErrorCause> {
        let result = self.extend_path(path);
        if let Err(ErrorCause::Unmapped { .. }) = result {
            self.report_path_before_last_node(path, sink);
            self.report_node(path.last, sink);
            self.set_next_address(self.code.node_at(path.last).next, self.time);
        }
        result
    }

    /// Advances until the instruction at `ip` is next.
    pub fn advance_to_ip<S: Sink>(&mut self, sink: &mut S, ip: u64) -> Result<(), ErrorCause> {
        if self.next_instruction_address() == ip {
            return Ok(());
        }
        let mut path = self.start_path()?;
        let position = loop {
            let node = self.code.node_at(path.last);
            if let Some(position) = self.code.find_instruction(node, ip) {
                break Some(position);
            }
            if !node.end.continues_without_packet() {
                return Err(ErrorCause::NotReached { ip });
            }
            if node.next == ip {
                break None;
            }
            let extended = self.extend_path_or_report(&mut path, sink);
            extended.map_err(|cause| match cause {
                ErrorCause::Unmapped { .. } => cause,
                _ => ErrorCause::NotReached { ip },
            })?;
        };
        self.report_path_before_last_node(&path, sink);
        match position {
            Some(position) => self.report_node_prefix(path.last, position, sink),
            None => self.report_node(path.last, sink),
        }
        self.set_next_address(ip, self.time);
        Ok(())
    }

    /// TIP.PGD without FUP and without IP: the next branch or MOV CR3 turned tracing off. Returns that instruction's
    /// address, and the taken target if it is a conditional branch.
    pub fn end_tracing_at_branch<S: Sink>(
        &mut self,
        sink: &mut S,
    ) -> Result<(u64, u64), ErrorCause> {
        if let Some((path, code_ranges)) = self.first_exit_from_ranges() {
            self.counts.add_erratum(Erratum::Skl014);
            return Ok(self.end_tracing_at_transfer(&path, code_ranges, sink));
        }
        let path = self.find_binding_node(sink, |end| {
            matches!(end, NodeEnd::VmEntry | NodeEnd::MovCr3)
        })?;
        let ip = self.last_ip(path.last);
        let node = self.code.node_at(path.last);
        let target = match node.end {
            NodeEnd::SoftwareInterrupt => return Err(ErrorCause::UnexpectedTarget { ip }),
            NodeEnd::Conditional => node.target,
            _ => 0,
        };
        self.finish_path(&path, None, sink);
        Ok((ip, target))
    }

    /// TIP.PGD without FUP, with an IP: the next direct branch to `ip`, or the next branch that needs a packet, turned
    /// tracing off. Returns the address of the branch.
    pub fn end_tracing_at_target<S: Sink>(
        &mut self,
        sink: &mut S,
        ip: u64,
    ) -> Result<u64, ErrorCause> {
        let mut path = self.start_path()?;
        loop {
            let node = self.code.node_at(path.last);
            if let Some(code_ranges) = self.code.find_transfer_in_node(node, |to| to == ip) {
                return Ok(self.end_tracing_at_transfer(&path, code_ranges, sink).0);
            }
            if !node.end.continues_without_packet() || node.end == NodeEnd::VmEntry {
                // a taken one that leaves gives no IP, and yet some processors do; one that falls through may
                let is_elsewhere =
                    node.end == NodeEnd::Conditional && ip != node.target && ip != node.next;
                if is_elsewhere || node.end == NodeEnd::SoftwareInterrupt {
                    return Err(ErrorCause::NotReached { ip });
                }
                self.finish_path(&path, Some(ip), sink);
                return Ok(self.last_ip(path.last));
            }
            self.extend_path_or_report(&mut path, sink)?;
        }
    }

    /// Tracing ends with the direct transfer after the first `code_ranges` code ranges of the last node. Returns its
    /// address and target.
    fn end_tracing_at_transfer<S: Sink>(
        &mut self,
        path: &NodePath,
        code_ranges: usize,
        sink: &mut S,
    ) -> (u64, u64) {
        self.report_path_before_last_node(path, sink);
        let node = self.code.node_at(path.last);
        let transfer = self.code.code_ranges(node).get(code_ranges - 1);
        let last = transfer.map_or(0, |code_range| code_range.last);
        let target = self.code.target_of_code_range(node, code_ranges - 1);
        let position = NodePosition {
            code_ranges,
            instructions: 0,
        };
        self.report_node_prefix(path.last, position, sink);
        (last, target)
    }

    /// Finds the first direct transfer on the path that leaves the filter ranges: nothing after it was traced.
    fn first_exit_from_ranges(&mut self) -> Option<(NodePath, usize)> {
        let ranges = self.ranges;
        let mut path = self.start_path().ok()?;
        loop {
            let node = self.code.node_at(path.last);
            if let Some(code_ranges) = self
                .code
                .find_transfer_in_node(node, |ip| ranges.excludes_ip(ip))
            {
                return Some((path, code_ranges));
            }
            if !node.end.continues_without_packet()
                || matches!(node.end, NodeEnd::VmEntry | NodeEnd::MovCr3)
            {
                return None;
            }
            self.extend_path(&mut path).ok()?;
        }
    }

    /// Whether the instruction at `ip` is INT 80H.
    pub fn is_interrupt_80h(&self, ip: u64) -> bool {
        let mut bytes = [0; 16];
        self.view.read_instruction_bytes(ip, &mut bytes) >= 2 && bytes.starts_with(&[0xcd, 0x80])
    }

    /// Whether execution reaches `ip` from here without a packet.
    pub fn can_reach_ip(&mut self, ip: u64) -> bool {
        let Ok(mut path) = self.start_path() else {
            return false;
        };
        loop {
            let node = self.code.node_at(path.last);
            if self.code.find_instruction(node, ip).is_some() {
                return true;
            }
            if !node.end.continues_without_packet() || self.extend_path(&mut path).is_err() {
                return false;
            }
        }
    }

    /// Returns the node of the next instruction, if that is a VM entry.
    pub fn vm_entry_at_current_ip(&mut self) -> Option<u32> {
        let index = self.resolve_next_node().ok()?;
        let node = self.code.node_at(index);
        (node.end == NodeEnd::VmEntry && node.instructions == 1).then_some(index)
    }

    /// Runs the VM entry that `vm_entry_at_current_ip` found.
    pub fn run_vm_entry<S: Sink>(&mut self, entry: u32, sink: &mut S) {
        self.finish_path(&NodePath::new(entry), None, sink);
    }

    /// Reports a path up to the end of its last node. `target`: that of the last instruction, if known.
    fn finish_path<S: Sink>(&mut self, path: &NodePath, target: Option<u64>, sink: &mut S) {
        self.report_path_before_last_node(path, sink);
        self.report_node(path.last, sink);
        let node = self.code.node_at(path.last);
        let end = node.end;
        sink.end_run(end.run_end_kind(), self.packet.offset);
        if end == NodeEnd::MovCr3 {
            return;
        }
        // Tracing goes off at most system calls, so that their targets are not known.
        let target = target.or((end == NodeEnd::Syscall).then_some(0));
        if let (true, Some(target)) = (S::NEEDS_EDGES, target) {
            let falls = end == NodeEnd::Conditional && target != node.target;
            let kind = if falls {
                RunEnd::Cut
            } else {
                end.run_end_kind()
            };
            sink.add_edge(self.last_ip(path.last), target, kind);
        }
        self.count_transfer(end);
    }

    /// A packet without FUP binds to the next instruction of its kind, here `wanted`, if it comes before anything
    /// that needs a packet; a PIP may also be that of a VM entry. Returns its address.
    pub fn advance_past_instruction_of_kind<S: Sink>(
        &mut self,
        wanted: NodeEnd,
        sink: &mut S,
    ) -> Option<u64> {
        let path = self.find_binding_node(sink, |end| {
            end == wanted || (end == NodeEnd::VmEntry && wanted == NodeEnd::MovCr3)
        });
        let path = path.ok()?;
        if self.code.node_at(path.last).end != wanted {
            return None;
        }
        self.report_path_before_last_node(&path, sink);
        self.report_node(path.last, sink);
        self.set_next_address(self.code.node_at(path.last).next, self.time);
        Some(self.last_ip(path.last))
    }

    /// Whether `advance_past_instruction_of_kind` would find an instruction.
    pub fn can_advance_past_instruction_of_kind(&mut self, wanted: NodeEnd) -> bool {
        self.peek_binding_end(|end| end == wanted || end == NodeEnd::VmEntry) == Some(wanted)
    }

    /// Advances by `count` instructions, if no packet is needed in between. Returns the address of the next.
    pub fn advance_by_instruction_count<S: Sink>(
        &mut self,
        count: u64,
        sink: &mut S,
    ) -> Option<u64> {
        self.expect_no_pending_results().ok()?;
        let mut left = count;
        let mut path = self.start_path().ok()?;
        let (position, ip) = loop {
            let node = self.code.node_at(path.last);
            if let Some(found) = self.code.nth_instruction(node, left) {
                break found;
            }
            if !node.end.continues_without_packet() {
                return None;
            }
            left -= u64::from(node.instructions);
            self.extend_path(&mut path).ok()?;
        };
        self.report_path_before_last_node(&path, sink);
        self.report_node_prefix(path.last, position, sink);
        self.set_next_address(ip, self.time);
        Some(ip)
    }

    /// Finds the node at which a packet takes effect: the first that execution does not leave without a packet, or that
    /// `binds`. Everything before unmapped code has run: the packet belongs to an instruction from there on.
    pub(super) fn find_binding_node<S: Sink>(
        &mut self,
        sink: &mut S,
        binds: impl Fn(NodeEnd) -> bool,
    ) -> Result<NodePath, ErrorCause> {
        let mut path = self.start_path()?;
        loop {
            let end = self.code.node_at(path.last).end;
            if !end.continues_without_packet() || binds(end) {
                return Ok(path);
            }
            self.extend_path_or_report(&mut path, sink)?;
        }
    }

    /// Returns the end of the node that `find_binding_node` would find, without reporting anything.
    fn peek_binding_end(&mut self, binds: impl Fn(NodeEnd) -> bool) -> Option<NodeEnd> {
        let mut path = self.start_path().ok()?;
        loop {
            let end = self.code.node_at(path.last).end;
            if !end.continues_without_packet() || binds(end) {
                return Some(end);
            }
            self.extend_path(&mut path).ok()?;
        }
    }

    /// Returns the kind of instruction to which a TIP.PGD without IP would bind, if the code up to there is known.
    pub fn next_binding_end(&mut self) -> Option<NodeEnd> {
        self.peek_binding_end(|end| matches!(end, NodeEnd::VmEntry | NodeEnd::MovCr3))
    }

    /// Reports the nodes before the last of a path.
    pub(super) fn report_path_before_last_node<S: Sink>(&mut self, path: &NodePath, sink: &mut S) {
        let Ok(mut index) = self.resolve_next_node() else {
            return;
        };
        for left in (1..=path.nodes).rev() {
            if S::DEFERS_PATHS && sink.is_full() {
                self.defer_path(index, left, sink);
                return;
            }
            self.report_node(index, sink);
            match self.next_node_without_packet(index) {
                Ok(next) => index = next,
                Err(_) => return,
            }
        }
    }

    /// Counts the nodes of a path that the sink gets later.
    #[cold]
    fn defer_path<S: Sink>(&mut self, first: u32, nodes: u32, sink: &mut S) {
        let node = self.code.node_at(first);
        let (ip, mode) = (node.start, node.mode);
        let before = self.counts.instructions;
        let mut index = first;
        for _ in 0..nodes {
            self.count_executed_node(index);
            match self.next_node_without_packet(index) {
                Ok(next) => index = next,
                Err(_) => break,
            }
        }
        sink.defer_path(UnreportedPath {
            view: self.view.clone(),
            space: self.code.address_space_index(),
            ip,
            mode,
            instructions: self.counts.instructions - before,
            time: self.time,
            offset: self.packet.offset,
        });
    }

    /// Whether a call is open at the end of a path.
    pub(super) fn has_open_call(&mut self, path: &NodePath) -> bool {
        if !self.stack.is_empty() {
            return true;
        }
        let Ok(mut index) = self.resolve_next_node() else {
            return false;
        };
        for left in (0..=path.nodes).rev() {
            if !self
                .code
                .calls_of_node(self.code.node_at(index))
                .1
                .is_empty()
            {
                return true;
            }
            match self.next_node_without_packet(index) {
                Ok(next) if left > 0 => index = next,
                _ => break,
            }
        }
        false
    }

    /// Returns the node after one that execution leaves without a packet.
    pub(super) fn next_node_without_packet(&mut self, index: u32) -> Result<u32, ErrorCause> {
        let node = self.code.node_at(index);
        let (fall, ip, mode) = (node.fall, node.next, node.mode);
        if self.cancellation.check_at_node() {
            return Err(ErrorCause::EndlessLoop { ip });
        }
        if fall != NO_NODE && self.code.node_at(fall).end != NodeEnd::Dead {
            return Ok(fall);
        }
        let next = self.code.find_or_decode_node(&self.view, ip, mode)?;
        self.code.node_at_mut(index).fall = next;
        Ok(next)
    }
}

/// Limit of the instructions of a loop body.
const MAX_LOOP_BODY: usize = 4096;

impl Interpreter {
    /// Returns the addresses of one iteration, if the code leads from the next instruction back to it without a packet.
    /// A loop that leaves the filter ranges emits packets.
    pub fn loop_body(&mut self) -> Option<Vec<u64>> {
        let loop_body = self.loop_body_unfiltered()?;
        self.first_exit_from_ranges().is_none().then_some(loop_body)
    }

    fn loop_body_unfiltered(&mut self) -> Option<Vec<u64>> {
        let here = self.next_instruction_address();
        let mut index = self.resolve_next_node().ok()?;
        let mut ips = Vec::new();
        loop {
            let node = self.code.node_at(index);
            // the other ends emit packets with some settings
            if !matches!(node.end, NodeEnd::Loop | NodeEnd::Full) {
                return None;
            }
            for code_range in self.code.code_ranges(node) {
                for at in self
                    .code
                    .fragment_of_code_range(code_range, node.mode)
                    .instruction_addresses()
                {
                    if at == here && !ips.is_empty() {
                        return Some(ips);
                    }
                    if ips.len() == MAX_LOOP_BODY {
                        return None;
                    }
                    ips.push(at);
                }
            }
            index = self.next_node_without_packet(index).ok()?;
        }
    }
}
