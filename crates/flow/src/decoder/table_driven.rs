//! The table-driven path: decodes runs of short TNTs and TIPs by the transition tables (module `transitions`).
//!
//! Position, LastIP and return stack go from the interpreter into the decode loop of the tables, and come back at a
//! packet boundary. A missing transition is built and the loop continues; whatever has none is left to the interpreter.
//! Results are those of the interpreter by construction, and property tests compare both. For sinks that need the order
//! the loop writes a log of transitions and timing packets, from which `deliver_transition_log` calls the clock and the
//! sink.

use super::{Decoder, TracingState};
use crate::sink::{LoggedTransition, Sink, SinkNeeds};
use crate::stream_decoder::StreamWindow;
use crate::time::ScanPosition;
use crate::transitions::{
    tnt_outcomes, DecodeCursor, InstructionMixSum, NodeKey, StopReason, TimingEntry, TransitionLog,
    MAX_SUMMED, READ_AHEAD,
};
use rtit_packet::{Kind, PacketScanner};

/// Limit of entries in the log.
const MAX_LOG: usize = 1 << 13;

/// Transitions that a sink gets at once.
const MAX_LOGGED: usize = MAX_SUMMED;

/// What the tables decoded of the next packets.
pub(super) enum FastPathResult {
    /// At least one packet.
    Decoded,
    /// None: the next packet is for the interpreter.
    NotHandled,
    /// None: the state of the decoder does not allow tables.
    Disallowed,
}

impl Decoder {
    /// Whether the tables may decode the next packet: execution is followed, nothing is pending, and no workaround
    /// needs to know whether anything has run since an overflow (transitions are counted late).
    fn can_use_transitions(&self) -> bool {
        self.state.tracing == TracingState::On
            && self.state.awaiting_fup.is_none()
            && self.state.psb_plus.is_none()
            && self.state.announced_mode.is_none()
            && self.state.pending_evd_types == 0
            && self.state.pending_events.is_empty()
            && self.instructions_at_overflow_fup != Some(self.interpreter.counts.instructions)
            && self.interpreter.can_use_transitions()
    }

    /// Decodes packets as long as they have transitions.
    pub(super) fn decode_by_transitions<S: Sink>(
        &mut self,
        stream: StreamWindow<'_>,
        until: usize,
        scanner: &mut PacketScanner<'_>,
        sink: &mut S,
    ) -> FastPathResult {
        if scanner.block_item_size().is_some()
            || !self.can_use_transitions()
            || !self.interpreter.transitions.prepare_for_sink(S::NEEDS)
        {
            return FastPathResult::Disallowed;
        }
        let position = PacketScanner::next_packet_offset(scanner);
        let bytes = position.checked_sub(stream.base);
        let Some(bytes) = bytes.and_then(|at| stream.bytes.get(at..)) else {
            return FastPathResult::NotHandled;
        };
        let end = bytes
            .len()
            .saturating_sub(READ_AHEAD)
            .min(until.saturating_sub(position))
            .min(self.interpreter.transitions.max_bytes_at_once());
        if end == 0 || !DecodeCursor::may_have_transition(bytes[0]) {
            return FastPathResult::NotHandled;
        }
        let Ok(node) = self.interpreter.resolve_next_node() else {
            return FastPathResult::NotHandled;
        };
        self.interpreter.assign_call_sites();
        let mut cursor = DecodeCursor::new(NodeKey::from_index(node), self.state.last_ip);
        if self.ambiguous.cyc_end == position {
            cursor.cyc_end = 0;
        }
        cursor.stops_at_mtc = self.ambiguous.from.is_some();
        let remaining =
            self.run_decode_loop::<S>(&bytes[..end + READ_AHEAD], end, &mut cursor, sink);
        if cursor.offset == 0 {
            return FastPathResult::NotHandled;
        }
        self.state.last_ip = cursor.last_ip;
        if cursor.cyc_end != DecodeCursor::NONE {
            self.ambiguous.cyc_end = position + cursor.cyc_end;
        }
        for (kind, count) in [
            (Kind::Tnt, cursor.offset as u64 - cursor.non_tnt_bytes),
            (Kind::Tip, cursor.tip_count),
            (Kind::Cyc, cursor.cyc_count),
            (Kind::Mtc, cursor.mtc_count),
        ] {
            self.interpreter.counts.add_packets(kind, count);
        }
        if (cursor.offset as u64 - cursor.non_tnt_bytes) + cursor.tip_count != 0 {
            self.state.after_branch = true;
            self.state.instructions_past_ip = 0;
            self.state
                .deferred_tips
                .count_followed_tips(cursor.tip_count);
        }
        self.interpreter
            .set_position_to_node(cursor.node.node_index());
        self.deliver_transition_log(position, &cursor, stream, sink);
        scanner.seek_to(position + cursor.offset);
        if let Some(results) = remaining {
            self.set_current_packet((position + cursor.offset - 1) as u64);
            sink.begin_packet(self.interpreter.packet.offset);
            if let Err(cause) = self.interpreter.apply_tnt(sink, results) {
                self.begin_loss_at_packet(cause, sink);
            }
        }
        let interpreter = &mut self.interpreter;
        interpreter
            .transitions
            .enforce_limits(&interpreter.code, cursor.offset);
        self.interpreter.keep_cache_within_limit();
        FastPathResult::Decoded
    }

