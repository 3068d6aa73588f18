//! Packet dispatch: applies one packet to the state of tracing, and handles the packets that move execution.
//!
//! `dispatch_packet` separates packets that mean the same everywhere (timing), packets within a PSB+, packets of a
//! thread that is not decoded, and all others; `dispatch_flow_packet` then chooses the handler of the packet type. A
//! handler first completes what is pending (events that wait for a FUP, a PSB+ that turned tracing on), then acts by
//! the state. It returns an error before it reports any instruction that the packet does not confirm; the caller then
//! records the loss (`resynchronization`).

use super::{AwaitingFup, Decoder, FupPurpose, TracingState};
use crate::code_cache::NodeEnd;
use crate::coverage_ledger::ByteStatus;
use crate::error::{ErrorCause, FlowError};
use crate::event::EventKind;
use crate::settings::Erratum;
use crate::sink::{RunEnd, Sink};
use rtit_packet::{IpPayload, Packet, PacketKind};
use rtit_x86::CodeMode;

impl Decoder {
    pub(super) fn dispatch_packet<S: Sink>(
        &mut self,
        packet: &Packet,
        sink: &mut S,
    ) -> Result<(), ErrorCause> {
        if matches!(
            self.state.tracing,
            TracingState::Lost { resume: true } | TracingState::Elsewhere
        ) {
            self.state
                .deferred_tips
                .note_packet_while_lost(&packet.kind, self.state.last_ip);
        }
        if self.apply_timing_packet(&packet.kind, sink) {
            return Ok(());
        }
        if packet.kind == PacketKind::Psb {
            return self.begin_psb_plus(sink);
        }
        if self.state.psb_plus.is_some() {
            return self.decode_psb_plus_packet(packet, sink);
        }
        if self.state.tracing == TracingState::Elsewhere {
            return self.apply_packet_of_undecoded_thread(packet, sink);
        }
        let has_ip = matches!(
            packet.kind,
            PacketKind::Tnt(_)
                | PacketKind::Tnt64(_)
                | PacketKind::Tip(_)
                | PacketKind::TipPge(_)
                | PacketKind::Fup(_)
        );
        if has_ip && self.state.pending_evd_types != 0 {
            return Err(ErrorCause::UnexpectedPacket {
                name: packet.kind.name(),
            });
        }
        let result = self.dispatch_flow_packet(packet, sink);
        if has_ip {
            self.state.instructions_past_ip = 0;
        }
        result
    }

    fn dispatch_flow_packet<S: Sink>(
        &mut self,
        packet: &Packet,
        sink: &mut S,
    ) -> Result<(), ErrorCause> {
        let moves_execution = matches!(
            packet.kind,
            PacketKind::Tnt(_)
                | PacketKind::Tnt64(_)
                | PacketKind::Tip(_)
                | PacketKind::TipPge(_)
                | PacketKind::TipPgd(_)
        );
        if moves_execution
            || self.state.awaiting_fup.is_none() && matches!(packet.kind, PacketKind::Fup(_))
        {
            self.state.pending_events.report_pending(None, 0, sink);
        }
        let inside = match packet.kind {
            PacketKind::TipPge(_) => false,
            PacketKind::Fup(_) => true,
            _ => moves_execution,
        };
        if inside && self.state.has_pip_after_overflow && self.may_be_outside_filter_ranges() {
            self.state.has_pip_after_overflow = false;
            self.bind_pip_to_mov_cr3(sink);
        }
        match packet.kind {
            PacketKind::Fup(ip) => {
                let ip = self
                    .decompress_ip(ip)
                    .ok_or(ErrorCause::NoIp { name: "FUP" })?;
                self.decode_fup(ip, sink)
            }
            PacketKind::Tnt(tnt) | PacketKind::Tnt64(tnt) => {
                self.flush_awaiting_fup(0, sink);
                self.decode_tnt((tnt.bits, tnt.count), sink)
            }
            PacketKind::Tip(ip) => {
                let ip = self.decompress_ip(ip);
                self.flush_awaiting_fup(ip.unwrap_or(0), sink);
                self.decode_tip(ip, sink)
            }
            PacketKind::TipPge(ip) => {
                let ip = self.decompress_ip(ip);
                self.flush_awaiting_fup(ip.unwrap_or(0), sink);
                self.decode_tip_pge(ip, sink)
            }
            PacketKind::TipPgd(ip) => {
                let ip = self.decompress_ip(ip);
                self.flush_awaiting_fup(0, sink);
                self.decode_tip_pgd(ip, sink)
            }
            PacketKind::Ovf => {
                self.flush_awaiting_fup(0, sink);
                self.handle_overflow(sink);
                Ok(())
            }
            PacketKind::TraceStop => {
                self.flush_awaiting_fup(0, sink);
                self.handle_trace_stop(sink);
                Ok(())
            }
            PacketKind::PsbEnd => Err(ErrorCause::UnexpectedPacket { name: "PSBEND" }),
            _ => {
                self.flush_awaiting_fup(0, sink);
                self.decode_informational_packet(packet, sink)
            }
        }
    }

