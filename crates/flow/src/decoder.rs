//! The packet decoder: applies the packets of one stream, in order, to the state of tracing.
//!
//! A [`Decoder`] is a state machine over packets. `packet_loop` reads packets; `packet_dispatch` applies those that
//! move execution, with the help of the [interpreter](crate::interpreter), which follows the code; `psb_plus` compares
//! the state with a PSB+; `informational_packets` turns the others into events; `resynchronization` handles losses;
//! `table_driven` is the fast path over short TNTs and TIPs; `thread_schedule` skips threads that are not decoded.
//!
//! | state      | what is known                                           | left by                                            |
//! |------------|---------------------------------------------------------|----------------------------------------------------|
//! | `Lost`     | nothing                                                 | TIP.PGE, PSB+; if the packets are whole, other IPs |
//! | `Overflow` | OVF was read, and only timing packets since             | FUP (also that of MODE.TSX), TIP.PGE, PSB+         |
//! | `Off`      | PacketEn is 0                                           | TIP.PGE, PSB+ with FUP                             |
//! | `PsbOn`    | a PSB+ gave the IP; no packet has moved execution since | the next packet that moves execution               |
//! | `On`       | the interpreter has the position                        | TIP.PGD, FUP, OVF, errors                          |
//! | `Async`    | an event struck at a FUP; its target comes next         | TIP, TIP.PGD, TIP.PGE (INIT)                       |
//! | `Elsewhere`| a thread runs that is not decoded (`thread_schedule`)   | TIP.PGD, OVF; in a decoded thread's interval any IP|
//!
//! Only timing packets come between OVF and its FUP (section 33.3.8): a FUP after any other packet does not belong to
//! it.

//!
//! # Snapshots
//!
//! [`DecoderSnapshot`] is the whole state as a value, with which another decoder continues at the same position.
//! Parallel decoding depends on it. A speculative decoder starts at a later PSB from a guess (`for_later_psb`); its
//! segment is used only if the decoder before it arrives at an equal snapshot. So a snapshot holds everything that
//! influences later results, and nothing else: neither counts and ledger, which begin empty in each segment, nor the
//! code cache, which only saves time.

mod erratum_workarounds;
mod informational_packets;
mod packet_dispatch;
mod packet_loop;
mod psb_plus;
mod resynchronization;
mod table_driven;
mod thread_schedule;

use self::informational_packets::PendingEvents;
use self::resynchronization::DeferredTips;
use self::thread_schedule::AmbiguousInterval;
use crate::address_spaces::AddressSpaces;
use crate::backpressure::DeferredCalls;
use crate::coverage_ledger::{ByteStatus, CoverageLedger, LedgerSpan};
use crate::error::{ErrorCause, FlowError};
use crate::event::{Event, EventKind};
use crate::interpreter::{Interpreter, InterpreterSnapshot, PacketStamp};
use crate::settings::{ErratumSet, Settings};
use crate::sink::Sink;
use crate::stream_decoder::StreamWindow;
use crate::time::{EstimatedClock, TimingSample, TimingSamples};
use crate::totals::{StreamCounts, Totals};
use rtit_image::{ChangedCode, Space};
use rtit_packet::{find_psb, PacketKind, PacketScanner};
use rtit_x86::CodeMode;

/// See the table above.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum TracingState {
    /// `resume`: tracing is on and the packets are whole, so that the next IP gives the position.
    Lost { resume: bool },
    /// After OVF.
    Overflow,
    /// PacketEn is 0.
    Off,
    /// `unannounced`: offset of the PSB if tracing was off before.
    PsbOn { unannounced: Option<u64> },
    /// The interpreter has the position.
    On,
    /// After the FUP of an event.
    Async { ip: u64 },
    /// A thread runs that is not decoded.
    Elsewhere,
}

/// A packet that the next FUP completes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct AwaitingFup {
    pub event: Event,
    pub purpose: FupPurpose,
}

/// The effect of a FUP that completes another packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum FupPurpose {
    /// Of MODE.TSX: a transaction begins, ends, or is aborted.
    Tsx { abort: bool },
    /// Of MODE.Exec: the mode applies here.
    Exec,
    /// Of PTW, EXSTOP, BEP, CFE, TRIG: the FUP only gives the address.
    Address,
}

