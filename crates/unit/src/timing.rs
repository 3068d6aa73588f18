//! The clocks of the modelled processor (section 33.8.3.1), and the timing packets: TSC, TMA, CBR, MTC, CYC (sections
//! 33.3.6, 33.4.2.10 to 33.4.2.14, 33.8.3).

use crate::error::Error;
use crate::packet_bytes;
use crate::saved_state::NEVER;
use crate::settings::TimeModel;
use crate::unit::TraceUnit;

impl TraceUnit {
    /// Sets the clock: `clock` instructions have retired. Emits the timing packets that are due until then.
    ///
    /// # Errors `Error::ClockWentBack`; `Error::ClockTooHigh`. Nothing has changed then.
    #[inline(always)]
    pub fn advance_clock(&mut self, clock: u64) -> Result<(), Error> {
        if clock > self.clocks.limit {
            return Err(self.clock_too_high_error(clock));
        }
        let cycle = clock * self.clocks.cpi;
        if cycle < self.core.cycle {
            return Err(self.clock_went_back_error(clock));
        }
        if cycle < self.core.due {
            self.core.cycle = cycle;
            return Ok(());
        }
        self.advance_past_due(clock, cycle)
    }

    #[cold]
    fn advance_past_due(&mut self, clock: u64, cycle: u64) -> Result<(), Error> {
        if cycle - self.core.cycle > self.config.longest_gap {
            return Err(self.clock_too_high_error(clock));
        }
        self.send_timing_until(cycle);
        // Between two events the IP is unknown: a PSB+ that needs it waits for the next event.
        if self.core.packet_en {
            self.account_for_output();
        } else {
            self.finish_event();
        }
        Ok(())
    }

    /// Returns the clock in retired instructions.
    pub fn clock_in_instructions(&self) -> u64 {
        self.core.cycle / self.clocks.cpi
    }

    #[cold]
    fn clock_too_high_error(&self, clock: u64) -> Error {
        let limit = self.core.cycle.saturating_add(self.config.longest_gap) / self.clocks.cpi;
        let limit = limit.min(self.clocks.limit);
        Error::ClockTooHigh { clock, limit }
    }

    #[cold]
    fn clock_went_back_error(&self, clock: u64) -> Error {
        let was = self.clock_in_instructions();
        Error::ClockWentBack { clock, was }
    }

    /// Starts timing when TriggerEn is set: the cycle counter is 0, and the first eligible packet gets a CYC.
    pub(crate) fn start_timing(&mut self) {
        let cycle = self.core.cycle;
        if self.config.cyc_en {
            self.core.cyc_base = cycle;
            self.core.cyc_due = cycle;
        }
        if self.config.mtc_en {
            self.core.mtc_index = self.clocks.art_at_cycle(cycle) >> self.config.mtc_shift;
            self.compute_next_mtc();
        }
        self.schedule_timing();
    }

    /// Emits a final stand-alone CYC before TriggerEn is cleared, if cycles are left and the threshold allows it.
    pub(crate) fn put_last_cyc(&mut self) {
        let core = &self.core;
        if core.cycle >= core.cyc_due && core.cycle > core.cyc_base {
            self.put_cyc();
        }
    }

    /// Stops timing when TriggerEn is cleared.
    pub(crate) fn stop_timing(&mut self) {
        self.core.cyc_due = NEVER;
        self.core.next_mtc = NEVER;
        self.core.due = NEVER;
    }

    /// Advances to core cycle `cycle` and emits the packets that time alone causes: MTCs, and CYCs before the counter
    /// wraps.
    fn send_timing_until(&mut self, cycle: u64) {
        loop {
            self.schedule_timing();
            let due = self.core.due;
            if due > cycle {
                break;
            }
            self.core.cycle = due;
            self.flush_tnt();
            if due == self.core.next_mtc {
                self.put_cyc_if_due();
                self.buffer
                    .put_packet(packet_bytes::mtc_packet(self.core.mtc_index));
                self.schedule_next_mtc();
            } else {
                self.put_cyc();
            }
        }
        self.core.cycle = cycle;
    }

    /// Emits a CYC before an eligible packet, if the threshold has passed (section 33.3.6.3).
    #[inline(always)]
    pub(crate) fn put_cyc_if_due(&mut self) {
        if self.core.cycle >= self.core.cyc_due {
            self.put_cyc();
        }
    }

    pub(crate) fn put_cyc(&mut self) {
        let cycle = self.core.cycle;
        let (bytes, size) = packet_bytes::cyc_packet(cycle - self.core.cyc_base);
        self.buffer.put_bytes(&bytes[..size]);
        self.core.cyc_base = cycle;
        self.core.cyc_due = cycle + self.config.cyc_gap;
    }

    /// Emits TSC if TSCEn, followed by TMA if MTCEn (sections 33.4.2.11 and 33.4.2.13).
    pub(crate) fn put_tsc_and_tma(&mut self) {
        if !self.config.tsc_en {
            return;
        }
        let cycle = self.core.cycle;
        self.buffer
            .put_packet(packet_bytes::tsc_packet(self.clocks.tsc_at_cycle(cycle)));
        if self.config.mtc_en {
            let (art, ticks) = (
                self.clocks.art_at_cycle(cycle),
                self.clocks.fast_counter_at_cycle(cycle),
            );
            self.buffer.put_packet(packet_bytes::tma_packet(art, ticks));
        }
    }

    pub(crate) fn put_cbr(&mut self) {
        self.buffer
            .put_packet(packet_bytes::cbr_packet(self.config.core_ratio.into()));
    }

