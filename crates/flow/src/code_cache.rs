//! The code cache: decoded code as nodes, by address.
//!
//! A [`CodeNode`] is a superblock: instructions that run together up to the next one that may need a packet
//! ([`NodeEnd`]). Direct jumps and calls are followed within the node; each contiguous range of memory in it is a
//! `CodeRange`. Nodes are built when execution first arrives (`builder`), and links between them are filled on first
//! use, so that following a known path takes no lookup.
//!
//! When code changes, nodes that overlap it become `NodeEnd::Dead`. Links to them stay; the address of a dead node is
//! looked up again. Most code never changes, so the index of nodes by 4 KiB page is built at the first change. A node
//! that ended where nothing was mapped, or where there was no instruction, dies too when bytes appear there. A cache
//! above its limit is emptied at the next packet, after which indices are invalid. `pool` keeps the caches of finished
//! streams for later ones over the same code.

use std::mem::{size_of, size_of_val};

use rtit_huge_pages::Buffer;
use rtit_image::{ChangedCode, SpaceView};
use rtit_x86::{CodeMode, MAX_LENGTH};

use crate::error::ErrorCause;
use crate::hash::{self, AddressMap};
use crate::sink::{RunEnd, RunFragment, Sink};

mod builder;
mod pool;

pub use self::pool::CodeCachePool;

const INDIRECT_TARGETS: usize = 1 << 9;

/// Bytes that a vector takes beside twice its content.
const VECTOR_OVERHEAD: usize = 32;

/// Bytes in use of a vector.
fn vector_bytes_in_use<T>(vector: &[T]) -> usize {
    size_of_val(vector)
}

/// Bytes of a hash table for each entry that it has room for: seven in eight are used, and a byte is kept of each.
const fn hash_table_entry_size<V>() -> usize {
    (size_of::<(u64, V)>() + 1) * 8 / 7
}

/// The decoded code of one view.
pub(crate) struct CodeCache {
    nodes: Buffer<CodeNode>,
    code_ranges: Buffer<CodeRange>,
    lengths: Buffer<u8>,
    calls: Buffer<NearCall>,
    /// Nodes that died since `take_dead_nodes`.
    dead: Vec<u32>,
    nodes_by_start: [AddressMap<u32>; 3],
    /// Nodes by the pages that they touch, from the first change of code on.
    nodes_by_page: Option<AddressMap<Vec<u32>>>,
    /// Number of entries in `nodes_by_page`.
    page_entries: usize,
    /// (source node, target address) -> node of the last indirect transfers.
    indirect_targets: Vec<(u32, u32, u64)>,
    /// In bytes.
    limit: usize,
    /// Index of the address space.
    space: u32,
}

impl CodeCache {
    pub fn new(limit: usize, space: u32) -> CodeCache {
        CodeCache {
            nodes: Buffer::new(),
            code_ranges: Buffer::new(),
            lengths: Buffer::new(),
            calls: Buffer::new(),
            dead: Vec::new(),
            nodes_by_start: Default::default(),
            nodes_by_page: None,
            page_entries: 0,
            indirect_targets: Vec::new(),
            limit,
            space,
        }
    }

    /// Index of the address space.
    pub fn address_space_index(&self) -> u32 {
        self.space
    }