/// Contents of a PSB+ so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct PsbPlus {
    pub offset: u64,
    pub ip: Option<u64>,
    pub mode: Option<CodeMode>,
    pub in_transaction: Option<bool>,
}

/// The state of tracing, as the packets so far determine it.
#[derive(Clone, PartialEq, Debug)]
struct DecoderState {
    tracing: TracingState,
    /// The last packet that moved execution was that of a branch.
    after_branch: bool,
    /// A PIP followed the FUP after an OVF: that of a MOV CR3 if tracing is on (erratum APL12).
    has_pip_after_overflow: bool,
    /// Instructions run by packets without IP since the last packet with one.
    instructions_past_ip: u64,
    /// The MOV CR3 to which the packet before was bound; nothing has run since (if `instructions_past_ip` is not 0).
    last_mov_cr3: Option<u64>,
    /// Types of the EVDs that wait for their CFE, one bit each.
    pending_evd_types: u64,
    /// Whether execution is in a transaction; `None`: not known.
    in_transaction: Option<bool>,
    last_ip: u64,
    psb_plus: Option<PsbPlus>,
    awaiting_fup: Option<AwaitingFup>,
    pending_events: PendingEvents,
    /// Address at which tracing was turned off; 0: not known.
    disabled_ip: u64,
    /// Mode of a MODE.Exec that applies at the next IP packet.
    announced_mode: Option<CodeMode>,
    /// CR3 and NR, VMCS pointer as last seen.
    last_paging: Option<u64>,
    last_vmcs: Option<u64>,
    position: usize,
    /// As `PacketScanner::block_item_size`.
    block: Option<u8>,
    /// The next PSB at or after `position` has to be found first.
    is_searching_psb: bool,
    is_at_end: bool,
    /// Packet before which decoding paused for a new scheduling interval.
    paused_at: Option<usize>,
    /// Status of the bytes after the current thread that is not decoded.
    status_before: ByteStatus,
    deferred_tips: DeferredTips,
}

impl DecoderState {
    /// Returns the state in which nothing is known.
    fn lost_state_at(position: usize) -> DecoderState {
        DecoderState {
            tracing: TracingState::Lost { resume: false },
            after_branch: false,
            has_pip_after_overflow: false,
            instructions_past_ip: 0,
            last_mov_cr3: None,
            pending_evd_types: 0,
            in_transaction: None,
            last_ip: 0,
            psb_plus: None,
            awaiting_fup: None,
            pending_events: PendingEvents::default(),
            disabled_ip: 0,
            announced_mode: None,
            last_paging: None,
            last_vmcs: None,
            position,
            block: None,
            is_searching_psb: false,
            is_at_end: false,
            paused_at: None,
            status_before: ByteStatus::Exact,
            deferred_tips: DeferredTips::default(),
        }
    }
}

/// Decodes one stream. It holds no bytes: each call gets a window of the stream.
pub struct Decoder {
    interpreter: Interpreter,
    clock: EstimatedClock,
    ledger: CoverageLedger,
    state: DecoderState,
    errata: ErratumSet,
    /// Count of instructions at the FUP after an OVF.
    instructions_at_overflow_fup: Option<u64>,
    /// The next packet but timing is a TraceStop.
    tracestop_follows: bool,
    ambiguous: AmbiguousInterval,
    /// Calls of the last packet that the sink has not yet received.
    deferred_calls: DeferredCalls,
}

/// Whether bytes before the first PSB lose nothing: PADs, and the CYC of the PSB itself. Anything else may be the rest
/// of a packet.
fn has_only_cyc_and_pad(head: &[u8]) -> bool {
    let mut scanner = PacketScanner::new(head);
    let mut packets = std::iter::from_fn(|| scanner.next());
    packets.all(|packet| {
        packet.is_ok_and(|packet| matches!(packet.kind, PacketKind::Cyc { .. } | PacketKind::Pad))
    })
}

