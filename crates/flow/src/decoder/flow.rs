//! The packets that move the program, and those that bind to a place in it.

use rtit_x86::Mode;

use super::state::{Bound, BoundTo, Decoder, State};
use crate::code::Stop;
use crate::errata::Erratum;
use crate::error::{Cause, FlowError};
use crate::event::EventKind;
use crate::ledger::Trust;
use crate::sink::{End, Sink};
use crate::walk::Stamp;

impl Decoder {
    pub(super) fn tnt<S: Sink>(
        &mut self,
        results: (u64, u8),
        sink: &mut S,
        stamp: Stamp,
    ) -> Result<(), Cause> {
        self.settle(sink);
        match self.state {
            State::On => {
                self.after_branch = true;
                self.walker.tnt(sink, &mut self.counts, results, stamp)
            }
            State::Lost { .. } => Ok(()),
            State::Overflow if self.errata.has(Erratum::Skd010) => {
                self.counts.erratum(Erratum::Skd010);
                self.state = State::Lost { resume: true };
                Ok(())
            }
            _ => Err(Cause::UnexpectedPacket { name: "TNT" }),
        }
    }

    pub(super) fn tip<S: Sink>(
        &mut self,
        ip: Option<u64>,
        sink: &mut S,
        stamp: Stamp,
    ) -> Result<(), Cause> {
        self.settle(sink);
        let mode = self.new_mode.take().unwrap_or(self.walker.mode);
        let go_on = match self.state {
            State::On | State::Async { .. } => false,
            State::Lost { resume } => {
                self.walker.mode = mode;
                if !resume || ip.is_none_or(|ip| self.may_be_deferred(ip)) {
                    return Ok(());
                }
                true
            }
            State::Overflow if self.errata.has(Erratum::Skd010) => {
                self.counts.erratum(Erratum::Skd010);
                true
            }
            _ => return Err(Cause::UnexpectedPacket { name: "TIP" }),
        };
        let target = ip.ok_or(Cause::NoIp { name: "TIP" })?;
        self.after_branch = true;
        if go_on {
            self.resume(target, mode, sink, stamp);
            return Ok(());
        }
        if let State::Async { ip } = self.state {
            self.event(EventKind::Async, ip, target, sink, stamp);
            self.counts.asynchronous += 1;
            if self.ledger.trust() == Trust::Lost {
                self.resume(target, mode, sink, stamp);
                return Ok(());
            }
            self.walker.go_to(target, stamp.time);
            self.walker.mode = mode;
            self.state = State::On;
            if !self.walker.take_turns(stamp.now) {
                self.pass_over(sink, stamp);
                return Ok(());
            }
            self.walker.arrive(true);
            self.walker.catch_up(stamp.now, sink);
            self.note_contradiction(stamp.offset);
            return Ok(());
        }
        self.walker
            .tip(sink, &mut self.counts, target, mode, stamp)?;
        self.deferral.follow(1);
        self.note_contradiction(stamp.offset);
        if self.walker.is_elsewhere() {
            self.pass_over(sink, stamp);
        }
        Ok(())
    }

    pub(super) fn tip_pge<S: Sink>(
        &mut self,
        ip: Option<u64>,
        sink: &mut S,
        stamp: Stamp,
    ) -> Result<(), Cause> {
        if self.state == State::On && !self.was_outside() {
            return Err(Cause::UnexpectedPacket { name: "TIP.PGE" });
        }
        if let State::PsbOn { .. } = self.state {
            self.counts.erratum(Erratum::Bdm70);
        }
        let mode = self.new_mode.take().unwrap_or(self.walker.mode);
        let ip = ip.ok_or(Cause::NoIp { name: "TIP.PGE" })?;
        if let State::Async { ip } = self.state {
            self.counts.asynchronous += 1;
            self.event(EventKind::AsyncDisabled, ip, 0, sink, stamp);
        }
        // on without a loss: trust stays what it was
        if self.ledger.trust() == Trust::Lost {
            self.ledger.go_on(stamp.offset, Trust::Resumed);
        }
        self.start(ip, mode, EventKind::Enabled, sink, stamp);
        Ok(())
    }

    /// Erratum APL12: nothing has run since a FUP that came after OVF, perhaps though tracing was outside the filter
    /// ranges. Packets that do not depend on PacketEn may come before the next one shows that.
    pub(super) fn may_be_outside(&self) -> bool {
        self.state == State::On
            && self.errata.has(Erratum::Apl12)
            && self.after_overflow == Some(self.counts.instructions)
    }

    /// Whether execution was outside the filter ranges (`may_be_outside`). If so, tracing is off.
    pub(super) fn was_outside(&mut self) -> bool {
        let outside = self.may_be_outside();
        if outside {
            self.counts.erratum(Erratum::Apl12);
            self.after_overflow = None;
            self.state = State::Off;
        }
        outside
    }

    /// Whether a TIP to `target`, the packet at work, does not say where a lost program is.
    pub(super) fn may_be_deferred(&self, target: u64) -> bool {
        self.deferral.may_defer(target, self.walker.has_deferred())
    }

