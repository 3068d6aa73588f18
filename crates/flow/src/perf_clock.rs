//! perf's clock: the times that stock perf prints, found by experiment and from what is public of its decoder.
//!
//! The clock never goes back. A TSC or MTC directly after a CYC starts a count of cycles, and so does a CBR with
//! another ratio; other TSCs and MTCs leave the count as it is. From such an MTC on a cycle is as long as the
//! *following* packets imply: those up to the next such MTC ([`CycleLengthLookahead`]). So packets wait until that MTC
//! is there, `MAX_WAITING` at most. If anything but code and MTCs comes first (a TSC, tracing off, sleep, an overflow,
//! a second ratio, the end of perf's buffer), or if a cycle would be more than 1.25 times as long as CBR implies, the
//! ratio of CBR applies.
//!
//! This clock sees packets alone and is separate from the decoder's ([`Clock`](crate::time::Clock)), a lower bound
//! that decides which thread and code version applies; perf's estimates may be too late for that.

use rtit_packet::Kind;

use crate::time::{nearest, TimeSettings, TSC_BITS};

/// Packets that wait for the next MTC, at most; then the ratio of CBR applies.
const MAX_WAITING: usize = 1 << 20;
/// A cycle longer than this many times the length by CBR is not believed.
const MAX_CYCLE_FACTOR: f64 = 1.25;

/// What perf learns from a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PerfTime {
    pub offset: u64,
    /// Time of the clock after the packet; for a PSB+ its TSC.
    pub time: u64,
    pub kind: PerfTimeKind,
}

/// What a [`PerfTime`] applies to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PerfTimeKind {
    /// The time of instructions and branches that need a later packet.
    Time,
    /// The ratio of a CBR, no time.
    Ratio(u8),
    /// perf lists something at this packet: the time of all that runs after it.
    Position,
}

/// perf's clock over the packets of a stream, in order.
pub struct PerfClock {
    /// Offsets at which perf's buffers end, the next one last. The lookahead stops there.
    buffer_ends: Vec<u64>,
    times: Vec<PerfTime>,
    /// Number of the last packet that gave a time. Of adjacent ones only the last is reported.
    last_time_packet: u64,
    packet_count: u64,
    after_cyc: bool,
    /// The next FUP binds to an earlier packet.
    fup_is_bound: bool,
    waiting: Vec<Packet>,
    lookahead: Option<CycleLengthLookahead>,
    state: ClockState,
}

/// A packet that waits until the length of a cycle is known.
#[derive(Clone, Copy)]
struct Packet {
    kind: Kind,
    payload: u64,
    offset: u64,
    number: u64,
    after_cyc: bool,
    is_listed: bool,
}

struct ClockState {
    settings: TimeSettings,
    now: u64,
    /// There has been a TSC.
    has_started: bool,
    /// The last TSC, also if it was earlier than `now`.
    tsc: u64,
    ctc: Option<CtcClock>,
    in_guest: bool,
    ratio: u8,
    /// Time from which cycles are counted; 0: not yet.
    count_start: u64,
    cycles: u64,
    ticks_per_cycle: Option<f64>,
}

impl PerfClock {
    /// `buffer_ends`: offsets at which perf's buffers (AUXTRACE records) of the stream end.
    pub fn new(settings: TimeSettings, mut buffer_ends: Vec<u64>) -> PerfClock {
        buffer_ends.sort_unstable_by(|a, b| b.cmp(a));
        PerfClock {
            buffer_ends,
            times: Vec::new(),
            last_time_packet: u64::MAX,
            packet_count: 0,
            after_cyc: false,
            fup_is_bound: false,
            waiting: Vec::new(),
            lookahead: None,
            state: ClockState {
                settings: settings.sound(),
                now: settings.start_time,
                has_started: false,
                tsc: 0,
                ctc: None,
                in_guest: false,
                ratio: 0,
                count_start: 0,
                cycles: 0,
                ticks_per_cycle: None,
            },
        }
    }

