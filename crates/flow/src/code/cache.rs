//! The nodes of one view, by address.

use std::mem::{size_of, size_of_val};

use rtit_image::{Changed, View};
use rtit_x86::Mode;

use super::node::{Call, Node, Piece, Place, NO_NODE};
use crate::error::Cause;
use crate::hash::{self, AddressMap};
use crate::sink::{End, Sequence};

const TARGETS: usize = 1 << 9;

/// What a list takes beside twice what is in it, in bytes.
const LIST: usize = 32;

/// Bytes in use of a vector.
fn of<T>(vector: &Vec<T>) -> usize {
    size_of_val(vector.as_slice())
}

/// Bytes of a hash table for each entry that it has room for: seven in eight are used, and a byte is kept of each.
const fn table_entry<V>() -> usize {
    (size_of::<(u64, V)>() + 1) * 8 / 7
}

/// The decoded code of one view.
pub(crate) struct Code {
    pub(super) nodes: Vec<Node>,
    pub(super) pieces: Vec<Piece>,
    pub(super) lengths: Vec<u8>,
    pub(super) calls: Vec<Call>,
    /// Nodes that died since `take_dead`.
    pub(super) dead: Vec<u32>,
    pub(super) by_start: [AddressMap<u32>; 3],
    /// Nodes by the pages that they touch, from the first change of code on.
    pub(super) by_page: Option<AddressMap<Vec<u32>>>,
    /// How many numbers of nodes `by_page` has.
    pub(super) paged: usize,
    /// (source node, target address) -> node of the last indirect transfers.
    targets: Vec<(u32, u32, u64)>,
    /// In bytes.
    limit: usize,
    /// The number of the address space.
    space: u32,
}

impl Code {
    pub fn new(limit: usize, space: u32) -> Code {
        Code {
            nodes: Vec::new(),
            pieces: Vec::new(),
            lengths: Vec::new(),
            calls: Vec::new(),
            dead: Vec::new(),
            by_start: Default::default(),
            by_page: None,
            paged: 0,
            targets: Vec::new(),
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
        let starts: usize = self.by_start.iter().map(AddressMap::capacity).sum();
        let pages = self.by_page.as_ref().map_or(0, AddressMap::capacity);
        of(&self.nodes)
            + of(&self.pieces)
            + of(&self.lengths)
            + of(&self.calls)
            + of(&self.targets)
            + of(&self.dead)
            + starts * table_entry::<u32>()
            + pages * (table_entry::<Vec<u32>>() + LIST)
            + self.paged * 2 * size_of::<u32>()
    }

    /// Whether it may take the place of `empty`.
    pub fn is_for(&self, empty: &Code) -> bool {
        (self.limit, self.space) == (empty.limit, empty.space)
    }

    /// Whether the cache has outgrown its limit and should be emptied at the next packet.
    pub fn is_over_limit(&self) -> bool {
        self.size() > self.limit
    }

    /// Forgets everything. Indices become invalid.
    pub fn clear(&mut self) {
        *self = Code::new(self.limit, self.space);
    }

    #[inline]
    pub fn node(&self, index: u32) -> &Node {
        &self.nodes[index as usize]
    }

    #[inline]
    pub fn node_mut(&mut self, index: u32) -> &mut Node {
        &mut self.nodes[index as usize]
    }

    #[inline]
    pub fn pieces(&self, node: &Node) -> &[Piece] {
        let first = node.first_piece as usize;
        &self.pieces[first..first + usize::from(node.pieces)]
    }

    /// Where the flow goes from a piece of a node that ends in a direct jump or call.
    pub fn after_piece(&self, node: &Node, index: usize) -> u64 {
        self.pieces(node)
            .get(index + 1)
            .map_or(node.next, |next| next.start)
    }

    /// Address of the last instruction of a node.
    pub fn last_ip(&self, node: &Node) -> u64 {
        self.pieces(node)
            .last()
            .map_or(node.start, |piece| piece.last)
    }

    #[inline]
    pub fn calls(&self, node: &Node) -> (u32, &[Call]) {
        let first = node.first_call as usize;
        (
            node.first_call,
            &self.calls[first..first + usize::from(node.calls)],
        )
    }

    #[inline]
    pub fn call(&self, site: u32) -> Option<&Call> {
        self.calls.get(site as usize)
    }

    /// A call site that no node has, for an address after a call.
    pub fn add_site(&mut self, return_ip: u64) -> u32 {
        self.calls.push(Call {
            return_ip,
            node: NO_NODE,
            piece: 0,
        });
        self.calls.len() as u32 - 1
    }

    pub fn call_mut(&mut self, site: u32) -> Option<&mut Call> {
        self.calls.get_mut(site as usize)
    }

    #[inline]
    pub fn sequence(&self, piece: &Piece, mode: Mode) -> Sequence<'_> {
        Sequence {
            start: piece.start,
            last: piece.last,
            lengths: self.lengths(piece),
            hash: piece.hash,
            factor: piece.factor,
            mode,
            space: self.space,
        }
    }

