//! Enables and disables tracing, ends events, and emits PSB by byte count (sections 33.2.8.3 and 33.4.2.17); internal
//! buffer overflow (33.3.8 and 33.4.2.16); IP filtering and TraceStop ranges (33.2.5.3).
//!
//! PacketEn is derived from TriggerEn, ContextEn, FilterEn and BranchEn. `finish_event` ends each event: it is one
//! comparison with `TraceUnit::attention`, the buffer position at which a PSB is due or a region ends.

use crate::error::Error;
use crate::packet_bytes::OVF;
use crate::saved_state::CoreState;
use crate::settings::{OutputRegion, PsbOnEnable};
use crate::system::EventReport;
use crate::unit::TraceUnit;

impl TraceUnit {
    /// Sets TraceEn; does nothing if it is set.
    pub fn enable_tracing(&mut self) {
        self.enable_tracing_after(None);
    }

    /// Sets TraceEn, as `enable_tracing`. `report`: for event trace.
    pub(crate) fn enable_tracing_after(&mut self, report: Option<EventReport>) {
        if self.core.trace_en {
            return;
        }
        self.core.trace_en = true;
        self.ranges = self.next_ranges.clone();
        self.ret_stack.clear();
        // Software may have replaced the output buffer.
        self.core.last_ip_known = false;
        self.core.mode_sent = false;
        self.core.trigger_en = !self.core.stopped;
        if !self.core.trigger_en {
            return;
        }
        self.core.filter_en = !self.ranges.has_filter();
        self.start_timing();
        let stops = self.update_enables(self.core.ip);
        let with_psb = self.packet_byte_count() == 0 || !self.config.psb_cyc;
        if with_psb {
            // This PSB replaces one that was due.
            let count = self.packet_byte_count() % self.config.psb_period;
            self.count_base = count - self.buffer.position() as i64;
        }
        let order = self.config.parameters.psb_on_enable_order;
        if with_psb && order == PsbOnEnable::AfterPge {
            self.put_enable_packets(stops, report);
            self.put_counted_psb_plus();
        } else {
            let packet_en = std::mem::take(&mut self.core.packet_en);
            if with_psb {
                self.put_counted_psb_plus();
            } else {
                if self.config.tsc_en || packet_en {
                    self.put_cyc_if_due();
                }
                self.put_tsc_and_tma();
                self.put_cbr();
            }
            self.core.packet_en = packet_en;
            self.put_enable_packets(stops, report);
        }
        self.update_attention();
        self.finish_event();
    }

    /// Clears TraceEn; does nothing if it is clear.
    pub fn disable_tracing(&mut self) {
        if !self.core.trace_en {
            return;
        }
        if self.core.trigger_en {
            self.flush_tnt();
            if self.core.packet_en {
                self.put_cyc_if_due();
                self.put_fup(self.core.ip);
                self.put_tip_pgd(None);
            } else {
                self.put_last_cyc();
            }
            self.clear_trigger_en();
        }
        self.finish_event();
        self.core.trace_en = false;
    }

    fn put_enable_packets(&mut self, stops: bool, report: Option<EventReport>) {
        if let Some(report) = report {
            self.put_event_report(report, false, false, None);
        }
        if stops {
            self.stop_trace();
        } else if self.core.packet_en {
            self.put_cyc_if_due();
            self.put_tip_pge(self.core.ip);
        }
    }

    /// Performs the TraceStop action (section 33.4.2.9), after `update_enables` has cleared FilterEn.
    pub(crate) fn stop_trace(&mut self) {
        self.put_last_cyc();
        self.put_trace_stop();
        self.core.stopped = true;
        self.clear_trigger_en();
    }

    pub(crate) fn clear_trigger_en(&mut self) {
        self.core.trigger_en = false;
        self.core.packet_en = false;
        self.core.plain = false;
        self.core.tnt = 1;
        self.ret_stack.clear();
        self.stop_timing();
    }

