//! The clock alone, for packets that are not followed into code.

use rtit_packet::Kind;

use crate::points::{Point, Points};
use crate::time::{Clock, TimeSettings};

/// Takes the packets of a stream in order, as `rtit_packet::Columns` has them, and tells the time after each.
pub struct PacketClock {
    clock: Clock,
    in_group: bool,
    /// Tracing was turned off, and nothing has told since that it is on.
    off: bool,
}

impl PacketClock {
    /// `points`: what timing packets tell is wanted, too.
    pub fn new(settings: TimeSettings, points: bool) -> PacketClock {
        let mut clock = Clock::new(settings);
        clock.points = points.then(Points::default);
        PacketClock {
            clock,
            in_group: false,
            off: false,
        }
    }

    /// `offset`: of the packet in the stream.
    pub fn take(&mut self, kind: Kind, detail: u8, payload: u64, offset: u64) {
        match kind {
            Kind::Psb => self.in_group = true,
            Kind::PsbEnd => self.in_group = false,
            Kind::Fup | Kind::TipPge => self.off = false,
            Kind::TipPgd | Kind::TraceStop => self.off = true,
            Kind::Ovf => self.lose(),
            Kind::Pip => self.clock.in_guest = detail & 1 != 0,
            Kind::Tsc => {
                let counted = self.in_group && !self.off;
                if !counted {
                    self.clock.begin_span();
                }
                self.clock.tsc(payload, !counted);
            }
            Kind::Tma => self.clock.tma(payload as u16, (payload >> 16) as u16),
            Kind::Mtc => {
                self.clock.mtc(payload as u8);
            }
            Kind::Cyc => self.clock.cyc(payload),
            Kind::Cbr => self.clock.cbr(payload as u8),
            _ => {}
        }
        if matches!(kind, Kind::Tsc | Kind::Mtc | Kind::Cyc | Kind::Cbr) {
            self.clock.mark(offset);
        }
    }

    /// Packets are missing here.
    pub fn lose(&mut self) {
        (self.in_group, self.off) = (false, false);
        self.clock.lose();
    }

    /// TSC estimate; with points the number of the last one.
    pub fn time(&self) -> u64 {
        self.clock.stamp()
    }

    /// What timing packets told since it was asked last.
    pub fn take_points(&mut self) -> Vec<Point> {
        let points = self.clock.points.as_mut();
        points.map_or_else(Vec::new, |points| std::mem::take(&mut points.waiting))
    }

    /// Core cycles counted so far.
    pub fn cycles(&self) -> u64 {
        self.clock.total_cycles()
    }

    /// Core cycles in a tick of the TSC, at which CYCs count from here on; NaN: not known.
    pub fn frequency(&self) -> f64 {
        self.clock.frequency()
    }
}
