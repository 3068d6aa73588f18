//! The crystal clock as perf counts it: from the TMA of the last TSC, by MTCs.

use crate::time::TimeSettings;

/// Of CTC, in an MTC.
const MTC_BITS: u32 = 8;
/// Of CTC, in a TMA.
const TMA_BITS: u32 = 16;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Crystal {
    shift: u32,
    /// TSC ticks per crystal tick.
    ratio: (u32, u32),
    /// The time at the last moment before the TMA at which an MTC was due.
    edge: u64,
    /// Crystal ticks since then.
    ticks: u64,
    last: u8,
    /// The TMA has not all bits of `last`.
    partial: bool,
}

impl Crystal {
    /// `payload`: as `rtit_packet::Columns` has it; `tsc`: of the packet before. None: it is not known how fast the crystal
    /// is.
    pub fn of_tma(payload: u64, tsc: u64, settings: TimeSettings) -> Option<Crystal> {
        if settings.tsc_ctc.0 == 0 || settings.tsc_ctc.1 == 0 {
            return None;
        }
        let shift = u32::from(settings.mtc_freq);
        let (ctc, fast_counter) = (payload & 0xffff, payload >> 16);
        let behind = ctc & ((1 << shift) - 1);
        let mut crystal = Crystal {
            shift,
            ratio: settings.tsc_ctc,
            edge: tsc.wrapping_sub(fast_counter),
            ticks: 0,
            last: (ctc >> shift) as u8,
            partial: shift > TMA_BITS - MTC_BITS,
        };
        crystal.edge = crystal.edge.wrapping_sub(crystal.span(behind));
        Some(crystal)
    }

    /// An MTC: the TSC that it tells.
    pub fn mtc(&mut self, ctc: u8) -> u64 {
        if std::mem::take(&mut self.partial) {
            // the bits that are not known are as near before this one as can be
            let known = (1u16 << (TMA_BITS - self.shift)) - 1;
            let mut last = u16::from(self.last) | (u16::from(ctc) & !known);
            if last >= u16::from(ctc) {
                last = last.wrapping_sub(known + 1);
            }
            self.last = last as u8;
        }
        // the same once more is a whole turn
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
