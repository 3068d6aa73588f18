//! Packets by steps (module `steps`): the walker's state goes into a kernel and comes back at a packet boundary.

use rtit_packet::{Kind, Scanner};

use super::state::{Decoder, State};
use crate::lookahead::Here;
use crate::sink::{Placed, Sink, Wants};
use crate::transitions::{
    tnt_outcomes, DecodeCursor, InstructionMixSum, NodeKey, StopReason, TimingEntry, TransitionLog,
    MAX_SUMMED, READ_AHEAD,
};
use crate::walk::Stamp;
use crate::window::Window;

/// Entries of the log, at most.
const LOG: usize = 1 << 13;

/// Steps that a sink is given at once.
const PART: usize = MAX_SUMMED;

/// What became of the next packets.
pub(super) enum Stepped {
    /// Some were taken.
    On,
    /// None: the next is the walker's.
    Not,
    /// None, and there will be none soon.
    Never,
}

impl Decoder {
    /// Whether the next packet could be a step: the program is followed, nothing is bound to the packet, and nobody asks
    /// whether something has run since an overflow (steps do not count at once).
    fn may_step(&self) -> bool {
        self.state == State::On
            && self.bound.is_none()
            && self.group.is_none()
            && self.new_mode.is_none()
            && self.event_data == 0
            && self.held.is_empty()
            && self.after_overflow != Some(self.counts.instructions)
            && self.walker.may_step()
    }

    /// Takes packets as long as they have steps.
    pub(super) fn steps<S: Sink>(
        &mut self,
        stream: Window<'_>,
        until: usize,
        scanner: &mut Scanner<'_>,
        sink: &mut S,
    ) -> Stepped {
        if scanner.block().is_some() || !self.may_step() || !self.walker.steps.prepare(S::WANTS) {
            return Stepped::Never;
        }
        let position = Scanner::position(scanner);
        let bytes = position.checked_sub(stream.base);
        let Some(bytes) = bytes.and_then(|at| stream.bytes.get(at..)) else {
            return Stepped::Not;
        };
        let end = bytes
            .len()
            .saturating_sub(READ_AHEAD)
            .min(until.saturating_sub(position))
            .min(self.walker.steps.max_bytes_at_once());
        if end == 0 || !DecodeCursor::handles(bytes[0]) {
            return Stepped::Not;
        }
        let Ok(node) = self.walker.resolve() else {
            return Stepped::Not;
        };
        self.walker.give_sites();
        let mut cursor = DecodeCursor::new(NodeKey::from_index(node), self.last_ip);
        if self.doubt.told == position {
            cursor.cyc_end = 0;
        }
        cursor.stops_at_mtc = self.doubt.from.is_some();
        let waiting = self.run_kernel::<S>(&bytes[..end + READ_AHEAD], end, &mut cursor, sink);
        if cursor.offset == 0 {
            return Stepped::Not;
        }
        self.last_ip = cursor.last_ip;
        if cursor.cyc_end != DecodeCursor::NONE {
            self.doubt.told = position + cursor.cyc_end;
        }
        for (kind, count) in [
            (Kind::Tnt, cursor.offset as u64 - cursor.non_tnt_bytes),
            (Kind::Tip, cursor.tip_count),
            (Kind::Cyc, cursor.cyc_count),
            (Kind::Mtc, cursor.mtc_count),
        ] {
            self.counts.packets(kind, count);
        }
        if (cursor.offset as u64 - cursor.non_tnt_bytes) + cursor.tip_count != 0 {
            self.after_branch = true;
            self.past = 0;
            self.deferral.follow(cursor.tip_count);
        }
        self.walker.go_on_at(cursor.node.index());
        self.deliver(position, &cursor, stream, sink);
        scanner.seek(position + cursor.offset);
        if let Some(results) = waiting {
            let stamp = Stamp {
                offset: (position + cursor.offset - 1) as u64,
                time: self.clock.stamp(),
                now: self.clock.by_rate(),
            };
            sink.packet(stamp.offset);
            if let Err(cause) = self.walker.tnt(sink, &mut self.counts, results, stamp) {
                self.fail(stamp.offset, cause, sink);
            }
        }
        let walker = &mut self.walker;
        walker.steps.enforce_limits(&walker.code, cursor.offset);
        self.walker.keep_within_limit();
        Stepped::On
    }

