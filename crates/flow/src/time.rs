//! The time estimate: from timing packets to TSC (section 33.8.3).
//!
//! The estimate is the time of the last timing packet, so it is a lower bound for what follows. TSC packets give the
//! time. MTCs count crystal ticks from the TMA of the last TSC. CYCs count core cycles from the last TSC or MTC; they
//! are scaled by the rate that was measured between the last two of these, or by the ratio of CBR until there is a
//! measurement.
//!
//! There are two estimates. `by_rate` is the time at that rate. It does not depend on how CYCs are added up, so the
//! transition tables and the interpreter agree on it, and decisions by time (scheduling intervals, code versions) use
//! it. `now`, which rows get, is limited in addition by the next TSC or MTC ([`LookaheadLimits`]): it is not later than
//! that packet, and lies within the straight lines that lead there (section 33.8.3.4).
//!
//! A comparison of cycles and time is void after an overflow, lost bytes, sleep or another CBR ratio: `broken` is set
//! until the next packet that gives the time.
//!
//! With `Settings::timing_samples` rows get the number of the last [`TimingSample`] instead of a time; callers compute
//! bounds of times from rows and samples. Samples between which cycles add up have the same `span`.

use crate::stream_decoder::StreamWindow;

/// Properties of the traced machine that the clock needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TimeSettings {
    /// IA32_RTIT_CTL.MTCFreq: an MTC every 2^mtc_freq crystal ticks. 0..=15.
    pub mtc_freq: u8,
    /// TSC ticks per crystal tick as a fraction: CPUID.15H EBX and EAX. A zero in either: unknown; MTCs give no time.
    pub tsc_ctc: (u32, u32),
    /// `MSR_PLATFORM_INFO[15:8]`, the ratio of which the TSC is the frequency. 0: unknown; CYCs give no time.
    pub max_nonturbo_ratio: u8,
    /// Any TSC value near the beginning of the stream: it completes the 56 bits of the TSC packets.
    pub start_time: u64,
    /// How TSC packets of guests are scaled (section 33.8.3.3).
    pub guest: GuestTsc,
}

impl TimeSettings {
    /// Returns settings within the range of the registers, without divisions by 0.
    pub(crate) fn clamp_to_registers(self) -> TimeSettings {
        TimeSettings {
            mtc_freq: self.mtc_freq.min(15),
            guest: GuestTsc {
                multiplier: match self.guest.multiplier {
                    0 => NO_SCALING,
                    multiplier => multiplier,
                },
                ..self.guest
            },
            ..self
        }
    }
}

/// The TSC of a guest: the host's times `multiplier` / 2^48, plus `offset`, modulo 2^64.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GuestTsc {
    pub offset: u64,
    /// 2^48: no scaling. 0 means the same.
    pub multiplier: u64,
}

const NO_SCALING: u64 = 1 << 48;

impl Default for GuestTsc {
    fn default() -> GuestTsc {
        GuestTsc {
            offset: 0,
            multiplier: NO_SCALING,
        }
    }
}

impl GuestTsc {
    pub(crate) fn host_to_guest(self, host: u64) -> u64 {
        let scaled = (u128::from(host) * u128::from(self.multiplier)) >> 48;
        (scaled as u64).wrapping_add(self.offset)
    }

    pub(crate) fn guest_to_host(self, guest: u64) -> u64 {
        let scaled = u128::from(guest.wrapping_sub(self.offset)) << 48;
        u64::try_from(scaled / u128::from(self.multiplier)).unwrap_or(u64::MAX)
    }
}

/// TSC packets carry the time modulo this.
pub(crate) const TSC_BITS: u64 = 1 << 56;
/// Tolerance of `latest_possible_time`: one part in this many ticks, plus this many ticks.
const SLACK: u64 = 16;