    /// Applies a packet that means the same everywhere. Returns whether it was one.
    fn apply_timing_packet<S: Sink>(&mut self, kind: &PacketKind, sink: &mut S) -> bool {
        match *kind {
            PacketKind::Pad => {}
            PacketKind::Cyc { cycles } => {
                self.clock.apply_cyc_packet(cycles);
                self.clock.add_sample_if_enabled(self.packet_offset());
                self.update_kernel_code(sink);
            }
            PacketKind::Mtc { ctc } => {
                if self.clock.apply_mtc_packet(ctc) {
                    self.resolve_ambiguity(false);
                }
                self.clock.add_sample_if_enabled(self.packet_offset());
                self.update_kernel_code(sink);
            }
            PacketKind::Tma { ctc, fast_counter } => self.clock.apply_tma_packet(ctc, fast_counter),
            PacketKind::Tsc { tsc } => {
                // cycles were not counted all the time if tracing was off
                let counted =
                    self.state.psb_plus.is_some() && self.state.tracing != TracingState::Off;
                self.clock.apply_tsc_packet(tsc, !counted);
                self.resolve_ambiguity(self.state.tracing == TracingState::Off);
                self.clock.add_sample_if_enabled(self.packet_offset());
                // within PSB+ execution is first followed up to the PSB
                if self.state.psb_plus.is_none() {
                    self.interpreter
                        .advance_code_to(self.clock.estimate_by_rate(), sink);
                }
            }
            PacketKind::Cbr { ratio } => {
                self.clock.apply_cbr_packet(ratio);
                self.clock.add_sample_if_enabled(self.packet_offset());
                self.report_event(EventKind::Cbr, 0, ratio.into(), sink);
            }
            PacketKind::Mnt { payload } => self.report_event(EventKind::Mnt, 0, payload, sink),
            _ => return false,
        }
        true
    }

    /// Kernel code changes while it runs; within PSB+ execution is first followed up to the PSB.
    fn update_kernel_code<S: Sink>(&mut self, sink: &mut S) {
        if self.state.psb_plus.is_none() {
            self.interpreter
                .update_kernel_code(self.clock.estimate_by_rate(), sink);
        }
    }

    /// Joins an IP payload with LastIP; `None` if it is suppressed (section 33.4.2.2).
    pub(super) fn decompress_ip(&mut self, ip: IpPayload) -> Option<u64> {
        const LOW_48: u64 = (1 << 48) - 1;
        let last = self.state.last_ip;
        self.state.last_ip = match ip.ip_bytes {
            1 => last & !0xffff | ip.payload & 0xffff,
            2 => last & !0xffff_ffff | ip.payload & 0xffff_ffff,
            3 => ((ip.payload << 16) as i64 >> 16) as u64,
            4 => last & !LOW_48 | ip.payload & LOW_48,
            6 => ip.payload,
            _ => return None,
        };
        Some(self.state.last_ip)
    }
}

impl Decoder {
    pub(super) fn decode_tnt<S: Sink>(
        &mut self,
        results: (u64, u8),
        sink: &mut S,
    ) -> Result<(), ErrorCause> {
        self.confirm_tracing_enabled_by_psb_plus(sink);
        match self.state.tracing {
            TracingState::On => {
                self.state.after_branch = true;
                self.interpreter.apply_tnt(sink, results)
            }
            TracingState::Lost { .. } => Ok(()),
            TracingState::Overflow if self.errata.has_erratum(Erratum::Skd010) => {
                self.interpreter.counts.add_erratum(Erratum::Skd010);
                self.state.tracing = TracingState::Lost { resume: true };
                Ok(())
            }
            _ => Err(ErrorCause::UnexpectedPacket { name: "TNT" }),
        }
    }

