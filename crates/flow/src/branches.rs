//! Branches one by one, in order.

use crate::event::Event;
use crate::sink::{End, Sequence, Sink};

/// The sink that lists branches and other transfers, as columns of one length.
#[derive(Clone, Debug, Default)]
pub struct Branches {
    /// IP of the instruction.
    pub from: Vec<u64>,
    /// Where it went.
    pub to: Vec<u64>,
    /// `End` as a number; that of `Cut` is a conditional branch that was not taken.
    pub kind: Vec<u8>,
    /// TSC estimate, a lower bound.
    pub time: Vec<u64>,
    /// Of the packet that told of it, if `places`.
    pub offset: Vec<u64>,
    places: bool,
    /// Decoding pauses when this many wait.
    pub limit: usize,
    now: u64,
    packet: u64,
}

impl Branches {
    /// `places`: offsets are wanted.
    pub fn new(places: bool) -> Branches {
        Branches {
            places,
            ..Branches::default()
        }
    }

    /// What has been gathered.
    pub fn take(&mut self) -> Branches {
        let next = Branches {
            limit: self.limit,
            places: self.places,
            packet: self.packet,
            now: self.now,
            ..Branches::default()
        };
        std::mem::replace(self, next)
    }
}

impl Sink for Branches {
    const EDGES: bool = true;

    fn packet(&mut self, offset: u64) {
        self.packet = offset;
    }

    fn append(&mut self, _sequence: &Sequence<'_>, time: u64) {
        self.now = time;
    }

    fn close(&mut self, _end: End, _offset: u64) {}

    fn edge(&mut self, from: u64, to: u64, kind: End) {
        self.from.push(from);
        self.to.push(to);
        self.kind.push(kind as u8);
        self.time.push(self.now);
        if self.places {
            self.offset.push(self.packet);
        }
    }

    fn event(&mut self, _event: &Event) {}

    fn is_full(&self) -> bool {
        self.from.len() >= self.limit
    }
}