/// The last time that a packet gave, and the cycles counted since.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct EstimatedClock {
    settings: TimeSettings,
    /// The first packet was processed; see `begin`.
    pub begun: bool,
    /// The estimate now.
    now: u64,
    /// The estimate by the rate alone. Adding up CYCs does not change it, so the fast path and the interpreter agree on
    /// it. Decoding decides by this one; rows get `now`.
    by_rate: u64,
    /// The time from which CYCs count.
    base: u64,
    /// A CYC came with the packet that gave `base`.
    counted: bool,
    /// The last time that a packet gave.
    known: u64,
    /// The time of the last TSC packet.
    tsc: u64,
    cycles: u64,
    /// All cycles ever counted.
    total_cycles: u64,
    ratio: u8,
    /// TSC ticks and the core cycles in them, as last measured at this ratio.
    rate: Option<(u64, u64)>,
    /// Cycles since `base` cannot be compared with time.
    broken: bool,
    lookahead: LookaheadLimits,
    /// Cycles and TSC ticks of all measures.
    pub measured: (u64, u64),
    /// TSC ticks in which nothing was traced or counted.
    pub inactive: u64,
    /// TSC packets are a guest's.
    pub in_guest: bool,
    crystal: CrystalClock,
    /// Timing samples, if the caller needs them.
    pub samples: Option<TimingSamples>,
    span: u64,
    /// A packet gave the time since the last sample.
    is_time_given: bool,
}

/// The crystal clock, as far as TMA and MTC determine it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum CrystalClock {
    /// No TMA or MTC since the last TSC.
    Unknown,
    /// A TSC and its TMA; the crystal edge at or before that TSC.
    Tma { edge: u64, ctc: u16 },
    /// An MTC with payload `ctc`, `ticks` crystal ticks after the edge at time `edge`. `exact`: the edge is known from
    /// a TMA, else it is an estimate.
    Mtc {
        edge: u64,
        ticks: u64,
        ctc: u8,
        exact: bool,
    },
}

impl EstimatedClock {
    pub fn new(settings: TimeSettings) -> EstimatedClock {
        EstimatedClock {
            settings: settings.clamp_to_registers(),
            begun: false,
            now: settings.start_time,
            by_rate: settings.start_time,
            base: settings.start_time,
            counted: false,
            known: settings.start_time,
            tsc: settings.start_time,
            cycles: 0,
            total_cycles: 0,
            ratio: 0,
            rate: None,
            broken: true,
            lookahead: LookaheadLimits::default(),
            measured: (0, 0),
            inactive: 0,
            in_guest: false,
            crystal: CrystalClock::Unknown,
            samples: None,
            span: 0,
            is_time_given: false,
        }
    }

    /// The estimate: a lower bound for what comes next.
    #[cfg(test)]
    pub fn estimated_tsc(&self) -> u64 {
        self.now
    }

    /// The estimate by the rate of the last cycles alone. It may be later than the time of the next TSC or MTC.
    #[inline]
    pub fn estimate_by_rate(&self) -> u64 {
        self.by_rate
    }

    /// The time of rows: the estimate, or the number of the last sample.
    #[inline]
    pub fn row_time(&self) -> u64 {
        match &self.samples {
            None => self.now,
            Some(samples) => samples.count,
        }
    }

    /// Called after a timing packet at `offset`: adds a sample.
    #[inline]
    pub fn add_sample_if_enabled(&mut self, offset: u64) {
        if self.samples.is_some() {
            self.push_sample(offset);
        }
    }

    /// Returns the timing samples since the last call.
    pub fn take_timing_samples(&mut self) -> Vec<TimingSample> {
        let samples = self.samples.as_mut();
        samples.map_or_else(Vec::new, |samples| std::mem::take(&mut samples.waiting))
    }

    #[cold]
    fn push_sample(&mut self, offset: u64) {
        let sample = TimingSample {
            offset,
            time: self.now,
            cycles: self.total_cycles,
            frequency: self.cycles_per_tick(),
            known: std::mem::take(&mut self.is_time_given),
            span: self.span,
        };
        if let Some(samples) = &mut self.samples {
            samples.waiting.push(sample);
            samples.count += 1;
        }
    }

    /// Returns an upper bound of the time directly after a CYC, if the length of cycles has changed by some percent at
    /// most.
    pub fn latest_possible_time(&self) -> Option<u64> {
        let since_known = self.now.saturating_sub(self.known);
        let counted = !self.broken && self.ticks_per_cycles().is_some();
        counted.then(|| self.now.saturating_add(since_known / SLACK + SLACK))
    }

    pub fn total_cycles(&self) -> u64 {
        self.total_cycles
    }