    /// Sets the enables for a branch or event that continues at `ip`; returns whether that is a TraceStop condition.
    pub(crate) fn update_enables(&mut self, ip: u64) -> bool {
        self.core.context_en = self.compute_context_en();
        let mut stops = false;
        if self.core.context_en {
            stops = self.ranges.is_trace_stop(ip);
            self.core.filter_en = !stops && self.ranges.filter_en(ip);
        }
        self.derive_packet_en();
        stops
    }

    /// Returns ContextEn (section 33.2.6.3): the filters by CPL and by CR3[63:12].
    fn compute_context_en(&self) -> bool {
        let allowed = match self.core.user {
            true => self.config.user,
            false => self.config.os,
        };
        let differs = |wanted: u64| (wanted ^ self.core.cr3) >> 12 != 0;
        allowed && !self.config.cr3_match.is_some_and(differs)
    }

    /// Derives PacketEn from the enables (sections 33.2.6.1 and 33.2.6.2).
    pub(crate) fn derive_packet_en(&mut self) {
        self.core.packet_en = self.packet_en_of(&self.core);
        self.core.plain =
            self.core.packet_en && self.would_have_plain_branches(self.ranges.as_slice());
    }

    /// Returns PacketEn for these enables (section 33.2.6.1).
    pub(crate) fn packet_en_of(&self, core: &CoreState) -> bool {
        core.trigger_en && core.context_en && core.filter_en && self.config.branch_en
    }

    pub(crate) fn would_have_plain_branches(&self, ranges: &[AddressRange]) -> bool {
        ranges.is_empty() && !self.config.dis_tnt
    }

    /// Ends an event: accounts for its packets, and emits a PSB+ if the byte count requires one.
    #[inline(always)]
    pub(crate) fn finish_event(&mut self) {
        if self.buffer.position() >= self.attention {
            self.commit_event_with_checks();
        }
    }

    #[cold]
    fn commit_event_with_checks(&mut self) {
        self.account_for_output();
        let threshold = self.config.psb_period + self.config.parameters.psb_delay as i64;
        if self.core.trigger_en && self.packet_byte_count() >= threshold {
            let count = self.packet_byte_count() % self.config.psb_period;
            self.count_base = count - self.buffer.position() as i64;
            self.put_counted_psb_plus();
            self.account_for_output();
            self.derive_packet_en();
        }
        self.update_attention();
    }

    /// Accounts for the packets since the last call; they may fill the region. Once a PSB+ is due, every event must
    /// check whether it can be emitted.
    pub(crate) fn account_for_output(&mut self) {
        if self.buffer.position() == self.written_to {
            return;
        }
        let end = self.region_end();
        if self.buffer.position() as u64 >= end {
            self.fill_region(end);
        }
        if self.packet_byte_count() >= self.config.psb_period {
            self.core.plain = false;
        }
        self.written_to = self.buffer.position();
        if let OutputRegion::Circular(size) = self.config.output {
            if self.buffer.position() >= self.attention {
                self.keep_last_bytes(usize::try_from(size).unwrap_or(usize::MAX));
            }
        }
    }

    /// Fills a region that stops output (section 33.2.7.2). Part of the last packet is written.
    fn fill_region(&mut self, end: u64) {
        self.buffer
            .truncate_packets(usize::try_from(end).unwrap_or(usize::MAX));
        self.core.stopped = true;
        self.clear_trigger_en();
    }

    pub(crate) fn put_counted_psb_plus(&mut self) {
        let size = self.put_psb_plus();
        if !self.config.parameters.psb_counts_itself {
            self.count_base -= size as i64;
        }
    }

    /// Handles lost packets. The processor is now in user mode before the instruction at `ip`, or in the kernel.
    ///
    /// Emits OVF, preceded by a CYC, and followed by a FUP if PacketEn is 1. Pending TNT bits are lost, and compression
    /// restarts. If the decoder may not know the mode, a PSB+ follows; a TraceStop condition that was met in between
    /// shows after the OVF.
    pub fn apply_overflow(&mut self, ip: Option<u64>) {
        self.core.user = ip.is_some();
        self.lose_packets(ip.unwrap_or(0));
    }

