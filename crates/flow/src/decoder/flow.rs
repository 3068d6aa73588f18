//! The packets that move the program, and those that bind to a place in it.

use rtit_packet::{Packet, PacketKind};
use rtit_x86::Mode;

use super::held::Held;
use super::mode::mode_of;
use super::state::{Bound, BoundTo, Decoder, State};
use crate::code::Stop;
use crate::errata::Erratum;
use crate::error::Cause;
use crate::event::{Event, EventKind};
use crate::ledger::Trust;
use crate::sink::{End, Sink};
use crate::walk::Stamp;

const PAGE_FAULT: u64 = 1;
const EXIT_QUALIFICATION: u64 = 1 << 1;
const EXIT_REASON: u64 = 1 << 2;

/// Whether a CFE is of an event that the EVDs of the types in `data` tell of (Tables 33-50, 33-51). Later types of
/// either are left alone.
fn fits(kind: u8, vector: u8, data: u64) -> bool {
    const INTERRUPT: u8 = 1;
    const VM_EXIT: u8 = 8;
    const VM_EXIT_BY_EVENT: u8 = 9;
    const PF: u8 = 14;
    let allowed = match kind {
        INTERRUPT if vector == PF => PAGE_FAULT,
        VM_EXIT | VM_EXIT_BY_EVENT => EXIT_QUALIFICATION | EXIT_REASON,
        1..=13 => 0,
        _ => return true,
    };
    data & (PAGE_FAULT | EXIT_QUALIFICATION | EXIT_REASON) & !allowed == 0
}

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
                if !resume || ip.is_none() {
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
            self.walker.arrive(true);
            self.walker.mode = mode;
            self.state = State::On;
            return Ok(());
        }
        self.walker.tip(sink, &mut self.counts, target, mode, stamp)
    }

    pub(super) fn tip_pge<S: Sink>(
        &mut self,
        ip: Option<u64>,
        sink: &mut S,
        stamp: Stamp,
    ) -> Result<(), Cause> {
        if self.state == State::On && !self.outside_after_overflow() {
            self.fail(
                stamp.offset,
                Cause::UnexpectedPacket { name: "TIP.PGE" },
                sink,
            );
        }
        if let State::PsbOn { .. } = self.state {
            self.counts.erratum(Erratum::Bdm70);
        }
        let mode = self.new_mode.take().unwrap_or(self.walker.mode);
        let ip = ip.ok_or(Cause::NoIp { name: "TIP.PGE" })?;
        // on without a loss: trust stays what it was
        if self.ledger.trust() == Trust::Lost {
            self.ledger.go_on(stamp.offset, Trust::Resumed);
        }
        self.start(ip, mode, EventKind::Enabled, sink, stamp);
        Ok(())
    }

    /// Erratum APL12: nothing has run since a FUP that came after OVF though tracing was outside the filter ranges.
    fn outside_after_overflow(&mut self) -> bool {
        let outside = self.errata.has(Erratum::Apl12)
            && self.after_overflow == Some(self.counts.instructions);
        if outside {
            self.counts.erratum(Erratum::Apl12);
        }
        outside
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
        self.walker.reset();
        self.walker.advance(stamp.time, sink);
        self.walker.go_to(ip, stamp.time);
        self.walker.arrive(true);
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
        match self.state {
            State::On => {
                self.walker.expect_none_waiting()?;
                let (last, target) = match ip {
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
                if let Err(cause) = self.come_to(ip, abort, sink, stamp) {
                    self.fail(stamp.offset, cause, sink);
                    if self.state == (State::Lost { resume: true }) {
                        self.resume(ip, self.walker.mode, sink, stamp);
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
                if let Err(cause) = self.come_to(ip, false, sink, stamp) {
                    self.fail(stamp.offset, cause, sink);
                    if self.state != (State::Lost { resume: true }) {
                        return Ok(());
                    }
                }
                sink.close(End::Event, stamp.offset);
                self.state = State::Async { ip };
                Ok(())
            }
            State::Overflow => {
                self.resume(ip, self.walker.mode, sink, stamp);
                self.after_overflow = Some(self.counts.instructions);
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
        self.clock.overflow();
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
            self.walker.go_to(here, self.clock.now());
            self.walker.mode = mode;
        }
    }

    /// Packets that only tell something; those that a FUP completes wait for it.
    pub(super) fn note<S: Sink>(
        &mut self,
        packet: &Packet,
        sink: &mut S,
        stamp: Stamp,
    ) -> Result<(), Cause> {
        use EventKind as E;
        let mut waits = None;
        let mut ip = 0;
        // only timing packets come between OVF and its FUP (MODE.TSX: see `fup`)
        if self.state == State::Overflow && !matches!(packet.kind, PacketKind::ModeTsx { .. }) {
            self.state = State::Off;
        }
        let (kind, value) = match packet.kind {
            PacketKind::Pip { nr, cr3 } => {
                self.paging = Some(cr3 | u64::from(nr));
                self.clock.in_guest = nr;
                self.walker.next_paging(cr3, nr);
                // without a FUP before it, a MOV CR3 on the way to the next far branch has made it
                let on = match self.state {
                    // erratum BDM70: tracing may be off still
                    State::PsbOn { unannounced: None } => self.walker.comes_past(Stop::MovCr3),
                    state => state == State::On,
                };
                if on
                    && self.walk_past(Stop::MovCr3, sink, stamp).is_some()
                    && self.walker.arrive(false)
                {
                    sink.close(End::Cut, stamp.offset);
                }
                (E::Paging, cr3 | u64::from(nr))
            }
            PacketKind::Vmcs { pointer } => {
                self.vmcs = Some(pointer);
                self.walker.next_vmcs(pointer);
                (E::Vmcs, pointer)
            }
            PacketKind::ModeExec { csl, csd, iflag } => {
                self.new_mode = Some(mode_of(csl, csd));
                waits = Some(BoundTo::Exec);
                (
                    E::ModeExec,
                    u64::from(csl) | u64::from(csd) << 1 | u64::from(iflag) << 2,
                )
            }
            PacketKind::ModeTsx { in_tx, tx_abort } => {
                self.in_tx = Some(in_tx);
                waits = Some(BoundTo::Tsx { abort: tx_abort });
                (E::ModeTsx, u64::from(in_tx) | u64::from(tx_abort) << 1)
            }
            PacketKind::Ptw {
                ip: with_ip,
                payload,
                ..
            } => {
                if with_ip {
                    waits = Some(BoundTo::Place);
                } else {
                    ip = self.walk_past(Stop::PtWrite, sink, stamp).unwrap_or(0);
                }
                (E::PtWrite, payload)
            }
            PacketKind::ExStop { ip } => {
                waits = ip.then_some(BoundTo::Place);
                (E::ExStop, 0)
            }
            PacketKind::Bep { ip } => {
                waits = ip.then_some(BoundTo::Place);
                (E::BlockEnd, 0)
            }
            PacketKind::Cfe { ip, kind, vector } => {
                if !fits(kind, vector, self.event_data) {
                    return Err(Cause::OtherEvent { kind });
                }
                self.event_data = 0;
                waits = ip.then_some(BoundTo::Place);
                self.new_mode = None;
                (E::Cfe, u64::from(kind) | u64::from(vector) << 8)
            }
            PacketKind::Evd { kind, payload } => {
                // a packet of its own for each, and all before their CFE
                if self.event_data & 1 << kind != 0 {
                    return Err(Cause::UnexpectedPacket { name: "EVD" });
                }
                self.event_data |= 1 << kind;
                ip = kind.into();
                (E::Evd, payload)
            }
            PacketKind::Mwait { hints, ext } => (E::Mwait, u64::from(hints) | u64::from(ext) << 32),
            PacketKind::Pwre {
                hw,
                state,
                sub_state,
            } => (
                E::Pwre,
                u64::from(sub_state) | u64::from(state) << 4 | u64::from(hw) << 8,
            ),
            PacketKind::Pwrx {
                last,
                deepest,
                wake,
            } => (
                E::Pwrx,
                u64::from(deepest) | u64::from(last) << 4 | u64::from(wake) << 8,
            ),
            PacketKind::Trig {
                ip: with_ip,
                mult,
                trbv,
                icnt,
            } => {
                if with_ip {
                    waits = Some(BoundTo::Place);
                } else if let Some(icnt) = icnt {
                    ip = self.walk_by(icnt, sink, stamp);
                }
                let counted = u64::from(icnt.is_some()) << 9 | u64::from(icnt.unwrap_or(0)) << 16;
                (E::Trig, u64::from(trbv) | u64::from(mult) << 8 | counted)
            }
            PacketKind::Bbp { sz, kind } => (E::BlockBegin, u64::from(kind) | u64::from(sz) << 8),
            PacketKind::Bip { id, payload, .. } => {
                ip = id.into();
                (E::BlockItem, payload)
            }
            _ => return Ok(()),
        };
        let event = Event {
            kind,
            ip,
            value,
            time: self.clock.now(),
            offset: stamp.offset,
        };
        if !Held::goes_with(kind) {
            self.held.release(None, 0, sink);
        }
        match waits {
            Some(to) => self.bound = Some(Bound { event, to }),
            None => {
                if let Some(event) = self.held.keep(event) {
                    if Held::places(event.kind) {
                        self.held.release(None, 0, sink);
                    }
                    sink.event(&event);
                }
            }
        }
        Ok(())
    }

    /// A packet without FUP binds to the next instruction of its kind; its address, if it is on the way.
    fn walk_past<S: Sink>(&mut self, wanted: Stop, sink: &mut S, stamp: Stamp) -> Option<u64> {
        self.settle(sink);
        match self.state {
            State::On => {
                let before = self.counts.instructions;
                let found = self.walker.walk_past(wanted, sink, &mut self.counts, stamp);
                self.past += self.counts.instructions - before;
                found
            }
            _ => None,
        }
    }

    /// The address `count` instructions after the last packet that told a place; 0 if it is not known.
    fn walk_by<S: Sink>(&mut self, count: u16, sink: &mut S, stamp: Stamp) -> u64 {
        self.settle(sink);
        let left = u64::from(count).checked_sub(self.past);
        self.past = 0;
        match (self.state, left) {
            (State::On, Some(left)) => self
                .walker
                .walk_by(left, sink, &mut self.counts, stamp)
                .unwrap_or(0),
            _ => 0,
        }
    }
}