impl Decoder {
    /// Starts at the beginning of the stream, which begins with `stream`, if `settings` give the state there; else at
    /// its first PSB.
    pub fn new(
        spaces: impl Into<AddressSpaces>,
        stream: StreamWindow<'_>,
        settings: &Settings,
    ) -> Decoder {
        Decoder::begin_stream(Interpreter::new(spaces.into(), settings), stream, settings)
    }

    /// Starts another stream over the same code; keeps code cache and transitions. `spaces`: the code at the beginning
    /// of the stream, as many spaces as `new` was given.
    pub(crate) fn restart_with_stream(
        &mut self,
        spaces: &AddressSpaces,
        stream: StreamWindow<'_>,
        settings: &Settings,
    ) {
        let nothing = Interpreter::new(AddressSpaces::new(Space::new().view_at_start()), settings);
        let mut interpreter = std::mem::replace(&mut self.interpreter, nothing);
        interpreter.reset_for_next_stream(spaces);
        *self = Decoder::begin_stream(interpreter, stream, settings);
    }

    /// Drops changed code between two streams. `spaces`: the current code.
    pub(crate) fn drop_changed_code(
        &mut self,
        before: &AddressSpaces,
        spaces: &AddressSpaces,
        changed: &ChangedCode,
    ) {
        self.interpreter.drop_changed_code(before, spaces, changed);
    }

    fn begin_stream(
        mut interpreter: Interpreter,
        stream: StreamWindow<'_>,
        settings: &Settings,
    ) -> Decoder {
        let position = match settings.start {
            Some(_) => 0,
            None => find_psb(stream.bytes, 0).unwrap_or(stream.bytes.len()),
        };
        let mut ledger = CoverageLedger::new(LedgerSpan {
            from: 0,
            to: 0,
            status: ByteStatus::Exact,
            error: None,
        });
        let head = stream.bytes.get(..position).unwrap_or(&[]);
        let none = position == stream.bytes.len() && settings.start.is_none();
        if none && position > 0 || !has_only_cyc_and_pad(head) {
            let cause = ErrorCause::BeforePsb;
            ledger.record_loss(0, FlowError { offset: 0, cause });
        }
        let mut clock = EstimatedClock::new(settings.time);
        clock.samples = settings.timing_samples.then(TimingSamples::default);
        let mut state = DecoderState::lost_state_at(if none { 0 } else { position });
        state.is_searching_psb = settings.start.is_none();
        if let Some(start) = settings.start {
            interpreter.begin_stream();
            interpreter.mode = start.mode;
            interpreter.set_next_address(start.ip.unwrap_or(0), 0);
            state.tracing = start.ip.map_or(TracingState::Off, |_| TracingState::On);
            state.last_ip = start.last_ip;
        }
        Decoder {
            interpreter,
            clock,
            ledger,
            state,
            errata: ErratumSet::for_cpu(settings.cpu),
            instructions_at_overflow_fup: None,
            tracestop_follows: false,
            ambiguous: AmbiguousInterval::default(),
            deferred_calls: DeferredCalls::default(),
        }
    }

    pub fn coverage_ledger(&self) -> &CoverageLedger {
        &self.ledger
    }

    pub fn counts(&self) -> StreamCounts {
        let mut counts = self.interpreter_counts();
        self.add_counts(&mut counts);
        counts
    }

    /// Counts of what the interpreter decoded.
    fn interpreter_counts(&self) -> StreamCounts {
        StreamCounts {
            cycles: self.clock.total_cycles(),
            measured: self.clock.measured,
            inactive: self.clock.inactive,
            ..self.interpreter.counts.clone()
        }
    }

    /// Adds the counts of the transition tables.
    pub(crate) fn add_counts(&self, counts: &mut StreamCounts) {
        self.interpreter.add_counts(counts);
    }

    /// Returns the timing samples since the last call; empty unless `Settings::timing_samples`.
    pub fn take_timing_samples(&mut self) -> Vec<TimingSample> {
        self.clock.take_timing_samples()
    }

    /// Returns the number of timing samples that were not taken.
    pub fn waiting_sample_count(&self) -> usize {
        let samples = self.clock.samples.as_ref();
        samples.map_or(0, |samples| samples.waiting.len())
    }

