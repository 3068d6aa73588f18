//! Backpressure: a sink that becomes full within a packet gets the rest later.
//!
//! One packet may stand for any number of instructions: 32 MB of straight code may lie between two of them. A decoder
//! never reads back what it has reported. So it still decodes each packet as a whole; [`BackpressureSink`] stands
//! before the sink and, once that is full, keeps further calls as [`DeferredCalls`]. A path through code is kept as a
//! few numbers ([`UnreportedPath`]) with the view of the code at that time, and its nodes are decoded again when it is
//! reported; all other calls of one packet are few. The next call of the decoder first delivers these, and reads no
//! packet before all are delivered. Order and values are therefore the same for any capacity.
//!
//! Counts and ledger may be one packet ahead of the results. A transition stands for so few instructions that the sink
//! takes it as a whole.

use crate::cancellation::CancellationPoll;
use crate::code_cache::CodeCache;
use crate::event::Event;
use crate::sink::{
    Capacity, RunEnd, RunFragment, Sink, SinkNeeds, TakenTransition, TakenTransitions,
};
use rtit_image::View;
use rtit_x86::Mode;
use std::collections::VecDeque;
use std::fmt;

/// A call of the sink method of the same name; `RunPath`: all calls for a path.
#[derive(Clone, PartialEq, Debug)]
enum SinkCall {
    RunPath(Box<UnreportedPath>),
    ExtendRun(Box<OwnedFragment>, u64),
    EndRun(RunEnd, u64),
    Edge(u64, u64, RunEnd),
    EnteredSpace(u32),
    Event(Box<Event>),
    UnknownRepetitions(Box<[u64]>),
    SetCodeTime(u64),
}

/// A `RunFragment`: of a node, so that it is short.
#[derive(Clone, PartialEq, Debug)]
struct OwnedFragment {
    start: u64,
    last: u64,
    lengths: Box<[u8]>,
    hash: u64,
    factor: u64,
    mode: Mode,
    space: u32,
}

impl OwnedFragment {
    fn of(fragment: &RunFragment<'_>) -> OwnedFragment {
        let &RunFragment {
            start,
            last,
            lengths,
            hash,
            factor,
            mode,
            space,
        } = fragment;
        OwnedFragment {
            start,
            last,
            lengths: lengths.into(),
            hash,
            factor,
            mode,
            space,
        }
    }

    fn fragment(&self) -> RunFragment<'_> {
        let &OwnedFragment {
            start,
            last,
            ref lengths,
            hash,
            factor,
            mode,
            space,
        } = self;
        RunFragment {
            start,
            last,
            lengths,
            hash,
            factor,
            mode,
            space,
        }
    }
}

#[derive(Clone, PartialEq, Default, Debug)]
pub(crate) struct DeferredCalls {
    /// In order, a path through code first.
    calls: VecDeque<SinkCall>,
    /// Offset of the packet.
    packet: u64,
}

impl DeferredCalls {
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// Delivers calls until the sink is full; returns whether none is left.
    pub fn deliver<S: Sink>(&mut self, sink: &mut S, cancellation: &mut CancellationPoll) -> bool {
        if self.is_empty() {
            return true;
        }
        // it may be another sink
        sink.packet(self.packet);
        while let Some(first) = self.calls.front_mut() {
            // an edge gets its address space before its row is taken
            if sink.is_full() && !matches!(first, SinkCall::EnteredSpace(_)) {
                return false;
            }
            match first {
                SinkCall::RunPath(path) => {
                    if !path.deliver(sink, cancellation) {
                        return false;
                    }
                }
                SinkCall::ExtendRun(owned, time) => sink.extend_run(&owned.fragment(), *time),
                SinkCall::EndRun(end, offset) => sink.end_run(*end, *offset),
                SinkCall::Edge(from, to, kind) => sink.edge(*from, *to, *kind),
                SinkCall::EnteredSpace(space) => sink.entered_space(*space),
                SinkCall::Event(event) => sink.event(event),
                SinkCall::UnknownRepetitions(loop_body) => sink.unknown_repetitions(loop_body),
                SinkCall::SetCodeTime(time) => sink.set_code_time(*time),
            }
            self.calls.pop_front();
        }
        self.packet = 0;
        true
    }