    /// Processes the next packet. `offset`: in the stream; `detail` and `payload` as in `rtit_packet::Columns`.
    pub fn process(&mut self, kind: Kind, detail: u8, payload: u64, offset: u64) {
        if kind == Kind::Pad {
            return;
        }
        while self.buffer_ends.last().is_some_and(|&end| end <= offset) {
            self.buffer_ends.pop();
            self.end_lookahead(None);
        }
        let packet = Packet {
            kind,
            payload: match kind {
                Kind::Pip => u64::from(detail & 1),
                _ => payload,
            },
            offset,
            number: self.packet_count,
            is_listed: self.is_listed(kind, detail),
            after_cyc: std::mem::replace(&mut self.after_cyc, kind == Kind::Cyc),
        };
        self.packet_count += 1;
        let Some(lookahead) = &mut self.lookahead else {
            self.apply(packet);
            return;
        };
        let result = lookahead.process(kind, payload, packet.after_cyc);
        if packet.is_listed || affects_clock(kind) {
            self.waiting.push(packet);
        }
        match result {
            LookaheadResult::Pending if self.waiting.len() < MAX_WAITING => {}
            LookaheadResult::Pending | LookaheadResult::Undetermined => self.end_lookahead(None),
            LookaheadResult::Cycle { ticks, ratio } => {
                let ratio = if ratio == 0 { self.state.ratio } else { ratio };
                let too_long = match self.state.ticks_by_ratio(ratio) {
                    Some(by_ratio) => ticks > by_ratio && ticks / by_ratio > MAX_CYCLE_FACTOR,
                    None => false,
                };
                self.end_lookahead((!too_long).then_some(ticks));
            }
        }
    }

    /// Called where packets are missing.
    pub fn lose_packets(&mut self) {
        self.end_lookahead(None);
        self.state.ctc = None;
        self.after_cyc = false;
        self.packet_count += 1;
    }

    /// Called at the end of the stream.
    pub fn end(&mut self) {
        self.end_lookahead(None);
    }

    /// Returns the times since the last call, without those of waiting packets.
    pub fn take_times(&mut self) -> Vec<PerfTime> {
        std::mem::take(&mut self.times)
    }

    /// Ends the lookahead with the length of a cycle, or without, and applies the packets that waited.
    fn end_lookahead(&mut self, ticks_per_cycle: Option<f64>) {
        if self.lookahead.take().is_none() {
            return;
        }
        self.state.ticks_per_cycle = ticks_per_cycle;
        let mut waiting = std::mem::take(&mut self.waiting);
        for &packet in &waiting {
            self.apply(packet);
        }
        waiting.clear();
        self.waiting = waiting;
    }

    fn apply(&mut self, packet: Packet) {
        let Packet {
            kind,
            payload,
            offset,
            ..
        } = packet;
        let state = &mut self.state;
        let gives_time = match kind {
            Kind::Tsc => {
                state.tsc(payload);
                if packet.after_cyc {
                    state.count_from_now();
                }
                true
            }
            Kind::Tma => {
                let known = CtcClock::from_tma(payload, state.tsc, state.settings);
                state.ctc = known.or(state.ctc);
                false
            }
            Kind::Mtc => {
                let gives_time = state.mtc(payload as u8);
                if gives_time && packet.after_cyc {
                    state.count_from_now();
                    self.lookahead = state.ctc.map(|it| CycleLengthLookahead::new(it, state.now));
                }
                gives_time
            }
            Kind::Cyc => state.cyc(payload),
            Kind::Pip => {
                state.in_guest = payload != 0;
                false
            }
            Kind::TraceStop => {
                state.ctc = None;
                false
            }
            Kind::Cbr => {
                let ratio = payload as u8;
                if state.cbr(ratio) {
                    self.push_time(offset, PerfTimeKind::Position);
                }
                self.push_time(offset, PerfTimeKind::Ratio(ratio));
                false
            }
            Kind::PsbEnd => {
                // The TSC, even if the clock is later.
                let time = state.tsc;
                let kind = PerfTimeKind::Position;
                self.times.push(PerfTime { offset, time, kind });
                false
            }
            Kind::Ovf => true,
            _ => false,
        };
        if packet.is_listed {
            self.push_time(offset, PerfTimeKind::Position);
        }
        if gives_time {
            if self.last_time_packet.wrapping_add(1) == packet.number {
                // The two packets are adjacent.
                self.times.pop();
            }
            self.last_time_packet = packet.number;
            self.push_time(offset, PerfTimeKind::Time);
        }
    }

    fn push_time(&mut self, offset: u64, kind: PerfTimeKind) {
        let time = self.state.now;
        self.times.push(PerfTime { offset, time, kind });
    }

