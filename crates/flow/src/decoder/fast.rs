//! Packets by steps (module `steps`): the walker's state goes into a kernel and comes back at a packet boundary.

use rtit_packet::{Kind, Scanner};

use super::state::{Decoder, State};
use crate::lookahead::Here;
use crate::sink::{Placed, Sink, Wants};
use crate::steps::{
    base_of, node_of, results, Exit, Lane, Mark, Taken, Weights, AHEAD, MOST_SUMMED,
};
use crate::walk::Stamp;
use crate::window::Window;

/// Entries of the log, at most.
const LOG: usize = 1 << 13;

/// Steps that a sink is given at once.
const PART: usize = MOST_SUMMED;

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
        if scanner.block().is_some() || !self.may_step() || !self.walker.steps.begin(S::WANTS) {
            return Stepped::Never;
        }
        let position = Scanner::position(scanner);
        let bytes = position.checked_sub(stream.base);
        let Some(bytes) = bytes.and_then(|at| stream.bytes.get(at..)) else {
            return Stepped::Not;
        };
        let end = bytes
            .len()
            .saturating_sub(AHEAD)
            .min(until.saturating_sub(position))
            .min(self.walker.steps.stride());
        if end == 0 || !Lane::takes(bytes[0]) {
            return Stepped::Not;
        }
        let Ok(node) = self.walker.resolve() else {
            return Stepped::Not;
        };
        self.walker.give_sites();
        let mut lane = Lane::new(base_of(node), self.last_ip);
        if self.doubt.told == position {
            lane.told = 0;
        }
        lane.leaves_mtcs = self.doubt.from.is_some();
        let waiting = self.run_kernel::<S>(&bytes[..end + AHEAD], end, &mut lane, sink);
        if lane.at == 0 {
            return Stepped::Not;
        }
        self.last_ip = lane.last_ip;
        if lane.told != Lane::NONE {
            self.doubt.told = position + lane.told;
        }
        for (kind, count) in [
            (Kind::Tnt, lane.at as u64 - lane.other_bytes),
            (Kind::Tip, lane.tips),
            (Kind::Cyc, lane.cycs),
            (Kind::Mtc, lane.mtcs),
        ] {
            self.counts.packets(kind, count);
        }
        if (lane.at as u64 - lane.other_bytes) + lane.tips != 0 {
            self.after_branch = true;
            self.past = 0;
            self.deferral.follow(lane.tips);
        }
        self.walker.go_on_at(node_of(lane.base));
        self.deliver(position, &lane, stream, sink);
        scanner.seek(position + lane.at);
        if let Some(results) = waiting {
            let stamp = Stamp {
                offset: (position + lane.at - 1) as u64,
                time: self.clock.stamp(),
                now: self.clock.by_rate(),
            };
            sink.packet(stamp.offset);
            if let Err(cause) = self.walker.tnt(sink, &mut self.counts, results, stamp) {
                self.fail(stamp.offset, cause, sink);
            }
        }
        let walker = &mut self.walker;
        walker.steps.keep_within_limit(&walker.code, lane.at);
        self.walker.keep_within_limit();
        Stepped::On
    }

    /// Runs the kernel until it meets what has no step; gives the results that the walker must take of a TNT that was
    /// taken in part, and `lane.at` is then behind that TNT.
    fn run_kernel<S: Sink>(
        &mut self,
        bytes: &[u8],
        end: usize,
        lane: &mut Lane,
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
                    let new = new.filter(|&entry| !Mark::is_one(entry));
                    left = steps.visits().left(left, new);
                    known = steps.log.len();
                    LOG.min(known.saturating_add(steps.visits().fitting(left)))
                }
                _ => LOG,
            };
            let exit = steps.run(S::PLACES, &mut walker.stack, bytes, end, room, lane);
            let went_on = match exit {
                // as many as were sure to fit; there may be room for more
                Exit::Leave if known < room && (room..LOG).contains(&steps.log.len()) => continue,
                Exit::Leave => return None,
                Exit::Tnt(tnt) => steps.fill_tnt(code, view, lane.base, tnt),
                Exit::Tip(ip) => steps.fill_tip(code, view, lane.base, ip),
                Exit::NoCall => false,
                Exit::Phrase => {
                    steps.fill_phrase(bytes, lane);
                    true
                }
                Exit::Return(site) => {
                    let next = steps.fill_return(code, view, lane.base, site, lane.at);
                    if let Some(next) = next {
                        walker.stack.drop_top();
                        lane.base = next;
                        lane.at += usize::from(lane.rest == 0);
                    }
                    next.is_some()
                }
            };
            if went_on && !code.is_over_limit() {
                continue;
            }
            let (bits, count) = results(lane.rest);
            let results = match exit {
                Exit::Return(_) | Exit::NoCall if !went_on => (bits | 1 << count, count + 1),
                _ if count == 0 => return None,
                _ => (bits, count),
            };
            lane.at += 1;
            return Some(results);
        }
    }

    /// Hands the log to the clock and to a sink that wants the order.
    fn deliver<S: Sink>(&mut self, base: usize, lane: &Lane, stream: Window<'_>, sink: &mut S) {
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
            let mut weights = Weights::default();
            for &(entry, at) in part {
                let offset = base as u64 + u64::from(at);
                if !Mark::is_one(entry) {
                    let weight = visits.weight(entry);
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
                if entry & Mark::CYC != 0 {
                    if self.clock.looks_ahead(offset) {
                        self.clock.look_ahead(0, &here(offset));
                    }
                    self.clock.cyc(u64::from(entry & !Mark::CYC));
                } else {
                    self.clock.mtc(entry as u8);
                }
                self.clock.mark(offset);
                time = self.clock.stamp();
            }
            weights.add_to(&mut self.counts);
            if S::WANTS == Wants::Order {
                sink.steps(&Taken {
                    placed: &placed[..count],
                    epoch: steps.epoch(),
                    code: &walker.code,
                    visits,
                });
            }
        }
        if lane.cycles != 0 {
            let end = (base + lane.at) as u64;
            if self.clock.looks_ahead(end) {
                self.clock.look_ahead(lane.cycles, &here(end));
            }
            self.clock.cyc(lane.cycles);
        }
        walker.steps.log.clear();
        walker.set_time(before);
    }
}
