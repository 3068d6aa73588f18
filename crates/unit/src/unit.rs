//! The unit: its parts, its output, saving and restoring.

use std::io;

use crate::buffer::Buffer;
use crate::clocks::Clocks;
use crate::compression::{IpForms, ReturnStack};
use crate::error::Error;
use crate::filter::{Range, Ranges};
use crate::settings::{ctl, Output, Parameters, Settings};
use crate::state::{Core, State, NEVER};

/// Bytes that a circular region may gather beyond its size before the oldest are forgotten.
const SLACK: u64 = 1 << 16;

/// Periods of MTC or CYC that `Unit::at` may pass in one step: more is no program's doing.
const PERIODS: u64 = 1 << 30;

/// What follows from the settings.
#[derive(Clone)]
pub(crate) struct Config {
    pub(crate) user: bool,
    pub(crate) branch_en: bool,
    pub(crate) dis_tnt: bool,
    pub(crate) tsc_en: bool,
    pub(crate) mtc_en: bool,
    pub(crate) mtc_shift: u32,
    pub(crate) cyc_en: bool,
    /// Cycles between two CYCs at least.
    pub(crate) cyc_gap: u64,
    /// Cycles between two CYCs at most.
    pub(crate) cyc_limit: u64,
    /// Cycles between two MTCs, where they are always as many.
    pub(crate) mtc_cycles: Option<u64>,
    /// Cycles that `Unit::at` may pass in one step.
    pub(crate) longest_gap: u64,
    pub(crate) psb_period: i64,
    pub(crate) psb_cyc: bool,
    pub(crate) core_ratio: u8,
    pub(crate) output: Output,
    pub(crate) parameters: Parameters,
    pub(crate) ip_forms: IpForms,
    /// The least value of Core::tnt, stop bit included, that is sent at once.
    pub(crate) tnt_full: u64,
}

impl Config {
    fn new(settings: &Settings, clocks: &Clocks) -> Config {
        let ctl = settings.ctl;
        let (has, field) = (|bit: u64| ctl & bit != 0, |low: u32| ctl >> low & 15);
        let parameters = settings.parameters.clone();
        let cyc_gap = (1u64 << field(ctl::CYC_THRESH) >> 1).max(1);
        let waiting = match parameters.tnt_flush {
            0 => parameters.tnt_form.capacity(),
            results => results,
        };
        let cyc_limit = cyc_gap.max(u64::MAX >> (64 - parameters.cyc_counter_bits));
        let mtc_shift = field(ctl::MTC_FREQ) as u32;
        let mtc_cycles = clocks.cycles_of_art(1 << mtc_shift);
        let mut period = NEVER;
        if has(ctl::MTC_EN) {
            period = mtc_cycles.unwrap_or(1 << mtc_shift);
        }
        if has(ctl::CYC_EN) {
            period = period.min(cyc_limit);
        }
        Config {
            user: has(ctl::USER),
            branch_en: has(ctl::BRANCH_EN),
            dis_tnt: has(ctl::DIS_TNT),
            tsc_en: has(ctl::TSC_EN),
            mtc_en: has(ctl::MTC_EN),
            mtc_shift,
            mtc_cycles,
            longest_gap: PERIODS.saturating_mul(period),
            cyc_en: has(ctl::CYC_EN),
            cyc_gap,
            cyc_limit,
            psb_period: 2048 << field(ctl::PSB_FREQ),
            psb_cyc: settings.psb_cyc,
            core_ratio: settings.time.core_ratio,
            output: settings.output,
            ip_forms: IpForms::new(parameters.ip_compression),
            tnt_full: 1 << waiting,
            parameters,
        }
    }
}