    /// Whether perf lists something at this packet, even an event that was not asked for.
    fn is_listed(&mut self, kind: Kind, detail: u8) -> bool {
        let binds_fup = match kind {
            Kind::Ptw | Kind::ExStop | Kind::Bep | Kind::Cfe => detail & 1 != 0,
            Kind::ModeTsx | Kind::Mwait => true,
            // These complete an earlier packet.
            Kind::Pwre | Kind::Pwrx | Kind::Fup => false,
            Kind::Cyc | Kind::Mtc | Kind::Tsc | Kind::Cbr => return false,
            _ => {
                self.fup_is_bound = false;
                return false;
            }
        };
        let was_bound = std::mem::replace(&mut self.fup_is_bound, binds_fup);
        match kind {
            Kind::Fup => was_bound,
            Kind::ModeTsx | Kind::Mwait => false,
            Kind::Pwre if was_bound => {
                self.fup_is_bound = true;
                false
            }
            _ => !binds_fup,
        }
    }
}

impl ClockState {
    fn tsc(&mut self, payload: u64) {
        self.ctc = None;
        let payload = self.to_host_payload(payload);
        self.tsc = nearest(payload, self.now);
        if self.tsc > self.now || !self.has_started {
            self.now = self.tsc;
        }
        self.has_started = true;
    }

    /// Returns the payload of a TSC packet as it would be in the host.
    fn to_host_payload(&self, payload: u64) -> u64 {
        if !self.in_guest {
            return payload;
        }
        let guest = self.settings.guest;
        guest.to_host(nearest(payload, guest.of_host(self.now))) & (TSC_BITS - 1)
    }

    /// Returns whether the MTC gave a time.
    fn mtc(&mut self, ctc: u8) -> bool {
        let Some(clock) = &mut self.ctc else {
            return false;
        };
        self.now = self.now.max(clock.mtc(ctc));
        true
    }

    /// Returns whether the ratio changed.
    fn cbr(&mut self, ratio: u8) -> bool {
        let is_another = self.ratio != ratio;
        if is_another {
            self.ratio = ratio;
            // A measured length of a cycle stays in force.
            (self.count_start, self.cycles) = (if self.has_started { self.now } else { 0 }, 0);
        }
        is_another
    }

    fn count_from_now(&mut self) {
        (self.count_start, self.cycles) = (self.now, 0);
        self.ticks_per_cycle = None;
    }

    /// Returns whether the CYC gave a time.
    fn cyc(&mut self, cycles: u64) -> bool {
        self.cycles = self.cycles.saturating_add(cycles);
        let ticks = self
            .ticks_per_cycle
            .or_else(|| self.ticks_by_ratio(self.ratio));
        let (Some(ticks), true) = (ticks, self.count_start != 0) else {
            return false;
        };
        let time = self.count_start as f64 + self.cycles as f64 * ticks;
        self.now = self.now.max(time as u64);
        true
    }

    fn ticks_by_ratio(&self, ratio: u8) -> Option<f64> {
        let nominal = f64::from(self.settings.max_nonturbo_ratio);
        (ratio != 0).then(|| nominal / f64::from(ratio))
    }
}

/// Whether a packet affects the clock.
fn affects_clock(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::Tsc
            | Kind::Tma
            | Kind::Mtc
            | Kind::Cyc
            | Kind::Cbr
            | Kind::Pip
            | Kind::Ovf
            | Kind::PsbEnd
            | Kind::TraceStop
    )
}

/// Finds the length of a cycle after an MTC that directly follows a CYC: reads on to the next such MTC.
#[derive(Clone, Copy, Debug)]
struct CycleLengthLookahead {
    ctc: CtcClock,
    from: u64,
    /// Time of the last MTC without a CYC before it.
    last: u64,
    cycles: u64,
    /// Ratio of the CBRs on the way; 0: none.
    ratio: u8,
    /// The next packet is the first.
    is_first: bool,
}

/// What the packets so far imply.
#[derive(Clone, Copy, PartialEq, Debug)]
enum LookaheadResult {
    Pending,
    /// TSC ticks per core cycle, and the ratio of the CBRs on the way (0: none).
    Cycle {
        ticks: f64,
        ratio: u8,
    },
    /// The packets do not determine it.
    Undetermined,
}

impl CycleLengthLookahead {
    /// `now`: time of the clock at the MTC, not less than the time of the MTC itself.
    pub fn new(ctc: CtcClock, now: u64) -> CycleLengthLookahead {
        CycleLengthLookahead {
            ctc,
            from: now,
            last: now,
            cycles: 0,
            ratio: 0,
            is_first: true,
        }
    }