    /// `alone`: not within the PSB+ of a program that is traced. Such a TSC comes when nothing may have been counted
    /// for a while (section 33.3.6), and so does one in a PSB+ before which MTCs are missing.
    pub fn apply_tsc_packet(&mut self, payload: u64, alone: bool) {
        let guest = self.settings.guest;
        let time = match self.in_guest {
            true => {
                guest.guest_to_host(nearest_full_tsc(payload, guest.host_to_guest(self.by_rate)))
            }
            false => nearest_full_tsc(payload, self.by_rate),
        };
        if !alone && !self.has_missed_mtcs(time) {
            self.measure_rate(time);
        } else {
            if !self.broken && self.ticks_per_cycles().is_some() {
                let passed = time.saturating_sub(self.by_rate);
                self.inactive = self.inactive.saturating_add(passed);
            }
            self.span += 1;
        }
        self.set_time(time);
        self.tsc = time;
        self.is_time_given = true;
        self.crystal = CrystalClock::Unknown;
    }

    pub fn apply_tma_packet(&mut self, ctc: u16, fast_counter: u16) {
        let edge = self.tsc.saturating_sub(u64::from(fast_counter));
        self.crystal = CrystalClock::Tma { edge, ctc };
    }

    /// Returns whether the MTC gave the time.
    pub fn apply_mtc_packet(&mut self, ctc: u8) -> bool {
        let shift = self.settings.mtc_freq;
        let next = match self.crystal {
            // A period begins now; its time is an estimate.
            CrystalClock::Unknown => CrystalClock::Mtc {
                edge: self.by_rate,
                ticks: 0,
                ctc,
                exact: false,
            },
            CrystalClock::Tma { edge, ctc: from } => {
                let known = u64::from(u16::MAX).min((1 << (shift + 8)) - 1);
                let reached = u64::from(ctc) << shift;
                let ticks = reached.wrapping_sub(u64::from(from)) & known;
                CrystalClock::Mtc {
                    edge,
                    ticks,
                    ctc,
                    exact: true,
                }
            }
            CrystalClock::Mtc {
                edge,
                ticks,
                ctc: last,
                exact,
            } => {
                let periods = u64::from(ctc.wrapping_sub(last));
                CrystalClock::Mtc {
                    edge,
                    ticks: ticks.saturating_add(periods << shift),
                    ctc,
                    exact,
                }
            }
        };
        let first = matches!(self.crystal, CrystalClock::Unknown);
        self.crystal = next;
        let (edge, ticks, exact) = match next {
            CrystalClock::Mtc {
                edge, ticks, exact, ..
            } if !first => (edge, ticks, exact),
            _ => return false,
        };
        let Some(span) = self.crystal_ticks(ticks) else {
            return false;
        };
        let time = edge.saturating_add(span);
        self.is_time_given |= exact;
        if self.cycles == 0 && self.counted {
            // No CYC came with this MTC, one came earlier: the next CYC counts from there (section 33.3.6.3).
            self.set_time_from_packet(time);
        } else {
            self.measure_rate(time);
            self.set_time(time);
        }
        true
    }

    /// Whether MTCs were due before `time`: the processor slept, and counted no cycles then. One may come after a TSC
    /// that is later.
    fn has_missed_mtcs(&self, time: u64) -> bool {
        let period = 1 << self.settings.mtc_freq;
        let (edge, ticks) = match self.crystal {
            CrystalClock::Unknown => return false,
            CrystalClock::Tma { edge, ctc } => (edge, period - u64::from(ctc) % period),
            CrystalClock::Mtc { edge, ticks, .. } => (edge, ticks.saturating_add(period)),
        };
        let due = self.crystal_ticks(ticks.saturating_add(period));
        due.is_some_and(|due| time > edge.saturating_add(due))
    }

    /// TSC ticks in a number of crystal ticks.
    fn crystal_ticks(&self, ticks: u64) -> Option<u64> {
        let (numerator, denominator) = self.settings.tsc_ctc;
        if numerator == 0 || denominator == 0 {
            return None;
        }
        let span = u128::from(ticks) * u128::from(numerator) / u128::from(denominator);
        u64::try_from(span).ok()
    }

    pub fn apply_cbr_packet(&mut self, ratio: u8) {
        // the first CBR reports the ratio that was in force before it
        if self.ratio != ratio && self.ratio != 0 {
            self.rate = None;
            self.restart_cycle_count();
            self.span += 1;
        }
        self.ratio = ratio;
    }

