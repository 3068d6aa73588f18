//! Ways through several nodes: to the instruction that a packet names, or to the next that a packet can bind to.

use super::stamp::Stamp;
use super::walker::Walker;
use crate::code::{Place, Stop, NO_NODE};
use crate::counts::Counts;
use crate::errata::Erratum;
use crate::error::Cause;
use crate::sink::{End, Sink};

/// Nodes to run through before the one at which a packet takes effect.
pub(super) struct Way {
    pub nodes: u32,
    pub last: u32,
}

impl Walker {
    /// Runs on until the instruction at `ip` is next.
    pub fn walk_to<S: Sink>(
        &mut self,
        sink: &mut S,
        counts: &mut Counts,
        ip: u64,
        stamp: Stamp,
    ) -> Result<(), Cause> {
        if self.here() == ip {
            return Ok(());
        }
        let start = self.resolve()?;
        let mut chain = Chain::new(start);
        let place = loop {
            let node = self.code.node(chain.node);
            if let Some(place) = self.code.find(node, ip) {
                // the first instruction of the first node is where we are, not where we go
                break Some(place);
            }
            if !node.stop.passes() {
                return Err(Cause::NotReached { ip });
            }
            if node.next == ip {
                break None;
            }
            let (from, last) = (chain.node, self.last_ip(chain.node));
            let next = match self.follow(from) {
                Ok(next) => next,
                Err(Cause::Unmapped { ip: hole }) => {
                    let way = Way {
                        nodes: chain.steps,
                        last: chain.node,
                    };
                    self.run_to_hole(&way, sink, counts, stamp);
                    return Err(Cause::Unmapped { ip: hole });
                }
                Err(_) => return Err(Cause::NotReached { ip }),
            };
            chain
                .step(next, last)
                .map_err(|_| Cause::NotReached { ip })?;
        };
        self.run_through(
            &Way {
                nodes: chain.steps,
                last: chain.node,
            },
            sink,
            counts,
            stamp,
        );
        match place {
            Some(place) => self.emit_part(chain.node, place, sink, counts, stamp),
            None => self.emit(chain.node, sink, counts, stamp),
        }
        self.go_to(ip, self.time);
        Ok(())
    }

    /// TIP.PGD without FUP and without IP: the next branch or MOV CR3 turned tracing off. Returns that instruction's
    /// address, and the taken target if it is a conditional branch.
    pub fn stop_at_branch<S: Sink>(
        &mut self,
        sink: &mut S,
        counts: &mut Counts,
        stamp: Stamp,
    ) -> Result<(u64, u64), Cause> {
        if let Some((way, pieces)) = self.first_outside() {
            counts.erratum(Erratum::Skl014);
            return Ok(self.leave_by(&way, pieces, sink, counts, stamp));
        }
        let way = self.reach(sink, counts, stamp, |stop| {
            matches!(stop, Stop::VmEntry | Stop::MovCr3)
        })?;
        let (stop, target) = {
            let node = self.code.node(way.last);
            (
                node.stop,
                if node.stop == Stop::Conditional {
                    node.target
                } else {
                    0
                },
            )
        };
        if stop == Stop::SoftwareInterrupt {
            return Err(Cause::UnexpectedTarget {
                ip: self.last_ip(way.last),
            });
        }
        self.finish(&way, stop, None, sink, counts, stamp);
        Ok((self.last_ip(way.last), target))
    }

