//! The code cache: decoded code as nodes, by address.
//!
//! A [`CodeNode`] is a superblock: instructions that run together up to the next one that may need a packet
//! ([`NodeEnd`]). Direct jumps and calls are followed within the node; each contiguous stretch of memory in it is a
//! `CodeRange`. Nodes are built when execution first arrives (`builder`), and links between them are filled on first
//! use, so that following a known path takes no lookup.
//!
//! When code changes, nodes that overlap it become `NodeEnd::Dead` (`invalidation`). Links to them stay; whoever
//! arrives at a dead node looks its address up again. A cache above its limit is emptied at the next packet, after
//! which indices are invalid. A finished stream hands its cache to the next one over the same code (`pool`).

mod builder;
mod invalidation;
mod node;
mod pool;

pub(crate) use self::node::{CodeNode, NodeEnd, NodePosition, NO_NODE};
use self::node::{CodeRange, NearCall};
pub use self::pool::CodeCachePool;
use crate::error::Cause;
use crate::hash::{self, AddressMap};
use crate::sink::{RunEnd, RunFragment, Sink};
use rtit_image::{Changed, View};
use rtit_x86::Mode;
use std::mem::{size_of, size_of_val};

const INDIRECT_TARGETS: usize = 1 << 9;

/// What a list takes beside twice what is in it, in bytes.
const VECTOR_OVERHEAD: usize = 32;

/// Bytes in use of a vector.
fn bytes_in_use<T>(vector: &Vec<T>) -> usize {
    size_of_val(vector.as_slice())
}

/// Bytes of a hash table for each entry that it has room for: seven in eight are used, and a byte is kept of each.
const fn table_entry<V>() -> usize {
    (size_of::<(u64, V)>() + 1) * 8 / 7
}

/// The decoded code of one view.
pub(crate) struct CodeCache {
    nodes: Vec<CodeNode>,
    code_ranges: Vec<CodeRange>,
    lengths: Vec<u8>,
    calls: Vec<NearCall>,
    /// Nodes that died since `take_dead_nodes`.
    dead: Vec<u32>,
    nodes_by_start: [AddressMap<u32>; 3],
    /// Nodes by the pages that they touch, from the first change of code on.
    nodes_by_page: Option<AddressMap<Vec<u32>>>,
    /// How many numbers of nodes `nodes_by_page` has.
    page_entries: usize,
    /// (source node, target address) -> node of the last indirect transfers.
    indirect_targets: Vec<(u32, u32, u64)>,
    /// In bytes.
    limit: usize,
    /// The number of the address space.
    space: u32,
}

impl CodeCache {
    pub fn new(limit: usize, space: u32) -> CodeCache {
        CodeCache {
            nodes: Vec::new(),
            code_ranges: Vec::new(),
            lengths: Vec::new(),
            calls: Vec::new(),
            dead: Vec::new(),
            nodes_by_start: Default::default(),
            nodes_by_page: None,
            page_entries: 0,
            indirect_targets: Vec::new(),
            limit,
            space,
        }
    }

    /// The number of the address space.
    pub fn space(&self) -> u32 {
        self.space
    }