    /// Goes on after a loss.
    pub(super) fn resume<S: Sink>(&mut self, ip: u64, mode: Mode, sink: &mut S, stamp: Stamp) {
        self.ledger.go_on(stamp.offset, Trust::Resumed);
        self.start(ip, mode, EventKind::Resumed, sink, stamp);
    }

    /// The program is known to be at `ip`, whatever went before.
    fn start<S: Sink>(&mut self, ip: u64, mode: Mode, kind: EventKind, sink: &mut S, stamp: Stamp) {
        self.after_branch = false;
        self.after_overflow = None;
        self.off_at = 0;
        self.deferral.after_tnt = false;
        self.walker.reset();
        self.walker.advance(self.clock.by_rate(), sink);
        self.walker.go_to(ip, stamp.time);
        if !self.walker.take_turns(stamp.now) {
            self.walker.mode = mode;
            self.pass_over(sink, stamp);
            return;
        }
        self.come_back(stamp);
        self.walker.arrive(true);
        self.walker.catch_up(stamp.now, sink);
        self.note_contradiction(stamp.offset);
        self.walker.mode = mode;
        self.state = State::On;
        self.held.arrive(ip, sink);
        self.event(kind, ip, 0, sink, stamp);
    }

    pub(super) fn tip_pgd<S: Sink>(
        &mut self,
        ip: Option<u64>,
        sink: &mut S,
        stamp: Stamp,
    ) -> Result<(), Cause> {
        self.settle(sink);
        self.new_mode = None;
        if let (State::On | State::Async { .. }, Err(cause)) = (self.state, self.expect_one_turn())
        {
            self.fail(stamp.offset, cause, sink);
            self.off_at = 0;
            self.state = State::Off;
            return Ok(());
        }
        match self.state {
            State::On => {
                self.walker.expect_none_waiting()?;
                let stopped = self.stopped_by_mov_cr3(ip)?;
                if stopped.is_some() {
                    sink.close(End::Off, stamp.offset);
                }
                let (last, target) = match ip {
                    _ if stopped.is_some() => (stopped.unwrap_or(0), 0),
                    None => self.walker.stop_at_branch(sink, &mut self.counts, stamp)?,
                    Some(ip) => (
                        self.walker
                            .stop_at_target(sink, &mut self.counts, ip, stamp)?,
                        ip,
                    ),
                };
                self.event(EventKind::Disabled, last, target, sink, stamp);
            }
            State::Async { ip: at } => {
                if self.entered_vm(at, ip, sink, stamp) {
                    self.state = State::Off;
                    return Ok(());
                }
                self.counts.asynchronous += 1;
                self.event(EventKind::AsyncDisabled, at, ip.unwrap_or(0), sink, stamp);
            }
            State::Lost { resume } => {
                if resume {
                    self.event(EventKind::Disabled, 0, ip.unwrap_or(0), sink, stamp);
                }
            }
            State::Overflow => self.counts.erratum(Erratum::Apl11),
            _ => return Err(Cause::UnexpectedPacket { name: "TIP.PGD" }),
        }
        self.off_at = ip.unwrap_or(0);
        self.state = State::Off;
        Ok(())
    }

    /// The MOV CR3 that has just run if it was what stopped the trace: both PIP and TIP.PGD are its own then. The
    /// TIP.PGD of most branches behind it would have an IP.
    fn stopped_by_mov_cr3(&mut self, target: Option<u64>) -> Result<Option<u64>, Cause> {
        let Some(ip) = self.moved_cr3.take() else {
            return Ok(None);
        };
        if self.past == 0 || target.is_some() || !self.stops {
            return Ok(None);
        }
        match self.walker.next_stop() {
            Some(Stop::Conditional | Stop::Far | Stop::Syscall | Stop::VmEntry | Stop::MovCr3) => {
                Err(Cause::MovCr3OrBranch { ip })
            }
            _ => Ok(Some(ip)),
        }
    }

    pub(super) fn fup<S: Sink>(
        &mut self,
        ip: u64,
        sink: &mut S,
        stamp: Stamp,
    ) -> Result<(), Cause> {
        let Some(Bound { mut event, to }) = self.bound.take() else {
            return self.unbound_fup(ip, sink, stamp);
        };
        event.ip = ip;
        self.settle(sink);
        match self.state {
            State::On => {
                let abort = to == BoundTo::Tsx { abort: true };
                match self.come_to(ip, abort, sink, stamp) {
                    // a PTW and what else an instruction of the loop makes come with each round
                    Ok(()) if abort || to == BoundTo::Place && event.kind != EventKind::PtWrite => {
                        self.remark_repeats(ip, stamp.offset, sink);
                    }
                    Ok(()) => {}
                    Err(cause) => {
                        self.fail(stamp.offset, cause, sink);
                        if self.state == (State::Lost { resume: true }) {
                            self.resume(ip, self.walker.mode, sink, stamp);
                        }
                    }
                }
            }
            State::Lost { resume: true } => {
                self.resume(ip, self.walker.mode, sink, stamp);
            }
            State::Overflow if matches!(to, BoundTo::Tsx { .. }) => {
                // MODE.TSX has a FUP only while PacketEn is 1 (erratum SKD010 drops the one after OVF)
                self.counts.erratum(Erratum::Skd010);
                self.resume(ip, self.walker.mode, sink, stamp);
            }
            _ => {
                self.held.release(Some(event.kind), ip, sink);
                sink.event(&event);
                return Ok(());
            }
        }
        self.held.release(Some(event.kind), ip, sink);
        sink.event(&event);
        if self.state != State::On {
            return Ok(());
        }
        match to {
            BoundTo::Tsx { abort: true } => {
                sink.close(End::Event, stamp.offset);
                self.state = State::Async { ip };
            }
            BoundTo::Exec => {
                if let Some(mode) = self.new_mode.take() {
                    self.set_mode(mode);
                }
            }
            BoundTo::Tsx { abort: false } | BoundTo::Place => {}
        }
        Ok(())
    }

