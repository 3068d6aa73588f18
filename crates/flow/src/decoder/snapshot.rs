//! The state of a decoder as a plain value, with which another decoder continues at the same position.
//!
//! Parallel decoding depends on it. A speculative decoder starts at a later PSB from a guess (`for_later_psb`); its
//! segment is used only if the decoder before it arrives at an equal snapshot. So a snapshot holds everything that
//! influences later results, and nothing else: neither counts and ledger, which begin empty in each segment, nor the
//! code cache, which only saves time.

use super::informational_packets::PendingEvents;
use super::resynchronization::DeferredTips;
use super::{AwaitingFup, Decoder, PsbPlus, TracingState};
use crate::address_spaces::Spaces;
use crate::backpressure::DeferredCalls;
use crate::counts::Counts;
use crate::coverage_ledger::{ByteStatus, CoverageLedger};
use crate::interpreter::InterpreterSnapshot;
use crate::time::Clock;
use rtit_x86::Mode;

/// The state of a decoder. Decoders with equal snapshots have equal results from there on.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct DecoderSnapshot {
    pub position: usize,
    pub is_at_end: bool,
    pub is_searching_psb: bool,
    state: TracingState,
    status: ByteStatus,
    after_branch: bool,
    /// Nothing has run since the FUP after an OVF.
    is_after_overflow_fup: bool,
    has_pip_after_overflow: bool,
    instructions_past_ip: u64,
    last_mov_cr3: Option<u64>,
    pending_evd_types: u64,
    in_transaction: Option<bool>,
    last_ip: u64,
    psb_plus: Option<PsbPlus>,
    awaiting_fup: Option<AwaitingFup>,
    pending_events: PendingEvents,
    disabled_ip: u64,
    announced_mode: Option<Mode>,
    last_paging: Option<u64>,
    last_vmcs: Option<u64>,
    block: Option<u8>,
    paused_at: Option<usize>,
    status_before: ByteStatus,
    deferred_tips: DeferredTips,
    clock: Clock,
    interpreter: InterpreterSnapshot,
    pub deferred_calls: DeferredCalls,
}

impl DecoderSnapshot {
    /// Drops the time, for sinks without times.
    pub fn without_time(mut self) -> DecoderSnapshot {
        self.interpreter.forget_time();
        self
    }

    /// Returns a guess of the state at a PSB later in the stream: without what a PSB+ contains.
    pub fn for_later_psb(&self, position: usize) -> DecoderSnapshot {
        DecoderSnapshot {
            position,
            is_at_end: false,
            is_searching_psb: false,
            state: TracingState::Lost { resume: false },
            status: ByteStatus::Lost,
            after_branch: false,
            is_after_overflow_fup: false,
            has_pip_after_overflow: false,
            instructions_past_ip: 0,
            last_mov_cr3: None,
            pending_evd_types: 0,
            in_transaction: self.in_transaction,
            last_ip: 0,
            psb_plus: None,
            awaiting_fup: None,
            pending_events: self.pending_events.for_later_psb(),
            disabled_ip: self.disabled_ip,
            announced_mode: None,
            last_paging: self.last_paging,
            last_vmcs: self.last_vmcs,
            block: None,
            paused_at: None,
            status_before: self.status_before,
            deferred_tips: DeferredTips::default(),
            clock: self.clock.for_later_psb(),
            interpreter: self.interpreter.for_later_psb(),
            deferred_calls: DeferredCalls::default(),
        }
    }
}

