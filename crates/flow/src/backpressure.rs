//! Backpressure: a sink that becomes full within a packet gets the rest later.
//!
//! One packet may have any number of instructions: 32 MB of straight code may lie between two of them. A decoder never
//! reads back what it has reported. So it still decodes each packet as a whole; [`BackpressureSink`] wraps the sink
//! and, once that is full, keeps further calls as [`DeferredCalls`]. A path through code is kept as a few numbers
//! ([`UnreportedPath`]) with the view of the code at that time, and its nodes are decoded again when it is reported;
//! all other calls of one packet are few. The next call of the decoder first delivers these, and reads no packet before
//! all are delivered. Order and values are therefore the same for any capacity.
//!
//! Counts and ledger may be one packet ahead of the results. A transition has so few instructions that the sink takes
//! it as a whole.

use crate::cancellation::CancellationPoll;
use crate::code_cache::CodeCache;
use crate::event::Event;
use crate::sink::{
    RunEnd, RunFragment, Sink, SinkCapacity, SinkNeeds, TakenTransition, TakenTransitions,
};
use crate::totals::Totals;
use rtit_image::SpaceView;
use rtit_x86::CodeMode;
use std::collections::VecDeque;

/// A call of the sink method of the same name; `RunPath`: all calls for a path.
#[derive(Clone, PartialEq, Debug)]
enum SinkCall {
    RunPath(Box<UnreportedPath>),
    /// The fragment without its lengths, the lengths, and the time.
    ExtendRun(Box<(RunFragment<'static>, Box<[u8]>)>, u64),
    EndRun(RunEnd, u64),
    Edge(u64, u64, RunEnd),
    EnteredSpace(u32),
    Event(Box<Event>),
    UnknownRepetitions(Box<[u64]>),
    SetCodeTime(u64),
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

    /// Delivers calls until the sink is full, or all of them if `is_unlimited`. Returns whether none is left.
    pub fn deliver_to_sink<S: Sink>(
        &mut self,
        sink: &mut S,
        is_unlimited: bool,
        cancellation: &mut CancellationPoll,
    ) -> bool {
        if self.is_empty() {
            return true;
        }
        // it may be another sink
        sink.begin_packet(self.packet);
        while let Some(first) = self.calls.front_mut() {
            // an edge gets its address space before its row is taken
            let takes_no_row = matches!(first, SinkCall::EnteredSpace(_));
            if sink.is_full() && !is_unlimited && !takes_no_row {
                return false;
            }
            match first {
                SinkCall::RunPath(path) => {
                    if !path.deliver_to_sink(sink, is_unlimited, cancellation) {
                        return false;
                    }
                }
                SinkCall::ExtendRun(owned, time) => {
                    let (head, lengths) = &**owned;
                    sink.extend_run(&RunFragment { lengths, ..*head }, *time);
                }
                SinkCall::EndRun(end, offset) => sink.end_run(*end, *offset),
                SinkCall::Edge(from, to, kind) => sink.add_edge(*from, *to, *kind),
                SinkCall::EnteredSpace(space) => sink.note_entered_space(*space),
                SinkCall::Event(event) => sink.add_event(event),
                SinkCall::UnknownRepetitions(loop_body) => sink.note_unknown_repetitions(loop_body),
                SinkCall::SetCodeTime(time) => sink.set_code_time(*time),
            }
            self.calls.pop_front();
        }
        self.packet = 0;
        true
    }
}

/// Wraps a sink while packets are decoded, and defers calls once the sink is full.
pub(super) struct BackpressureSink<'a, S> {
    pub sink: &'a mut S,
    pub deferred_calls: &'a mut DeferredCalls,
    /// Offset of the current packet.
    pub packet: u64,
}

impl<S: Sink> BackpressureSink<'_, S> {
    /// Whether the sink takes the next call at once.
    #[inline]
    fn has_room(&self) -> bool {
        self.deferred_calls.is_empty() && !self.sink.is_full()
    }

    #[cold]
    fn defer_call(&mut self, call: SinkCall) {
        if self.deferred_calls.is_empty() {
            self.deferred_calls.packet = self.packet;
        }
        self.deferred_calls.calls.push_back(call);
    }
}

