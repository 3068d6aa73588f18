//! PSB+: from PSB to PSBEND or OVF, packets report the state and move nothing (section 33.3.7).
//!
//! The packets of a PSB+ are collected in [`PsbPlus`]; PSBEND then compares them with the state that was followed up to
//! the PSB. If they agree, the stream is exact from there on. If not, the ledger gets the error, and the PSB+ wins: it
//! is what the processor reported.

use super::informational_packets::mode_from_mode_exec;
use super::resynchronization::DeferredTips;
use super::{Decoder, PsbPlus, TracingState};
use crate::coverage_ledger::ByteStatus;
use crate::error::{ErrorCause, FlowError};
use crate::event::EventKind;
use crate::sink::{RunEnd, Sink};
use rtit_packet::{Packet, PacketKind};

impl Decoder {
    pub(super) fn begin_psb_plus<S: Sink>(&mut self, sink: &mut S) -> Result<(), ErrorCause> {
        self.flush_awaiting_fup(0, sink);
        if let Err(cause) = self.interpreter.expect_no_pending_results() {
            self.begin_loss_at_packet(cause, sink);
        }
        self.state.last_ip = 0;
        self.state.announced_mode = None;
        self.state.deferred_tips = DeferredTips::default();
        self.state.psb_plus = Some(PsbPlus {
            offset: self.interpreter.packet.offset,
            ip: None,
            mode: None,
            in_transaction: None,
        });
        Ok(())
    }

    pub(super) fn decode_psb_plus_packet<S: Sink>(
        &mut self,
        packet: &Packet,
        sink: &mut S,
    ) -> Result<(), ErrorCause> {
        let Some(mut psb_plus) = self.state.psb_plus else {
            return Ok(());
        };
        match packet.kind {
            PacketKind::Fup(ip) => psb_plus.ip = self.decompress_ip(ip),
            PacketKind::ModeExec { csl, csd, .. } => {
                psb_plus.mode = Some(mode_from_mode_exec(csl, csd))
            }
            PacketKind::ModeTsx { in_tx, .. } => psb_plus.in_transaction = Some(in_tx),
            PacketKind::Trig { .. } => self.decode_informational_packet(packet, sink)?,
            PacketKind::Pip { nr, cr3 } => {
                if self.apply_pip_payload(cr3, nr) {
                    self.report_event(EventKind::Paging, 0, cr3 | u64::from(nr), sink);
                }
            }
            PacketKind::Vmcs { pointer } => {
                if self.apply_vmcs_pointer(pointer) {
                    self.report_event(EventKind::Vmcs, 0, pointer, sink);
                }
            }
            PacketKind::Ovf => {
                self.state.psb_plus = None;
                self.handle_overflow(sink);
                return Ok(());
            }
            PacketKind::PsbEnd => {
                self.state.psb_plus = None;
                self.end_psb_plus(psb_plus, packet.end_offset() as u64, sink);
                return Ok(());
            }
            other => return Err(ErrorCause::UnexpectedPacket { name: other.name() }),
        }
        self.state.psb_plus = Some(psb_plus);
        Ok(())
    }