    pub(super) fn decode_tip<S: Sink>(
        &mut self,
        ip: Option<u64>,
        sink: &mut S,
    ) -> Result<(), ErrorCause> {
        self.confirm_tracing_enabled_by_psb_plus(sink);
        let mode = self.take_announced_mode();
        let resumes = match self.state.tracing {
            TracingState::On | TracingState::Async { .. } => false,
            TracingState::Lost { resume } => {
                self.interpreter.mode = mode;
                if !resume || ip.is_none_or(|ip| self.may_be_deferred_tip(ip)) {
                    return Ok(());
                }
                true
            }
            TracingState::Overflow if self.errata.has_erratum(Erratum::Skd010) => {
                self.interpreter.counts.add_erratum(Erratum::Skd010);
                true
            }
            _ => return Err(ErrorCause::UnexpectedPacket { name: "TIP" }),
        };
        let target = ip.ok_or(ErrorCause::NoIp { name: "TIP" })?;
        self.state.after_branch = true;
        if resumes {
            self.resume_after_loss(target, mode, sink);
            return Ok(());
        }
        if let TracingState::Async { ip } = self.state.tracing {
            self.report_event(EventKind::Async, ip, target, sink);
            self.interpreter.counts.asynchronous += 1;
            if self.ledger.current_status() == ByteStatus::Lost {
                self.resume_after_loss(target, mode, sink);
                return Ok(());
            }
            self.interpreter
                .set_next_address(target, self.interpreter.packet.time);
            self.interpreter.mode = mode;
            self.state.tracing = TracingState::On;
            if !self
                .interpreter
                .enter_due_intervals(self.interpreter.packet.now)
            {
                self.stop_following(sink);
                return Ok(());
            }
            self.interpreter.enter_space(true);
            self.interpreter
                .update_kernel_code(self.interpreter.packet.now, sink);
            self.report_cr3_contradiction();
            return Ok(());
        }
        self.interpreter.apply_tip(sink, target, mode)?;
        self.state.deferred_tips.count_followed_tips(1);
        self.report_cr3_contradiction();
        if self.interpreter.is_running_undecoded_thread() {
            self.stop_following(sink);
        }
        Ok(())
    }

    pub(super) fn decode_tip_pge<S: Sink>(
        &mut self,
        ip: Option<u64>,
        sink: &mut S,
    ) -> Result<(), ErrorCause> {
        if self.state.tracing == TracingState::On && !self.is_outside_filter_ranges() {
            return Err(ErrorCause::UnexpectedPacket { name: "TIP.PGE" });
        }
        if let TracingState::PsbOn { .. } = self.state.tracing {
            self.interpreter.counts.add_erratum(Erratum::Bdm70);
        }
        let mode = self.take_announced_mode();
        let ip = ip.ok_or(ErrorCause::NoIp { name: "TIP.PGE" })?;
        if let TracingState::Async { ip } = self.state.tracing {
            self.interpreter.counts.asynchronous += 1;
            self.report_event(EventKind::AsyncDisabled, ip, 0, sink);
        }
        // tracing continues without a loss: the status of bytes stays
        if self.ledger.current_status() == ByteStatus::Lost {
            self.ledger
                .enter_status(self.packet_offset(), ByteStatus::Resumed);
        }
        self.start_execution_at(ip, mode, EventKind::Enabled, sink);
        Ok(())
    }

