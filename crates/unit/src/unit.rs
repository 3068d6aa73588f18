//! The trace unit: its state, its output, saving and restoring.

use std::io;

use crate::compression::{IpCompressionTable, ReturnStack};
use crate::error::Error;
use crate::packet_bytes::PacketBuffer;
use crate::saved_state::{CoreState, SavedState, NEVER};
use crate::settings::{ctl, LegalChoices, OutputRegion, Settings};
use crate::timing::ProcessorClocks;
use crate::tracing_control::{AddressRange, AddressRanges};

/// Bytes beyond its size that a circular region collects before the oldest are dropped.
const CIRCULAR_SLACK: u64 = 1 << 16;

/// Periods of MTC or CYC that `TraceUnit::advance_clock` accepts in one step: more is an error of the caller.
const MAX_PERIODS: u64 = 1 << 30;

/// The settings in the form that the unit uses.
#[derive(Clone)]
pub(crate) struct UnitConfig {
    pub(crate) os: bool,
    pub(crate) user: bool,
    /// IA32_RTIT_CR3_MATCH, if it applies.
    pub(crate) cr3_match: Option<u64>,
    pub(crate) event_en: bool,
    pub(crate) pwr_evt_en: bool,
    pub(crate) branch_en: bool,
    pub(crate) dis_tnt: bool,
    pub(crate) tsc_en: bool,
    pub(crate) mtc_en: bool,
    pub(crate) mtc_shift: u32,
    pub(crate) cyc_en: bool,
    /// Minimum of cycles between two CYCs.
    pub(crate) cyc_gap: u64,
    /// Maximum of cycles between two CYCs.
    pub(crate) cyc_limit: u64,
    /// Cycles between two MTCs, if that number is constant.
    pub(crate) mtc_cycles: Option<u64>,
    /// Cycles that `TraceUnit::advance_clock` accepts in one step.
    pub(crate) longest_gap: u64,
    pub(crate) psb_period: i64,
    pub(crate) psb_cyc: bool,
    pub(crate) core_ratio: u8,
    pub(crate) output: OutputRegion,
    pub(crate) parameters: LegalChoices,
    pub(crate) ip_table: IpCompressionTable,
    /// The value of `CoreState::tnt`, stop bit included, from which on a TNT is full.
    pub(crate) tnt_full: u64,
}

impl UnitConfig {
    fn new(settings: &Settings, clocks: &ProcessorClocks) -> UnitConfig {
        let ctl = settings.ctl;
        let (has, field) = (|bit: u64| ctl & bit != 0, |low: u32| ctl >> low & 15);
        let parameters = settings.parameters.clone();
        let cyc_gap = (1u64 << field(ctl::CYC_THRESH) >> 1).max(1);
        let waiting = match parameters.tnt_flush {
            0 => parameters.tnt_form.max_pending_bits(),
            results => results,
        };
        let cyc_limit = cyc_gap.max(u64::MAX >> (64 - parameters.cyc_counter_bits));
        let mtc_shift = field(ctl::MTC_FREQ) as u32;
        let mtc_cycles = clocks.cycles_of_art_clocks(1 << mtc_shift);
        let mut period = NEVER;
        if has(ctl::MTC_EN) {
            period = mtc_cycles.unwrap_or(1 << mtc_shift);
        }
        if has(ctl::CYC_EN) {
            period = period.min(cyc_limit);
        }
        UnitConfig {
            os: has(ctl::OS),
            user: has(ctl::USER),
            cr3_match: has(ctl::CR3_FILTER).then_some(settings.cr3_match),
            event_en: has(ctl::EVENT_EN),
            pwr_evt_en: has(ctl::PWR_EVT_EN),
            branch_en: has(ctl::BRANCH_EN),
            dis_tnt: has(ctl::DIS_TNT),
            tsc_en: has(ctl::TSC_EN),
            mtc_en: has(ctl::MTC_EN),
            mtc_shift,
            mtc_cycles,
            longest_gap: MAX_PERIODS.saturating_mul(period),
            cyc_en: has(ctl::CYC_EN),
            cyc_gap,
            cyc_limit,
            psb_period: 2048 << field(ctl::PSB_FREQ),
            psb_cyc: settings.psb_cyc,
            core_ratio: settings.time.core_ratio,
            output: settings.output,
            ip_table: IpCompressionTable::new(parameters.ip_compression),
            tnt_full: 1 << waiting,
            parameters,
        }
    }
}