    /// Whether there are neither nodes nor call sites.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty() && self.calls.is_empty()
    }

    /// Returns the bytes in use: those written of vectors, which the system allocates page by page, and whole hash
    /// tables.
    pub fn size_in_bytes(&self) -> usize {
        let starts: usize = self.nodes_by_start.iter().map(AddressMap::capacity).sum();
        let pages = self.nodes_by_page.as_ref().map_or(0, AddressMap::capacity);
        vector_bytes_in_use(&self.nodes)
            + vector_bytes_in_use(&self.code_ranges)
            + vector_bytes_in_use(&self.lengths)
            + vector_bytes_in_use(&self.calls)
            + vector_bytes_in_use(&self.indirect_targets)
            + vector_bytes_in_use(&self.dead)
            + starts * hash_table_entry_size::<u32>()
            + pages * (hash_table_entry_size::<Vec<u32>>() + VECTOR_OVERHEAD)
            + self.page_entries * 2 * size_of::<u32>()
    }

    /// Whether this cache may replace the empty cache `empty`.
    pub fn has_same_limits_as(&self, empty: &CodeCache) -> bool {
        (self.limit, self.space) == (empty.limit, empty.space)
    }

    /// Whether the cache has outgrown its limit and should be emptied at the next packet.
    pub fn is_over_limit(&self) -> bool {
        self.size_in_bytes() > self.limit
    }

    /// Empties the cache. Indices become invalid.
    pub fn clear(&mut self) {
        *self = CodeCache::new(self.limit, self.space);
    }

    #[inline]
    pub fn node_at(&self, index: u32) -> &CodeNode {
        &self.nodes[index as usize]
    }

    #[inline]
    pub fn node_at_mut(&mut self, index: u32) -> &mut CodeNode {
        &mut self.nodes[index as usize]
    }

    #[inline]
    pub fn code_ranges(&self, node: &CodeNode) -> &[CodeRange] {
        let first = node.first_code_range as usize;
        &self.code_ranges[first..first + usize::from(node.code_ranges)]
    }

    /// Returns the target of the direct jump or call at the end of a code range.
    pub fn target_of_code_range(&self, node: &CodeNode, index: usize) -> u64 {
        self.code_ranges(node)
            .get(index + 1)
            .map_or(node.next, |next| next.start)
    }

    /// Address of the last instruction of a node.
    pub fn last_ip(&self, node: &CodeNode) -> u64 {
        self.code_ranges(node)
            .last()
            .map_or(node.start, |code_range| code_range.last)
    }

    #[inline]
    pub fn calls_of_node(&self, node: &CodeNode) -> (u32, &[NearCall]) {
        let first = node.first_call as usize;
        (
            node.first_call,
            &self.calls[first..first + usize::from(node.calls)],
        )
    }

    #[inline]
    pub fn call_at_site(&self, site: u32) -> Option<&NearCall> {
        self.calls.get(site as usize)
    }

    /// Adds a call site that belongs to no node, for an address after a call.
    pub fn add_call_site(&mut self, return_ip: u64) -> u32 {
        self.calls.push(NearCall {
            return_ip,
            node: NO_NODE,
            code_range: 0,
        });
        self.calls.len() as u32 - 1
    }

    pub fn call_at_site_mut(&mut self, site: u32) -> Option<&mut NearCall> {
        self.calls.get_mut(site as usize)
    }

    #[inline]
    pub fn fragment_of_code_range(
        &self,
        code_range: &CodeRange,
        mode: CodeMode,
    ) -> RunFragment<'_> {
        RunFragment {
            start: code_range.start,
            last: code_range.last,
            lengths: self.instruction_lengths(code_range),
            hash: code_range.hash,
            factor: code_range.factor,
            mode,
            space: self.space,
        }
    }

    /// Returns the first `count` instructions of a code range; `count` is at least 1 and at most all.
    pub fn fragment_of_code_range_prefix(
        &self,
        code_range: &CodeRange,
        count: usize,
        mode: CodeMode,
    ) -> RunFragment<'_> {
        let lengths = self.instruction_lengths(code_range);
        let lengths = &lengths[..count.min(lengths.len())];
        let (hash, factor) = hash::hash_fragment(code_range.start, lengths);
        let mut fragment = RunFragment {
            lengths,
            hash,
            factor,
            ..self.fragment_of_code_range(code_range, mode)
        };
        fragment.last = fragment
            .instruction_addresses()
            .last()
            .unwrap_or(fragment.start);
        fragment
    }

    #[inline]
    fn instruction_lengths(&self, code_range: &CodeRange) -> &[u8] {
        let first = code_range.first_length as usize;
        &self.lengths[first..first + code_range.count as usize]
    }

    /// Returns the node that starts at `ip`; decodes it if it is new.
    pub fn find_or_decode_node(
        &mut self,
        view: &SpaceView,
        ip: u64,
        mode: CodeMode,
    ) -> Result<u32, ErrorCause> {
        match self.nodes_by_start[mode as usize].get(&ip) {
            Some(&node) => Ok(node),
            None => self.build_node(view, ip, mode),
        }
    }

    /// As `find_or_decode_node`, for the target of an indirect transfer at the end of `from`.
    #[inline]
    pub fn find_or_decode_target(
        &mut self,
        view: &SpaceView,
        from: u32,
        ip: u64,
        mode: CodeMode,
    ) -> Result<u32, ErrorCause> {
        if self.indirect_targets.is_empty() {
            self.indirect_targets = vec![(NO_NODE, NO_NODE, 0); INDIRECT_TARGETS];
        }
        let slot = (hash::mix_address(ip) ^ u64::from(from).wrapping_mul(hash::K) >> 40) as usize
            % INDIRECT_TARGETS;
        let (source, node, target) = self.indirect_targets[slot];
        if source == from && target == ip && self.node_at(node).mode == mode {
            return Ok(node);
        }
        let node = self.find_or_decode_node(view, ip, mode)?;
        self.indirect_targets[slot] = (from, node, ip);
        Ok(node)
    }

    /// Returns the position of the instruction at `ip` in a node: the first one, if the node runs through it
    /// repeatedly.
    pub fn find_instruction(&self, node: &CodeNode, ip: u64) -> Option<NodePosition> {
        let code_ranges = self.code_ranges(node).iter().enumerate();
        let mut candidates =
            code_ranges.filter(|(_, range)| (range.start..=range.last).contains(&ip));
        candidates.find_map(|(code_ranges, range)| {
            let instructions = self
                .fragment_of_code_range(range, node.mode)
                .instruction_addresses()
                .position(|at| at == ip)?;
            Some(NodePosition {
                code_ranges,
                instructions,
            })
        })
    }

    /// Returns the position and the address of instruction number `index` of a node, counted from 0.
    pub fn nth_instruction(&self, node: &CodeNode, index: u64) -> Option<(NodePosition, u64)> {
        let mut left = usize::try_from(index).ok()?;
        for (code_ranges, range) in self.code_ranges(node).iter().enumerate() {
            if let Some(ip) = self
                .fragment_of_code_range(range, node.mode)
                .instruction_addresses()
                .nth(left)
            {
                return Some((
                    NodePosition {
                        code_ranges,
                        instructions: left,
                    },
                    ip,
                ));
            }
            left -= range.count as usize;
        }
        None
    }

    /// Returns how many code ranges of a node run until a direct jump or call has a target that `matches`.
    pub fn find_transfer_in_node(
        &self,
        node: &CodeNode,
        matches: impl Fn(u64) -> bool,
    ) -> Option<usize> {
        let code_ranges = self.code_ranges(node).iter().enumerate();
        let mut transfers = code_ranges.filter(|(_, range)| range.run_end != RunEnd::Cut);
        let found = transfers.find(|&(index, _)| matches(self.target_of_code_range(node, index)));
        found.map(|(index, _)| index + 1)
    }

    /// Returns the nodes that died since the last call.
    pub fn take_dead_nodes(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.dead)
    }

    /// Invalidates the nodes of changed code; if all code has changed, indices become invalid.
    pub fn invalidate_changed_nodes(&mut self, changed: &ChangedCode) {
        match changed {
            ChangedCode::None => {}
            ChangedCode::All => self.clear(),
            ChangedCode::Ranges(ranges) => {
                for &(start, end) in ranges {
                    self.mark_overlapping_nodes_dead(start, end);
                }
            }
        }
    }

    /// Returns the node, or, if it is dead, the new node at its address.
    fn replace_dead_node(&mut self, view: &SpaceView, index: u32) -> Option<u32> {
        let node = self.node_at(index);
        match node.end {
            NodeEnd::Dead => self.find_or_decode_node(view, node.start, node.mode).ok(),
            _ => Some(index),
        }
    }

    /// Returns the node after another one. `taken`: that ends in a conditional branch, which is taken.
    pub fn successor_node(&mut self, view: &SpaceView, index: u32, taken: bool) -> Option<u32> {
        let node = self.node_at(index);
        let mode = node.mode;
        let (link, ip) = node.linked_successor(taken);
        if link != NO_NODE {
            return self.replace_dead_node(view, link);
        }
        let next = self.find_or_decode_node(view, ip, mode).ok()?;
        self.node_at_mut(index).set_successor_link(taken, next);
        Some(next)
    }

    /// Returns the node to which the RET at the end of `from` returns, given its call site.
    pub fn node_after_return(&mut self, view: &SpaceView, from: u32, site: u32) -> Option<u32> {
        let mode = self.node_at(from).mode;
        let call = self.call_at_site(site)?;
        let (node, ip) = (call.node, mode.truncate_ip(call.return_ip));
        if node != NO_NODE && self.node_at(node).mode == mode {
            return self.replace_dead_node(view, node);
        }
        let node = self.find_or_decode_node(view, ip, mode).ok()?;
        if let Some(call) = self.call_at_site_mut(site) {
            call.node = node;
        }
        Some(node)
    }

    /// Reports a whole node to a sink.
    #[inline]
    pub fn report_node<S: Sink>(&self, index: u32, time: u64, offset: u64, sink: &mut S) {
        let node = self.node_at(index);
        for (at, code_range) in self.code_ranges(node).iter().enumerate() {
            self.report_code_range(node, at, code_range, time, offset, sink);
        }
    }

    /// Reports a code range of a node, and the jump or call that ends it.
    #[inline(always)]
    pub fn report_code_range<S: Sink>(
        &self,
        node: &CodeNode,
        at: usize,
        code_range: &CodeRange,
        time: u64,
        offset: u64,
        sink: &mut S,
    ) {
        sink.extend_run(&self.fragment_of_code_range(code_range, node.mode), time);
        if code_range.run_end != RunEnd::Cut {
            sink.end_run(code_range.run_end, offset);
            if S::NEEDS_EDGES {
                let target = self.target_of_code_range(node, at);
                sink.add_edge(code_range.last, target, code_range.run_end);
            }
        }
    }

    /// Reports the beginning of a node to a sink.
    pub fn report_node_prefix<S: Sink>(
        &self,
        index: u32,
        position: NodePosition,
        time: u64,
        offset: u64,
        sink: &mut S,
    ) {
        let node = self.node_at(index);
        let code_ranges = self.code_ranges(node);
        for (at, code_range) in code_ranges.iter().take(position.code_ranges).enumerate() {
            self.report_code_range(node, at, code_range, time, offset, sink);
        }
        let partial = code_ranges.get(position.code_ranges);
        if let Some(code_range) = partial.filter(|_| position.instructions > 0) {
            let fragment =
                self.fragment_of_code_range_prefix(code_range, position.instructions, node.mode);
            sink.extend_run(&fragment, time);
        }
    }
}

