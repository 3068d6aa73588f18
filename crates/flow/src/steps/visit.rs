//! What a step runs through: the nodes, and how each ends.

use std::ops::Range;

use super::how::How;
use super::weight::Weight;
use crate::code::{Code, Node};
use crate::sink::{End, Placed, Room, Sink, Step, Steps};

const PASS: u32 = 0;
const NOT_TAKEN: u32 = 1;
const TAKEN: u32 = 2;
const RETURNED: u32 = 3;
const TIP: u32 = 4;
const TIP_RETURN: u32 = 5;
/// No node: what follows comes from a later packet of a phrase, which begins so many bytes behind the first.
const PACKET: u32 = 6;
const BITS: u32 = 3;

/// Nodes beyond this have no number in a list of visits.
pub(super) const MAX_NODE: u32 = (1 << (32 - BITS)) - 1;

#[derive(Clone, Copy, Debug)]
struct Entry {
    first: u32,
    rows: u32,
    weight: Weight,
}

/// The visits of all steps, by the step's number.
#[derive(Default)]
pub(crate) struct Visits {
    words: Vec<u32>,
    steps: Vec<Entry>,
    most_rows: usize,
    most_instructions: usize,
}

impl Visits {
    /// How much is kept, about in words.
    pub fn size(&self) -> usize {
        self.words.len() + 5 * self.steps.len()
    }

    /// How many steps have numbers.
    pub fn len(&self) -> usize {
        self.steps.len()
    }

    /// How many steps may come: before the last of them there certainly is room left.
    pub fn fitting(&self, room: Room) -> usize {
        let rows = room.rows.div_ceil(self.most_rows.max(1));
        rows.min(room.instructions.div_ceil(self.most_instructions.max(1)))
    }

    /// What these leave of the room, at least.
    pub fn left(&self, mut room: Room, steps: impl Iterator<Item = u32>) -> Room {
        for step in steps {
            let Entry { rows, weight, .. } = self.steps[step as usize];
            room.rows = room.rows.saturating_sub(rows as usize);
            let instructions = weight.instructions as usize;
            room.instructions = room.instructions.saturating_sub(instructions);
        }
        room
    }

    pub fn clear(&mut self) {
        *self = Visits::default();
    }

    /// Keeps the visits of a step and gives its number.
    pub fn add(&mut self, code: &Code, visits: &[(u32, How)]) -> u32 {
        let mut weight = Weight::default();
        let first = self.words.len() as u32;
        let mut rows = 0;
        for &(node, how) in visits {
            weight.count(code.node(node).instructions, how);
            rows += code.pieces(code.node(node)).len() + 1;
            let (tag, more): (u32, &[u32]) = match how {
                How::Pass => (PASS, &[]),
                How::NotTaken => (NOT_TAKEN, &[]),
                How::Taken => (TAKEN, &[]),
                How::Returned(site) => (RETURNED, &[site]),
                How::Tip(ip) => (TIP, &[ip as u32, (ip >> 32) as u32]),
                How::TipReturn(ip) => (TIP_RETURN, &[ip as u32, (ip >> 32) as u32]),
            };
            self.words.push(node << BITS | tag);
            self.words.extend_from_slice(more);
        }
        self.number(first, rows, weight)
    }

    /// Keeps steps as one and gives its number. With each step where its packet begins, in bytes behind the first.
    pub fn join(&mut self, steps: &[(u32, u8)]) -> u32 {
        let first = self.words.len() as u32;
        let (mut rows, mut weight, mut packet) = (0, Weight::default(), 0);
        for &(step, place) in steps {
            if place != packet {
                packet = place;
                self.words.push(u32::from(place) << BITS | PACKET);
            }
            rows += self.rows(step);
            weight.add(self.weight(step));
            let words = self.words_of(step);
            // the last step so far is followed by what is written here
            self.words
                .extend_from_within(words.start..words.end.min(first as usize));
        }
        self.number(first, rows, weight)
    }

    fn number(&mut self, first: u32, rows: usize, weight: Weight) -> u32 {
        self.most_rows = self.most_rows.max(rows);
        self.most_instructions = self.most_instructions.max(weight.instructions as usize);
        let rows = rows as u32;
        self.steps.push(Entry {
            first,
            rows,
            weight,
        });
        self.steps.len() as u32 - 1
    }

    /// How many rows a step makes, at most.
    pub fn rows(&self, step: u32) -> usize {
        self.steps[step as usize].rows as usize
    }