    /// The first `count` instructions of a piece; `count` is at least 1 and at most all.
    pub fn prefix(&self, piece: &Piece, count: usize, mode: Mode) -> Sequence<'_> {
        let lengths = self.lengths(piece);
        let lengths = &lengths[..count.min(lengths.len())];
        let (hash, factor) = hash::of_sequence(piece.start, lengths);
        let before = lengths.split_last().map_or(&[][..], |(_, before)| before);
        let last = before
            .iter()
            .fold(piece.start, |ip, &length| ip.wrapping_add(length.into()));
        Sequence {
            start: piece.start,
            last,
            lengths,
            hash,
            factor,
            mode,
            space: self.space,
        }
    }

    #[inline]
    pub(super) fn lengths(&self, piece: &Piece) -> &[u8] {
        let first = piece.first_length as usize;
        &self.lengths[first..first + piece.count as usize]
    }

    /// The node that starts at `ip`, decoded now if it is new.
    pub fn lookup(&mut self, view: &View, ip: u64, mode: Mode) -> Result<u32, Cause> {
        match self.by_start[mode as usize].get(&ip) {
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
        if self.targets.is_empty() {
            self.targets = vec![(NO_NODE, NO_NODE, 0); TARGETS];
        }
        let slot = (hash::mix(ip) ^ u64::from(from).wrapping_mul(hash::K) >> 40) as usize % TARGETS;
        let (source, node, target) = self.targets[slot];
        if source == from && target == ip && self.node(node).mode == mode {
            return Ok(node);
        }
        let node = self.lookup(view, ip, mode)?;
        self.targets[slot] = (from, node, ip);
        Ok(node)
    }

    /// Where the instruction at `ip` is in a node, if the node runs through it. First occurrence.
    pub fn find(&self, node: &Node, ip: u64) -> Option<Place> {
        self.pieces(node)
            .iter()
            .enumerate()
            .find_map(|(index, piece)| {
                if ip < piece.start || ip > piece.last {
                    return None;
                }
                let mut at = piece.start;
                let instructions = self.lengths(piece).iter().position(|&length| {
                    let here = at == ip;
                    at = at.wrapping_add(length.into());
                    here
                })?;
                Some(Place {
                    pieces: index,
                    instructions,
                })
            })
    }

    /// The place and the address of a node's instruction number `index`, counted from 0.
    pub fn nth(&self, node: &Node, index: u64) -> Option<(Place, u64)> {
        let mut left = usize::try_from(index).ok()?;
        for (pieces, piece) in self.pieces(node).iter().enumerate() {
            let lengths = self.lengths(piece);
            if let Some(before) = lengths.get(..left).filter(|_| left < lengths.len()) {
                let bytes: u64 = before.iter().map(|&length| u64::from(length)).sum();
                let place = Place {
                    pieces,
                    instructions: left,
                };
                return Some((place, piece.start.wrapping_add(bytes)));
            }
            left -= lengths.len();
        }
        None
    }

    /// How many pieces of a node run until a direct jump or call goes to `target`.
    pub fn find_transfer(&self, node: &Node, target: u64) -> Option<usize> {
        let pieces = self.pieces(node);
        pieces.iter().enumerate().find_map(|(index, piece)| {
            let goes_to = pieces.get(index + 1).map_or(node.next, |next| next.start);
            (piece.end != End::Cut && goes_to == target).then_some(index + 1)
        })
    }

    /// How many pieces of a node run until a direct jump or call goes to where `leaves` holds.
    pub fn find_leaving(&self, node: &Node, leaves: impl Fn(u64) -> bool) -> Option<usize> {
        let pieces = self.pieces(node);
        pieces.iter().enumerate().find_map(|(index, piece)| {
            let to = pieces.get(index + 1).map_or(node.next, |next| next.start);
            (piece.end != End::Cut && leaves(to)).then_some(index + 1)
        })
    }

    /// The nodes that died since this was last asked.
    pub fn take_dead(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.dead)
    }

    /// Drops what `changed` says; if that is all, indices are no longer valid.
    pub fn forget(&mut self, changed: &Changed) {
        match changed {
            Changed::None => {}
            Changed::All => self.clear(),
            Changed::Ranges(ranges) => {
                for &(start, end) in ranges {
                    self.kill(start, end);
                }
            }
        }
    }
}