/// No node, or one that is not known yet.
pub(crate) const NO_NODE: u32 = u32::MAX;

/// Why a node ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NodeEnd {
    Conditional,
    IndirectJump,
    IndirectCall,
    Return,
    /// A near RET that cuts its target to 16 bits.
    NarrowReturn,
    Far,
    Syscall,
    /// INT n and the like: an event with FUP follows, never a plain TIP.
    SoftwareInterrupt,
    /// VMLAUNCH, VMRESUME: a TIP or TIP.PGD if it succeeds, else the next instruction.
    VmEntry,
    /// MOV CR3: TIP.PGD may bind to it, else the next instruction.
    MovCr3,
    /// PTWRITE: a PTW may bind to it, else the next instruction.
    PtWrite,
    /// The node is long enough; the next begins where it ends.
    Full,
    /// A jump back into the node: an endless loop.
    Loop,
    /// The next bytes were not mapped when the node was built, or are no instruction.
    Unknown,
    /// The code changed: the node must be looked up again by its start.
    Dead,
}

impl NodeEnd {
    /// Whether execution can continue to the next node without a packet.
    pub fn continues_without_packet(self) -> bool {
        matches!(
            self,
            NodeEnd::VmEntry
                | NodeEnd::MovCr3
                | NodeEnd::PtWrite
                | NodeEnd::Full
                | NodeEnd::Loop
                | NodeEnd::Unknown
        )
    }