    fn words_of(&self, step: u32) -> Range<usize> {
        let first = self.steps[step as usize].first as usize;
        let next = self.steps.get(step as usize + 1);
        first..next.map_or(self.words.len(), |next| next.first as usize)
    }

    #[inline(always)]
    pub fn weight(&self, step: u32) -> Weight {
        self.steps[step as usize].weight
    }

    /// The nodes of a step in order.
    pub fn of(&self, step: u32) -> impl Iterator<Item = (u32, How)> + '_ {
        self.with_packets(step).map(|(_, node, how)| (node, how))
    }

    /// As `of`, each with where its packet begins, in bytes behind the first.
    fn with_packets(&self, step: u32) -> impl Iterator<Item = (u32, u32, How)> + '_ {
        let mut words = self.words[self.words_of(step)].iter().copied();
        let mut place = 0;
        std::iter::from_fn(move || {
            let mut word = words.next()?;
            while word & ((1 << BITS) - 1) == PACKET {
                place = word >> BITS;
                word = words.next()?;
            }
            let mut wide = || {
                let low = u64::from(words.next().unwrap_or(0));
                low | u64::from(words.next().unwrap_or(0)) << 32
            };
            let how = match word & ((1 << BITS) - 1) {
                PASS => How::Pass,
                NOT_TAKEN => How::NotTaken,
                TAKEN => How::Taken,
                TIP => How::Tip(wide()),
                TIP_RETURN => How::TipReturn(wide()),
                _ => How::Returned(words.next().unwrap_or(0)),
            };
            Some((place, word >> BITS, how))
        })
    }
}

/// Steps that were taken one after the other.
pub(crate) struct Taken<'a> {
    pub placed: &'a [Placed],
    pub epoch: u32,
    pub code: &'a Code,
    pub visits: &'a Visits,
}

impl Steps for Taken<'_> {
    fn epoch(&self) -> u32 {
        self.epoch
    }

    fn placed(&self) -> &[Placed] {
        self.placed
    }

    fn space(&self) -> u32 {
        self.code.space()
    }

    fn step(&self, placed: Placed) -> impl Step {
        One {
            placed,
            taken: self,
        }
    }
}

/// One of them.
struct One<'a> {
    placed: Placed,
    taken: &'a Taken<'a>,
}

impl One<'_> {
    /// Where the transfer at the end of a node went, and what it is.
    fn transfer(&self, node: &Node, how: How) -> (u64, End) {
        match how {
            How::Pass | How::NotTaken => (node.next, End::Cut),
            How::Taken => (node.target, End::Conditional),
            How::Returned(site) => {
                let call = self.taken.code.call(site);
                let ip = call.map_or(0, |call| call.return_ip);
                (node.mode.truncate(ip), End::Return)
            }
            How::Tip(ip) => (ip, node.end),
            How::TipReturn(ip) => (ip, End::Return),
        }
    }
}

impl Step for One<'_> {
    fn number(&self) -> u32 {
        self.placed.number
    }

    fn epoch(&self) -> u32 {
        self.taken.epoch
    }

    fn offset(&self) -> u64 {
        self.placed.offset
    }

    fn times(&self) -> (u64, u64) {
        self.placed.times
    }

    #[inline]
    fn replay_at<S: Sink>(&self, (mut time, after): (u64, u64), sink: &mut S) {
        let (code, mut offset) = (self.taken.code, self.placed.offset);
        sink.packet(offset);
        for (place, index, how) in self.taken.visits.with_packets(self.placed.number) {
            let packet = self.placed.offset + u64::from(place);
            if packet != offset {
                offset = packet;
                sink.packet(offset);
            }
            let node = code.node(index);
            for (at, piece) in code.pieces(node).iter().enumerate() {
                sink.append(&code.sequence(piece, node.mode), time);
                if piece.end != End::Cut {
                    sink.close(piece.end, offset);
                    if S::EDGES {
                        sink.edge(piece.last, code.after_piece(node, at), piece.end);
                    }
                }
            }
            match how {
                How::Pass => continue,
                How::NotTaken => {}
                How::Taken => sink.close(End::Conditional, offset),
                How::Returned(_) | How::TipReturn(_) => sink.close(End::Return, offset),
                How::Tip(_) => sink.close(node.end, offset),
            }
            if S::EDGES {
                let (to, kind) = self.transfer(node, how);
                sink.edge(code.last_ip(node), to, kind);
            }
            time = after;
        }
    }
}