    pub fn apply_cyc_packet(&mut self, cycles: u64) {
        self.total_cycles = self.total_cycles.saturating_add(cycles);
        self.cycles = self.cycles.saturating_add(cycles);
        let estimate = self.ticks_per_cycles().map(|(ticks, of)| {
            let span = u128::from(self.cycles) * u128::from(ticks) / u128::from(of);
            let span = u64::try_from(span).unwrap_or(u64::MAX);
            self.base.saturating_add(span)
        });
        self.by_rate = self.by_rate.max(estimate.unwrap_or(0));
        if let Some(time) = self.lookahead.limited_time(self.cycles, estimate) {
            self.now = self.now.max(time);
        }
    }

    /// Whether a CYC at `offset` needs `look_ahead` before it.
    #[inline]
    pub fn needs_lookahead_before_cyc(&self, offset: u64) -> bool {
        self.lookahead.ends_before(offset)
    }

    /// The time and the cycles since `base`, from which to look ahead.
    pub fn reached_time_and_cycles(&self) -> (u64, u64) {
        let time = if self.cycles == 0 {
            self.known
        } else {
            self.now
        };
        (time, self.cycles)
    }

    pub fn set_lookahead(&mut self, found: LookaheadLimits) {
        self.lookahead = found;
    }

    /// Called before the first packet. `latest_possible_time`: the time of the first TSC.
    pub fn begin_no_later_than(&mut self, latest: u64) {
        self.begun = true;
        self.now = self.now.min(latest);
        (self.base, self.known, self.by_rate) = (self.now, self.now, self.now);
    }

    /// Returns a copy of the clock that reads ahead of this one.
    pub fn copy_for_lookahead(&self) -> EstimatedClock {
        EstimatedClock {
            samples: None,
            is_time_given: false,
            lookahead: LookaheadLimits::default(),
            ..self.clone()
        }
    }

    /// Returns the time of the first TSC or MTC since this clock went ahead, if there was one.
    pub fn first_packet_time(&self) -> Option<u64> {
        self.is_time_given.then_some(self.known)
    }

    /// Cycles since this clock went ahead of `from`, if all of them were counted.
    pub fn cycles_since(&self, from: &EstimatedClock) -> Option<u64> {
        let counted = !from.broken && self.span == from.span;
        counted.then(|| self.total_cycles.saturating_sub(from.total_cycles))
    }

    /// Called where packets are missing: cycles since the last TSC or MTC no longer add up.
    pub fn invalidate_cycle_counts(&mut self) {
        self.restart_cycle_count();
        self.span += 1;
    }

    /// Core cycles in a tick of the TSC, as measured last or by CBR; NaN: not known.
    pub fn cycles_per_tick(&self) -> f64 {
        self.ticks_per_cycles()
            .map_or(f64::NAN, |(ticks, cycles)| cycles as f64 / ticks as f64)
    }

    /// Returns the clock without its statistics.
    pub fn without_statistics(&self) -> EstimatedClock {
        EstimatedClock {
            total_cycles: 0,
            measured: (0, 0),
            inactive: 0,
            span: 0,
            ..self.clone()
        }
    }

    /// Returns the state from which a speculative segment starts: a timing packet is needed before it means more.
    pub fn known_at_later_psb(&self) -> EstimatedClock {
        let mut clock = self.without_statistics();
        clock.begun = true;
        clock.set_time(self.by_rate);
        clock.broken = true;
        clock.crystal = CrystalClock::Unknown;
        clock
    }

    /// TSC ticks for a number of cycles.
    fn ticks_per_cycles(&self) -> Option<(u64, u64)> {
        let (nominal, ratio) = (self.settings.max_nonturbo_ratio, self.ratio);
        let by_ratio = (nominal != 0 && ratio != 0).then_some((nominal.into(), ratio.into()));
        self.rate.or(by_ratio)
    }

    /// Cycles from here on have another rate, or start from 0.
    fn restart_cycle_count(&mut self) {
        // Without counted cycles the last time still holds.
        if self.cycles != 0 || self.base != self.by_rate || self.broken {
            self.base = self.by_rate;
            self.cycles = 0;
            self.counted = false;
            self.broken = true;
        }
        self.lookahead = LookaheadLimits::default();
    }

