//! The packets that only tell something, and where it was.

use rtit_packet::{Packet, PacketKind};

use super::held::Held;
use super::mode::mode_of;
use super::state::{Bound, BoundTo, Decoder, State};
use crate::code::Stop;
use crate::error::Cause;
use crate::event::{Event, EventKind};
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
        self.moved_cr3 = None;
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
                if on && self.may_be_outside() {
                    self.paging_after_overflow = true;
                } else if on {
                    self.move_cr3(sink, stamp);
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
            time: self.clock.stamp(),
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

    /// A PIP without FUP binds to the next MOV CR3.
    pub(super) fn move_cr3<S: Sink>(&mut self, sink: &mut S, stamp: Stamp) {
        self.moved_cr3 = self.walk_past(Stop::MovCr3, sink, stamp);
        if self.moved_cr3.is_some() && self.walker.arrive(false) {
            sink.close(End::Cut, stamp.offset);
        }
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
