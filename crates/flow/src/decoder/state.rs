//! What is known while a stream is read.

use rtit_image::{Changed, Space};
use rtit_packet::{find_psb, PacketKind, Scanner};
use rtit_x86::Mode;

use super::deferral::Deferral;
use super::doubt::Doubt;
use super::held::Held;
use super::later::Later;
use crate::counts::Counts;
use crate::errata::Errata;
use crate::error::{Cause, ErrorClass, FlowError};
use crate::event::{Event, EventKind};
use crate::ledger::{Ledger, Span, Trust};
use crate::settings::Settings;
use crate::sink::{End, Sink};
use crate::spaces::Spaces;
use crate::time::Clock;
use crate::timing_samples::{TimingSample, TimingSamples};
use crate::totals::Totals;
use crate::walk::{Stamp, Walker};
use crate::window::Window;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// `resume`: tracing is on and the packets are whole, so that the next IP says where the program is.
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
    /// The turn is another thread's.
    Elsewhere,
}

/// A packet that the next FUP completes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Bound {
    pub event: Event,
    pub to: BoundTo,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum BoundTo {
    Tsx {
        abort: bool,
    },
    Exec,
    /// PTW, EXSTOP, BEP, CFE: the FUP only says where.
    Place,
}

/// What a PSB+ has said so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Group {
    pub offset: u64,
    pub ip: Option<u64>,
    pub mode: Option<Mode>,
    pub in_tx: Option<bool>,
}

/// Follows one stream through the code. The bytes are not held: every call is given a window of the
/// stream.
pub struct Decoder {
    pub(super) walker: Walker,
    pub(super) clock: Clock,
    pub(super) ledger: Ledger,
    pub(super) counts: Counts,
    pub(super) state: State,
    pub(super) errata: Errata,
    /// The last packet that moved the program was one of a branch.
    pub(super) after_branch: bool,
    /// Instructions listed when a FUP after OVF said where the program is.
    pub(super) after_overflow: Option<u64>,
    /// A PIP came since: it is that of a MOV CR3 if tracing is on (erratum APL12).
    pub(super) paging_after_overflow: bool,
    /// Instructions that packets without a place of their own were bound past since one that had one.
    pub(super) past: u64,
    /// The MOV CR3 that the packet before this one was bound to, and nothing has run since (`past` is not 0).
    pub(super) moved_cr3: Option<u64>,
    /// The packet after this one, but for what tells time, is a TraceStop.
    pub(super) stops: bool,
    /// Types of the EVDs that wait for their CFE, one bit each.
    pub(super) event_data: u64,
    /// The program is in a transaction; `None`: not known.
    pub(super) in_tx: Option<bool>,
    pub(super) last_ip: u64,
    pub(super) group: Option<Group>,
    pub(super) bound: Option<Bound>,
    pub(super) held: Held,
    /// Where tracing was turned off, 0 if not known.
    pub(super) off_at: u64,
    /// MODE.Exec waits for the IP packet at which it applies.
    pub(super) new_mode: Option<Mode>,
    /// CR3 and NR, VMCS pointer as last seen.
    pub(super) paging: Option<u64>,
    pub(super) vmcs: Option<u64>,
    pub(super) position: usize,
    pub(super) block: Option<u8>,
    /// The next PSB at or after `position` is to be found.
    pub(super) searching: bool,
    pub(super) finished: bool,
    /// Packet before which the last turn ended.
    pub(super) paused_at: Option<usize>,
    /// What the ledger says of what comes after what is passed over.
    pub(super) trust_before: Trust,
    pub(super) deferral: Deferral,
    pub(super) doubt: Doubt,
    /// What the sink has not been told of the last packet.
    pub(super) later: Later,
}

/// Whether the bytes before the first PSB say nothing of the flow: PADs, and with CYCs on the CYC of the PSB's own cycle.
/// Anything else may be the rest of something.
fn says_nothing(head: &[u8]) -> bool {
    let mut scanner = Scanner::new(head);
    let mut packets = std::iter::from_fn(|| scanner.next());
    packets.all(|packet| {
        packet.is_ok_and(|packet| matches!(packet.kind, PacketKind::Cyc { .. } | PacketKind::Pad))
    })
}

impl Decoder {
    /// Begins where the stream does, which begins with `stream`, if `settings` say how things are there; else at its
    /// first PSB.
    pub fn new(spaces: impl Into<Spaces>, stream: Window<'_>, settings: &Settings) -> Decoder {
        Decoder::begin(Walker::new(spaces.into(), settings), stream, settings)
    }

    /// As `new`, of another stream over the same code, of which it keeps what it has learned. `spaces`: the code as it is
    /// where a stream begins, as many spaces as `new` was given.
    pub(crate) fn restart(&mut self, spaces: &Spaces, stream: Window<'_>, settings: &Settings) {
        let nothing = Walker::new(Spaces::new(Space::new().view()), settings);
        let mut walker = std::mem::replace(&mut self.walker, nothing);
        walker.start_again(spaces);
        *self = Decoder::begin(walker, stream, settings);
    }

    /// Forgets code between two streams; `spaces` have what holds now.
    pub(crate) fn forget(&mut self, before: &Spaces, spaces: &Spaces, changed: &Changed) {
        self.walker.forget(before, spaces, changed);
    }

