//! The clock alone, for packets that are not followed into code.

use rtit_packet::Kind;

use crate::time::{Clock, TimeSettings};

/// Takes the packets of a stream in order, as `rtit_packet::Columns` has them, and tells the time after each.
pub struct PacketClock {
    clock: Clock,
    in_group: bool,
}

impl PacketClock {
    pub fn new(settings: TimeSettings) -> PacketClock {
        PacketClock {
            clock: Clock::new(settings),
            in_group: false,
        }
    }

    pub fn take(&mut self, kind: Kind, detail: u8, payload: u64) {
        match kind {
            Kind::Psb => self.in_group = true,
            Kind::PsbEnd => self.in_group = false,
            Kind::Ovf => {
                self.in_group = false;
                self.clock.lose();
            }
            Kind::Pip => self.clock.in_guest = detail & 1 != 0,
            Kind::Tsc => self.clock.tsc(payload, !self.in_group),
            Kind::Tma => self.clock.tma(payload as u16, (payload >> 16) as u16),
            Kind::Mtc => self.clock.mtc(payload as u8),
            Kind::Cyc => self.clock.cyc(payload),
            Kind::Cbr => self.clock.cbr(payload as u8),
            _ => {}
        }
    }

    /// TSC estimate.
    pub fn time(&self) -> u64 {
        self.clock.now()
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