/// A trace unit for user mode: events in, packets out.
///
/// A new one is at CPL 0 with TraceEn clear. Call `at` where time has passed, then the event. After each event its
/// packets are whole in the output; results of conditional branches wait for their TNT.
#[derive(Clone)]
pub struct Unit {
    pub(crate) core: Core,
    /// Where the buffer ended when `write` last looked at it.
    pub(crate) written_to: usize,
    /// PacketByteCnt when the buffer was empty.
    pub(crate) count_base: i64,
    /// From this position of the buffer on, a commit has more to do than nothing.
    pub(crate) attention: usize,
    pub(crate) buffer: Buffer,
    pub(crate) config: Config,
    pub(crate) clocks: Clocks,
    pub(crate) ret_stack: ReturnStack,
    pub(crate) ranges: Ranges,
    /// `ranges` from the next enable on.
    pub(crate) next_ranges: Ranges,
    /// PSBs that this unit has put.
    pub(crate) psbs: u64,
}

impl Unit {
    /// # Errors
    /// As `Settings::check`.
    pub fn new(settings: &Settings) -> Result<Unit, Error> {
        settings.check()?;
        let depth = match settings.ctl & ctl::DIS_RETC {
            0 => settings.parameters.ret_compression_depth as usize,
            _ => 0,
        };
        let clocks = Clocks::new(&settings.time);
        let mut unit = Unit {
            core: Core::default(),
            written_to: 0,
            count_base: 0,
            attention: 0,
            buffer: Buffer::default(),
            config: Config::new(settings, &clocks),
            clocks,
            ret_stack: ReturnStack::new(depth),
            ranges: Ranges::default(),
            next_ranges: Ranges::default(),
            psbs: 0,
        };
        unit.aim();
        Ok(unit)
    }

    /// The address ranges that count from the next enable on.
    ///
    /// # Errors
    /// `Error::TooManyRanges`; nothing has changed then.
    pub fn set_ranges(&mut self, ranges: &[Range]) -> Result<(), Error> {
        self.next_ranges = Ranges::new(ranges)?;
        Ok(())
    }

    /// IA32_RTIT_STATUS.Stopped: TraceStop, or a region that is full.
    pub fn stopped(&self) -> bool {
        self.core.stopped
    }

    /// Direct branches other than conditional ones make no packet and change nothing.
    #[inline(always)]
    pub fn plain(&self) -> bool {
        self.core.plain
    }

    /// PacketEn (section 33.2.6.1): what runs now is traced.
    pub fn packet_en(&self) -> bool {
        self.core.packet_en
    }

    /// IA32_RTIT_CTL.TraceEn.
    pub fn tracing(&self) -> bool {
        self.core.trace_en
    }

    /// PSBs that this unit has put since it was made: a decoder can start at the next instruction after each.
    pub fn psbs(&self) -> u64 {
        self.psbs
    }

    /// All bytes written so far.
    pub fn written(&self) -> u64 {
        self.core.written + self.buffer.position() as u64
    }

    // Output

    /// What was written since it was last taken; of a circular region, at most its size.
    pub fn output(&self) -> &[u8] {
        let bytes = self.buffer.as_slice();
        match self.config.output {
            Output::Circular(size) => {
                let kept = bytes.len().min(usize::try_from(size).unwrap_or(usize::MAX));
                bytes.get(bytes.len() - kept..).unwrap_or_default()
            }
            Output::Stream | Output::Stop(_) => bytes,
        }
    }

    /// `output`, which is empty afterwards.
    pub fn take(&mut self) -> Vec<u8> {
        let bytes = self.output().to_vec();
        self.forget(0);
        bytes
    }

    /// Empty `output` after it was used in place.
    pub fn discard(&mut self) {
        self.forget(0);
    }

    /// Write `output` to a sink; it is empty afterwards, and unchanged if the sink fails. Returns the number of bytes.
    ///
    /// # Errors
    /// Those of the sink.
    pub fn drain(&mut self, sink: &mut impl io::Write) -> io::Result<usize> {
        let bytes = self.output();
        let size = bytes.len();
        sink.write_all(bytes)?;
        self.forget(0);
        Ok(size)
    }

    /// Keep the last `count` bytes only.
    pub(crate) fn forget(&mut self, count: usize) {
        let gone = self.buffer.keep(count);
        self.core.written += gone as u64;
        self.count_base += gone as i64;
        self.written_to = self.buffer.position();
        self.aim();
    }