/// A trace unit: events in, packets out.
///
/// A new unit is at CPL 0 with TraceEn clear. Call `advance_clock` when time has passed, then the event. After each
/// event its packets are complete in the output, except for pending TNT bits.
#[derive(Clone)]
pub struct TraceUnit {
    pub(crate) core: CoreState,
    /// The position in the buffer up to which `account_output` has accounted.
    pub(crate) written_to: usize,
    /// PacketByteCnt at the start of the buffer.
    pub(crate) count_base: i64,
    /// The position in the buffer at which `end_event` has more to do.
    pub(crate) attention: usize,
    pub(crate) buffer: PacketBuffer,
    pub(crate) config: UnitConfig,
    pub(crate) clocks: ProcessorClocks,
    pub(crate) ret_stack: ReturnStack,
    pub(crate) ranges: AddressRanges,
    /// The ranges from the next enable on.
    pub(crate) next_ranges: AddressRanges,
    /// PSBs that this unit has emitted.
    pub(crate) psbs: u64,
}

impl TraceUnit {
    /// Creates a unit.
    ///
    /// # Errors As `Settings::check_settings`.
    pub fn new(settings: &Settings) -> Result<TraceUnit, Error> {
        settings.check_settings()?;
        let depth = match settings.ctl & ctl::DIS_RETC {
            0 => settings.parameters.ret_compression_depth as usize,
            _ => 0,
        };
        let clocks = ProcessorClocks::new(&settings.time);
        let mut unit = TraceUnit {
            core: CoreState::default(),
            written_to: 0,
            count_base: 0,
            attention: 0,
            buffer: PacketBuffer::default(),
            config: UnitConfig::new(settings, &clocks),
            clocks,
            ret_stack: ReturnStack::new(depth),
            ranges: AddressRanges::default(),
            next_ranges: AddressRanges::default(),
            psbs: 0,
        };
        unit.update_attention();
        Ok(unit)
    }

    /// Sets the address ranges from the next enable on.
    ///
    /// # Errors `Error::TooManyRanges`; nothing has changed then.
    pub fn set_ranges(&mut self, ranges: &[AddressRange]) -> Result<(), Error> {
        self.next_ranges = AddressRanges::new(ranges)?;
        Ok(())
    }

    /// Returns IA32_RTIT_STATUS.Stopped: after TraceStop, or if a region is full.
    pub fn is_stopped(&self) -> bool {
        self.core.stopped
    }

    /// Returns whether direct branches, other than conditional ones, emit nothing and change nothing.
    #[inline(always)]
    pub fn has_plain_branches(&self) -> bool {
        self.core.plain
    }

    /// Returns PacketEn (section 33.2.6.1): the current code is traced.
    pub fn packet_en(&self) -> bool {
        self.core.packet_en
    }

    /// Returns IA32_RTIT_CTL.TraceEn.
    pub fn trace_en(&self) -> bool {
        self.core.trace_en
    }

    /// Returns the number of PSBs that this unit has emitted. A decoder can start at the next instruction after each.
    pub fn psb_count(&self) -> u64 {
        self.psbs
    }

    /// Returns the number of all bytes written.
    pub fn bytes_written(&self) -> u64 {
        self.core.written + self.buffer.position() as u64
    }

    // Output

    /// Returns the bytes that have not been taken; of a circular region, at most its size.
    pub fn untaken_output(&self) -> &[u8] {
        let bytes = self.buffer.as_slice();
        match self.config.output {
            OutputRegion::Circular(size) => {
                let kept = bytes.len().min(usize::try_from(size).unwrap_or(usize::MAX));
                bytes.get(bytes.len() - kept..).unwrap_or_default()
            }
            OutputRegion::Stream | OutputRegion::Stop(_) => bytes,
        }
    }

    /// Returns `untaken_output` and empties it.
    pub fn take_output(&mut self) -> Vec<u8> {
        let bytes = self.untaken_output().to_vec();
        self.keep_last_bytes(0);
        bytes
    }

    /// Empties `untaken_output`, after it was used in place.
    pub fn discard_output(&mut self) {
        self.keep_last_bytes(0);
    }

    /// Writes `untaken_output` to a sink and empties it, unless the sink fails. Returns the number of bytes.
    ///
    /// # Errors Those of the sink.
    pub fn drain_output(&mut self, sink: &mut impl io::Write) -> io::Result<usize> {
        let bytes = self.untaken_output();
        let size = bytes.len();
        sink.write_all(bytes)?;
        self.keep_last_bytes(0);
        Ok(size)
    }

