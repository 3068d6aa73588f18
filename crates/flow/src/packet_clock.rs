//! The clock over packets alone: for tables of packets, and to look ahead of the packets that are decoded.
//!
//! The duration of cycles is known only at the next packet that gives the time. So before the first CYC after such a
//! packet the clock reads on to the next one (`EstimatedClock::look_ahead_to_next_time`), about 3.5 KB at a time, which
//! any window of a stream contains: times do not depend on how a stream is divided into windows.

use rtit_packet::table::ROWS;
use rtit_packet::{Kind, PacketKind, PacketScanner};

use crate::stream_decoder::{StreamWindow, MARGIN};
use crate::time::{
    EstimatedClock, LookaheadLimits, ScanPosition, TickLine, TimeSettings, TimingSample,
    TimingSamples,
};

/// Bytes that are read ahead at a time. Any window has as many after the current packet.
const DISTANCE: usize = MARGIN - 512;

/// The clock over the packets of a stream, as in `rtit_packet::PacketColumns`.
pub struct PacketClock {
    pub(crate) clock: EstimatedClock,
    in_psb_plus: bool,
    /// Tracing was turned off, and no packet has shown since that it is on.
    off: bool,
    /// The PSB+ has an IP.
    is_on: bool,
    /// As `PacketScanner::block_item_size`.
    block: Option<u8>,
}

impl PacketClock {
    /// `samples`: collect timing samples.
    pub fn new(settings: TimeSettings, samples: bool) -> PacketClock {
        let mut clock = EstimatedClock::new(settings);
        clock.samples = samples.then(TimingSamples::default);
        PacketClock::from_state(clock, false, false)
    }

    /// Returns a clock that reads ahead of another.
    pub(crate) fn for_lookahead_of(
        clock: &EstimatedClock,
        in_psb_plus: bool,
        off: bool,
    ) -> PacketClock {
        PacketClock::from_state(clock.copy_for_lookahead(), in_psb_plus, off)
    }

    fn from_state(clock: EstimatedClock, in_psb_plus: bool, off: bool) -> PacketClock {
        PacketClock {
            clock,
            in_psb_plus,
            off,
            is_on: false,
            block: None,
        }
    }

    /// Processes the next packet. `offset`: in the stream; `window` contains the packets that the clock reads ahead.
    pub fn process_packet(
        &mut self,
        kind: Kind,
        detail: u8,
        payload: u64,
        offset: u64,
        window: StreamWindow<'_>,
    ) {
        let here = ScanPosition {
            stream: window,
            offset,
            block: self.block,
            in_psb_plus: self.in_psb_plus,
            off: self.off,
        };
        if !self.clock.begun {
            self.clock.begin_stream(&here);
        }
        if kind == Kind::Cyc && self.clock.needs_lookahead_before_cyc(offset) {
            self.clock.look_ahead_to_next_time(0, &here);
        }
        match kind {
            Kind::Bbp => self.block = Some(if detail != 0 { 4 } else { 8 }),
            Kind::Bep | Kind::Ovf => self.block = None,
            _ if ROWS.get(kind as usize).is_some_and(|row| !row.in_block) => self.block = None,
            _ => {}
        }
        self.apply_packet(kind, detail, payload);
        if matches!(kind, Kind::Tsc | Kind::Mtc | Kind::Cyc | Kind::Cbr) {
            self.clock.add_sample_if_enabled(offset);
        }
    }