    fn compute_next_mtc(&mut self) {
        self.core.mtc_index = self.core.mtc_index.wrapping_add(1);
        self.core.next_mtc = self.cycle_of_mtc(self.core.mtc_index);
    }

    /// Computes the next MTC from the last one, mostly without a division.
    fn schedule_next_mtc(&mut self) {
        match self.config.mtc_cycles {
            None => self.compute_next_mtc(),
            Some(cycles) => {
                self.core.mtc_index += 1;
                self.core.next_mtc += cycles;
            }
        }
    }

    /// Returns the cycle at which the ART has counted `index` MTC periods.
    pub(crate) fn cycle_of_mtc(&self, index: u64) -> u64 {
        self.clocks
            .first_cycle_of_art(index << self.config.mtc_shift)
    }

    pub(crate) fn schedule_timing(&mut self) {
        self.core.due = self.core.next_mtc;
        if self.config.cyc_en && self.core.cyc_due != NEVER {
            let wraps = self.core.cyc_base.saturating_add(self.config.cyc_limit);
            self.core.due = self.core.due.min(wraps);
        }
    }
}

/// Higher cycles are refused, so that products with ratios fit 64 bits.
const CYCLE_LIMIT: u64 = 1 << 55;
/// The same limit for the TSC.
const TICK_LIMIT: u64 = 1 << 58;

/// The clocks, all of which follow from the core cycle.
#[derive(Clone)]
pub(crate) struct ProcessorClocks {
    pub(crate) cpi: u64,
    /// The highest clock that `TraceUnit::advance_clock` accepts, in retired instructions.
    pub(crate) limit: u64,
    tsc_start: u64,
    tsc_adjust: i64,
    numerator: u64,
    denominator: u64,
    max_non_turbo_ratio: u64,
    core_ratio: u64,
}

impl ProcessorClocks {
    /// Creates the clocks of a validated model: no divisor is 0.
    pub(crate) fn new(time: &TimeModel) -> ProcessorClocks {
        let ticks = TICK_LIMIT.saturating_sub(time.tsc_start);
        let (own, core) = (time.max_non_turbo_ratio.into(), time.core_ratio.into());
        let cycles = mul_div_floor(ticks, core, own).min(CYCLE_LIMIT);
        ProcessorClocks {
            cpi: time.cpi.into(),
            limit: cycles / u64::from(time.cpi),
            tsc_start: time.tsc_start,
            tsc_adjust: time.tsc_adjust,
            numerator: time.tsc_numerator.into(),
            denominator: time.tsc_denominator.into(),
            max_non_turbo_ratio: own,
            core_ratio: core,
        }
    }

    /// Returns ticks at the TSC's rate, without the software offset.
    fn unadjusted_tsc_at_cycle(&self, cycle: u64) -> u64 {
        self.tsc_start + cycle * self.max_non_turbo_ratio / self.core_ratio
    }

    pub(crate) fn tsc_at_cycle(&self, cycle: u64) -> u64 {
        self.unadjusted_tsc_at_cycle(cycle)
            .wrapping_add_signed(self.tsc_adjust)
    }

    /// Returns the Always Running Timer.
    pub(crate) fn art_at_cycle(&self, cycle: u64) -> u64 {
        mul_div_floor(
            self.unadjusted_tsc_at_cycle(cycle),
            self.denominator,
            self.numerator,
        )
    }

    /// Returns ticks since the last edge of the crystal clock.
    pub(crate) fn fast_counter_at_cycle(&self, cycle: u64) -> u64 {
        self.unadjusted_tsc_at_cycle(cycle)
            - mul_div_ceil(self.art_at_cycle(cycle), self.numerator, self.denominator)
    }

    /// Returns the first cycle at which the ART has reached `art`, at or after the start.
    pub(crate) fn first_cycle_of_art(&self, art: u64) -> u64 {
        let ticks = mul_div_ceil(art, self.numerator, self.denominator);
        let own = ticks.saturating_sub(self.tsc_start);
        mul_div_ceil(own, self.core_ratio, self.max_non_turbo_ratio)
    }

    /// Returns the cycles of `clocks` ART clocks, if that number is constant.
    pub(crate) fn cycles_of_art_clocks(&self, clocks: u64) -> Option<u64> {
        let ticks = mul_div_exact(clocks, self.numerator, self.denominator)?;
        mul_div_exact(ticks, self.core_ratio, self.max_non_turbo_ratio)
    }
}

/// Returns a * b / c if that is an integer.
fn mul_div_exact(a: u64, b: u64, c: u64) -> Option<u64> {
    let product = a.checked_mul(b)?;
    (product % c == 0).then_some(product / c)
}

/// Returns a * b / c rounded down, at most u64::MAX.
fn mul_div_floor(a: u64, b: u64, c: u64) -> u64 {
    match a.checked_mul(b) {
        Some(product) => product / c,
        None => saturate_to_u64(u128::from(a) * u128::from(b) / u128::from(c)),
    }
}

/// Returns a * b / c rounded up, at most u64::MAX.
fn mul_div_ceil(a: u64, b: u64, c: u64) -> u64 {
    match a.checked_mul(b) {
        Some(product) => product.div_ceil(c),
        None => saturate_to_u64((u128::from(a) * u128::from(b)).div_ceil(u128::from(c))),
    }
}

fn saturate_to_u64(value: u128) -> u64 {
    u64::try_from(value).unwrap_or(u64::MAX)
}
