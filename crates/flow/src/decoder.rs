//! The packet decoder: applies the packets of one stream, in order, to the state of tracing.
//!
//! A [`Decoder`] is a state machine over packets. `packet_loop` reads packets; `packet_dispatch` applies those that
//! move execution, with the help of the [interpreter](crate::interpreter), which follows the code; `psb_plus` compares
//! the state with what a PSB+ says; `informational_packets` turns the others into events; `resynchronization` handles
//! losses; `table_driven` is the fast path over short TNTs and TIPs; `thread_schedule` skips threads that are not
//! decoded. `snapshot` is the whole state as a value, with which another decoder can continue.
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

mod erratum_workarounds;
mod informational_packets;
mod packet_dispatch;
mod packet_loop;
mod psb_plus;
mod resynchronization;
mod snapshot;
mod table_driven;
mod thread_schedule;

use self::informational_packets::PendingEvents;
use self::resynchronization::DeferredTips;
pub(crate) use self::snapshot::DecoderSnapshot;
use self::thread_schedule::AmbiguousInterval;
use crate::address_spaces::Spaces;
use crate::backpressure::DeferredCalls;
use crate::counts::Counts;
use crate::coverage_ledger::{ByteStatus, CoverageLedger, Span};
use crate::errata::Errata;
use crate::error::{Cause, FlowError};
use crate::event::{Event, EventKind};
use crate::interpreter::{Interpreter, PacketStamp};
use crate::settings::Settings;
use crate::sink::Sink;
use crate::stream_window::StreamWindow;
use crate::time::Clock;
use crate::timing_samples::{TimingSample, TimingSamples};
use crate::totals::Totals;
use rtit_image::{Changed, Space};
use rtit_packet::{find_psb, PacketKind, Scanner};
use rtit_x86::Mode;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum TracingState {
    /// `resume`: tracing is on and the packets are whole, so that the next IP gives the position.
    Lost {
        resume: bool,
    },
    Overflow,
    Off,
    /// `unannounced`: offset of the PSB if tracing was off before.
    PsbOn {
        unannounced: Option<u64>,
    },
    On,
    Async {
        ip: u64,
    },
    /// A thread runs that is not decoded.
    Elsewhere,
}

/// A packet that the next FUP completes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct AwaitingFup {
    pub event: Event,
    pub to: FupPurpose,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum FupPurpose {
    Tsx {
        abort: bool,
    },
    Exec,
    /// PTW, EXSTOP, BEP, CFE: the FUP only gives the address.
    Place,
}

/// Contents of a PSB+ so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct PsbPlus {
    pub offset: u64,
    pub ip: Option<u64>,
    pub mode: Option<Mode>,
    pub in_transaction: Option<bool>,
}

/// Decodes one stream. It holds no bytes: each call gets a window of the stream.
pub struct Decoder {
    interpreter: Interpreter,
    clock: Clock,
    ledger: CoverageLedger,
    counts: Counts,
    state: TracingState,
    errata: Errata,
    /// The last packet that moved execution was that of a branch.
    after_branch: bool,
    /// Count of instructions at the FUP after an OVF.
    instructions_at_overflow_fup: Option<u64>,
    /// A PIP followed that FUP: that of a MOV CR3 if tracing is on (erratum APL12).
    has_pip_after_overflow: bool,
    /// Instructions run by packets without IP since the last packet with one.
    instructions_past_ip: u64,
    /// The MOV CR3 to which the packet before was bound; nothing has run since (if `instructions_past_ip` is not 0).
    last_mov_cr3: Option<u64>,
    /// The next packet but timing is a TraceStop.
    tracestop_follows: bool,
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
    announced_mode: Option<Mode>,
    /// CR3 and NR, VMCS pointer as last seen.
    last_paging: Option<u64>,
    last_vmcs: Option<u64>,
    position: usize,
    block: Option<u8>,
    /// The next PSB at or after `position` has to be found first.
    is_searching_psb: bool,
    is_at_end: bool,
    /// Packet before which decoding paused for a new scheduling interval.
    paused_at: Option<usize>,
    /// Status of the bytes after the current thread that is not decoded.
    status_before: ByteStatus,
    deferred_tips: DeferredTips,
    ambiguous: AmbiguousInterval,
    /// Calls of the last packet that the sink has not yet received.
    deferred_calls: DeferredCalls,
}

/// Whether bytes before the first PSB lose nothing: PADs, and the CYC of the PSB itself. Anything else may be the rest
/// of a packet.
fn has_only_cyc_and_pad(head: &[u8]) -> bool {
    let mut scanner = Scanner::new(head);
    let mut packets = std::iter::from_fn(|| scanner.next());
    packets.all(|packet| {
        packet.is_ok_and(|packet| matches!(packet.kind, PacketKind::Cyc { .. } | PacketKind::Pad))
    })
}

impl Decoder {
    /// Begins where the stream does, which begins with `stream`, if `settings` say how things are there; else at its
    /// first PSB.
    pub fn new(
        spaces: impl Into<Spaces>,
        stream: StreamWindow<'_>,
        settings: &Settings,
    ) -> Decoder {
        Decoder::begin(Interpreter::new(spaces.into(), settings), stream, settings)
    }

    /// As `new`, of another stream over the same code, of which it keeps what it has learned. `spaces`: the code as it
    /// is where a stream begins, as many spaces as `new` was given.
    pub(crate) fn restart(
        &mut self,
        spaces: &Spaces,
        stream: StreamWindow<'_>,
        settings: &Settings,
    ) {
        let nothing = Interpreter::new(Spaces::new(Space::new().view()), settings);
        let mut interpreter = std::mem::replace(&mut self.interpreter, nothing);
        interpreter.reset_for_next_stream(spaces);
        *self = Decoder::begin(interpreter, stream, settings);
    }