    /// TIP.PGD without FUP, with an IP: the next direct branch to `ip`, or the next branch that needs a packet.
    pub fn stop_at_target<S: Sink>(
        &mut self,
        sink: &mut S,
        counts: &mut Counts,
        ip: u64,
        stamp: Stamp,
    ) -> Result<u64, Cause> {
        let mut chain = Chain::new(self.resolve()?);
        let pieces = loop {
            let node = self.code.node(chain.node);
            if let Some(pieces) = self.code.find_transfer(node, ip) {
                break pieces;
            }
            if !node.stop.passes() || node.stop == Stop::VmEntry {
                let way = Way {
                    nodes: chain.steps,
                    last: chain.node,
                };
                let stop = node.stop;
                // a taken one that leaves gives no IP, and yet some processors do; one that falls through may
                let elsewhere = stop == Stop::Conditional && ip != node.target && ip != node.next;
                if elsewhere || stop == Stop::SoftwareInterrupt {
                    return Err(Cause::NotReached { ip });
                }
                self.finish(&way, stop, Some(ip), sink, counts, stamp);
                return Ok(self.last_ip(way.last));
            }
            let (from, last) = (chain.node, self.last_ip(chain.node));
            let next = match self.follow(from) {
                Ok(next) => next,
                Err(cause) => {
                    let way = Way {
                        nodes: chain.steps,
                        last: chain.node,
                    };
                    if let Cause::Unmapped { .. } = cause {
                        self.run_to_hole(&way, sink, counts, stamp);
                    }
                    return Err(cause);
                }
            };
            chain.step(next, last)?;
        };
        let way = Way {
            nodes: chain.steps,
            last: chain.node,
        };
        Ok(self.leave_by(&way, pieces, sink, counts, stamp).0)
    }

    /// Tracing ends with the direct transfer after `pieces` pieces of the last node: its address and target.
    fn leave_by<S: Sink>(
        &mut self,
        way: &Way,
        pieces: usize,
        sink: &mut S,
        counts: &mut Counts,
        stamp: Stamp,
    ) -> (u64, u64) {
        self.run_through(way, sink, counts, stamp);
        let node = self.code.node(way.last);
        let own = self.code.pieces(node);
        let last = own.get(pieces - 1).map_or(0, |piece| piece.last);
        let target = own.get(pieces).map_or(node.next, |piece| piece.start);
        let place = Place {
            pieces,
            instructions: 0,
        };
        self.emit_part(way.last, place, sink, counts, stamp);
        (last, target)
    }

    /// The first direct transfer on the way that leads out of the filter ranges: nothing after it was traced.
    pub(super) fn first_outside(&mut self) -> Option<(Way, usize)> {
        let ranges = self.ranges;
        let mut chain = Chain::new(self.resolve().ok()?);
        loop {
            let node = self.code.node(chain.node);
            if let Some(pieces) = self.code.find_leaving(node, |ip| ranges.excludes(ip)) {
                let way = Way {
                    nodes: chain.steps,
                    last: chain.node,
                };
                return Some((way, pieces));
            }
            if !node.stop.passes() || matches!(node.stop, Stop::VmEntry | Stop::MovCr3) {
                return None;
            }
            let (from, last) = (chain.node, self.last_ip(chain.node));
            let next = self.follow(from).ok()?;
            chain.step(next, last).ok()?;
        }
    }

    /// Whether the program comes to `ip` from here without a packet.
    pub fn leads_to(&mut self, ip: u64) -> bool {
        let Ok(start) = self.resolve() else {
            return false;
        };
        let mut chain = Chain::new(start);
        loop {
            let node = self.code.node(chain.node);
            if node.start == ip || self.code.find(node, ip).is_some() {
                return true;
            }
            if !node.stop.passes() {
                return false;
            }
            let (from, last) = (chain.node, self.last_ip(chain.node));
            let next = self.follow(from);
            let Ok(()) = next.and_then(|next| chain.step(next, last)) else {
                return false;
            };
        }
    }

    /// The node of the instruction that is next, if that is a VM entry.
    pub fn vm_entry_here(&mut self) -> Option<u32> {
        let index = self.resolve().ok()?;
        let node = self.code.node(index);
        (node.stop == Stop::VmEntry && node.instructions == 1).then_some(index)
    }

