//! The clocks of the modelled processor (section 33.8.3.1), all of which follow from the core cycle.

use crate::settings::TimeModel;

/// Higher cycles are refused, so that products with ratios fit 64 bits.
const CYCLE_LIMIT: u64 = 1 << 55;
/// The same limit for the TSC.
const TICK_LIMIT: u64 = 1 << 58;

#[derive(Clone)]
pub(crate) struct Clocks {
    pub(crate) cpi: u64,
    /// The highest clock that `Unit::advance_clock` accepts, in retired instructions.
    pub(crate) limit: u64,
    tsc_start: u64,
    tsc_adjust: i64,
    numerator: u64,
    denominator: u64,
    max_non_turbo_ratio: u64,
    core_ratio: u64,
}

impl Clocks {
    /// Creates the clocks of a validated model: no divisor is 0.
    pub(crate) fn new(time: &TimeModel) -> Clocks {
        let ticks = TICK_LIMIT.saturating_sub(time.tsc_start);
        let (own, core) = (time.max_non_turbo_ratio.into(), time.core_ratio.into());
        let cycles = mul_div_floor(ticks, core, own).min(CYCLE_LIMIT);
        Clocks {
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
    fn ticks(&self, cycle: u64) -> u64 {
        self.tsc_start + cycle * self.max_non_turbo_ratio / self.core_ratio
    }

    pub(crate) fn tsc(&self, cycle: u64) -> u64 {
        self.ticks(cycle).wrapping_add_signed(self.tsc_adjust)
    }

    /// Returns the Always Running Timer.
    pub(crate) fn art(&self, cycle: u64) -> u64 {
        mul_div_floor(self.ticks(cycle), self.denominator, self.numerator)
    }

    /// Returns ticks since the last edge of the crystal clock.
    pub(crate) fn fast_counter(&self, cycle: u64) -> u64 {
        self.ticks(cycle) - mul_div_ceil(self.art(cycle), self.numerator, self.denominator)
    }

    /// Returns the first cycle at which the ART has reached `art`, at or after the start.
    pub(crate) fn cycle_of_art(&self, art: u64) -> u64 {
        let ticks = mul_div_ceil(art, self.numerator, self.denominator);
        let own = ticks.saturating_sub(self.tsc_start);
        mul_div_ceil(own, self.core_ratio, self.max_non_turbo_ratio)
    }

    /// Returns the cycles of `clocks` ART clocks, if that number is constant.
    pub(crate) fn cycles_of_art(&self, clocks: u64) -> Option<u64> {
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