    /// Returns the number of counters in the transition tables.
    pub fn counters_in_use(&self) -> usize {
        self.interpreter.counters_in_use()
    }

    /// Adds the sums of the transition tables to `totals`, the sink of this stream.
    pub fn take_totals(&mut self, totals: &mut Totals) {
        self.interpreter.take_totals(totals);
    }

    /// Stream offset of the next packet.
    pub fn next_packet_position(&self) -> usize {
        self.state.position
    }

    /// True when the whole stream has been read.
    pub fn is_finished(&self) -> bool {
        self.state.is_at_end
    }

    /// Whether calls of the last packet wait for the sink.
    pub(crate) fn has_deferred_calls(&self) -> bool {
        !self.deferred_calls.is_empty()
    }

    /// Whether the caller has cancelled decoding.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.interpreter.cancellation.is_cancelled()
    }

    /// Sets offset and time of the current packet.
    fn set_current_packet(&mut self, offset: u64) {
        self.interpreter.packet = PacketStamp {
            offset,
            time: self.clock.row_time(),
            now: self.clock.estimate_by_rate(),
        };
    }

    /// Offset of the current packet.
    fn packet_offset(&self) -> u64 {
        self.interpreter.packet.offset
    }

    /// Returns the mode from the next IP packet on.
    fn take_announced_mode(&mut self) -> CodeMode {
        let announced = self.state.announced_mode.take();
        announced.unwrap_or(self.interpreter.mode)
    }

    /// Applies a PIP, which takes effect at the next entry. Returns whether it changes anything.
    fn apply_pip_payload(&mut self, cr3: u64, nr: bool) -> bool {
        self.clock.in_guest = nr;
        self.interpreter.selector.next_paging = Some((cr3, nr));
        let paging = Some(cr3 | u64::from(nr));
        std::mem::replace(&mut self.state.last_paging, paging) != paging
    }

    /// Applies a VMCS packet, which takes effect at the next VM entry. Returns whether it changes anything.
    fn apply_vmcs_pointer(&mut self, pointer: u64) -> bool {
        self.interpreter.selector.next_vmcs = Some(pointer);
        self.state.last_vmcs.replace(pointer) != Some(pointer)
    }

    /// Reports an event of the current packet.
    fn report_event<S: Sink>(&self, kind: EventKind, ip: u64, value: u64, sink: &mut S) {
        if self.state.tracing != TracingState::Elsewhere {
            sink.add_event(&self.new_event(kind, ip, value));
        }
    }

    fn new_event(&self, kind: EventKind, ip: u64, value: u64) -> Event {
        Event {
            kind,
            ip,
            value,
            time: self.clock.row_time(),
            offset: self.packet_offset(),
        }
    }

    /// No FUP completed the packet that might have had one; MODE.Exec applies at `ip`.
    fn flush_awaiting_fup<S: Sink>(&mut self, ip: u64, sink: &mut S) {
        if let Some(mut awaiting_fup) = self.state.awaiting_fup.take() {
            self.state.pending_events.report_pending(None, 0, sink);
            // without a FUP it applies where tracing continues, if no other comes before
            if awaiting_fup.purpose == (FupPurpose::Tsx { abort: false })
                && self.state.tracing == TracingState::Off
            {
                self.state
                    .pending_events
                    .set_mode_tsx_of_next_ip(awaiting_fup.event);
                return;
            }
            if awaiting_fup.purpose == FupPurpose::Exec {
                awaiting_fup.event.ip = ip;
            }
            sink.add_event(&awaiting_fup.event);
            // only timing packets come between OVF and its FUP
            if self.state.tracing == TracingState::Overflow {
                self.state.tracing = TracingState::Off;
            }
        }
    }
}

/// The state of a decoder. Decoders with equal snapshots have equal results from there on.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct DecoderSnapshot {
    state: DecoderState,
    status: ByteStatus,
    /// Nothing has run since the FUP after an OVF.
    is_after_overflow_fup: bool,
    clock: EstimatedClock,
    interpreter: InterpreterSnapshot,
    deferred_calls: DeferredCalls,
}