    /// Whether nothing is known.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty() && self.calls.is_empty()
    }

    /// Bytes that are in use: what is written of vectors, which the system gives page by page, and whole hash tables.
    pub fn size(&self) -> usize {
        let starts: usize = self.nodes_by_start.iter().map(AddressMap::capacity).sum();
        let build_page_index = self.nodes_by_page.as_ref().map_or(0, AddressMap::capacity);
        bytes_in_use(&self.nodes)
            + bytes_in_use(&self.code_ranges)
            + bytes_in_use(&self.lengths)
            + bytes_in_use(&self.calls)
            + bytes_in_use(&self.indirect_targets)
            + bytes_in_use(&self.dead)
            + starts * table_entry::<u32>()
            + build_page_index * (table_entry::<Vec<u32>>() + VECTOR_OVERHEAD)
            + self.page_entries * 2 * size_of::<u32>()
    }

    /// Whether it may take the place of `empty`.
    pub fn has_same_limits_as(&self, empty: &CodeCache) -> bool {
        (self.limit, self.space) == (empty.limit, empty.space)
    }

    /// Whether the cache has outgrown its limit and should be emptied at the next packet.
    pub fn is_over_limit(&self) -> bool {
        self.size() > self.limit
    }

    /// Forgets everything. Indices become invalid.
    pub fn clear(&mut self) {
        *self = CodeCache::new(self.limit, self.space);
    }

    #[inline]
    pub fn node(&self, index: u32) -> &CodeNode {
        &self.nodes[index as usize]
    }

    #[inline]
    pub fn node_mut(&mut self, index: u32) -> &mut CodeNode {
        &mut self.nodes[index as usize]
    }

    #[inline]
    pub fn code_ranges(&self, node: &CodeNode) -> &[CodeRange] {
        let first = node.first_code_range as usize;
        &self.code_ranges[first..first + usize::from(node.code_ranges)]
    }

    /// Where the flow goes from a piece of a node that ends in a direct jump or call.
    pub fn target_after(&self, node: &CodeNode, index: usize) -> u64 {
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
    pub fn calls(&self, node: &CodeNode) -> (u32, &[NearCall]) {
        let first = node.first_call as usize;
        (
            node.first_call,
            &self.calls[first..first + usize::from(node.calls)],
        )
    }

    #[inline]
    pub fn call(&self, site: u32) -> Option<&NearCall> {
        self.calls.get(site as usize)
    }

    /// A call site that no node has, for an address after a call.
    pub fn add_site(&mut self, return_ip: u64) -> u32 {
        self.calls.push(NearCall {
            return_ip,
            node: NO_NODE,
            code_range: 0,
        });
        self.calls.len() as u32 - 1
    }

    pub fn call_mut(&mut self, site: u32) -> Option<&mut NearCall> {
        self.calls.get_mut(site as usize)
    }

    #[inline]
    pub fn fragment(&self, code_range: &CodeRange, mode: Mode) -> RunFragment<'_> {
        RunFragment {
            start: code_range.start,
            last: code_range.last,
            lengths: self.lengths(code_range),
            hash: code_range.hash,
            factor: code_range.factor,
            mode,
            space: self.space,
        }
    }

    /// The first `count` instructions of a piece; `count` is at least 1 and at most all.
    pub fn prefix(&self, code_range: &CodeRange, count: usize, mode: Mode) -> RunFragment<'_> {
        let lengths = self.lengths(code_range);
        let lengths = &lengths[..count.min(lengths.len())];
        let (hash, factor) = hash::hash_fragment(code_range.start, lengths);
        let before = lengths.split_last().map_or(&[][..], |(_, before)| before);
        let last = before.iter().fold(code_range.start, |ip, &length| {
            ip.wrapping_add(length.into())
        });
        RunFragment {
            start: code_range.start,
            last,
            lengths,
            hash,
            factor,
            mode,
            space: self.space,
        }
    }

    #[inline]
    fn lengths(&self, code_range: &CodeRange) -> &[u8] {
        let first = code_range.first_length as usize;
        &self.lengths[first..first + code_range.count as usize]
    }

    /// The node that starts at `ip`, decoded now if it is new.
    pub fn lookup(&mut self, view: &View, ip: u64, mode: Mode) -> Result<u32, Cause> {
        match self.nodes_by_start[mode as usize].get(&ip) {
            Some(&node) => Ok(node),
            None => self.build(view, ip, mode),
        }
    }

    /// As `lookup`, for the target of an indirect transfer at the end of `from`.
    #[inline]
    pub fn lookup_target(
        &mut self,
        view: &View,
        from: u32,
        ip: u64,
        mode: Mode,
    ) -> Result<u32, Cause> {
        if self.indirect_targets.is_empty() {
            self.indirect_targets = vec![(NO_NODE, NO_NODE, 0); INDIRECT_TARGETS];
        }
        let slot = (hash::mix(ip) ^ u64::from(from).wrapping_mul(hash::K) >> 40) as usize
            % INDIRECT_TARGETS;
        let (source, node, target) = self.indirect_targets[slot];
        if source == from && target == ip && self.node(node).mode == mode {
            return Ok(node);
        }
        let node = self.lookup(view, ip, mode)?;
        self.indirect_targets[slot] = (from, node, ip);
        Ok(node)
    }

    /// Where the instruction at `ip` is in a node, if the node runs through it. First occurrence.
    pub fn find(&self, node: &CodeNode, ip: u64) -> Option<NodePosition> {
        self.code_ranges(node)
            .iter()
            .enumerate()
            .find_map(|(index, code_range)| {
                if ip < code_range.start || ip > code_range.last {
                    return None;
                }
                let mut at = code_range.start;
                let instructions = self.lengths(code_range).iter().position(|&length| {
                    let here = at == ip;
                    at = at.wrapping_add(length.into());
                    here
                })?;
                Some(NodePosition {
                    code_ranges: index,
                    instructions,
                })
            })
    }

    /// The place and the address of a node's instruction number `index`, counted from 0.
    pub fn nth(&self, node: &CodeNode, index: u64) -> Option<(NodePosition, u64)> {
        let mut left = usize::try_from(index).ok()?;
        for (code_ranges, code_range) in self.code_ranges(node).iter().enumerate() {
            let lengths = self.lengths(code_range);
            if let Some(before) = lengths.get(..left).filter(|_| left < lengths.len()) {
                let bytes: u64 = before.iter().map(|&length| u64::from(length)).sum();
                let place = NodePosition {
                    code_ranges,
                    instructions: left,
                };
                return Some((place, code_range.start.wrapping_add(bytes)));
            }
            left -= lengths.len();
        }
        None
    }

    /// How many pieces of a node run until a direct jump or call goes to `target`.
    pub fn find_transfer_to(&self, node: &CodeNode, target: u64) -> Option<usize> {
        let code_ranges = self.code_ranges(node);
        code_ranges
            .iter()
            .enumerate()
            .find_map(|(index, code_range)| {
                let goes_to = code_ranges
                    .get(index + 1)
                    .map_or(node.next, |next| next.start);
                (code_range.run_end != RunEnd::Cut && goes_to == target).then_some(index + 1)
            })
    }

    /// How many pieces of a node run until a direct jump or call goes to where `leaves` holds.
    pub fn find_transfer_out(
        &self,
        node: &CodeNode,
        leaves: impl Fn(u64) -> bool,
    ) -> Option<usize> {
        let code_ranges = self.code_ranges(node);
        code_ranges
            .iter()
            .enumerate()
            .find_map(|(index, code_range)| {
                let to = code_ranges
                    .get(index + 1)
                    .map_or(node.next, |next| next.start);
                (code_range.run_end != RunEnd::Cut && leaves(to)).then_some(index + 1)
            })
    }

    /// The nodes that died since this was last asked.
    pub fn take_dead_nodes(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.dead)
    }

    /// Drops what `changed` says; if that is all, indices are no longer valid.
    pub fn invalidate(&mut self, changed: &Changed) {
        match changed {
            Changed::None => {}
            Changed::All => self.clear(),
            Changed::Ranges(ranges) => {
                for &(start, end) in ranges {
                    self.mark_dead(start, end);
                }
            }
        }
    }
}

