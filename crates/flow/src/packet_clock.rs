//! The clock alone, for packets that are not followed into code, and to look ahead of those that are.

use rtit_packet::table::ROWS;
use rtit_packet::{Kind, PacketKind, Scanner};

use crate::lookahead::{Here, Line, Lookahead};
use crate::points::{Point, Points};
use crate::time::{Clock, TimeSettings};
use crate::window::{Window, MARGIN};

/// Bytes that are looked at, at a time: they are in any window, be it the last or not, so that times do not depend on the
/// pieces that a stream comes in.
const DISTANCE: usize = MARGIN - 512;

/// Takes the packets of a stream in order, as `rtit_packet::Columns` has them, and tells the time after each.
pub struct PacketClock {
    pub(crate) clock: Clock,
    in_group: bool,
    /// Tracing was turned off, and nothing has told since that it is on.
    off: bool,
    /// The PSB+ has an IP.
    is_on: bool,
    /// As `Scanner::block`.
    block: Option<u8>,
}

impl PacketClock {
    /// `points`: what timing packets tell is wanted, too.
    pub fn new(settings: TimeSettings, points: bool) -> PacketClock {
        let mut clock = Clock::new(settings);
        clock.points = points.then(Points::default);
        PacketClock::at(clock, false, false)
    }

    /// To go ahead of another clock.
    pub(crate) fn ahead_of(clock: &Clock, in_group: bool, off: bool) -> PacketClock {
        PacketClock::at(clock.ahead(), in_group, off)
    }

    fn at(clock: Clock, in_group: bool, off: bool) -> PacketClock {
        PacketClock {
            clock,
            in_group,
            off,
            is_on: false,
            block: None,
        }
    }

    /// `offset`: of the packet in the stream, of which `window` has what the clock looks at.
    pub fn take(&mut self, kind: Kind, detail: u8, payload: u64, offset: u64, window: Window<'_>) {
        let here = Here {
            stream: window,
            offset,
            block: self.block,
            in_group: self.in_group,
            off: self.off,
        };
        if !self.clock.begun {
            self.clock.begin(&here);
        }
        if kind == Kind::Cyc && self.clock.looks_ahead(offset) {
            self.clock.look_ahead(0, &here);
        }
        match kind {
            Kind::Bbp => self.block = Some(if detail != 0 { 4 } else { 8 }),
            Kind::Bep | Kind::Ovf => self.block = None,
            _ if ROWS.get(kind as usize).is_some_and(|row| !row.in_block) => self.block = None,
            _ => {}
        }
        self.apply(kind, detail, payload);
        if matches!(kind, Kind::Tsc | Kind::Mtc | Kind::Cyc | Kind::Cbr) {
            self.clock.mark(offset);
        }
    }

    /// As `take`, of a clock that does not look ahead.
    pub(crate) fn apply(&mut self, kind: Kind, detail: u8, payload: u64) {
        match kind {
            Kind::Psb => (self.in_group, self.is_on) = (true, false),
            Kind::PsbEnd => {
                self.off &= !self.is_on;
                self.in_group = false;
            }
            Kind::Fup if self.in_group => self.is_on = true,
            Kind::Fup | Kind::TipPge => self.off = false,
            Kind::TipPgd | Kind::TraceStop => self.off = true,
            Kind::Ovf => self.lose(),
            Kind::Pip => self.clock.in_guest = detail & 1 != 0,
            Kind::Tsc => self.clock.tsc(payload, !self.in_group || self.off),
            Kind::Tma => self.clock.tma(payload as u16, (payload >> 16) as u16),
            Kind::Mtc => {
                self.clock.mtc(payload as u8);
            }
            Kind::Cyc => self.clock.cyc(payload),
            Kind::Cbr => self.clock.cbr(payload as u8),
            _ => {}
        }
    }

    /// Packets are missing here.
    pub fn lose(&mut self) {
        (self.in_group, self.off, self.block) = (false, false, None);
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

impl Clock {
    /// Looks for the next packet that gives the time. `uncounted`: cycles of CYCs before `here` that were not counted yet.
    #[cold]
    pub fn look_ahead(&mut self, uncounted: u64, here: &Here<'_>) {
        let found = find(self, self.reached(), uncounted, here);
        self.set_lookahead(found);
    }

    /// Before the first packet, at `here`: the time is not later than the first TSC.
    pub fn begin(&mut self, here: &Here<'_>) {
        let latest = find(self, self.reached(), 0, here).latest;
        self.begin_by(latest);
    }
}

/// The limits from `from`, time and cycles of `clock`, to the next packet that gives the time. `uncounted`: cycles before
/// the packets at `here` that were not counted yet.
fn find(clock: &Clock, from: (u64, u64), uncounted: u64, here: &Here<'_>) -> Lookahead {
    let mut ahead = PacketClock::ahead_of(clock, here.in_group, here.off);
    ahead.clock.cyc(uncounted);
    let Window { bytes, base, .. } = here.stream;
    let mut scanner = Scanner::within(bytes, base, here.offset as usize);
    scanner.set_block(here.block);
    let until = scanner.position().saturating_add(DISTANCE);
    let mut found = Lookahead::default();
    let mut after_cyc = false;
    while scanner.position() < until {
        let Some(Ok(packet)) = scanner.next() else {
            break;
        };
        let (detail, payload) = match packet.kind {
            PacketKind::Tsc { tsc } => (0, tsc),
            PacketKind::Mtc { ctc } => (0, ctc.into()),
            PacketKind::Tma { ctc, fast_counter } => {
                (0, u64::from(ctc) | u64::from(fast_counter) << 16)
            }
            PacketKind::Cyc { cycles } => (0, cycles),
            PacketKind::Cbr { ratio } => (0, ratio.into()),
            PacketKind::Pip { nr, .. } => (nr.into(), 0),
            _ => (0, 0),
        };
        ahead.apply(packet.kind.kind(), detail, payload);
        let is_cyc = matches!(packet.kind, PacketKind::Cyc { .. });
        let is_first = found.until == 0;
        if is_first {
            let Some(latest) = ahead.clock.told_time() else {
                after_cyc = is_cyc;
                continue;
            };
            (found.until, found.latest) = (u64::MAX, latest);
        } else if !is_cyc {
            continue;
        }
        let cycles = ahead
            .clock
            .cycles_since(clock)
            .filter(|&cycles| cycles != 0);
        let line = cycles.map(|cycles| Line {
            from,
            ticks: found.latest.saturating_sub(from.0),
            cycles,
        });
        if is_first {
            found.upper = line;
        }
        // its cycle is that of the CYC right before it, else at most the next one's
        if after_cyc || !is_first {
            found.line = line;
            break;
        }
    }
    if found.until == 0 {
        found.until = scanner.position() as u64;
    }
    found
}