impl Decoder {
    pub(crate) fn snapshot(&self) -> DecoderSnapshot {
        // every field of a decoder is listed, so that a new one cannot be forgotten
        let Decoder {
            interpreter,
            clock,
            ledger,
            counts,
            state,
            errata: _,
            after_branch,
            instructions_at_overflow_fup,
            has_pip_after_overflow,
            instructions_past_ip,
            last_mov_cr3,
            tracestop_follows: _,
            pending_evd_types,
            in_transaction,
            last_ip,
            psb_plus,
            awaiting_fup,
            pending_events,
            disabled_ip,
            announced_mode,
            last_paging,
            last_vmcs,
            position,
            block,
            is_searching_psb,
            is_at_end,
            paused_at,
            status_before,
            deferred_tips,
            // a stream with a thread schedule is not decoded in parallel
            ambiguous: _,
            deferred_calls,
        } = self;
        DecoderSnapshot {
            position: *position,
            is_at_end: *is_at_end,
            is_searching_psb: *is_searching_psb,
            state: *state,
            status: ledger.status(),
            after_branch: *after_branch,
            is_after_overflow_fup: *instructions_at_overflow_fup == Some(counts.instructions),
            has_pip_after_overflow: *has_pip_after_overflow,
            instructions_past_ip: *instructions_past_ip,
            last_mov_cr3: last_mov_cr3.filter(|_| *instructions_past_ip != 0),
            pending_evd_types: *pending_evd_types,
            in_transaction: *in_transaction,
            last_ip: *last_ip,
            psb_plus: *psb_plus,
            awaiting_fup: *awaiting_fup,
            pending_events: pending_events.clone(),
            disabled_ip: *disabled_ip,
            announced_mode: *announced_mode,
            last_paging: *last_paging,
            last_vmcs: *last_vmcs,
            block: *block,
            paused_at: *paused_at,
            status_before: *status_before,
            deferred_tips: *deferred_tips,
            clock: clock.without_accounts(),
            interpreter: interpreter.snapshot(),
            deferred_calls: deferred_calls.clone(),
        }
    }

    /// Continues from a snapshot, with empty counts and ledger. `spaces`: the code at the beginning of the stream.
    pub(crate) fn restore(&mut self, snapshot: &DecoderSnapshot, spaces: &Spaces) {
        self.position = snapshot.position;
        self.is_at_end = snapshot.is_at_end;
        self.is_searching_psb = snapshot.is_searching_psb;
        self.state = snapshot.state;
        self.after_branch = snapshot.after_branch;
        self.instructions_at_overflow_fup = snapshot.is_after_overflow_fup.then_some(0);
        self.has_pip_after_overflow = snapshot.has_pip_after_overflow;
        self.instructions_past_ip = snapshot.instructions_past_ip;
        self.last_mov_cr3 = snapshot.last_mov_cr3;
        self.pending_evd_types = snapshot.pending_evd_types;
        self.in_transaction = snapshot.in_transaction;
        self.last_ip = snapshot.last_ip;
        self.psb_plus = snapshot.psb_plus;
        self.awaiting_fup = snapshot.awaiting_fup;
        self.pending_events = snapshot.pending_events.clone();
        self.disabled_ip = snapshot.disabled_ip;
        self.announced_mode = snapshot.announced_mode;
        self.last_paging = snapshot.last_paging;
        self.last_vmcs = snapshot.last_vmcs;
        self.block = snapshot.block;
        self.paused_at = snapshot.paused_at;
        self.status_before = snapshot.status_before;
        self.deferred_tips = snapshot.deferred_tips;
        self.clock = snapshot.clock.clone();
        self.deferred_calls = snapshot.deferred_calls.clone();
        self.counts = Counts::default();
        self.ledger = self.ledger.part(snapshot.position as u64, snapshot.status);
        self.interpreter.restore(&snapshot.interpreter, spaces);
    }

    /// Begins a segment: empties counts and ledger.
    pub(crate) fn begin_segment(&mut self) -> DecoderSnapshot {
        let snapshot = self.snapshot();
        self.instructions_at_overflow_fup = snapshot.is_after_overflow_fup.then_some(0);
        self.counts = Counts::default();
        self.clock = self.clock.without_accounts();
        self.ledger = self.ledger.part(snapshot.position as u64, snapshot.status);
        snapshot
    }

    /// Ends segments after so many changes in their ledgers.
    pub(crate) fn limit_segment_ledger(&mut self, turns: usize) {
        self.ledger.limit_changes(turns);
    }

    /// Ends a segment and returns its counts, without those of the transition tables, and its ledger.
    pub(crate) fn end_segment(&mut self) -> (Counts, CoverageLedger) {
        let counts = self.interpreter_counts();
        let after = (self.ledger).part(self.position as u64, self.ledger.status());
        (counts, std::mem::replace(&mut self.ledger, after))
    }

    /// Sets whether transitions are taken without being counted.
    pub(crate) fn idle(&mut self, idle: bool) {
        self.interpreter.idle(idle);
    }
}
