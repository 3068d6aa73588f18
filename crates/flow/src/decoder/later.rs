//! What a sink that is full is told later: a packet may stand for more instructions than memory has room for.
//!
//! A decoder never asks what became of what it told. So it takes a packet whole, and once the sink is full, it keeps what
//! it would have told of that packet, the way through code as a few numbers (`Ahead`). No packet is taken before all of
//! the last one has been told.

use std::collections::VecDeque;

use rtit_x86::Mode;

use crate::ahead::Ahead;
use crate::event::Event;
use crate::sink::{End, Room, Sequence, Sink, Step, Steps, Wants};
use crate::watch::Watched;

/// A call of the sink's method of this name.
#[derive(Clone, PartialEq, Debug)]
enum Told {
    Run(Box<Ahead>),
    Append(Box<Owned>, u64),
    Close(End, u64),
    Edge(u64, u64, End),
    Landed(u32),
    Event(Box<Event>),
    Repeats(Box<[u64]>),
    Advance(u64),
}

/// A `Sequence`: of a node, so that it is short.
#[derive(Clone, PartialEq, Debug)]
struct Owned {
    start: u64,
    last: u64,
    lengths: Box<[u8]>,
    hash: u64,
    factor: u64,
    mode: Mode,
    space: u32,
}

impl Owned {
    fn of(sequence: &Sequence<'_>) -> Owned {
        let &Sequence {
            start,
            last,
            lengths,
            hash,
            factor,
            mode,
            space,
        } = sequence;
        Owned {
            start,
            last,
            lengths: lengths.into(),
            hash,
            factor,
            mode,
            space,
        }
    }

    fn sequence(&self) -> Sequence<'_> {
        let &Owned {
            start,
            last,
            ref lengths,
            hash,
            factor,
            mode,
            space,
        } = self;
        Sequence {
            start,
            last,
            lengths,
            hash,
            factor,
            mode,
            space,
        }
    }
}

#[derive(Clone, PartialEq, Default, Debug)]
pub(crate) struct Later {
    /// In its order, the way through code first.
    all: VecDeque<Told>,
    /// Offset of the packet.
    packet: u64,
}

impl Later {
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Tells a sink until it is full; whether of all.
    pub fn tell<S: Sink>(&mut self, sink: &mut S, watched: &mut Watched) -> bool {
        if self.is_empty() {
            return true;
        }
        // it may be another sink
        sink.packet(self.packet);
        while let Some(first) = self.all.front_mut() {
            // where an edge led is told before its row is taken
            if sink.is_full() && !matches!(first, Told::Landed(_)) {
                return false;
            }
            match first {
                Told::Run(ahead) => {
                    if !ahead.tell(sink, watched) {
                        return false;
                    }
                }
                Told::Append(owned, time) => sink.append(&owned.sequence(), *time),
                Told::Close(end, offset) => sink.close(*end, *offset),
                Told::Edge(from, to, kind) => sink.edge(*from, *to, *kind),
                Told::Landed(space) => sink.landed(*space),
                Told::Event(event) => sink.event(event),
                Told::Repeats(round) => sink.repeats(round),
                Told::Advance(time) => sink.advance(*time),
            }
            self.all.pop_front();
        }
        self.packet = 0;
        true
    }

    /// Tells a sink of all there is, however full it is: the stream has ended, and no way goes on.
    pub fn tell_the_end<S: Sink>(&mut self, sink: &mut S, watched: &mut Watched) {
        if !self.is_empty() {
            self.tell(&mut Patient(sink), watched);
        }
    }
}

/// Stands before a sink that takes what there is.
struct Patient<'a, S>(&'a mut S);

impl<S: Sink> Sink for Patient<'_, S> {
    fn packet(&mut self, offset: u64) {
        self.0.packet(offset);
    }

    fn append(&mut self, sequence: &Sequence<'_>, time: u64) {
        self.0.append(sequence, time);
    }

    fn close(&mut self, end: End, offset: u64) {
        self.0.close(end, offset);
    }

    fn edge(&mut self, from: u64, to: u64, kind: End) {
        self.0.edge(from, to, kind);
    }

    fn landed(&mut self, space: u32) {
        self.0.landed(space);
    }

    fn event(&mut self, event: &Event) {
        self.0.event(event);
    }

    fn repeats(&mut self, round: &[u64]) {
        self.0.repeats(round);
    }

    fn advance(&mut self, time: u64) {
        self.0.advance(time);
    }
}

/// Stands before a sink while packets are taken.
pub(super) struct Gate<'a, S> {
    pub sink: &'a mut S,
    pub later: &'a mut Later,
    /// Offset of the packet at work.
    pub packet: u64,
}

impl<S> Gate<'_, S> {
    #[cold]
    fn keep(&mut self, told: Told) {
        if self.later.is_empty() {
            self.later.packet = self.packet;
        }
        self.later.all.push_back(told);
    }
}

macro_rules! pass {
    ($gate:ident, $now:expr, $later:expr) => {
        if $gate.later.is_empty() && !$gate.sink.is_full() {
            $now
        } else {
            $gate.keep($later)
        }
    };
}

impl<S: Sink> Sink for Gate<'_, S> {
    const EDGES: bool = S::EDGES;
    const WANTS: Wants = S::WANTS;
    const PLACES: bool = S::PLACES;
    const HOLDS: bool = true;

    #[inline]
    fn packet(&mut self, offset: u64) {
        self.packet = offset;
        self.sink.packet(offset);
    }

    #[inline]
    fn append(&mut self, sequence: &Sequence<'_>, time: u64) {
        pass!(
            self,
            self.sink.append(sequence, time),
            Told::Append(Owned::of(sequence).into(), time)
        );
    }

    #[inline]
    fn close(&mut self, end: End, offset: u64) {
        pass!(self, self.sink.close(end, offset), Told::Close(end, offset));
    }

    #[inline]
    fn edge(&mut self, from: u64, to: u64, kind: End) {
        pass!(
            self,
            self.sink.edge(from, to, kind),
            Told::Edge(from, to, kind)
        );
    }

    fn landed(&mut self, space: u32) {
        // it is said of an edge that the sink has already, though that may have made it full
        if self.later.is_empty() {
            self.sink.landed(space);
        } else {
            self.keep(Told::Landed(space));
        }
    }

    fn event(&mut self, event: &Event) {
        pass!(self, self.sink.event(event), Told::Event((*event).into()));
    }

    fn repeats(&mut self, round: &[u64]) {
        pass!(self, self.sink.repeats(round), Told::Repeats(round.into()));
    }

    fn advance(&mut self, time: u64) {
        pass!(self, self.sink.advance(time), Told::Advance(time));
    }

    // steps come between packets: nothing is kept then

    #[inline]
    fn step(&mut self, step: &impl Step) {
        self.sink.step(step);
    }

    #[inline]
    fn steps(&mut self, steps: &impl Steps) {
        self.sink.steps(steps);
    }

    #[inline]
    fn hits(&mut self, step: &impl Step, times: u64) {
        self.sink.hits(step, times);
    }

    fn edge_times(&mut self, from: u64, to: u64, kind: End, times: u64) {
        self.sink.edge_times(from, to, kind, times);
    }

    #[inline]
    fn room(&self) -> Room {
        self.sink.room()
    }

    #[cold]
    fn hold_back(&mut self, ahead: Ahead) {
        self.keep(Told::Run(ahead.into()));
    }

    #[inline]
    fn is_full(&self) -> bool {
        !self.later.is_empty() || self.sink.is_full()
    }
}