    /// Runs the VM entry that `vm_entry_here` found.
    pub fn run_vm_entry<S: Sink>(
        &mut self,
        entry: u32,
        sink: &mut S,
        counts: &mut Counts,
        stamp: Stamp,
    ) {
        let way = Way {
            nodes: 0,
            last: entry,
        };
        self.finish(&way, Stop::VmEntry, None, sink, counts, stamp);
    }

    /// `target`: where the last instruction went, if known.
    fn finish<S: Sink>(
        &mut self,
        way: &Way,
        stop: Stop,
        target: Option<u64>,
        sink: &mut S,
        counts: &mut Counts,
        stamp: Stamp,
    ) {
        self.run_through(way, sink, counts, stamp);
        self.emit(way.last, sink, counts, stamp);
        sink.close(stop.end(), stamp.offset);
        if stop != Stop::MovCr3 {
            if let (true, Some(target)) = (S::EDGES, target) {
                let node = self.code.node(way.last);
                let falls = stop == Stop::Conditional && target != node.target;
                let kind = if falls { End::Cut } else { stop.end() };
                sink.edge(self.last_ip(way.last), target, kind);
            }
            self.after_transfer(stop, counts);
        }
    }

    /// A packet without FUP binds to the next instruction of its kind, here `wanted`, if it comes before anything
    /// that needs a packet; a PIP may also be that of a VM entry. Returns its address.
    pub fn walk_past<S: Sink>(
        &mut self,
        wanted: Stop,
        sink: &mut S,
        counts: &mut Counts,
        stamp: Stamp,
    ) -> Option<u64> {
        let way = self
            .reach(sink, counts, stamp, |stop| {
                stop == wanted || (stop == Stop::VmEntry && wanted == Stop::MovCr3)
            })
            .ok()?;
        if self.code.node(way.last).stop != wanted {
            return None;
        }
        self.run_through(&way, sink, counts, stamp);
        self.emit(way.last, sink, counts, stamp);
        self.go_to(self.code.node(way.last).next, self.time);
        Some(self.last_ip(way.last))
    }

    /// Whether `walk_past` would find an instruction.
    pub fn comes_past(&mut self, wanted: Stop) -> bool {
        let way = self.find_stop(|stop| stop == wanted || stop == Stop::VmEntry);
        way.is_ok_and(|way| self.code.node(way.last).stop == wanted)
    }

    /// Runs `count` instructions on, if no packet is needed in between. Returns the address of the next.
    pub fn walk_by<S: Sink>(
        &mut self,
        count: u64,
        sink: &mut S,
        counts: &mut Counts,
        stamp: Stamp,
    ) -> Option<u64> {
        self.expect_none_waiting().ok()?;
        let mut left = count;
        let mut chain = Chain::new(self.resolve().ok()?);
        let (place, ip) = loop {
            let node = self.code.node(chain.node);
            if let Some(found) = self.code.nth(node, left) {
                break found;
            }
            if !node.stop.passes() {
                return None;
            }
            left -= u64::from(node.instructions);
            let (from, last) = (chain.node, self.last_ip(chain.node));
            let next = self.follow(from).ok()?;
            chain.step(next, last).ok()?;
        };
        let way = Way {
            nodes: chain.steps,
            last: chain.node,
        };
        self.run_through(&way, sink, counts, stamp);
        self.emit_part(way.last, place, sink, counts, stamp);
        self.go_to(ip, self.time);
        Some(ip)
    }

    /// The node at which a packet takes effect: the first that does not let the flow pass, or that `binds`. Whatever
    /// runs before code that is not mapped has run: the packet is of an instruction from there on.
    pub(super) fn reach<S: Sink>(
        &mut self,
        sink: &mut S,
        counts: &mut Counts,
        stamp: Stamp,
        binds: impl Fn(Stop) -> bool,
    ) -> Result<Way, Cause> {
        let way = self.find_stop(binds);
        way.map_err(|(cause, way)| {
            if let (Cause::Unmapped { .. }, Some(way)) = (cause, way) {
                self.run_to_hole(&way, sink, counts, stamp);
            }
            cause
        })
    }

