//! Streams of a CPU that threads share: which scheduling interval a packet belongs to, and threads that are not
//! decoded.
//!
//! A thread switch happens in the kernel, so that an interval begins where execution next enters from elsewhere: at a
//! TIP.PGE, a far transfer or a PSB+ (`AddressSpaces::add_scheduling_interval`). User code that continues across the
//! start of an interval contradicts the schedule. Decoding pauses where an interval may begin, so that no batch mixes
//! threads.
//!
//! # Ambiguous positions
//!
//! The decoder's time is a lower bound. If user code begins, by that time, before the start of an interval, and the
//! next packet with a time gives one after it, the code may belong to the thread before or after the switch. It is
//! reported for the thread before, and the ledger gets a remark (`Cause::AmbiguousThread`).

use super::informational_packets::mode_from_mode_exec;
use super::{Decoder, TracingState};
use crate::coverage_ledger::ByteStatus;
use crate::error::{ErrorCause, FlowError};
use crate::sink::{RunEnd, Sink};
use rtit_packet::{Packet, PacketKind};

impl Decoder {
    /// Number of scheduling intervals that have begun.
    pub fn begun_interval_count(&self) -> usize {
        self.interpreter.selector.begun_interval_count()
    }

    /// The intervals in which anything ran, in order; 0 is the time before the first.
    pub fn visited_intervals(&self) -> &[usize] {
        self.interpreter.selector.visited_intervals()
    }

    /// Whether `decode` has returned because an interval may begin with the next packet.
    pub fn is_paused(&self) -> bool {
        self.state.paused_at == Some(self.state.position)
    }

    /// Whether decoding pauses before this packet, with which an interval may begin: batches never mix intervals.
    pub(super) fn must_pause_before(&mut self, packet: &Packet) -> bool {
        let arrives = matches!(
            packet.kind,
            PacketKind::TipPge(_) | PacketKind::Tip(_) | PacketKind::Fup(_) | PacketKind::PsbEnd
        );
        if !arrives
            || self.clock.estimate_by_rate() < self.interpreter.selector.next_interval_start()
        {
            return false;
        }
        let pauses = self.state.paused_at != Some(packet.offset);
        self.state.paused_at = Some(packet.offset);
        pauses
    }

    /// Stops following: the current thread is not decoded.
    pub(super) fn stop_following<S: Sink>(&mut self, sink: &mut S) {
        sink.end_run(RunEnd::Cut, self.packet_offset());
        self.state.pending_events.report_incomplete_events(sink);
        if self.ledger.current_status() != ByteStatus::Elsewhere {
            self.state.status_before = self.ledger.current_status();
            self.ledger
                .enter_status(self.packet_offset(), ByteStatus::Elsewhere);
        }
        self.interpreter.reset_return_stack_and_tnt();
        self.state.deferred_tips.after_tnt = false;
        self.state.tracing = TracingState::Elsewhere;
    }

    /// Ends the span that `stop_following` began.
    pub(super) fn end_undecoded_span(&mut self) {
        if self.ledger.current_status() == ByteStatus::Elsewhere {
            self.ledger
                .enter_status(self.packet_offset(), self.state.status_before);
        }
    }

    /// Applies a packet of a thread that is not decoded.
    pub(super) fn apply_packet_of_undecoded_thread<S: Sink>(
        &mut self,
        packet: &Packet,
        sink: &mut S,
    ) -> Result<(), ErrorCause> {
        match packet.kind {
            PacketKind::TipPge(ip) => {
                let ip = self.decompress_ip(ip);
                return self.decode_tip_pge(ip, sink);
            }
            PacketKind::Ovf => self.handle_overflow(sink),
            PacketKind::Tip(ip) => {
                let mode = self.take_announced_mode();
                self.interpreter.mode = mode;
                let due_intervals = self.clock.estimate_by_rate()
                    >= self.interpreter.selector.next_interval_start();
                if let (Some(ip), true) = (self.decompress_ip(ip), due_intervals) {
                    if !self.may_be_deferred_tip(ip) {
                        self.resume_after_loss(ip, mode, sink);
                    }
                }
            }
            PacketKind::Fup(ip) => drop(self.decompress_ip(ip)),
            PacketKind::TipPgd(ip) => {
                self.decompress_ip(ip);
                self.state.announced_mode = None;
                self.state.disabled_ip = 0;
                self.state.tracing = TracingState::Off;
            }
            PacketKind::TraceStop => {
                self.state.disabled_ip = 0;
                self.state.tracing = TracingState::Off;
            }
            PacketKind::Pip { nr, cr3 } => {
                self.apply_pip_payload(cr3, nr);
            }
            PacketKind::Vmcs { pointer } => {
                self.apply_vmcs_pointer(pointer);
            }
            PacketKind::ModeExec { csl, csd, .. } => {
                self.state.announced_mode = Some(mode_from_mode_exec(csl, csd))
            }
            PacketKind::ModeTsx { in_tx, .. } => self.state.in_transaction = Some(in_tx),
            _ => {}
        }
        Ok(())
    }