    /// Keeps the last `count` bytes of the buffer.
    pub(crate) fn keep_last_bytes(&mut self, count: usize) {
        let gone = self.buffer.keep_last(count);
        self.core.written += gone as u64;
        self.count_base += gone as i64;
        self.written_to = self.buffer.position();
        self.update_attention();
    }

    /// Returns PacketByteCnt, with all written bytes.
    pub(crate) fn packet_byte_count(&self) -> i64 {
        self.count_base + self.buffer.position() as i64
    }

    /// Returns the position in the buffer at which the region ends; `NEVER` if it does not.
    pub(crate) fn region_end(&self) -> u64 {
        match self.config.output {
            OutputRegion::Stop(size) => size.saturating_sub(self.core.written),
            OutputRegion::Stream | OutputRegion::Circular(_) => NEVER,
        }
    }

    /// Computes `attention`.
    pub(crate) fn update_attention(&mut self) {
        let mut at = self.region_end();
        if let OutputRegion::Circular(size) = self.config.output {
            at = size.saturating_add(size.max(CIRCULAR_SLACK));
        }
        if self.core.trigger_en {
            let psb = self.config.psb_period - self.count_base;
            at = at.min(u64::try_from(psb).unwrap_or(0));
        }
        self.attention = usize::try_from(at).unwrap_or(usize::MAX);
    }

    // Saving

    /// Returns all state that decides what the unit emits next. The bytes in `untaken_output` are not part of it.
    pub fn save_state(&self) -> SavedState {
        let mut core = self.core;
        core.packet_byte_count = self.packet_byte_count();
        core.written = self.bytes_written();
        SavedState {
            core,
            ret_stack: self.ret_stack.to_vec(),
            ranges: self.ranges.as_slice().to_vec(),
            next_ranges: self.next_ranges.as_slice().to_vec(),
        }
    }

    /// Continues as the unit from which `state` was saved, which had the same settings. Empties `untaken_output`.
    ///
    /// # Errors `Error::State`, `Error::TooManyRanges` for a state that no unit of these settings has; nothing has
    /// changed then.
    pub fn restore_state(&mut self, state: &SavedState) -> Result<(), Error> {
        let ranges = AddressRanges::new(&state.ranges)?;
        let next_ranges = AddressRanges::new(&state.next_ranges)?;
        self.check_saved_state(state)?;
        self.core = state.core;
        self.ranges = ranges;
        self.next_ranges = next_ranges;
        self.ret_stack.clear();
        for ip in &state.ret_stack {
            self.ret_stack.push(*ip);
        }
        self.buffer.keep_last(0);
        self.written_to = 0;
        self.count_base = state.core.packet_byte_count;
        self.update_attention();
        Ok(())
    }

    fn check_saved_state(&self, state: &SavedState) -> Result<(), Error> {
        let core = &state.core;
        let valid = |field, value, valid| match valid {
            true => Ok(()),
            false => Err(Error::State { field, value }),
        };
        let enabled = self.packet_en_of(core);
        let plain = enabled && self.would_have_plain_branches(&state.ranges);
        let packet_en = core.packet_en;
        valid("packet_en", packet_en.into(), packet_en == enabled)?;
        valid("plain", core.plain.into(), plain || !core.plain)?;
        let calls = state.ret_stack.len();
        let tnt = core.tnt >= 1 && core.tnt < self.config.tnt_full;
        valid("tnt", core.tnt, tnt && (core.packet_en || core.tnt == 1))?;
        valid(
            "ret_stack",
            calls as u64,
            calls <= self.ret_stack.max_depth(),
        )?;
        let last_cycle = self.clocks.limit * self.clocks.cpi;
        valid("cycle", core.cycle, core.cycle <= last_cycle)?;
        valid("cyc_base", core.cyc_base, core.cyc_base <= core.cycle)?;
        let timed = core.trigger_en && self.config.mtc_en;
        let next_mtc = match timed {
            true => self.cycle_of_mtc(core.mtc_index),
            false => NEVER,
        };
        valid("next_mtc", core.next_mtc, core.next_mtc == next_mtc)?;
        let enabled = core.trace_en && !core.stopped;
        valid("trigger_en", 1, enabled || !core.trigger_en)?;
        let count = core.packet_byte_count;
        let count_fits = count.unsigned_abs() < 1 << 60;
        valid("packet_byte_count", count as u64, count_fits)?;
        let most = match self.config.output {
            OutputRegion::Stop(size) => size,
            OutputRegion::Stream | OutputRegion::Circular(_) => 1 << 60,
        };
        valid("written", core.written, core.written <= most)
    }
}