    /// Delivers all calls, however full the sink is: the stream has ended.
    pub fn deliver_all<S: Sink>(&mut self, sink: &mut S, cancellation: &mut CancellationPoll) {
        if !self.is_empty() {
            self.deliver(&mut UnlimitedSink(sink), cancellation);
        }
    }
}

/// Stands before a sink that must take everything.
struct UnlimitedSink<'a, S>(&'a mut S);

impl<S: Sink> Sink for UnlimitedSink<'_, S> {
    fn packet(&mut self, offset: u64) {
        self.0.packet(offset);
    }

    fn extend_run(&mut self, fragment: &RunFragment<'_>, time: u64) {
        self.0.extend_run(fragment, time);
    }

    fn end_run(&mut self, end: RunEnd, offset: u64) {
        self.0.end_run(end, offset);
    }

    fn edge(&mut self, from: u64, to: u64, kind: RunEnd) {
        self.0.edge(from, to, kind);
    }

    fn entered_space(&mut self, space: u32) {
        self.0.entered_space(space);
    }

    fn event(&mut self, event: &Event) {
        self.0.event(event);
    }

    fn unknown_repetitions(&mut self, loop_body: &[u64]) {
        self.0.unknown_repetitions(loop_body);
    }

    fn set_code_time(&mut self, time: u64) {
        self.0.set_code_time(time);
    }
}

/// Stands before a sink while packets are decoded, and defers calls once the sink is full.
pub(super) struct BackpressureSink<'a, S> {
    pub sink: &'a mut S,
    pub deferred_calls: &'a mut DeferredCalls,
    /// Offset of the packet at work.
    pub packet: u64,
}

impl<S> BackpressureSink<'_, S> {
    #[cold]
    fn defer(&mut self, call: SinkCall) {
        if self.deferred_calls.is_empty() {
            self.deferred_calls.packet = self.packet;
        }
        self.deferred_calls.calls.push_back(call);
    }
}

macro_rules! call_or_defer {
    ($gate:ident, $now:expr, $deferred_calls:expr) => {
        if $gate.deferred_calls.is_empty() && !$gate.sink.is_full() {
            $now
        } else {
            $gate.defer($deferred_calls)
        }
    };
}