    /// Forgets code between two streams; `spaces` have what holds now.
    pub(crate) fn forget(&mut self, before: &Spaces, spaces: &Spaces, changed: &Changed) {
        self.interpreter.forget(before, spaces, changed);
    }

    fn begin(
        mut interpreter: Interpreter,
        stream: StreamWindow<'_>,
        settings: &Settings,
    ) -> Decoder {
        let position = match settings.start {
            Some(_) => 0,
            None => find_psb(stream.bytes, 0).unwrap_or(stream.bytes.len()),
        };
        let error = FlowError {
            offset: 0,
            cause: Cause::BeforePsb,
        };
        let mut ledger = CoverageLedger::new(Span {
            from: 0,
            to: 0,
            status: ByteStatus::Exact,
            error: None,
        });
        let head = stream.bytes.get(..position).unwrap_or(&[]);
        let none = position == stream.bytes.len() && settings.start.is_none();
        if none && position > 0 || !has_only_cyc_and_pad(head) {
            ledger.fail(0, error);
        }
        let position = if none { 0 } else { position };
        let mut clock = Clock::new(settings.time);
        clock.points = settings.points.then(TimingSamples::default);
        let mut state = TracingState::Lost { resume: false };
        if let Some(start) = settings.start {
            interpreter.begin();
            interpreter.mode = start.mode;
            interpreter.go_to(start.ip.unwrap_or(0), 0);
            state = start.ip.map_or(TracingState::Off, |_| TracingState::On);
        }
        Decoder {
            interpreter,
            clock,
            ledger,
            counts: Counts::default(),
            state,
            errata: Errata::of(settings.cpu),
            after_branch: false,
            instructions_at_overflow_fup: None,
            has_pip_after_overflow: false,
            instructions_past_ip: 0,
            last_mov_cr3: None,
            tracestop_follows: false,
            pending_evd_types: 0,
            in_transaction: None,
            last_ip: settings.start.map_or(0, |start| start.last_ip),
            psb_plus: None,
            awaiting_fup: None,
            pending_events: PendingEvents::default(),
            disabled_ip: 0,
            announced_mode: None,
            last_paging: None,
            last_vmcs: None,
            position,
            block: None,
            is_searching_psb: settings.start.is_none(),
            is_at_end: false,
            paused_at: None,
            status_before: ByteStatus::Exact,
            deferred_tips: DeferredTips::default(),
            ambiguous: AmbiguousInterval::default(),
            deferred_calls: DeferredCalls::default(),
        }
    }

    pub fn ledger(&self) -> &CoverageLedger {
        &self.ledger
    }

    pub fn counts(&self) -> Counts {
        let mut counts = self.interpreter_counts();
        self.add_counts(&mut counts);
        counts
    }

    /// Counts of what the interpreter decoded.
    fn interpreter_counts(&self) -> Counts {
        Counts {
            cycles: self.clock.total_cycles(),
            measured: self.clock.measured,
            inactive: self.clock.inactive,
            ..self.counts.clone()
        }
    }

    /// Adds the counts of the transition tables.
    pub(crate) fn add_counts(&self, counts: &mut Counts) {
        self.interpreter.add_counts(counts);
    }

    /// Takes the timing samples since the last call; empty unless `Settings::points`.
    pub fn take_points(&mut self) -> Vec<TimingSample> {
        let points = self.clock.points.as_mut();
        points.map_or_else(Vec::new, |points| std::mem::take(&mut points.waiting))
    }

    /// How many points wait to be taken.
    pub fn points_waiting(&self) -> usize {
        let points = self.clock.points.as_ref();
        points.map_or(0, |points| points.waiting.len())
    }

    /// Number of counters in the transition tables.
    pub fn places(&self) -> usize {
        self.interpreter.places()
    }

    /// Adds the sums of the transition tables to `totals`, the sink of this stream.
    pub fn take_totals(&mut self, totals: &mut Totals) {
        self.interpreter.take_totals(totals);
    }

    /// Stream offset of the next packet.
    pub fn position(&self) -> usize {
        self.position
    }

    /// True when the whole stream has been read.
    pub fn is_finished(&self) -> bool {
        self.is_at_end
    }

    /// Whether calls of the last packet wait for the sink.
    pub(crate) fn has_deferred_calls(&self) -> bool {
        !self.deferred_calls.is_empty()
    }

    /// `CancellationToken` said so.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.interpreter.cancellation.is_cancelled()
    }

    fn event<S: Sink>(
        &self,
        kind: EventKind,
        ip: u64,
        value: u64,
        sink: &mut S,
        stamp: PacketStamp,
    ) {
        if self.state == TracingState::Elsewhere {
            return;
        }
        sink.event(&Event {
            kind,
            ip,
            value,
            time: self.clock.stamp(),
            offset: stamp.offset,
        });
    }

    /// No FUP completed the packet that might have had one; MODE.Exec applies at `ip`.
    fn flush_awaiting_fup<S: Sink>(&mut self, ip: u64, sink: &mut S) {
        if let Some(mut awaiting_fup) = self.awaiting_fup.take() {
            self.pending_events.release(None, 0, sink);
            // without a FUP it applies where tracing goes on, if no other comes before
            if awaiting_fup.to == (FupPurpose::Tsx { abort: false })
                && self.state == TracingState::Off
            {
                self.pending_events.arrive_with(awaiting_fup.event);
                return;
            }
            if awaiting_fup.to == FupPurpose::Exec {
                awaiting_fup.event.ip = ip;
            }
            sink.event(&awaiting_fup.event);
            // only timing packets come between OVF and its FUP
            if self.state == TracingState::Overflow {
                self.state = TracingState::Off;
            }
        }
    }
}