impl DecoderSnapshot {
    pub fn snapshot_position(&self) -> usize {
        self.state.position
    }

    pub fn is_at_end(&self) -> bool {
        self.state.is_at_end
    }

    pub fn is_searching_psb(&self) -> bool {
        self.state.is_searching_psb
    }

    /// Whether calls of the last packet wait for the sink.
    pub fn has_deferred_calls(&self) -> bool {
        !self.deferred_calls.is_empty()
    }

    /// Drops the time, for sinks without times.
    pub fn without_time(mut self) -> DecoderSnapshot {
        self.interpreter.forget_time();
        self
    }

    /// Returns a guess of the state at a PSB later in the stream: without what a PSB+ contains.
    pub fn for_later_psb(&self, position: usize) -> DecoderSnapshot {
        let state = &self.state;
        DecoderSnapshot {
            state: DecoderState {
                in_transaction: state.in_transaction,
                pending_events: state.pending_events.known_at_later_psb(),
                disabled_ip: state.disabled_ip,
                last_paging: state.last_paging,
                last_vmcs: state.last_vmcs,
                status_before: state.status_before,
                ..DecoderState::lost_state_at(position)
            },
            status: ByteStatus::Lost,
            is_after_overflow_fup: false,
            clock: self.clock.known_at_later_psb(),
            interpreter: self.interpreter.known_at_later_psb(),
            deferred_calls: DeferredCalls::default(),
        }
    }
}

impl Decoder {
    pub(crate) fn take_snapshot(&self) -> DecoderSnapshot {
        let mut state = self.state.clone();
        state.last_mov_cr3 = state
            .last_mov_cr3
            .filter(|_| state.instructions_past_ip != 0);
        let instructions = self.interpreter.counts.instructions;
        DecoderSnapshot {
            state,
            status: self.ledger.current_status(),
            is_after_overflow_fup: self.instructions_at_overflow_fup == Some(instructions),
            clock: self.clock.without_statistics(),
            interpreter: self.interpreter.take_snapshot(),
            deferred_calls: self.deferred_calls.clone(),
        }
    }

    /// Continues from a snapshot, with empty counts and ledger. `spaces`: the code at the beginning of the stream.
    pub(crate) fn restore_snapshot(&mut self, snapshot: &DecoderSnapshot, spaces: &AddressSpaces) {
        self.state = snapshot.state.clone();
        self.clock = snapshot.clock.clone();
        self.deferred_calls = snapshot.deferred_calls.clone();
        self.interpreter
            .restore_snapshot(&snapshot.interpreter, spaces);
        self.reset_counts_and_ledger(snapshot);
    }

    /// Begins a segment: empties counts and ledger.
    pub(crate) fn begin_segment(&mut self) -> DecoderSnapshot {
        let snapshot = self.take_snapshot();
        self.clock = self.clock.without_statistics();
        self.reset_counts_and_ledger(&snapshot);
        snapshot
    }

    fn reset_counts_and_ledger(&mut self, snapshot: &DecoderSnapshot) {
        self.instructions_at_overflow_fup = snapshot.is_after_overflow_fup.then_some(0);
        self.interpreter.counts = StreamCounts::default();
        let position = snapshot.state.position as u64;
        self.ledger = self.ledger.new_segment_ledger(position, snapshot.status);
    }

    /// Ends a segment when its ledger has `max_changes` changes.
    pub(crate) fn limit_segment_ledger(&mut self, max_changes: usize) {
        self.ledger.limit_status_changes(max_changes);
    }

    /// Ends a segment and returns its counts, without those of the transition tables, and its ledger.
    pub(crate) fn end_segment(&mut self) -> (StreamCounts, CoverageLedger) {
        let counts = self.interpreter_counts();
        let position = self.state.position as u64;
        let after = self
            .ledger
            .new_segment_ledger(position, self.ledger.current_status());
        (counts, std::mem::replace(&mut self.ledger, after))
    }

    /// Sets whether transitions are taken without being counted.
    pub(crate) fn discard_results(&mut self, discard: bool) {
        self.interpreter.discard_results(discard);
    }
}