    /// Processes the next packet, which is no PAD.
    pub fn process(&mut self, kind: Kind, payload: u64, after_cyc: bool) -> LookaheadResult {
        // perf treats the packet after the MTC as if the CYC before the MTC directly preceded it.
        let after_cyc = std::mem::take(&mut self.is_first) || after_cyc;
        match kind {
            Kind::Cyc => self.cycles = self.cycles.saturating_add(payload),
            Kind::Mtc => return self.mtc(payload as u8, after_cyc),
            Kind::Cbr if self.ratio == 0 || self.ratio == payload as u8 => {
                self.ratio = payload as u8;
            }
            Kind::Cbr | Kind::Tsc | Kind::Tma | Kind::TipPgd | Kind::TraceStop | Kind::Ovf => {
                return LookaheadResult::Undetermined;
            }
            Kind::ExStop | Kind::Mwait | Kind::Pwre | Kind::Pwrx | Kind::Trig => {
                return LookaheadResult::Undetermined;
            }
            _ => {}
        }
        LookaheadResult::Pending
    }

    fn mtc(&mut self, ctc: u8, after_cyc: bool) -> LookaheadResult {
        let time = self.ctc.mtc(ctc);
        if time < self.last || (after_cyc && self.cycles == 0) {
            return LookaheadResult::Undetermined;
        }
        if !after_cyc {
            self.last = time;
            return LookaheadResult::Pending;
        }
        LookaheadResult::Cycle {
            ticks: (time - self.from) as f64 / self.cycles as f64,
            ratio: self.ratio,
        }
    }
}

/// Bits of the CTC in an MTC.
const MTC_BITS: u32 = 8;
/// Bits of the CTC in a TMA.
const TMA_BITS: u32 = 16;

/// The crystal clock (CTC) as perf counts it: from the TMA of the last TSC, by MTCs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct CtcClock {
    shift: u32,
    /// TSC ticks per crystal tick.
    ratio: (u32, u32),
    /// TSC when the last MTC before the TMA was due.
    edge: u64,
    /// Crystal ticks since then.
    ticks: u64,
    last: u8,
    /// The TMA has only some bits of `last`.
    is_partial: bool,
}

impl CtcClock {
    /// `payload`: as in `rtit_packet::Columns`; `tsc`: of the TSC packet before. `None` if the crystal frequency is
    /// unknown.
    pub fn from_tma(payload: u64, tsc: u64, settings: TimeSettings) -> Option<CtcClock> {
        if settings.tsc_ctc.0 == 0 || settings.tsc_ctc.1 == 0 {
            return None;
        }
        let shift = u32::from(settings.mtc_freq);
        let (ctc, fast_counter) = (payload & 0xffff, payload >> 16);
        let since_edge = ctc & ((1 << shift) - 1);
        let mut ctc = CtcClock {
            shift,
            ratio: settings.tsc_ctc,
            edge: tsc.wrapping_sub(fast_counter),
            ticks: 0,
            last: (ctc >> shift) as u8,
            is_partial: shift > TMA_BITS - MTC_BITS,
        };
        ctc.edge = ctc.edge.wrapping_sub(ctc.span(since_edge));
        Some(ctc)
    }

    /// Processes an MTC; returns its TSC.
    pub fn mtc(&mut self, ctc: u8) -> u64 {
        if std::mem::take(&mut self.is_partial) {
            // Chooses the missing bits such that `last` is the nearest value before this one.
            let known = (1u16 << (TMA_BITS - self.shift)) - 1;
            let mut last = u16::from(self.last) | (u16::from(ctc) & !known);
            if last >= u16::from(ctc) {
                last = last.wrapping_sub(known + 1);
            }
            self.last = last as u8;
        }
        // The same value again means a full wrap.
        let periods = match ctc.wrapping_sub(self.last) {
            0 => 1 << MTC_BITS,
            periods => u64::from(periods),
        };
        self.ticks = self.ticks.saturating_add(periods << self.shift);
        self.last = ctc;
        self.edge.wrapping_add(self.span(self.ticks))
    }

    fn span(&self, ticks: u64) -> u64 {
        let (numerator, denominator) = self.ratio;
        (u128::from(ticks) * u128::from(numerator) / u128::from(denominator)) as u64
    }
}