    pub fn run_end_kind(self) -> RunEnd {
        match self {
            NodeEnd::Conditional => RunEnd::Conditional,
            NodeEnd::IndirectJump => RunEnd::IndirectJump,
            NodeEnd::IndirectCall => RunEnd::IndirectCall,
            NodeEnd::Return | NodeEnd::NarrowReturn => RunEnd::Return,
            NodeEnd::Far => RunEnd::Far,
            NodeEnd::Syscall => RunEnd::Syscall,
            NodeEnd::VmEntry => RunEnd::VmEntry,
            NodeEnd::MovCr3 => RunEnd::Off,
            _ => RunEnd::Cut,
        }
    }
}

/// A superblock: instructions that run together.
#[derive(Clone, Debug)]
pub(crate) struct CodeNode {
    pub start: u64,
    /// Target of the conditional branch at the end.
    pub target: u64,
    /// Address after the last instruction; for `Full` and `Loop` the address at which execution continues.
    pub next: u64,
    pub taken: u32,
    pub fall: u32,
    pub instructions: u32,
    first_code_range: u32,
    first_call: u32,
    code_ranges: u16,
    calls: u16,
    pub end: NodeEnd,
    /// The kind of the last instruction, also when the node is dead.
    pub run_end: RunEnd,
    pub mode: CodeMode,
}

impl CodeNode {
    /// Returns the link and the address after the node. `taken`: after its conditional branch, which is taken.
    #[inline(always)]
    pub fn linked_successor(&self, taken: bool) -> (u32, u64) {
        match taken {
            true => (self.taken, self.target),
            false => (self.fall, self.next),
        }
    }