impl<S: Sink> Sink for BackpressureSink<'_, S> {
    const NEEDS_EDGES: bool = S::NEEDS_EDGES;
    const NEEDS: SinkNeeds = S::NEEDS;
    const HAS_PACKET_OFFSETS: bool = S::HAS_PACKET_OFFSETS;
    const DEFERS_PATHS: bool = true;

    #[inline]
    fn packet(&mut self, offset: u64) {
        self.packet = offset;
        self.sink.packet(offset);
    }

    #[inline]
    fn extend_run(&mut self, fragment: &RunFragment<'_>, time: u64) {
        call_or_defer!(
            self,
            self.sink.extend_run(fragment, time),
            SinkCall::ExtendRun(OwnedFragment::of(fragment).into(), time)
        );
    }

    #[inline]
    fn end_run(&mut self, end: RunEnd, offset: u64) {
        call_or_defer!(
            self,
            self.sink.end_run(end, offset),
            SinkCall::EndRun(end, offset)
        );
    }

    #[inline]
    fn edge(&mut self, from: u64, to: u64, kind: RunEnd) {
        call_or_defer!(
            self,
            self.sink.edge(from, to, kind),
            SinkCall::Edge(from, to, kind)
        );
    }

    fn entered_space(&mut self, space: u32) {
        // it is said of an edge that the sink has already, though that may have made it full
        if self.deferred_calls.is_empty() {
            self.sink.entered_space(space);
        } else {
            self.defer(SinkCall::EnteredSpace(space));
        }
    }

    fn event(&mut self, event: &Event) {
        call_or_defer!(
            self,
            self.sink.event(event),
            SinkCall::Event((*event).into())
        );
    }

    fn unknown_repetitions(&mut self, loop_body: &[u64]) {
        call_or_defer!(
            self,
            self.sink.unknown_repetitions(loop_body),
            SinkCall::UnknownRepetitions(loop_body.into())
        );
    }

    fn set_code_time(&mut self, time: u64) {
        call_or_defer!(
            self,
            self.sink.set_code_time(time),
            SinkCall::SetCodeTime(time)
        );
    }

    // transitions are reported between packets, when nothing is deferred

    #[inline]
    fn take_transition(&mut self, step: &impl TakenTransition) {
        self.sink.take_transition(step);
    }

    #[inline]
    fn take_transitions(&mut self, steps: &impl TakenTransitions) {
        self.sink.take_transitions(steps);
    }

    #[inline]
    fn transition_count(&mut self, step: &impl TakenTransition, times: u64) {
        self.sink.transition_count(step, times);
    }

    fn counted_edge(&mut self, from: u64, to: u64, kind: RunEnd, times: u64) {
        self.sink.counted_edge(from, to, kind, times);
    }

    #[inline]
    fn capacity(&self) -> Capacity {
        self.sink.capacity()
    }

    #[cold]
    fn defer_path(&mut self, path: UnreportedPath) {
        self.defer(SinkCall::RunPath(path.into()));
    }

    #[inline]
    fn is_full(&self) -> bool {
        !self.deferred_calls.is_empty() || self.sink.is_full()
    }
}

/// Instructions from `ip` on that ran one after the other, up to the end of a node that needs no packet. The view is as
/// of when they ran; the interpreter's may have moved on before they are reported.
#[derive(Clone)]
pub struct UnreportedPath {
    pub(crate) view: View,
    /// Index of the address space.
    pub(crate) space: u32,
    pub(crate) ip: u64,
    pub(crate) mode: Mode,
    pub(crate) instructions: u64,
    /// As `Sink::append` and `Sink::close` have them.
    pub(crate) time: u64,
    pub(crate) offset: u64,
}

impl PartialEq for UnreportedPath {
    fn eq(&self, other: &UnreportedPath) -> bool {
        let plain = |path: &UnreportedPath| {
            let &UnreportedPath {
                ref view,
                space,
                ip,
                mode,
                instructions,
                time,
                offset,
            } = path;
            let code = (space, view.changes());
            (code, ip, mode, instructions, time, offset)
        };
        plain(self) == plain(other)
    }
}

impl fmt::Debug for UnreportedPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} instructions from {:#x}", self.instructions, self.ip)
    }
}

/// Limit of the temporary code cache, in bytes.
const MAX_REDECODED_BYTES: usize = 1 << 21;

impl UnreportedPath {
    /// Delivers calls until the sink is full; returns whether none is left. Stops once `cancellation` is cancelled.
    pub(crate) fn deliver<S: Sink>(
        &mut self,
        sink: &mut S,
        cancellation: &mut CancellationPoll,
    ) -> bool {
        let mut code = CodeCache::new(MAX_REDECODED_BYTES, self.space);
        while self.instructions > 0 && !cancellation.check_at_node() {
            if sink.is_full() {
                return false;
            }
            if code.is_over_limit() {
                code.clear();
            }
            let Ok(index) = code.lookup(&self.view, self.ip, self.mode) else {
                break;
            };
            let node = code.node(index);
            match code.nth(node, self.instructions) {
                // pages that were asked for deferred_calls made it longer
                Some((place, _)) => {
                    code.report_prefix(index, place, self.time, self.offset, sink);
                    self.instructions = 0;
                }
                None => {
                    code.report_node(index, self.time, self.offset, sink);
                    self.instructions -= u64::from(node.instructions);
                    self.ip = node.next;
                }
            }
        }
        true
    }
}