    /// Reports a CR3 that contradicts the schedule.
    pub(super) fn report_cr3_contradiction(&mut self) {
        let offset = self.packet_offset();
        if let Some(cr3) = self.interpreter.selector.take_cr3_contradiction() {
            let status = self.ledger.current_status();
            let cause = ErrorCause::OtherProcess { cr3 };
            self.ledger.record_loss(offset, FlowError { offset, cause });
            self.ledger.enter_status(offset, status);
        }
    }

    /// Checks that user code, which ends here, did not continue into the next interval. It may end in its first tick.
    /// Code that CR3 selects is that of the right process: the switch was before it, within the error of the time.
    pub(super) fn check_no_thread_switch(&self) -> Result<(), ErrorCause> {
        let selector = &self.interpreter.selector;
        let since = selector.next_interval_start();
        if self.clock.estimate_by_rate() <= since
            || self.interpreter.next_instruction_address() >> 63 != 0
            || selector.is_code_selected_by_cr3()
        {
            return Ok(());
        }
        Err(ErrorCause::ContinuedOverSwitch { since })
    }

    /// Tracks, after each packet, since when the thread is ambiguous.
    pub(super) fn track_ambiguity(&mut self, packet: &Packet) {
        let timed = packet.offset == self.ambiguous.cyc_end;
        match packet.kind {
            PacketKind::Cyc { .. } => self.ambiguous.cyc_end = packet.end_offset(),
            PacketKind::Tnt(_)
            | PacketKind::Tnt64(_)
            | PacketKind::Tip(_)
            | PacketKind::TipPge(_)
            | PacketKind::TipPgd(_)
            | PacketKind::Ovf => {}
            _ if timed => self.ambiguous.cyc_end = packet.end_offset(),
            _ => {}
        }
        let entries = self.interpreter.selector.execution_entry_count();
        if self.ambiguous.entries == entries {
            return;
        }
        self.ambiguous.entries = entries;
        let begun = self.interpreter.selector.begun_interval_count();
        if self.ambiguous.intervals_begun != begun {
            self.ambiguous.intervals_begun = begun;
            let kernel = self.ambiguous.in_kernel.then_some(self.ambiguous.last);
            let from = self.ambiguous.from.take().or(kernel);
            if let Some(from) = from.filter(|_| !self.interpreter.selector.is_current_thread_idle())
            {
                let since = self.clock.estimate_by_rate();
                let (offset, cause) = (
                    packet.offset as u64,
                    ErrorCause::AmbiguousThread { since, from },
                );
                self.ledger
                    .record_harmless_error(offset, FlowError { offset, cause });
            }
        }
        self.ambiguous.last = packet.offset as u64;
        self.ambiguous.in_kernel = self.interpreter.next_instruction_address() >> 63 != 0;
        let until = self.interpreter.selector.next_interval_start();
        let latest = self.clock.latest_possible_time().filter(|_| timed);
        let certain = latest.is_some_and(|latest| latest < until);
        // what is certain here was certain before
        self.ambiguous.from = match certain {
            true => None,
            false => self.ambiguous.from.or(Some(packet.offset as u64)),
        };
    }

    /// A packet gave the time. `begins`: tracing was off, so that the code before belongs to one thread, and not to the
    /// next one.
    pub(super) fn resolve_ambiguity(&mut self, begins: bool) {
        let offset = self.packet_offset();
        let Some(from) = self.ambiguous.from.take() else {
            return;
        };
        let due_intervals = self
            .interpreter
            .selector
            .count_due_intervals(self.clock.estimate_by_rate());
        if due_intervals <= usize::from(begins) {
            return;
        }
        if self.state.tracing == TracingState::On {
            // the kernel continues, and the remark follows where the interval begins; user code contradicts it
            self.ambiguous.from =
                Some(from).filter(|_| self.interpreter.next_instruction_address() >> 63 != 0);
        } else {
            let since = self.interpreter.selector.next_interval_start();
            let cause = ErrorCause::AmbiguousThread { since, from };
            self.ledger
                .record_harmless_error(offset, FlowError { offset, cause });
        }
    }
}

/// Since when the current thread is ambiguous.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AmbiguousInterval {
    /// Offset of the packet with which execution entered from elsewhere.
    pub from: Option<u64>,
    /// The last such packet, and whether it led into the kernel, where code continues across a switch.
    pub last: u64,
    pub in_kernel: bool,
    /// Entries so far, and intervals that had begun.
    pub entries: u64,
    pub intervals_begun: usize,
    /// End of the last CYC and the packets after it that share its time. A TSC or MTC does not give the time of the
    /// next packet: the kernel may have run for long until tracing continued.
    pub cyc_end: usize,
}