    /// Runs the decode loop until a packet has no transition. Returns the TNT bits that the interpreter must still use
    /// of a TNT that was decoded in part; `cursor.offset` is then after that TNT.
    fn run_decode_loop<S: Sink>(
        &mut self,
        bytes: &[u8],
        end: usize,
        cursor: &mut DecodeCursor,
        sink: &S,
    ) -> Option<(u64, u8)> {
        let interpreter = &mut self.interpreter;
        let (code, view) = (&mut interpreter.code, &interpreter.view);
        let transitions = &mut interpreter.transitions;
        // what the sink takes beyond the transitions in the log up to `known`
        let (mut left, mut known) = (sink.remaining_capacity(), 0);
        loop {
            let room = match S::NEEDS {
                SinkNeeds::Order => {
                    let new = transitions.log[known..].iter().map(|&(entry, _)| entry);
                    let new = new.filter(|&entry| !TimingEntry::is_timing(entry));
                    left = transitions.node_visits().remaining_room(left, new);
                    known = transitions.log.len();
                    MAX_LOG
                        .min(known.saturating_add(transitions.node_visits().max_transitions(left)))
                }
                _ => MAX_LOG,
            };
            let exit = transitions.decode_packets(
                S::HAS_PACKET_OFFSETS,
                &mut interpreter.stack,
                bytes,
                end,
                room,
                cursor,
            );
            let continues = match exit {
                // as many as fit for certain; there may be room for more
                StopReason::NotHandled
                    if known < room && (room..MAX_LOG).contains(&transitions.log.len()) =>
                {
                    continue
                }
                StopReason::NotHandled => return None,
                StopReason::MissingTnt(tnt) => {
                    transitions.add_tnt_transition(code, view, cursor.node, tnt)
                }
                StopReason::MissingTip(ip) => {
                    transitions.add_tip_transition(code, view, cursor.node, ip)
                }
                StopReason::ReturnWithoutCall => false,
                StopReason::FusionDue => {
                    transitions.add_fused_transition(bytes, cursor);
                    true
                }
                StopReason::MissingReturn(site) => {
                    let next = transitions.take_new_return_transition(
                        code,
                        view,
                        cursor.node,
                        site,
                        cursor.offset,
                    );
                    if let Some(next) = next {
                        interpreter.stack.drop_top();
                        cursor.node = next;
                        cursor.offset += usize::from(cursor.pending_tnt == 0);
                    }
                    next.is_some()
                }
            };
            if continues && !code.is_over_limit() {
                continue;
            }
            let (bits, count) = tnt_outcomes(cursor.pending_tnt);
            let results = match exit {
                StopReason::MissingReturn(_) | StopReason::ReturnWithoutCall if !continues => {
                    (bits | 1 << count, count + 1)
                }
                _ if count == 0 => return None,
                _ => (bits, count),
            };
            cursor.offset += 1;
            return Some(results);
        }
    }

    /// Delivers the log to the clock, and to a sink that needs the order.
    fn deliver_transition_log<S: Sink>(
        &mut self,
        base: usize,
        cursor: &DecodeCursor,
        stream: StreamWindow<'_>,
        sink: &mut S,
    ) {
        let interpreter = &mut self.interpreter;
        let transitions = &interpreter.transitions;
        let visits = transitions.node_visits();
        let here = |offset| ScanPosition {
            stream,
            offset,
            block: None,
            in_psb_plus: false,
            off: false,
        };
        let mut before = interpreter.instruction_time();
        let mut time = self.clock.row_time();
        let mut logged = [LoggedTransition::default(); MAX_LOGGED];
        for entries in transitions.log.chunks(MAX_LOGGED) {
            let mut count = 0;
            let mut weights = InstructionMixSum::default();
            for &(entry, at) in entries {
                let offset = base as u64 + u64::from(at);
                if !TimingEntry::is_timing(entry) {
                    let weight = visits.instruction_mix(entry);
                    weights.add_mix(weight);
                    logged[count] = LoggedTransition {
                        number: entry,
                        offset,
                        times: (before, time),
                    };
                    count += 1;
                    if weight.has_branches() {
                        before = time;
                    }
                    continue;
                }
                if entry & TimingEntry::CYC != 0 {
                    if self.clock.needs_lookahead_before_cyc(offset) {
                        self.clock.look_ahead_to_next_time(0, &here(offset));
                    }
                    self.clock
                        .apply_cyc_packet(u64::from(entry & !TimingEntry::CYC));
                } else {
                    self.clock.apply_mtc_packet(entry as u8);
                }
                self.clock.add_sample_if_enabled(offset);
                time = self.clock.row_time();
            }
            weights.add_sum_to_counts(&mut interpreter.counts);
            if S::NEEDS == SinkNeeds::Order {
                sink.take_transitions(&TransitionLog {
                    logged: &logged[..count],
                    generation: transitions.transition_generation(),
                    code: &interpreter.code,
                    visits,
                });
            }
        }
        if cursor.unlogged_cycles != 0 {
            let end = (base + cursor.offset) as u64;
            if self.clock.needs_lookahead_before_cyc(end) {
                self.clock
                    .look_ahead_to_next_time(cursor.unlogged_cycles, &here(end));
            }
            self.clock.apply_cyc_packet(cursor.unlogged_cycles);
        }
        interpreter.transitions.log.clear();
        interpreter.set_instruction_time(before);
    }
}
