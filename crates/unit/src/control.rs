//! Enabling, disabling, the end of an event, PSB by byte count (sections 33.2.8.3 and 33.4.2.17).

use crate::filter::Range;
use crate::settings::{Output, PsbOnEnable};
use crate::state::Core;
use crate::unit::Unit;

impl Unit {
    /// TraceEn is set. Nothing happens if it was.
    pub fn enable(&mut self) {
        if self.core.trace_en {
            return;
        }
        self.core.trace_en = true;
        self.ranges = self.next_ranges.clone();
        self.ret_stack.clear();
        // Software may have put another buffer in place.
        self.core.last_ip_known = false;
        self.core.mode_sent = false;
        self.core.trigger_en = !self.core.stopped;
        if !self.core.trigger_en {
            return;
        }
        self.core.filter_en = !self.ranges.filter();
        self.start_time();
        let stops = self.steer(self.core.ip);
        let with_psb = self.packet_byte_count() == 0 || !self.config.psb_cyc;
        if with_psb {
            // It is the one that was due, if one was.
            let count = self.packet_byte_count() % self.config.psb_period;
            self.count_base = count - self.buffer.position() as i64;
        }
        let order = self.config.parameters.psb_on_enable_order;
        if with_psb && order == PsbOnEnable::AfterPge {
            self.start_packets(stops);
            self.put_psb();
        } else {
            let packet_en = std::mem::take(&mut self.core.packet_en);
            if with_psb {
                self.put_psb();
            } else {
                if self.config.tsc_en || packet_en {
                    self.eligible();
                }
                self.timestamp();
                self.cbr();
            }
            self.core.packet_en = packet_en;
            self.start_packets(stops);
        }
        self.aim();
        self.commit();
    }

    /// TraceEn is cleared. Nothing happens if it was.
    pub fn disable(&mut self) {
        if !self.core.trace_en {
            return;
        }
        if self.core.trigger_en {
            self.flush_tnt();
            if self.core.packet_en {
                self.eligible();
                self.fup(self.core.ip);
                self.pgd(None);
            } else {
                self.last_cyc();
            }
            self.trigger_off();
        }
        self.commit();
        self.core.trace_en = false;
    }

    fn start_packets(&mut self, stops: bool) {
        if stops {
            self.trace_stop();
        } else if self.core.packet_en {
            self.eligible();
            self.pge(self.core.ip);
        }
    }

    /// The TraceStop action (section 33.4.2.9); `steer` has cleared FilterEn.
    pub(crate) fn trace_stop(&mut self) {
        self.last_cyc();
        self.put_trace_stop();
        self.core.stopped = true;
        self.trigger_off();
    }

    pub(crate) fn trigger_off(&mut self) {
        self.core.trigger_en = false;
        self.core.packet_en = false;
        self.core.plain = false;
        self.core.tnt = 1;
        self.ret_stack.clear();
        self.stop_time();
    }

    /// Set the enables for a branch or event that lands at `ip`; true if that is a TraceStop condition.
    pub(crate) fn steer(&mut self, ip: u64) -> bool {
        self.core.context_en = self.core.user && self.config.user;
        let mut stops = false;
        if self.core.context_en {
            stops = self.ranges.stops(ip);
            self.core.filter_en = !stops && self.ranges.filter_en(ip);
        }
        self.settle();
        stops
    }

    /// What follows from the enables (sections 33.2.6.1 and 33.2.6.2).
    pub(crate) fn settle(&mut self) {
        self.core.packet_en = self.enabled(&self.core);
        self.core.plain = self.core.packet_en && self.is_plain(self.ranges.as_slice());
    }

    /// PacketEn by the enables that it consists of (section 33.2.6.1).
    pub(crate) fn enabled(&self, core: &Core) -> bool {
        core.trigger_en && core.context_en && core.filter_en && self.config.branch_en
    }

    pub(crate) fn is_plain(&self, ranges: &[Range]) -> bool {
        ranges.is_empty() && !self.config.dis_tnt
    }

    /// An event is over: its packets go to the output, and a PSB+ if the byte count says so.
    #[inline(always)]
    pub(crate) fn commit(&mut self) {
        if self.buffer.position() >= self.attention {
            self.commit_slowly();
        }
    }

    #[cold]
    fn commit_slowly(&mut self) {
        self.write();
        let threshold = self.config.psb_period + self.config.parameters.psb_delay as i64;
        if self.core.trigger_en && self.packet_byte_count() >= threshold {
            let count = self.packet_byte_count() % self.config.psb_period;
            self.count_base = count - self.buffer.position() as i64;
            self.put_psb();
            self.write();
            self.settle();
        }
        self.aim();
    }

    /// The packets since the last time go to the output, where a region may be full. Once a PSB+ is due every event
    /// has to look whether it can come.
    pub(crate) fn write(&mut self) {
        if self.buffer.position() == self.written_to {
            return;
        }
        let end = self.region_end();
        if self.buffer.position() as u64 >= end {
            self.fill(end);
        }
        if self.packet_byte_count() >= self.config.psb_period {
            self.core.plain = false;
        }
        self.written_to = self.buffer.position();
        if let Output::Circular(size) = self.config.output {
            if self.buffer.position() >= self.attention {
                self.forget(usize::try_from(size).unwrap_or(usize::MAX));
            }
        }
    }

    /// A region that stops output is full (section 33.2.7.2). Of the packet that does not fit, a part is written.
    fn fill(&mut self, end: u64) {
        self.buffer
            .truncate(usize::try_from(end).unwrap_or(usize::MAX));
        self.core.stopped = true;
        self.trigger_off();
    }

    pub(crate) fn put_psb(&mut self) {
        let size = self.insert_psb();
        if !self.config.parameters.psb_counts_itself {
            self.count_base -= size as i64;
        }
    }
}