    fn find_stop(&mut self, binds: impl Fn(Stop) -> bool) -> Result<Way, (Cause, Option<Way>)> {
        let mut chain = Chain::new(self.resolve().map_err(|cause| (cause, None))?);
        loop {
            let way = Way {
                nodes: chain.steps,
                last: chain.node,
            };
            let stop = self.code.node(chain.node).stop;
            if !stop.passes() || binds(stop) {
                return Ok(way);
            }
            let (from, last) = (chain.node, self.last_ip(chain.node));
            match self.follow(from) {
                Ok(next) => chain.step(next, last).map_err(|cause| (cause, None))?,
                Err(cause) => return Err((cause, Some(way))),
            }
        }
    }

    /// What the next packet that says nothing of a place could be of, if the code on the way is known.
    pub fn next_stop(&mut self) -> Option<Stop> {
        let way = self.find_stop(|stop| matches!(stop, Stop::VmEntry | Stop::MovCr3));
        way.ok().map(|way| self.code.node(way.last).stop)
    }

    /// Runs on to where nothing is mapped.
    fn run_to_hole<S: Sink>(&mut self, way: &Way, sink: &mut S, counts: &mut Counts, stamp: Stamp) {
        self.run_through(way, sink, counts, stamp);
        self.emit(way.last, sink, counts, stamp);
        self.go_to(self.code.node(way.last).next, self.time);
    }

    /// Runs through the nodes before the last of a way.
    pub(super) fn run_through<S: Sink>(
        &mut self,
        way: &Way,
        sink: &mut S,
        counts: &mut Counts,
        stamp: Stamp,
    ) {
        let Ok(mut index) = self.resolve() else {
            return;
        };
        for left in (1..=way.nodes).rev() {
            if S::HOLDS && sink.is_full() {
                self.hold_back(index, left, sink, counts, stamp);
                return;
            }
            self.emit(index, sink, counts, stamp);
            match self.follow(index) {
                Ok(next) => index = next,
                Err(_) => return,
            }
        }
    }

    /// Whether a call waits for its RET at the end of a way.
    pub(super) fn calls_before(&mut self, way: &Way) -> bool {
        if !self.stack.is_empty() {
            return true;
        }
        let Ok(mut index) = self.resolve() else {
            return false;
        };
        for left in (0..=way.nodes).rev() {
            if !self.code.calls(self.code.node(index)).1.is_empty() {
                return true;
            }
            match self.follow(index) {
                Ok(next) if left > 0 => index = next,
                _ => break,
            }
        }
        false
    }

    /// The node after one that lets the flow pass.
    pub(super) fn follow(&mut self, index: u32) -> Result<u32, Cause> {
        let node = self.code.node(index);
        let (fall, ip, mode) = (node.fall, node.next, node.mode);
        if self.watched.passes() {
            return Err(Cause::EndlessLoop { ip });
        }
        if fall != NO_NODE && self.code.node(fall).stop != Stop::Dead {
            return Ok(fall);
        }
        let next = self.code.lookup(&self.view, ip, mode)?;
        self.code.node_mut(index).fall = next;
        Ok(next)
    }
}

/// Follows nodes that let the flow pass and notices a cycle (Brent): such code never needs a packet.
struct Chain {
    node: u32,
    steps: u32,
    mark: u32,
    next_mark: u32,
}

impl Chain {
    fn new(node: u32) -> Chain {
        Chain {
            node,
            steps: 0,
            mark: node,
            next_mark: 1,
        }
    }

    fn step(&mut self, next: u32, last_ip: u64) -> Result<(), Cause> {
        if next == self.mark {
            return Err(Cause::EndlessLoop { ip: last_ip });
        }
        self.node = next;
        self.steps += 1;
        if self.steps == self.next_mark {
            self.mark = next;
            self.next_mark = self.next_mark.saturating_mul(2);
        }
        Ok(())
    }
}