    /// Sets the link of `linked_successor`.
    pub fn set_successor_link(&mut self, taken: bool, next: u32) {
        match taken {
            true => self.taken = next,
            false => self.fall = next,
        }
    }
}

/// A contiguous range of memory within a node.
#[derive(Clone, Debug)]
pub(crate) struct CodeRange {
    pub start: u64,
    pub last: u64,
    hash: u64,
    factor: u64,
    first_length: u32,
    pub count: u32,
    /// `Jump`, `Call`, or `Cut` for the last code range of a node.
    pub run_end: RunEnd,
}

/// A near call that pushes: a direct one within a node, or an indirect one that ends it.
#[derive(Clone, Debug)]
pub(crate) struct NearCall {
    pub return_ip: u64,
    /// The node at `return_ip`, filled on first use.
    pub node: u32,
    /// Index of the code range within the node that ends in this call.
    pub code_range: u16,
}

/// A position within a node: a number of whole code ranges, then a number of instructions in the next one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NodePosition {
    pub code_ranges: usize,
    pub instructions: usize,
}

const PAGE_SHIFT: u32 = 12;

/// Returns the range of bytes that may extend a node: those of an undecodable or unmapped instruction.
fn bytes_that_may_extend_node(node: &CodeNode) -> Option<(u64, u64)> {
    let end = node.next.saturating_add(MAX_LENGTH as u64);
    (node.end == NodeEnd::Unknown).then_some((node.next, end))
}

impl CodeCache {
    /// Adds a new node to the index by page, if there is one.
    fn add_node_to_page_index(&mut self, index: u32) {
        if let Some(mut nodes_by_page) = self.nodes_by_page.take() {
            self.page_entries += self.add_node_to_its_pages(index, &mut nodes_by_page);
            self.nodes_by_page = Some(nodes_by_page);
        }
    }

    fn build_page_index(&mut self) -> AddressMap<Vec<u32>> {
        let mut nodes_by_page = AddressMap::default();
        let nodes = self.nodes.iter().zip(0..);
        let live = nodes.filter(|(node, _)| node.end != NodeEnd::Dead);
        self.page_entries = live
            .map(|(_, index)| self.add_node_to_its_pages(index, &mut nodes_by_page))
            .sum();
        nodes_by_page
    }

    /// Adds a node to the pages that it touches. Returns their number.
    fn add_node_to_its_pages(&self, index: u32, nodes_by_page: &mut AddressMap<Vec<u32>>) -> usize {
        let mut added = 0;
        let node = self.node_at(index);
        // the last instruction may reach into the next page
        let end_of = |range: &CodeRange| range.last.saturating_add(MAX_LENGTH as u64);
        let code_ranges = self.code_ranges(node).iter();
        let bytes = code_ranges.map(|range| (range.start, end_of(range)));
        for (start, end) in bytes.chain(bytes_that_may_extend_node(node)) {
            for page in start >> PAGE_SHIFT..=(end - 1) >> PAGE_SHIFT {
                let nodes: &mut Vec<u32> = nodes_by_page.entry(page).or_default();
                if nodes.last() != Some(&index) {
                    nodes.push(index);
                    added += 1;
                }
            }
        }
        added
    }

    /// Marks the nodes dead that overlap `start..end`, or end where there was no instruction.
    fn mark_overlapping_nodes_dead(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        let (first, last) = (start >> PAGE_SHIFT, (end - 1) >> PAGE_SHIFT);
        let index = self.nodes_by_page.take();
        let mut nodes_by_page = index.unwrap_or_else(|| self.build_page_index());
        let pages: Vec<u64> = if last - first < nodes_by_page.len() as u64 {
            (first..=last)
                .filter(|page| nodes_by_page.contains_key(page))
                .collect()
        } else {
            let all = nodes_by_page.keys().copied();
            all.filter(|page| (first..=last).contains(page)).collect()
        };
        for page in pages {
            let mut here = nodes_by_page.remove(&page).unwrap_or_default();
            let before = here.len();
            here.retain(|&index| {
                let node = &self.nodes[index as usize];
                if node.end == NodeEnd::Dead {
                    return false;
                }
                let hit = self.code_ranges(node).iter().any(|code_range| {
                    let length = self
                        .instruction_lengths(code_range)
                        .last()
                        .copied()
                        .unwrap_or(0);
                    code_range.start < end && code_range.last.saturating_add(length.into()) > start
                });
                let hit = hit
                    || bytes_that_may_extend_node(node)
                        .is_some_and(|(from, to)| from < end && to > start);
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