    /// Runs the kernel until it meets what has no step; gives the results that the walker must take of a TNT that was
    /// taken in part, and `cursor.offset` is then behind that TNT.
    fn run_kernel<S: Sink>(
        &mut self,
        bytes: &[u8],
        end: usize,
        cursor: &mut DecodeCursor,
        sink: &S,
    ) -> Option<(u64, u8)> {
        let walker = &mut self.walker;
        let (code, view) = (&mut walker.code, &walker.view);
        let steps = &mut walker.steps;
        // how much the sink takes beside the steps that are in the log up to `known`
        let (mut left, mut known) = (sink.room(), 0);
        loop {
            let room = match S::WANTS {
                Wants::Order => {
                    let new = steps.log[known..].iter().map(|&(entry, _)| entry);
                    let new = new.filter(|&entry| !TimingEntry::is_timing(entry));
                    left = steps.visits().remaining_room(left, new);
                    known = steps.log.len();
                    LOG.min(known.saturating_add(steps.visits().max_transitions(left)))
                }
                _ => LOG,
            };
            let exit = steps.decode(S::PLACES, &mut walker.stack, bytes, end, room, cursor);
            let went_on = match exit {
                // as many as were sure to fit; there may be room for more
                StopReason::NotHandled
                    if known < room && (room..LOG).contains(&steps.log.len()) =>
                {
                    continue
                }
                StopReason::NotHandled => return None,
                StopReason::MissingTnt(tnt) => {
                    steps.add_tnt_transition(code, view, cursor.node, tnt)
                }
                StopReason::MissingTip(ip) => steps.add_tip_transition(code, view, cursor.node, ip),
                StopReason::ReturnWithoutCall => false,
                StopReason::FusionDue => {
                    steps.add_fused_transition(bytes, cursor);
                    true
                }
                StopReason::MissingReturn(site) => {
                    let next = steps.take_new_return_transition(
                        code,
                        view,
                        cursor.node,
                        site,
                        cursor.offset,
                    );
                    if let Some(next) = next {
                        walker.stack.drop_top();
                        cursor.node = next;
                        cursor.offset += usize::from(cursor.pending_tnt == 0);
                    }
                    next.is_some()
                }
            };
            if went_on && !code.is_over_limit() {
                continue;
            }
            let (bits, count) = tnt_outcomes(cursor.pending_tnt);
            let results = match exit {
                StopReason::MissingReturn(_) | StopReason::ReturnWithoutCall if !went_on => {
                    (bits | 1 << count, count + 1)
                }
                _ if count == 0 => return None,
                _ => (bits, count),
            };
            cursor.offset += 1;
            return Some(results);
        }
    }

    /// Hands the log to the clock and to a sink that wants the order.
    fn deliver<S: Sink>(
        &mut self,
        base: usize,
        cursor: &DecodeCursor,
        stream: Window<'_>,
        sink: &mut S,
    ) {
        let walker = &mut self.walker;
        let steps = &walker.steps;
        let visits = steps.visits();
        let here = |offset| Here {
            stream,
            offset,
            block: None,
            in_group: false,
            off: false,
        };
        let mut before = walker.time();
        let mut time = self.clock.stamp();
        let mut placed = [Placed::default(); PART];
        for part in steps.log.chunks(PART) {
            let mut count = 0;
            let mut weights = InstructionMixSum::default();
            for &(entry, at) in part {
                let offset = base as u64 + u64::from(at);
                if !TimingEntry::is_timing(entry) {
                    let weight = visits.mix(entry);
                    weights.add(weight);
                    placed[count] = Placed {
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
                    if self.clock.looks_ahead(offset) {
                        self.clock.look_ahead(0, &here(offset));
                    }
                    self.clock.cyc(u64::from(entry & !TimingEntry::CYC));
                } else {
                    self.clock.mtc(entry as u8);
                }
                self.clock.mark(offset);
                time = self.clock.stamp();
            }
            weights.add_to(&mut self.counts);
            if S::WANTS == Wants::Order {
                sink.steps(&TransitionLog {
                    placed: &placed[..count],
                    epoch: steps.epoch(),
                    code: &walker.code,
                    visits,
                });
            }
        }
        if cursor.unlogged_cycles != 0 {
            let end = (base + cursor.offset) as u64;
            if self.clock.looks_ahead(end) {
                self.clock.look_ahead(cursor.unlogged_cycles, &here(end));
            }
            self.clock.cyc(cursor.unlogged_cycles);
        }
        walker.steps.log.clear();
        walker.set_time(before);
    }
}