    pub(super) fn decode_tip_pgd<S: Sink>(
        &mut self,
        ip: Option<u64>,
        sink: &mut S,
    ) -> Result<(), ErrorCause> {
        self.confirm_tracing_enabled_by_psb_plus(sink);
        self.state.announced_mode = None;
        if let (TracingState::On | TracingState::Async { .. }, Err(cause)) =
            (self.state.tracing, self.check_no_thread_switch())
        {
            self.begin_loss_at_packet(cause, sink);
            self.state.disabled_ip = 0;
            self.state.tracing = TracingState::Off;
            return Ok(());
        }
        match self.state.tracing {
            TracingState::On => {
                self.interpreter.expect_no_pending_results()?;
                let stopped = self.find_disabling_mov_cr3(ip)?;
                if stopped.is_some() {
                    sink.end_run(RunEnd::Off, self.packet_offset());
                }
                let (last, target) = match ip {
                    _ if stopped.is_some() => (stopped.unwrap_or(0), 0),
                    None => self.interpreter.end_tracing_at_branch(sink)?,
                    Some(ip) => (self.interpreter.end_tracing_at_target(sink, ip)?, ip),
                };
                self.report_event(EventKind::Disabled, last, target, sink);
            }
            TracingState::Async { ip: at } => {
                if self.handle_vm_entry_that_disabled_tracing(at, ip, sink) {
                    self.state.tracing = TracingState::Off;
                    return Ok(());
                }
                self.interpreter.counts.asynchronous += 1;
                // The packets are also those of an interrupt before the instruction, which is rare.
                if S::NEEDS_EDGES && self.interpreter.is_interrupt_80h(at) {
                    sink.add_edge(at, ip.unwrap_or(0), RunEnd::Syscall);
                }
                self.report_event(EventKind::AsyncDisabled, at, ip.unwrap_or(0), sink);
            }
            TracingState::Lost { resume } => {
                if resume {
                    self.report_event(EventKind::Disabled, 0, ip.unwrap_or(0), sink);
                }
            }
            TracingState::Overflow => self.interpreter.counts.add_erratum(Erratum::Apl11),
            _ => return Err(ErrorCause::UnexpectedPacket { name: "TIP.PGD" }),
        }
        self.state.disabled_ip = ip.unwrap_or(0);
        self.state.tracing = TracingState::Off;
        Ok(())
    }

    /// Returns the MOV CR3 that has just run if it stopped the trace: then both PIP and TIP.PGD belong to it. The
    /// TIP.PGD of most branches after it would have an IP.
    fn find_disabling_mov_cr3(&mut self, target: Option<u64>) -> Result<Option<u64>, ErrorCause> {
        let Some(ip) = self.state.last_mov_cr3.take() else {
            return Ok(None);
        };
        if self.state.instructions_past_ip == 0 || target.is_some() || !self.tracestop_follows {
            return Ok(None);
        }
        match self.interpreter.next_binding_end() {
            Some(
                NodeEnd::Conditional
                | NodeEnd::Far
                | NodeEnd::Syscall
                | NodeEnd::VmEntry
                | NodeEnd::MovCr3,
            ) => Err(ErrorCause::MovCr3OrBranch { ip }),
            _ => Ok(Some(ip)),
        }
    }

    pub(super) fn decode_fup<S: Sink>(&mut self, ip: u64, sink: &mut S) -> Result<(), ErrorCause> {
        let Some(AwaitingFup { mut event, purpose }) = self.state.awaiting_fup.take() else {
            return self.decode_async_event_fup(ip, sink);
        };
        event.ip = ip;
        self.confirm_tracing_enabled_by_psb_plus(sink);
        match self.state.tracing {
            TracingState::On => {
                let abort = purpose == FupPurpose::Tsx { abort: true };
                match self.follow_to_fup_ip(ip, abort, sink) {
                    // an instruction of the loop emits its packets in every iteration
                    Ok(())
                        if abort
                            || purpose == FupPurpose::Address
                                && event.kind != EventKind::PtWrite =>
                    {
                        self.report_unknown_repetitions(ip, sink);
                    }
                    Ok(()) => {}
                    Err(cause) => {
                        self.begin_loss_at_packet(cause, sink);
                        if self.state.tracing == (TracingState::Lost { resume: true }) {
                            self.resume_after_loss(ip, self.interpreter.mode, sink);
                        }
                    }
                }
            }
            TracingState::Lost { resume: true } => {
                self.resume_after_loss(ip, self.interpreter.mode, sink);
            }
            TracingState::Overflow if matches!(purpose, FupPurpose::Tsx { .. }) => {
                // MODE.TSX has a FUP only while PacketEn is 1 (erratum SKD010 drops the one after OVF)
                self.interpreter.counts.add_erratum(Erratum::Skd010);
                self.resume_after_loss(ip, self.interpreter.mode, sink);
            }
            _ => {}
        }
        let completed = Some(event.kind);
        self.state
            .pending_events
            .report_pending(completed, ip, sink);
        sink.add_event(&event);
        if self.state.tracing != TracingState::On {
            return Ok(());
        }
        match purpose {
            FupPurpose::Tsx { abort: true } => {
                sink.end_run(RunEnd::Event, self.packet_offset());
                self.state.tracing = TracingState::Async { ip };
            }
            FupPurpose::Exec => {
                if let Some(mode) = self.state.announced_mode.take() {
                    self.set_operating_mode(mode);
                }
            }
            FupPurpose::Tsx { abort: false } | FupPurpose::Address => {}
        }
        Ok(())
    }