    /// Measures the rate: the cycles since `base` took until `time` (section 33.8.3.4).
    fn measure_rate(&mut self, time: u64) {
        let ticks = time.saturating_sub(self.base);
        if self.broken || self.cycles == 0 || ticks == 0 {
            return;
        }
        self.rate = Some((ticks, self.cycles));
        self.measured.0 = self.measured.0.saturating_add(self.cycles);
        self.measured.1 = self.measured.1.saturating_add(ticks);
    }

    /// A packet gives the time. It does not go back, neither before an estimate nor by the fraction of a crystal tick
    /// that a TSC may be earlier than the MTC before it; where a TSC is earlier by more, the TSC itself went back.
    fn set_time_from_packet(&mut self, time: u64) {
        let tick = self.crystal_ticks(1).unwrap_or(0);
        if time.saturating_add(tick) < self.known {
            (self.known, self.now, self.by_rate) = (time, time, time);
        } else {
            self.known = self.known.max(time);
            self.now = self.now.max(time);
            self.by_rate = self.by_rate.max(time);
        }
        self.lookahead = LookaheadLimits::default();
    }

    fn set_time(&mut self, time: u64) {
        self.set_time_from_packet(time);
        self.base = self.known;
        self.counted = self.cycles != 0;
        self.cycles = 0;
        self.broken = false;
    }
}

/// Returns the time nearest to `to` of all with the 56 bits of a TSC packet.
fn nearest_full_tsc(payload: u64, to: u64) -> u64 {
    let full = (to & !(TSC_BITS - 1)) | payload;
    let candidates = [
        full.wrapping_sub(TSC_BITS),
        full,
        full.wrapping_add(TSC_BITS),
    ];
    let nearest = candidates
        .into_iter()
        .min_by_key(|value| value.abs_diff(to));
    nearest.unwrap_or(full)
}

/// A position in a stream, with the state of the packet scanner there.
pub(crate) struct ScanPosition<'a> {
    pub stream: StreamWindow<'a>,
    pub offset: u64,
    /// As `PacketScanner::block_item_size`.
    pub block: Option<u8>,
    /// Within PSB+.
    pub in_psb_plus: bool,
    /// PacketEn is 0.
    pub off: bool,
}

/// The limits of the estimate between the last packet that gave the time and the next one.
///
/// Only the next packet that gives the time (TSC, or MTC after a TSC with its TMA) shows how long the cycles before it
/// were (section 33.8.3.4), and that nothing before it was later. So the clock looks ahead from the first CYC after
/// such a packet to the next one (`packet_clock`). Nothing is read ahead in a stream without CYCs.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct LookaheadLimits {
    /// Offset up to which packets have been read; `u64::MAX`: one of them gives the time.
    pub until: u64,
    /// The time of that packet, an upper limit for all before it; `u64::MAX`: none was found.
    pub latest: u64,
    /// Line to the time of that packet, with the most cycles that may have passed by then.
    pub line: Option<TickLine>,
    /// The same with the fewest cycles.
    pub upper: Option<TickLine>,
}

/// A straight line from a point (time, cycles): `ticks` pass in `cycles`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct TickLine {
    pub from: (u64, u64),
    pub ticks: u64,
    pub cycles: u64,
}

impl Default for LookaheadLimits {
    fn default() -> LookaheadLimits {
        LookaheadLimits {
            until: 0,
            latest: u64::MAX,
            line: None,
            upper: None,
        }
    }
}

impl LookaheadLimits {
    /// Whether packets at `offset` have not been read yet.
    #[inline]
    pub fn ends_before(&self, offset: u64) -> bool {
        self.until <= offset
    }

    /// The time after `cycles`. `estimate`: the time by the rate of the cycles before.
    ///
    /// The estimate is right as long as the rate does not change. The lines limit it where the rate does.
    #[inline]
    pub fn limited_time(&self, cycles: u64, estimate: Option<u64>) -> Option<u64> {
        let lower = self.line.map(|line| line.time_at_cycles(cycles));
        let upper = self
            .upper
            .map_or(u64::MAX, |line| line.time_at_cycles(cycles));
        let time = estimate.max(lower)?;
        Some(time.min(upper).min(self.latest))
    }
}

impl TickLine {
    fn time_at_cycles(&self, cycles: u64) -> u64 {
        let passed = u128::from(cycles.saturating_sub(self.from.1));
        let ticks = passed * u128::from(self.ticks) / u128::from(self.cycles);
        let ticks = u64::try_from(ticks).unwrap_or(u64::MAX);
        self.from.0.saturating_add(ticks)
    }
}

