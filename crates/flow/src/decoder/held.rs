//! Events whose place a later packet tells.

use crate::event::{Event, EventKind};
use crate::sink::Sink;

/// More of one event than any has: an EVD of each type, a block of all registers.
const MOST: usize = 256;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Held {
    events: Vec<Event>,
    /// The last MODE.TSX that applies at the next IP packet (Table 33-27).
    arriving: Option<Event>,
    /// Where the power event is that goes on.
    power: Option<u64>,
}

/// The kind of packet by whose FUP an event is placed.
fn placed_by(kind: EventKind) -> Option<EventKind> {
    match kind {
        EventKind::BlockBegin | EventKind::BlockItem => Some(EventKind::BlockEnd),
        EventKind::Mwait | EventKind::Pwre => Some(EventKind::ExStop),
        EventKind::Evd => Some(EventKind::Cfe),
        _ => None,
    }
}

impl Held {
    /// Whether a packet of this kind may be one of those that are waited for.
    pub fn goes_with(kind: EventKind) -> bool {
        placed_by(kind).is_some() || Held::places(kind)
    }

    /// Whether packets of this kind place others.
    pub fn places(kind: EventKind) -> bool {
        matches!(
            kind,
            EventKind::BlockEnd | EventKind::ExStop | EventKind::Cfe
        )
    }

    /// What may still be so somewhat later in the stream.
    pub fn sometime_later(&self) -> Held {
        Held {
            power: self.power,
            ..Held::default()
        }
    }

    /// No event waits for the next packet.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Keeps an event that another will place; gives it back if it needs not wait.
    pub fn keep(&mut self, mut event: Event) -> Option<Event> {
        match event.kind {
            EventKind::Pwre => event.ip = self.power.unwrap_or(0),
            // of the PWRE before it (Table 33-44)
            EventKind::Pwrx => event.ip = self.power.take().unwrap_or(0),
            _ => {}
        }
        let known = event.kind == EventKind::Pwre && event.ip != 0;
        if known || placed_by(event.kind).is_none() || self.events.len() >= MOST {
            return Some(event);
        }
        self.events.push(event);
        None
    }

    /// `by` came, with its place; without one `ip` is 0.
    pub fn release<S: Sink>(&mut self, by: Option<EventKind>, ip: u64, sink: &mut S) {
        for mut event in self.events.drain(..) {
            let numbers = matches!(event.kind, EventKind::BlockItem | EventKind::Evd);
            if !numbers && placed_by(event.kind) == by {
                event.ip = ip;
                self.power = matches!(event.kind, EventKind::Pwre)
                    .then_some(ip)
                    .filter(|&ip| ip != 0)
                    .or(self.power);
            }
            sink.event(&event);
        }
    }

    /// A MODE.TSX that applies at the next IP packet; it replaces one before it.
    pub fn arrive_with(&mut self, event: Event) {
        self.arriving = Some(event);
    }

    /// The IP packet came.
    pub fn arrive<S: Sink>(&mut self, ip: u64, sink: &mut S) {
        if let Some(event) = self.arriving.take() {
            sink.event(&Event { ip, ..event });
        }
    }

    /// What was waited for is lost.
    pub fn lose<S: Sink>(&mut self, sink: &mut S) {
        self.release(None, 0, sink);
        self.arrive(0, sink);
        self.power = None;
    }
}