impl<S: Sink> Sink for BackpressureSink<'_, S> {
    const NEEDS_EDGES: bool = S::NEEDS_EDGES;
    const NEEDS: SinkNeeds = S::NEEDS;
    const HAS_PACKET_OFFSETS: bool = S::HAS_PACKET_OFFSETS;
    const DEFERS_PATHS: bool = true;

    #[inline]
    fn begin_packet(&mut self, offset: u64) {
        self.packet = offset;
        self.sink.begin_packet(offset);
    }

    #[inline]
    fn extend_run(&mut self, fragment: &RunFragment<'_>, time: u64) {
        match self.has_room() {
            true => self.sink.extend_run(fragment, time),
            false => {
                let head = RunFragment {
                    lengths: &[],
                    ..*fragment
                };
                let owned = (head, fragment.lengths.into());
                self.defer_call(SinkCall::ExtendRun(owned.into(), time));
            }
        }
    }

    #[inline]
    fn end_run(&mut self, end: RunEnd, offset: u64) {
        match self.has_room() {
            true => self.sink.end_run(end, offset),
            false => self.defer_call(SinkCall::EndRun(end, offset)),
        }
    }

    #[inline]
    fn add_edge(&mut self, from: u64, to: u64, kind: RunEnd) {
        match self.has_room() {
            true => self.sink.add_edge(from, to, kind),
            false => self.defer_call(SinkCall::Edge(from, to, kind)),
        }
    }

    fn note_entered_space(&mut self, space: u32) {
        // it belongs to an edge that the sink has already, even if that edge made the sink full
        match self.deferred_calls.is_empty() {
            true => self.sink.note_entered_space(space),
            false => self.defer_call(SinkCall::EnteredSpace(space)),
        }
    }

    fn add_event(&mut self, event: &Event) {
        match self.has_room() {
            true => self.sink.add_event(event),
            false => self.defer_call(SinkCall::Event((*event).into())),
        }
    }

    fn note_unknown_repetitions(&mut self, loop_body: &[u64]) {
        match self.has_room() {
            true => self.sink.note_unknown_repetitions(loop_body),
            false => self.defer_call(SinkCall::UnknownRepetitions(loop_body.into())),
        }
    }

    fn set_code_time(&mut self, time: u64) {
        match self.has_room() {
            true => self.sink.set_code_time(time),
            false => self.defer_call(SinkCall::SetCodeTime(time)),
        }
    }

    fn totals_before(&mut self, time: u64) -> Option<&mut Totals> {
        self.sink.totals_before(time)
    }

    // transitions are reported between packets, when nothing is deferred

    #[inline]
    fn take_transition(&mut self, transition: &impl TakenTransition) {
        self.sink.take_transition(transition);
    }

    #[inline]
    fn take_transitions(&mut self, transitions: &impl TakenTransitions) {
        self.sink.take_transitions(transitions);
    }

    #[inline]
    fn add_transition_count(&mut self, transition: &impl TakenTransition, times: u64) {
        self.sink.add_transition_count(transition, times);
    }

    fn add_counted_edge(&mut self, from: u64, to: u64, kind: RunEnd, times: u64) {
        self.sink.add_counted_edge(from, to, kind, times);
    }

    #[inline]
    fn remaining_capacity(&self) -> SinkCapacity {
        self.sink.remaining_capacity()
    }

    #[cold]
    fn defer_path(&mut self, path: UnreportedPath) {
        self.defer_call(SinkCall::RunPath(path.into()));
    }

    #[inline]
    fn is_full(&self) -> bool {
        !self.has_room()
    }
}

/// Instructions from `ip` on that ran one after the other, up to the end of a node that needs no packet. The view is
/// that of the time when they ran; the interpreter's may have moved on before they are reported.
#[derive(Clone, Debug)]
pub struct UnreportedPath {
    pub(crate) view: SpaceView,
    /// Index of the address space.
    pub(crate) space: u32,
    pub(crate) ip: u64,
    pub(crate) mode: CodeMode,
    pub(crate) instructions: u64,
    /// As for `Sink::extend_run` and `Sink::end_run`.
    pub(crate) time: u64,
    pub(crate) offset: u64,
}

impl PartialEq for UnreportedPath {
    fn eq(&self, other: &UnreportedPath) -> bool {
        let key = |path: &UnreportedPath| {
            let code = (path.space, path.view.applied_change_count(), path.mode);
            (code, path.ip, path.instructions, path.time, path.offset)
        };
        key(self) == key(other)
    }
}

/// Limit of the temporary code cache, in bytes.
const MAX_REDECODED_BYTES: usize = 1 << 21;

impl UnreportedPath {
    /// Reports the path until the sink is full, or all of it if `is_unlimited`. Returns whether nothing is left. Stops
    /// once `cancellation` is cancelled.
    fn deliver_to_sink<S: Sink>(
        &mut self,
        sink: &mut S,
        is_unlimited: bool,
        cancellation: &mut CancellationPoll,
    ) -> bool {
        let mut code = CodeCache::new(MAX_REDECODED_BYTES, self.space);
        while self.instructions > 0 && !cancellation.check_at_node() {
            if sink.is_full() && !is_unlimited {
                return false;
            }
            if code.is_over_limit() {
                code.clear();
            }
            let Ok(index) = code.find_or_decode_node(&self.view, self.ip, self.mode) else {
                break;
            };
            let node = code.node_at(index);
            match code.nth_instruction(node, self.instructions) {
                // pages that were loaded since made the node longer
                Some((position, _)) => {
                    code.report_node_prefix(index, position, self.time, self.offset, sink);
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
