//! The clocks of the modelled processor (section 33.8.3.1): all follow from the core cycle.

use crate::settings::TimeModel;

/// Cycles beyond this are refused, so that no product with a ratio leaves 64 bits.
const CYCLE_LIMIT: u64 = 1 << 55;
/// The same for the TSC.
const TICK_LIMIT: u64 = 1 << 58;

#[derive(Clone)]
pub(crate) struct Clocks {
    pub(crate) cpi: u64,
    /// The highest clock that `Unit::at` takes, in retired instructions.
    pub(crate) limit: u64,
    tsc_start: u64,
    tsc_adjust: i64,
    numerator: u64,
    denominator: u64,
    max_non_turbo_ratio: u64,
    core_ratio: u64,
}

impl Clocks {
    /// `time` has been validated: nothing that divides is 0.
    pub(crate) fn new(time: &TimeModel) -> Clocks {
        let ticks = TICK_LIMIT.saturating_sub(time.tsc_start);
        let (own, core) = (time.max_non_turbo_ratio.into(), time.core_ratio.into());
        let cycles = floor(ticks, core, own).min(CYCLE_LIMIT);
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

    /// Ticks at TSC rate, without software offset.
    fn ticks(&self, cycle: u64) -> u64 {
        self.tsc_start + cycle * self.max_non_turbo_ratio / self.core_ratio
    }

    pub(crate) fn tsc(&self, cycle: u64) -> u64 {
        self.ticks(cycle).wrapping_add_signed(self.tsc_adjust)
    }

    /// The Always Running Timer.
    pub(crate) fn art(&self, cycle: u64) -> u64 {
        floor(self.ticks(cycle), self.denominator, self.numerator)
    }

    /// Ticks since the last edge of the crystal clock.
    pub(crate) fn fast_counter(&self, cycle: u64) -> u64 {
        self.ticks(cycle) - ceiling(self.art(cycle), self.numerator, self.denominator)
    }

    /// The first cycle at which the ART has reached `art`, which is not before the start.
    pub(crate) fn cycle_of_art(&self, art: u64) -> u64 {
        let ticks = ceiling(art, self.numerator, self.denominator);
        let own = ticks.saturating_sub(self.tsc_start);
        ceiling(own, self.core_ratio, self.max_non_turbo_ratio)
    }

    /// Cycles of so many ART clocks, if they are always as many.
    pub(crate) fn cycles_of_art(&self, clocks: u64) -> Option<u64> {
        let ticks = exact(clocks, self.numerator, self.denominator)?;
        exact(ticks, self.core_ratio, self.max_non_turbo_ratio)
    }
}

/// a * b / c if that is whole.
fn exact(a: u64, b: u64, c: u64) -> Option<u64> {
    let product = a.checked_mul(b)?;
    (product % c == 0).then_some(product / c)
}

/// a * b / c rounded down; at most u64::MAX.
fn floor(a: u64, b: u64, c: u64) -> u64 {
    match a.checked_mul(b) {
        Some(product) => product / c,
        None => narrow(u128::from(a) * u128::from(b) / u128::from(c)),
    }
}

/// a * b / c rounded up; at most u64::MAX.
fn ceiling(a: u64, b: u64, c: u64) -> u64 {
    match a.checked_mul(b) {
        Some(product) => product.div_ceil(c),
        None => narrow((u128::from(a) * u128::from(b)).div_ceil(u128::from(c))),
    }
}

fn narrow(value: u128) -> u64 {
    u64::try_from(value).unwrap_or(u64::MAX)
}
