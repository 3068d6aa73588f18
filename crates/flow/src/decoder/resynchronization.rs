//! Resynchronization: how decoding stops at an error, and where it continues.
//!
//! `begin_loss` records the loss in the coverage ledger and enters the state `Lost`. What the error was decides where
//! decoding may continue:
//!
//! | error | what may be wrong | decoding continues at |
//! |---|---|---|
//! | code is missing | only the position in the code; the packets are whole | the next IP |
//! | packets contradict the code or each other | bytes may be missing, so that packets or LastIP may be misread | PSB, TIP.PGE |
//! | the same in the kernel, or where threads share a CPU | rather the code: the kernel patches itself, and the code may be another thread's | the next IP |
//! | bad bytes | the packets | PSB |
//! | OVF | the processor dropped packets | the FUP of the OVF, TIP.PGE, PSB |
//!
//! After missing code a compressed RET to a call in it is an error, too.
//!
//! # Deferred TIPs
//!
//! One kind of IP does not give the position: a TIP of a processor that defers TIPs (section 33.4.2.3) follows the TNT,
//! and the last bits of that TNT may belong to branches after the TIP. Only the code, which is lost, shows which. So a
//! TIP after a TNT (with at most TIPs, CYCs and PADs between) is not used, with two exceptions: it leads into the
//! kernel or out of it, as far transfers are never deferred; or the stream has shown that its processor does not defer
//! TIPs, by `ENOUGH_TIPS` TIPs since the last PSB of which none was deferred. They are counted from the PSB on so that
//! decoders that start at different PSBs agree.

use rtit_packet::{find_psb, PacketKind, PacketScanner};
use rtit_x86::CodeMode;

use super::{Decoder, TracingState};
use crate::coverage_ledger::ByteStatus;
use crate::error::{ErrorCause, ErrorClass, FlowError};
use crate::event::{Event, EventKind};
use crate::sink::{RunEnd, Sink};
use crate::stream_decoder::StreamWindow;

/// TIPs after which a stream counts as one without deferred TIPs.
const ENOUGH_TIPS: u8 = 32;

/// Whether the IP of a TIP can be trusted while the position is lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct DeferredTips {
    /// TIPs followed since the last PSB, at most `ENOUGH_TIPS`.
    followed: u8,
    /// While lost: a TNT precedes the packet, with at most TIPs, CYCs and PADs between.
    pub after_tnt: bool,
    /// LastIP before the packet.
    last_ip: u64,
}

impl DeferredTips {
    pub fn count_followed_tips(&mut self, tips: u64) {
        let all = u64::from(self.followed).saturating_add(tips);
        self.followed = all.min(ENOUGH_TIPS.into()) as u8;
    }

    /// Notes the next packet while the position is lost.
    pub fn note_packet_while_lost(&mut self, packet: &PacketKind, last_ip: u64) {
        self.last_ip = last_ip;
        self.after_tnt = match packet {
            PacketKind::Tnt(_) | PacketKind::Tnt64(_) => true,
            PacketKind::Tip(_) | PacketKind::Cyc { .. } | PacketKind::Pad => self.after_tnt,
            _ => false,
        };
    }

    /// Whether a TIP to `target` may be a deferred one. `defers_tips`: the stream has had deferred TIPs.
    pub fn may_tip_be_deferred(&self, target: u64, defers_tips: bool) -> bool {
        let is_near = (self.last_ip ^ target) >> 63 == 0;
        self.after_tnt && is_near && (defers_tips || self.followed < ENOUGH_TIPS)
    }
}

impl Decoder {
    /// Records `cause` as the beginning of a loss and enters the state `Lost`.
    pub(super) fn begin_loss<S: Sink>(&mut self, offset: u64, cause: ErrorCause, sink: &mut S) {
        self.flush_awaiting_fup(0, sink);
        self.state.pending_events.report_incomplete_events(sink);
        sink.end_run(RunEnd::Lost, offset);
        self.ledger.record_loss(offset, FlowError { offset, cause });
        let (ip, value) = (cause.bad_value(), cause.error_class() as u64);
        if self.state.tracing != TracingState::Elsewhere {
            let event = self.new_event(EventKind::Error, ip, value);
            sink.add_event(&Event { offset, ..event });
        }
        let class = cause.error_class();
        let code_may_differ = self.interpreter.next_instruction_address() >> 63 != 0
            || self.interpreter.selector.has_schedule();
        let packets_are_whole = match class {
            ErrorClass::CodeNotFound => true,
            ErrorClass::Disagreement => code_may_differ,
            _ => false,
        };
        let resume = packets_are_whole
            && self.state.tracing == TracingState::On
            && self.state.psb_plus.is_none();
        self.state.tracing = TracingState::Lost { resume };
        self.state.deferred_tips.after_tnt = self.interpreter.expect_no_pending_results().is_err();
        self.state.psb_plus = None;
        self.state.pending_evd_types = 0;
        self.state.announced_mode = None;
        self.interpreter.reset_return_stack_and_tnt();
    }