    fn unbound_fup<S: Sink>(&mut self, ip: u64, sink: &mut S, stamp: Stamp) -> Result<(), Cause> {
        self.settle(sink);
        match self.state {
            State::On => {
                match self.come_to(ip, false, sink, stamp) {
                    Ok(()) => self.remark_repeats(ip, stamp.offset, sink),
                    Err(cause) => {
                        self.fail(stamp.offset, cause, sink);
                        if self.state != (State::Lost { resume: true }) {
                            return Ok(());
                        }
                    }
                }
                sink.close(End::Event, stamp.offset);
                self.state = State::Async { ip };
                Ok(())
            }
            State::Overflow => {
                self.resume(ip, self.walker.mode, sink, stamp);
                self.after_overflow = Some(self.counts.instructions);
                self.paging_after_overflow = false;
                Ok(())
            }
            State::Lost { resume: true } => {
                self.state = State::Async { ip };
                Ok(())
            }
            State::Lost { resume: false } => Ok(()),
            _ => Err(Cause::UnexpectedPacket { name: "FUP" }),
        }
    }

    /// Runs on to the place that a FUP names.
    fn come_to<S: Sink>(
        &mut self,
        ip: u64,
        abort: bool,
        sink: &mut S,
        stamp: Stamp,
    ) -> Result<(), Cause> {
        self.walker.expect_none_waiting()?;
        // the transfer before an abort may have a wrong target: nothing from there on has run
        if abort
            && self.after_branch
            && self.errata.has(Erratum::Bdm64)
            && !self.walker.leads_to(ip)
        {
            self.counts.erratum(Erratum::Bdm64);
            self.walker.go_to(ip, stamp.time);
            return Ok(());
        }
        self.walker.walk_to(sink, &mut self.counts, ip, stamp)
    }

    /// The program is at `ip` for the first time since the last packet; a loop may have brought it there more often.
    pub(super) fn remark_repeats<S: Sink>(&mut self, ip: u64, offset: u64, sink: &mut S) {
        if let Some(round) = self.walker.round() {
            let instructions = round.len() as u32;
            let cause = Cause::Repeats { ip, instructions };
            self.ledger.remark(offset, FlowError { offset, cause });
            sink.repeats(&round);
        }
    }

    /// Erratum SKD022: the FUP of an event, and the VM entry there has run.
    fn entered_vm<S: Sink>(
        &mut self,
        at: u64,
        target: Option<u64>,
        sink: &mut S,
        stamp: Stamp,
    ) -> bool {
        let asked = self.errata.has(Erratum::Skd022) || !self.errata.is_known();
        if !asked || self.ledger.trust() == Trust::Lost || self.walker.here() != at {
            return false;
        }
        let Some(entry) = self.walker.vm_entry_here() else {
            return false;
        };
        if !self.errata.is_known() {
            self.fail(stamp.offset, Cause::VmEntryOrEvent { ip: at }, sink);
            return false;
        }
        self.walker
            .run_vm_entry(entry, sink, &mut self.counts, stamp);
        self.counts.erratum(Erratum::Skd022);
        self.event(EventKind::Disabled, at, target.unwrap_or(0), sink, stamp);
        true
    }

    pub(super) fn overflow<S: Sink>(&mut self, sink: &mut S, stamp: Stamp) {
        self.fail(stamp.offset, Cause::Overflow, sink);
        self.clock.lose();
        self.clock.mark(stamp.offset);
        self.event(EventKind::Overflow, 0, 0, sink, stamp);
        self.state = State::Overflow;
    }

    pub(super) fn trace_stop<S: Sink>(&mut self, sink: &mut S, stamp: Stamp) {
        self.settle(sink);
        let ip = match self.state {
            State::Off => self.off_at,
            State::On => self.walker.here(),
            _ => 0,
        };
        sink.close(End::Off, stamp.offset);
        self.event(EventKind::Stopped, ip, 0, sink, stamp);
        self.off_at = ip;
        self.state = State::Off;
    }

    pub(super) fn set_mode(&mut self, mode: Mode) {
        if self.walker.mode != mode {
            let here = self.walker.here();
            self.walker.go_to(here, self.clock.stamp());
            self.walker.mode = mode;
        }
    }
}