    fn begin(mut walker: Walker, stream: Window<'_>, settings: &Settings) -> Decoder {
        let position = match settings.start {
            Some(_) => 0,
            None => find_psb(stream.bytes, 0).unwrap_or(stream.bytes.len()),
        };
        let error = FlowError {
            offset: 0,
            cause: Cause::BeforePsb,
        };
        let mut ledger = Ledger::new(Span {
            from: 0,
            to: 0,
            trust: Trust::Exact,
            error: None,
        });
        let head = stream.bytes.get(..position).unwrap_or(&[]);
        let none = position == stream.bytes.len() && settings.start.is_none();
        if none && position > 0 || !says_nothing(head) {
            ledger.fail(0, error);
        }
        let position = if none { 0 } else { position };
        let mut clock = Clock::new(settings.time);
        clock.points = settings.points.then(TimingSamples::default);
        let mut state = State::Lost { resume: false };
        if let Some(start) = settings.start {
            walker.begin();
            walker.mode = start.mode;
            walker.go_to(start.ip.unwrap_or(0), 0);
            state = start.ip.map_or(State::Off, |_| State::On);
        }
        Decoder {
            walker,
            clock,
            ledger,
            counts: Counts::default(),
            state,
            errata: Errata::of(settings.cpu),
            after_branch: false,
            after_overflow: None,
            paging_after_overflow: false,
            past: 0,
            moved_cr3: None,
            stops: false,
            event_data: 0,
            in_tx: None,
            last_ip: settings.start.map_or(0, |start| start.last_ip),
            group: None,
            bound: None,
            held: Held::default(),
            off_at: 0,
            new_mode: None,
            paging: None,
            vmcs: None,
            position,
            block: None,
            searching: settings.start.is_none(),
            finished: false,
            paused_at: None,
            trust_before: Trust::Exact,
            deferral: Deferral::default(),
            doubt: Doubt::default(),
            later: Later::default(),
        }
    }

    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    pub fn counts(&self) -> Counts {
        let mut counts = self.own_counts();
        self.add_counts(&mut counts);
        counts
    }

    /// Those that steps did not count.
    pub(super) fn own_counts(&self) -> Counts {
        Counts {
            cycles: self.clock.total_cycles(),
            measured: self.clock.measured,
            inactive: self.clock.inactive,
            ..self.counts.clone()
        }
    }

    /// Adds what steps have counted, ever.
    pub(crate) fn add_counts(&self, counts: &mut Counts) {
        self.walker.add_counts(counts);
    }

    /// What timing packets told since it was asked last, if the settings ask for points.
    pub fn take_points(&mut self) -> Vec<TimingSample> {
        let points = self.clock.points.as_mut();
        points.map_or_else(Vec::new, |points| std::mem::take(&mut points.waiting))
    }

    /// How many points wait to be taken.
    pub fn points_waiting(&self) -> usize {
        let points = self.clock.points.as_ref();
        points.map_or(0, |points| points.waiting.len())
    }

    /// How many places steps have counted.
    pub fn places(&self) -> usize {
        self.walker.places()
    }

    /// Adds to `totals`, the sink of this stream so far, what steps have counted for it.
    pub fn take_totals(&mut self, totals: &mut Totals) {
        self.walker.take_totals(totals);
    }

    /// Stream offset of the next packet.
    pub fn position(&self) -> usize {
        self.position
    }

    /// True when the whole stream has been read.
    pub fn is_finished(&self) -> bool {
        self.finished
    }

    /// The sink was full before it was told all of the last packet.
    pub(crate) fn tells_later(&self) -> bool {
        !self.later.is_empty()
    }

    /// `Watch` said so.
    pub(crate) fn gave_up(&self) -> bool {
        self.walker.watched.gave_up()
    }

    pub(super) fn event<S: Sink>(
        &self,
        kind: EventKind,
        ip: u64,
        value: u64,
        sink: &mut S,
        stamp: Stamp,
    ) {
        if self.state == State::Elsewhere {
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
    pub(super) fn flush_bound<S: Sink>(&mut self, ip: u64, sink: &mut S) {
        if let Some(mut bound) = self.bound.take() {
            self.held.release(None, 0, sink);
            // without a FUP it applies where tracing goes on, if no other comes before
            if bound.to == (BoundTo::Tsx { abort: false }) && self.state == State::Off {
                self.held.arrive_with(bound.event);
                return;
            }
            if bound.to == BoundTo::Exec {
                bound.event.ip = ip;
            }
            sink.event(&bound.event);
            // only timing packets come between OVF and its FUP
            if self.state == State::Overflow {
                self.state = State::Off;
            }
        }
    }

    pub(super) fn fail<S: Sink>(&mut self, offset: u64, cause: Cause, sink: &mut S) {
        self.flush_bound(0, sink);
        self.held.lose(sink);
        sink.close(End::Lost, offset);
        self.ledger.fail(offset, FlowError { offset, cause });
        let (ip, value) = (cause.value(), cause.class() as u64);
        self.event(
            EventKind::Error,
            ip,
            value,
            sink,
            Stamp {
                offset,
                time: 0,
                now: 0,
            },
        );
        let class = cause.class();
        // Contradicting packets may be damaged. But the kernel patches its code, and on a shared CPU the code may belong
        // to another thread: there the code is more likely to be wrong.
        let code_may_differ = self.walker.here() >> 63 != 0 || self.walker.has_turns();
        let whole = match class {
            ErrorClass::CodeNotFound => true,
            ErrorClass::Disagreement => code_may_differ,
            _ => false,
        };
        let resume = whole && self.state == State::On && self.group.is_none();
        self.state = State::Lost { resume };
        self.deferral.after_tnt = self.walker.expect_none_waiting().is_err();
        self.group = None;
        self.event_data = 0;
        self.new_mode = None;
        self.walker.reset();
    }
}