    /// As `begin_loss`, at the current packet.
    pub(super) fn begin_loss_at_packet<S: Sink>(&mut self, cause: ErrorCause, sink: &mut S) {
        self.begin_loss(self.packet_offset(), cause, sink);
    }

    /// Whether a TIP to `target`, the current packet, may be a deferred one, which does not give the position.
    pub(super) fn may_be_deferred_tip(&self, target: u64) -> bool {
        self.state
            .deferred_tips
            .may_tip_be_deferred(target, self.interpreter.defers_tips())
    }

    /// Continues at `ip` after a loss.
    pub(super) fn resume_after_loss<S: Sink>(&mut self, ip: u64, mode: CodeMode, sink: &mut S) {
        self.ledger
            .enter_status(self.packet_offset(), ByteStatus::Resumed);
        self.start_execution_at(ip, mode, EventKind::Resumed, sink);
    }

    /// Sets the position to `ip`, independent of everything before.
    pub(super) fn start_execution_at<S: Sink>(
        &mut self,
        ip: u64,
        mode: CodeMode,
        kind: EventKind,
        sink: &mut S,
    ) {
        self.state.after_branch = false;
        self.instructions_at_overflow_fup = None;
        self.state.disabled_ip = 0;
        self.state.deferred_tips.after_tnt = false;
        self.interpreter.reset_return_stack_and_tnt();
        self.interpreter
            .advance_code_to(self.clock.estimate_by_rate(), sink);
        self.interpreter
            .set_next_address(ip, self.interpreter.packet.time);
        if !self
            .interpreter
            .enter_due_intervals(self.interpreter.packet.now)
        {
            self.interpreter.mode = mode;
            self.stop_following(sink);
            return;
        }
        self.end_undecoded_span();
        self.interpreter.enter_space(true);
        self.interpreter
            .update_kernel_code(self.interpreter.packet.now, sink);
        self.report_cr3_contradiction();
        self.interpreter.mode = mode;
        self.state.tracing = TracingState::On;
        self.state.pending_events.report_mode_tsx_at_ip(ip, sink);
        self.report_event(kind, ip, 0, sink);
    }

    /// Sets the position to the FUP of a PSB+ that ends at the packet at `offset`.
    pub(super) fn resume_at_psb<S: Sink>(&mut self, ip: u64, offset: u64, sink: &mut S) {
        self.interpreter.set_next_address(ip, self.clock.row_time());
        if self.ledger.current_status() == ByteStatus::Lost {
            let event = self.new_event(EventKind::Resumed, ip, 0);
            sink.add_event(&Event { offset, ..event });
        }
    }

    /// Moves to the next PSB, or to the end of the stream. Returns false if the window ends before it.
    pub(super) fn search_psb(&mut self, stream: StreamWindow<'_>) -> bool {
        let found = find_psb(
            stream.bytes,
            self.state.position.saturating_sub(stream.base),
        );
        let found = found.map(|at| at + stream.base);
        self.state.is_searching_psb =
            !stream.last && found.is_none_or(|at| at >= stream.packet_start_limit());
        self.state.position = match found {
            Some(at) if !self.state.is_searching_psb => at,
            _ if self.state.is_searching_psb => {
                self.state.position.max(stream.packet_start_limit())
            }
            _ => stream.end(),
        };
        !self.state.is_searching_psb
    }

    /// Continues at the next PSB at or after `offset`.
    pub(super) fn seek_psb(
        &mut self,
        offset: usize,
        stream: StreamWindow<'_>,
        scanner: &mut PacketScanner<'_>,
    ) {
        self.clock.invalidate_cycle_counts();
        self.state.position = offset;
        self.search_psb(stream);
        scanner.set_block_item_size(None);
        scanner.seek_to(self.state.position);
    }
}
