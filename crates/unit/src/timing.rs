//! Timing packets: TSC, TMA, CBR, MTC, CYC (sections 33.3.6, 33.4.2.10 to 33.4.2.14, 33.8.3).

use crate::encode;
use crate::error::Error;
use crate::state::NEVER;
use crate::unit::Unit;

impl Unit {
    /// `clock` instructions have retired by now.
    ///
    /// # Errors
    /// `Error::ClockWentBack`; `Error::ClockTooHigh`. Nothing has changed then.
    #[inline(always)]
    pub fn at(&mut self, clock: u64) -> Result<(), Error> {
        if clock > self.clocks.limit {
            return Err(self.too_high(clock));
        }
        let cycle = clock * self.clocks.cpi;
        if cycle < self.core.cycle {
            return Err(self.went_back(clock));
        }
        if cycle < self.core.due {
            self.core.cycle = cycle;
            return Ok(());
        }
        self.at_due(clock, cycle)
    }

    #[cold]
    fn at_due(&mut self, clock: u64, cycle: u64) -> Result<(), Error> {
        if cycle - self.core.cycle > self.config.longest_gap {
            return Err(self.too_high(clock));
        }
        self.catch_up(cycle);
        // Between two events the current IP is not known: a PSB+ that needs it waits for the next one.
        if self.core.packet_en {
            self.write();
        } else {
            self.commit();
        }
        Ok(())
    }

    /// The clock as `at` was told it.
    pub fn clock(&self) -> u64 {
        self.core.cycle / self.clocks.cpi
    }

    #[cold]
    fn too_high(&self, clock: u64) -> Error {
        let limit = self.core.cycle.saturating_add(self.config.longest_gap) / self.clocks.cpi;
        let limit = limit.min(self.clocks.limit);
        Error::ClockTooHigh { clock, limit }
    }

    #[cold]
    fn went_back(&self, clock: u64) -> Error {
        let was = self.clock();
        Error::ClockWentBack { clock, was }
    }

    /// TriggerEn was set: the cycle counter starts at 0, and the first eligible packet gets a CYC.
    pub(crate) fn start_time(&mut self) {
        let cycle = self.core.cycle;
        if self.config.cyc_en {
            self.core.cyc_base = cycle;
            self.core.cyc_due = cycle;
        }
        if self.config.mtc_en {
            self.core.mtc_index = self.clocks.art(cycle) >> self.config.mtc_shift;
            self.next_mtc();
        }
        self.schedule();
    }

    /// TriggerEn is about to be cleared: a stand-alone CYC for what no CYC has told yet, if the threshold allows.
    pub(crate) fn last_cyc(&mut self) {
        let core = &self.core;
        if core.cycle >= core.cyc_due && core.cycle > core.cyc_base {
            self.cyc();
        }
    }

    /// TriggerEn is 0: nothing comes by itself any more.
    pub(crate) fn stop_time(&mut self) {
        self.core.cyc_due = NEVER;
        self.core.next_mtc = NEVER;
        self.core.due = NEVER;
    }

    /// Move to core cycle `cycle`, sending what time alone brings: MTCs, and CYCs before the counter wraps.
    fn catch_up(&mut self, cycle: u64) {
        loop {
            self.schedule();
            let due = self.core.due;
            if due > cycle {
                break;
            }
            self.core.cycle = due;
            self.flush_tnt();
            if due == self.core.next_mtc {
                self.eligible();
                self.buffer.put(encode::mtc(self.core.mtc_index));
                self.another_mtc();
            } else {
                self.cyc();
            }
        }
        self.core.cycle = cycle;
    }

    /// A CYC-eligible packet is about to be sent: tell its time if the threshold has passed (section 33.3.6.3).
    #[inline(always)]
    pub(crate) fn eligible(&mut self) {
        if self.core.cycle >= self.core.cyc_due {
            self.cyc();
        }
    }

    fn cyc(&mut self) {
        let cycle = self.core.cycle;
        let (bytes, size) = encode::cyc(cycle - self.core.cyc_base);
        self.buffer.put_slice(&bytes[..size]);
        self.core.cyc_base = cycle;
        self.core.cyc_due = cycle + self.config.cyc_gap;
    }

    /// TSC if TSCEn; right after it TMA if MTCEn (sections 33.4.2.11 and 33.4.2.13).
    pub(crate) fn timestamp(&mut self) {
        if !self.config.tsc_en {
            return;
        }
        let cycle = self.core.cycle;
        self.buffer.put(encode::tsc(self.clocks.tsc(cycle)));
        if self.config.mtc_en {
            let (art, ticks) = (self.clocks.art(cycle), self.clocks.fast_counter(cycle));
            self.buffer.put(encode::tma(art, ticks));
        }
    }

    pub(crate) fn cbr(&mut self) {
        self.buffer.put(encode::cbr(self.config.core_ratio.into()));
    }

    fn next_mtc(&mut self) {
        self.core.mtc_index = self.core.mtc_index.wrapping_add(1);
        self.core.next_mtc = self.mtc_cycle(self.core.mtc_index);
    }

    /// The same from one MTC to the next, mostly without a division.
    fn another_mtc(&mut self) {
        match self.config.mtc_cycles {
            None => self.next_mtc(),
            Some(cycles) => {
                self.core.mtc_index += 1;
                self.core.next_mtc += cycles;
            }
        }
    }

    /// When the ART has seen `index` MTC periods.
    pub(crate) fn mtc_cycle(&self, index: u64) -> u64 {
        self.clocks.cycle_of_art(index << self.config.mtc_shift)
    }

    pub(crate) fn schedule(&mut self) {
        self.core.due = self.core.next_mtc;
        if self.config.cyc_en && self.core.cyc_due != NEVER {
            let wraps = self.core.cyc_base.saturating_add(self.config.cyc_limit);
            self.core.due = self.core.due.min(wraps);
        }
    }
}