impl CodeCache {
    /// The node itself, or the one that took its place.
    fn replace_dead(&mut self, view: &View, index: u32) -> Option<u32> {
        let node = self.node(index);
        match node.end {
            NodeEnd::Dead => self.lookup(view, node.start, node.mode).ok(),
            _ => Some(index),
        }
    }

    /// The node after one that lets the flow pass.
    pub fn node_after(&mut self, view: &View, index: u32) -> Option<u32> {
        self.node_after_branch(view, index, false)
    }

    /// The node after a conditional branch.
    pub fn node_after_branch(&mut self, view: &View, index: u32, taken: bool) -> Option<u32> {
        let node = self.node(index);
        let (link, ip, mode) = if taken {
            (node.taken, node.target, node.mode)
        } else {
            (node.fall, node.next, node.mode)
        };
        if link != NO_NODE {
            return self.replace_dead(view, link);
        }
        let next = self.lookup(view, ip, mode).ok()?;
        let node = self.node_mut(index);
        if taken {
            node.taken = next;
        } else {
            node.fall = next;
        }
        Some(next)
    }

    /// The node to which a RET at the end of `from` goes if its call was that of a site.
    pub fn return_node(&mut self, view: &View, from: u32, site: u32) -> Option<u32> {
        let mode = self.node(from).mode;
        let call = self.call(site)?;
        let (node, ip) = (call.node, mode.truncate(call.return_ip));
        if node != NO_NODE && self.node(node).mode == mode {
            return self.replace_dead(view, node);
        }
        let node = self.lookup(view, ip, mode).ok()?;
        if let Some(call) = self.call_mut(site) {
            call.node = node;
        }
        Some(node)
    }
}

impl CodeCache {
    /// Hands a whole node to a sink.
    #[inline]
    pub fn report_node<S: Sink>(&self, index: u32, time: u64, offset: u64, sink: &mut S) {
        let node = self.node(index);
        for (at, code_range) in self.code_ranges(node).iter().enumerate() {
            sink.extend_run(&self.fragment(code_range, node.mode), time);
            if code_range.run_end != RunEnd::Cut {
                sink.end_run(code_range.run_end, offset);
                if S::NEEDS_EDGES {
                    sink.edge(
                        code_range.last,
                        self.target_after(node, at),
                        code_range.run_end,
                    );
                }
            }
        }
    }

    /// Hands the beginning of a node to a sink.
    pub fn report_prefix<S: Sink>(
        &self,
        index: u32,
        place: NodePosition,
        time: u64,
        offset: u64,
        sink: &mut S,
    ) {
        let node = self.node(index);
        let code_ranges = self.code_ranges(node);
        for (at, code_range) in code_ranges.iter().take(place.code_ranges).enumerate() {
            sink.extend_run(&self.fragment(code_range, node.mode), time);
            sink.end_run(code_range.run_end, offset);
            if S::NEEDS_EDGES {
                sink.edge(
                    code_range.last,
                    self.target_after(node, at),
                    code_range.run_end,
                );
            }
        }
        if let (Some(code_range), true) =
            (code_ranges.get(place.code_ranges), place.instructions > 0)
        {
            sink.extend_run(
                &self.prefix(code_range, place.instructions, node.mode),
                time,
            );
        }
    }
}