    /// Compares a complete PSB+ with the state at its PSB.
    fn end_psb_plus<S: Sink>(&mut self, psb_plus: PsbPlus, end: u64, sink: &mut S) {
        self.state.instructions_past_ip = 0;
        // events and runs up to the PSB have its offset
        let psb_end = std::mem::replace(&mut self.interpreter.packet.offset, psb_plus.offset);
        self.confirm_tracing_enabled_by_psb_plus(sink);
        // a PSB never comes within a compound event; only a processor that waits for a SIPI has ended it without a
        // packet
        if let TracingState::Async { ip } = self.state.tracing {
            if psb_plus.ip.is_none() {
                self.report_event(EventKind::AsyncDisabled, ip, 0, sink);
                self.interpreter.counts.asynchronous += 1;
            } else {
                let cause = ErrorCause::UnexpectedPacket { name: "PSB" };
                self.begin_loss(psb_plus.offset, cause, sink);
            }
        }
        let in_kernel = psb_plus.ip.is_some_and(|ip| ip >> 63 != 0);
        let ours = match self.state.tracing {
            // The record of a switch is earlier than the switch: kernel code that shows it may follow.
            TracingState::On if !in_kernel || self.interpreter.selector.is_next_start_certain() => {
                true
            }
            _ => {
                psb_plus.ip.is_none()
                    || self
                        .interpreter
                        .enter_due_intervals(self.clock.estimate_by_rate())
            }
        };
        if !ours && self.state.tracing != TracingState::On {
            self.stop_following(sink);
            self.interpreter
                .advance_code_to(self.clock.estimate_by_rate(), sink);
            if let Some(mode) = psb_plus.mode {
                self.set_operating_mode(mode);
            }
            return;
        }
        let followed = self.state.tracing == TracingState::On
            && self.ledger.current_status() == ByteStatus::Exact;
        if let (true, Some(ip), Some(mode)) = (followed, psb_plus.ip, psb_plus.mode) {
            if mode != self.interpreter.mode {
                self.begin_loss(psb_plus.offset, ErrorCause::OtherMode { ip }, sink);
                self.state.tracing = TracingState::Lost { resume: false };
                return;
            }
        }
        match (self.state.tracing, psb_plus.ip) {
            (TracingState::On, Some(ip)) => {
                if self.interpreter.advance_to_ip(sink, ip).is_ok() {
                    self.report_unknown_repetitions(ip, sink);
                } else {
                    self.begin_loss(psb_plus.offset, ErrorCause::Seam { ip }, sink);
                    self.resume_at_psb(ip, psb_end, sink);
                    self.ledger.enter_status(end, ByteStatus::Exact);
                }
                self.state.tracing = TracingState::On;
            }
            (TracingState::On, None) if self.is_outside_filter_ranges() => {}
            (TracingState::On, None) => {
                self.begin_loss(psb_plus.offset, ErrorCause::OffUnannounced, sink);
                self.state.tracing = TracingState::Off;
            }
            (TracingState::Off, Some(ip)) => {
                self.interpreter.set_next_address(ip, self.clock.row_time());
                self.state.tracing = TracingState::PsbOn {
                    unannounced: Some(psb_plus.offset),
                };
            }
            (_, Some(ip)) => {
                self.resume_at_psb(ip, psb_end, sink);
                self.state.tracing = TracingState::PsbOn { unannounced: None };
            }
            // the FUP that ends it may come after a PSB+ (Table 33-14)
            (TracingState::Overflow, None) => {}
            (_, None) => self.state.tracing = TracingState::Off,
        }
        self.ledger.enter_status(psb_plus.offset, ByteStatus::Exact);
        if let Some(in_transaction) = psb_plus.in_transaction {
            // a transaction that began or ended while execution was followed has been reported
            if in_transaction != self.state.in_transaction.unwrap_or(false) {
                self.report_event(
                    EventKind::ModeTsx,
                    psb_plus.ip.unwrap_or(0),
                    in_transaction.into(),
                    sink,
                );
            }
            self.state.in_transaction = Some(in_transaction);
        }
        self.report_event(EventKind::Psb, psb_plus.ip.unwrap_or(0), 0, sink);
        self.interpreter.reset_return_stack_and_tnt();
        self.interpreter
            .advance_code_to(self.clock.estimate_by_rate(), sink);
        self.interpreter.enter_space(true);
        if let Some(mode) = psb_plus.mode {
            self.set_operating_mode(mode);
        }
        if !ours {
            self.stop_following(sink);
        }
    }

    /// A PSB+ turned tracing on, and no TIP.PGE came (erratum BDM70 puts a FUP into the PSB+ before one): it was on.
    pub(super) fn confirm_tracing_enabled_by_psb_plus<S: Sink>(&mut self, sink: &mut S) {
        let TracingState::PsbOn { unannounced } = self.state.tracing else {
            return;
        };
        if let Some(offset) = unannounced {
            let cause = ErrorCause::OnUnannounced {
                ip: self.interpreter.next_instruction_address(),
            };
            sink.end_run(RunEnd::Lost, offset);
            self.ledger.record_loss(offset, FlowError { offset, cause });
            self.ledger.enter_status(offset, ByteStatus::Exact);
        }
        self.state.disabled_ip = 0;
        self.state.tracing = TracingState::On;
    }
}