    /// Handles lost packets; the processor is now before the instruction at `ip`.
    pub(crate) fn lose_packets(&mut self, ip: u64) {
        self.core.ip = ip;
        if !self.core.trigger_en {
            return;
        }
        let mode_known = self.core.mode_sent;
        self.core.tnt = 1;
        self.ret_stack.clear();
        self.core.last_ip_known = false;
        if self.update_enables(self.core.ip) {
            self.core.stopped = true;
            self.clear_trigger_en();
            self.buffer.put_packet(OVF);
            self.put_trace_stop();
        } else {
            self.put_overflow_packets(mode_known);
        }
        self.account_for_output();
        self.derive_packet_en();
        self.update_attention();
    }

    fn put_overflow_packets(&mut self, mode_known: bool) {
        if self.config.cyc_en {
            self.core.cyc_due = self.core.cyc_base + self.config.cyc_gap;
        }
        self.schedule_timing();
        self.put_cyc_if_due();
        self.buffer.put_packet(OVF);
        let packet_en = self.core.packet_en;
        self.core.mode_sent = packet_en && mode_known;
        if packet_en {
            self.put_fup(self.core.ip);
            if !mode_known {
                self.put_counted_psb_plus();
            }
        }
    }
}

/// The purpose of an address range (ADDRn_CFG, Table 33-6).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RangeKind {
    /// Code inside the range is traced.
    FilterEn,
    /// A branch into the range ends the trace.
    TraceStop,
}

/// An address range; both ends belong to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AddressRange {
    pub kind: RangeKind,
    pub first: u64,
    pub last: u64,
}

/// The ranges in use.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(crate) struct AddressRanges {
    all: Vec<AddressRange>,
    /// All ranges are within `size` bytes from here.
    start: u64,
    size: u64,
}

impl AddressRanges {
    pub(crate) fn new(ranges: &[AddressRange]) -> Result<AddressRanges, Error> {
        if ranges.len() > 4 {
            return Err(Error::TooManyRanges(ranges.len()));
        }
        let start = ranges.iter().map(|range| range.first).min().unwrap_or(0);
        let last = ranges.iter().map(|range| range.last).max().unwrap_or(0);
        Ok(AddressRanges {
            all: ranges.to_vec(),
            start,
            size: last.saturating_sub(start),
        })
    }

    /// Returns true only if `ip` is in no range, by one comparison.
    #[inline(always)]
    pub(crate) fn is_far_from(&self, ip: u64) -> bool {
        ip.wrapping_sub(self.start) > self.size
    }

    pub(crate) fn as_slice(&self) -> &[AddressRange] {
        &self.all
    }

    pub(crate) fn has_ranges(&self) -> bool {
        !self.all.is_empty()
    }

    pub(crate) fn has_filter(&self) -> bool {
        self.all
            .iter()
            .any(|range| range.kind == RangeKind::FilterEn)
    }

    /// Returns FilterEn at `ip`. Without FilterEn ranges all code is inside (section 33.2.6.5).
    pub(crate) fn filter_en(&self, ip: u64) -> bool {
        !self.has_filter() || self.contains_ip(RangeKind::FilterEn, ip)
    }

    /// Returns whether a branch or event that continues at `ip` meets the TraceStop condition.
    pub(crate) fn is_trace_stop(&self, ip: u64) -> bool {
        self.contains_ip(RangeKind::TraceStop, ip)
    }

    fn contains_ip(&self, kind: RangeKind, ip: u64) -> bool {
        let inside =
            |range: &AddressRange| range.kind == kind && (range.first..=range.last).contains(&ip);
        self.all.iter().any(inside)
    }
}