    fn decode_async_event_fup<S: Sink>(&mut self, ip: u64, sink: &mut S) -> Result<(), ErrorCause> {
        self.confirm_tracing_enabled_by_psb_plus(sink);
        match self.state.tracing {
            TracingState::On => {
                match self.follow_to_fup_ip(ip, false, sink) {
                    Ok(()) => self.report_unknown_repetitions(ip, sink),
                    Err(cause) => {
                        self.begin_loss_at_packet(cause, sink);
                        if self.state.tracing != (TracingState::Lost { resume: true }) {
                            return Ok(());
                        }
                    }
                }
                sink.end_run(RunEnd::Event, self.packet_offset());
                self.state.tracing = TracingState::Async { ip };
                Ok(())
            }
            TracingState::Overflow => {
                self.resume_after_loss(ip, self.interpreter.mode, sink);
                self.instructions_at_overflow_fup = Some(self.interpreter.counts.instructions);
                self.state.has_pip_after_overflow = false;
                Ok(())
            }
            TracingState::Lost { resume: true } => {
                self.state.tracing = TracingState::Async { ip };
                Ok(())
            }
            TracingState::Lost { resume: false } => Ok(()),
            _ => Err(ErrorCause::UnexpectedPacket { name: "FUP" }),
        }
    }

    /// Follows execution up to the IP of a FUP.
    fn follow_to_fup_ip<S: Sink>(
        &mut self,
        ip: u64,
        abort: bool,
        sink: &mut S,
    ) -> Result<(), ErrorCause> {
        self.interpreter.expect_no_pending_results()?;
        // the transfer before an abort may have a wrong target: nothing from there on has run
        if abort
            && self.state.after_branch
            && self.errata.has_erratum(Erratum::Bdm64)
            && !self.interpreter.can_reach_ip(ip)
        {
            self.interpreter.counts.add_erratum(Erratum::Bdm64);
            self.interpreter
                .set_next_address(ip, self.interpreter.packet.time);
            return Ok(());
        }
        self.interpreter.advance_to_ip(sink, ip)
    }

    /// Execution is at `ip` for the first time since the last packet; a loop may have led there more often.
    pub(super) fn report_unknown_repetitions<S: Sink>(&mut self, ip: u64, sink: &mut S) {
        let offset = self.packet_offset();
        if let Some(loop_body) = self.interpreter.loop_body() {
            let instructions = loop_body.len() as u32;
            let cause = ErrorCause::Repeats { ip, instructions };
            self.ledger
                .record_harmless_error(offset, FlowError { offset, cause });
            sink.note_unknown_repetitions(&loop_body);
        }
    }

    pub(super) fn handle_overflow<S: Sink>(&mut self, sink: &mut S) {
        self.begin_loss_at_packet(ErrorCause::Overflow, sink);
        self.clock.invalidate_cycle_counts();
        self.clock.add_sample_if_enabled(self.packet_offset());
        self.report_event(EventKind::Overflow, 0, 0, sink);
        self.state.tracing = TracingState::Overflow;
    }

    pub(super) fn handle_trace_stop<S: Sink>(&mut self, sink: &mut S) {
        self.confirm_tracing_enabled_by_psb_plus(sink);
        let ip = match self.state.tracing {
            TracingState::Off => self.state.disabled_ip,
            TracingState::On => self.interpreter.next_instruction_address(),
            _ => 0,
        };
        sink.end_run(RunEnd::Off, self.packet_offset());
        self.report_event(EventKind::Stopped, ip, 0, sink);
        self.state.disabled_ip = ip;
        self.state.tracing = TracingState::Off;
    }

    pub(super) fn set_operating_mode(&mut self, mode: CodeMode) {
        if self.interpreter.mode != mode {
            let here = self.interpreter.next_instruction_address();
            self.interpreter
                .set_next_address(here, self.clock.row_time());
            self.interpreter.mode = mode;
        }
    }
}