/// State of the clock after a timing packet.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct TimingSample {
    /// Stream offset of the packet.
    pub offset: u64,
    /// TSC estimate.
    pub time: u64,
    /// Core cycles counted by CYCs so far.
    pub cycles: u64,
    /// Core cycles in a tick of the TSC, at which CYCs count from here on; NaN: unknown.
    pub frequency: f64,
    /// The packet gives the time (TSC, or MTC after a TSC with its TMA); else `time` is computed from CYCs.
    pub known: bool,
    /// Between samples of one span all cycles were counted, at one frequency.
    pub span: u64,
}

/// Timing samples that were not taken yet. Each has a number, from 1 on.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct TimingSamples {
    pub waiting: Vec<TimingSample>,
    /// Number of samples so far.
    pub count: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clock(mtc_freq: u8, tsc_ctc: (u32, u32), max_nonturbo_ratio: u8) -> EstimatedClock {
        EstimatedClock::new(TimeSettings {
            mtc_freq,
            tsc_ctc,
            max_nonturbo_ratio,
            ..TimeSettings::default()
        })
    }

    /// Section 33.8.3.2: TSC + CTC_Delta * P - FastCounter, with CTC_Delta modulo 2^16.
    #[test]
    fn first_mtc_after_tma() {
        let mut clock = clock(3, (168, 2), 0);
        clock.apply_tsc_packet(1_000_000, true);
        clock.apply_tma_packet(0xfff0, 20);
        clock.apply_mtc_packet(0x01); // CTC 0008H, of which 11 bits are compared: 0008H - 07f0H = 18H
        assert_eq!(clock.estimated_tsc(), 1_000_000 + 0x18 * 84 - 20);
    }

    #[test]
    fn mtc_wraps_from_ff_to_00() {
        let mut clock = clock(0, (3, 1), 0);
        clock.apply_tsc_packet(100, true);
        clock.apply_tma_packet(0xfe, 0);
        clock.apply_mtc_packet(0xff);
        assert_eq!(clock.estimated_tsc(), 103);
        clock.apply_mtc_packet(0x00);
        assert_eq!(clock.estimated_tsc(), 106);
        clock.apply_mtc_packet(0x03); // two were lost
        assert_eq!(clock.estimated_tsc(), 115);
    }

    #[test]
    fn only_the_known_bits_of_a_slow_mtc_are_used() {
        let mut clock = clock(12, (2, 1), 0);
        clock.apply_tsc_packet(0x10_0000, true);
        clock.apply_tma_packet(0x0fff, 0);
        clock.apply_mtc_packet(0x31); // low 16 bits of 31000H are 1000H
        assert_eq!(clock.estimated_tsc(), 0x10_0000 + 2);
    }

    #[test]
    fn cycles_scale_with_the_ratio() {
        let mut clock = clock(0, (0, 0), 40);
        clock.apply_tsc_packet(0xa000, true);
        clock.apply_cyc_packet(4); // no CBR yet: nothing is known
        assert_eq!(clock.estimated_tsc(), 0xa000);
        clock.apply_tsc_packet(0xa000, true);
        clock.apply_cbr_packet(20);
        clock.apply_cyc_packet(4);
        assert_eq!(clock.estimated_tsc(), 0xa008);
        clock.apply_cyc_packet(12);
        assert_eq!(clock.estimated_tsc(), 0xa020);
        clock.apply_tsc_packet(0xa010, true);
        assert_eq!(clock.estimated_tsc(), 0xa020); // does not go back
        clock.apply_tsc_packet(0xa030, true);
        assert_eq!(clock.estimated_tsc(), 0xa030);
        assert_eq!(clock.total_cycles(), 20);
    }

    #[test]
    fn tsc_packets_wrap_at_56_bits() {
        let start_time = 0x12ff_ffff_ffff_fff0;
        let mut clock = EstimatedClock::new(TimeSettings {
            start_time,
            ..TimeSettings::default()
        });
        clock.apply_tsc_packet(0xff_ffff_ffff_fff5, true);
        assert_eq!(clock.estimated_tsc(), 0x12ff_ffff_ffff_fff5);
        clock.apply_tsc_packet(0x10, true);
        assert_eq!(clock.estimated_tsc(), 0x1300_0000_0000_0010);
    }
}