    /// PacketByteCnt, all written bytes included.
    pub(crate) fn packet_byte_count(&self) -> i64 {
        self.count_base + self.buffer.position() as i64
    }

    /// Where in the buffer the region ends, if it ends.
    pub(crate) fn region_end(&self) -> u64 {
        match self.config.output {
            Output::Stop(size) => size.saturating_sub(self.core.written),
            Output::Stream | Output::Circular(_) => NEVER,
        }
    }

    /// Set `attention`.
    pub(crate) fn aim(&mut self) {
        let mut at = self.region_end();
        if let Output::Circular(size) = self.config.output {
            at = size.saturating_add(size.max(SLACK));
        }
        if self.core.trigger_en {
            let psb = self.config.psb_period - self.count_base;
            at = at.min(u64::try_from(psb).unwrap_or(0));
        }
        self.attention = usize::try_from(at).unwrap_or(usize::MAX);
    }

    // Saving

    /// Everything that decides what comes next; the bytes in `output` are no part of it.
    pub fn state(&self) -> State {
        let mut core = self.core;
        core.packet_byte_count = self.packet_byte_count();
        core.written = self.written();
        State {
            core,
            ret_stack: self.ret_stack.to_vec(),
            ranges: self.ranges.as_slice().to_vec(),
            next_ranges: self.next_ranges.as_slice().to_vec(),
        }
    }

    /// Go on exactly as the unit did that `state` was taken from, which had the same settings. `output` is empty
    /// afterwards.
    ///
    /// # Errors
    /// `Error::State`, `Error::TooManyRanges` for a state that no unit of these settings has; nothing has changed then.
    pub fn restore(&mut self, state: &State) -> Result<(), Error> {
        let ranges = Ranges::new(&state.ranges)?;
        let next_ranges = Ranges::new(&state.next_ranges)?;
        self.check(state)?;
        self.core = state.core;
        self.ranges = ranges;
        self.next_ranges = next_ranges;
        self.ret_stack.clear();
        state
            .ret_stack
            .iter()
            .for_each(|ip| self.ret_stack.push(*ip));
        self.buffer.keep(0);
        self.written_to = 0;
        self.count_base = state.core.packet_byte_count;
        self.aim();
        Ok(())
    }

    fn check(&self, state: &State) -> Result<(), Error> {
        let core = &state.core;
        let valid = |field, value, valid| match valid {
            true => Ok(()),
            false => Err(Error::State { field, value }),
        };
        let enabled = self.enabled(core);
        let plain = enabled && self.is_plain(&state.ranges);
        valid(
            "packet_en",
            core.packet_en.into(),
            core.packet_en == enabled,
        )?;
        valid("plain", core.plain.into(), plain || !core.plain)?;
        let calls = state.ret_stack.len();
        let tnt = core.tnt >= 1 && core.tnt < self.config.tnt_full;
        valid("tnt", core.tnt, tnt && (core.packet_en || core.tnt == 1))?;
        valid("ret_stack", calls as u64, calls <= self.ret_stack.depth())?;
        valid(
            "cycle",
            core.cycle,
            core.cycle <= self.clocks.limit * self.clocks.cpi,
        )?;
        valid("cyc_base", core.cyc_base, core.cyc_base <= core.cycle)?;
        let timed = core.trigger_en && self.config.mtc_en;
        let next_mtc = if timed {
            self.mtc_cycle(core.mtc_index)
        } else {
            NEVER
        };
        valid("next_mtc", core.next_mtc, core.next_mtc == next_mtc)?;
        valid(
            "trigger_en",
            1,
            !core.trigger_en || (core.trace_en && !core.stopped),
        )?;
        let count = core.packet_byte_count;
        valid(
            "packet_byte_count",
            count as u64,
            count.unsigned_abs() < 1 << 60,
        )?;
        let most = match self.config.output {
            Output::Stop(size) => size,
            Output::Stream | Output::Circular(_) => 1 << 60,
        };
        valid("written", core.written, core.written <= most)
    }
}