    /// As `process_packet`, for a clock that does not look ahead.
    pub(crate) fn apply_packet(&mut self, kind: Kind, detail: u8, payload: u64) {
        match kind {
            Kind::Psb => (self.in_psb_plus, self.is_on) = (true, false),
            Kind::PsbEnd => {
                self.off &= !self.is_on;
                self.in_psb_plus = false;
            }
            Kind::Fup if self.in_psb_plus => self.is_on = true,
            Kind::Fup | Kind::TipPge => self.off = false,
            Kind::TipPgd | Kind::TraceStop => self.off = true,
            Kind::Ovf => self.note_missing_packets(),
            Kind::Pip => self.clock.in_guest = detail & 1 != 0,
            Kind::Tsc => self
                .clock
                .apply_tsc_packet(payload, !self.in_psb_plus || self.off),
            Kind::Tma => self
                .clock
                .apply_tma_packet(payload as u16, (payload >> 16) as u16),
            Kind::Mtc => {
                self.clock.apply_mtc_packet(payload as u8);
            }
            Kind::Cyc => self.clock.apply_cyc_packet(payload),
            Kind::Cbr => self.clock.apply_cbr_packet(payload as u8),
            _ => {}
        }
    }

    /// Called where packets are missing.
    pub fn note_missing_packets(&mut self) {
        (self.in_psb_plus, self.off, self.block) = (false, false, None);
        self.clock.invalidate_cycle_counts();
    }

    /// TSC estimate; with samples the number of the last sample.
    pub fn current_time(&self) -> u64 {
        self.clock.row_time()
    }

    /// Returns the timing samples since the last call.
    pub fn take_timing_samples(&mut self) -> Vec<TimingSample> {
        self.clock.take_timing_samples()
    }

    /// Core cycles counted so far.
    pub fn total_cycles(&self) -> u64 {
        self.clock.total_cycles()
    }

    /// Core cycles per TSC tick that CYCs count at from here on; NaN: unknown.
    pub fn cycles_per_tsc_tick(&self) -> f64 {
        self.clock.cycles_per_tick()
    }
}

impl EstimatedClock {
    /// Reads ahead to the next packet that gives the time. `uncounted`: cycles of CYCs before `here` that are not
    /// counted yet.
    #[cold]
    pub fn look_ahead_to_next_time(&mut self, uncounted: u64, here: &ScanPosition<'_>) {
        let found = find_lookahead_limits(self, self.reached_time_and_cycles(), uncounted, here);
        self.set_lookahead(found);
    }

    /// Called before the first packet, at `here`: the time is not later than the first TSC.
    pub fn begin_stream(&mut self, here: &ScanPosition<'_>) {
        let latest = find_lookahead_limits(self, self.reached_time_and_cycles(), 0, here).latest;
        self.begin_no_later_than(latest);
    }
}

/// Returns the limits between `from` (time and cycles of `clock`) and the next packet that gives the time.
/// `uncounted`: cycles of CYCs before `here` that are not counted yet.
fn find_lookahead_limits(
    clock: &EstimatedClock,
    from: (u64, u64),
    uncounted: u64,
    here: &ScanPosition<'_>,
) -> LookaheadLimits {
    let mut ahead = PacketClock::for_lookahead_of(clock, here.in_psb_plus, here.off);
    ahead.clock.apply_cyc_packet(uncounted);
    let StreamWindow { bytes, base, .. } = here.stream;
    let mut scanner = PacketScanner::for_window(bytes, base, here.offset as usize);
    scanner.set_block_item_size(here.block);
    let until = scanner.next_packet_offset().saturating_add(DISTANCE);
    let mut found = LookaheadLimits::default();
    let mut after_cyc = false;
    while scanner.next_packet_offset() < until {
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
        ahead.apply_packet(packet.kind.kind(), detail, payload);
        let is_cyc = matches!(packet.kind, PacketKind::Cyc { .. });
        let is_first = found.until == 0;
        if is_first {
            let Some(latest) = ahead.clock.first_packet_time() else {
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
        let line = cycles.map(|cycles| TickLine {
            from,
            ticks: found.latest.saturating_sub(from.0),
            cycles,
        });
        if is_first {
            found.upper = line;
        }
        // The packet's cycle is that of the CYC directly before it, else at most that of the next CYC.
        if after_cyc || !is_first {
            found.line = line;
            break;
        }
    }
    if found.until == 0 {
        found.until = scanner.next_packet_offset() as u64;
    }
    found
}
