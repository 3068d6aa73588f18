//! Informational packets: those that report something without moving execution, and the events made from them.
//!
//! A packet with an IP bit waits for its FUP (`AwaitingFup`). Without FUP a PTW, PIP or TRIG binds to an instruction of
//! the code: the next PTWRITE or MOV CR3, or the one that an instruction count names. Others get their address from
//! another packet (`PendingEvents`): the packets of a block from its BEP, MWAIT and PWRE from EXSTOP, EVDs stay before
//! their CFE.

use super::{AwaitingFup, Decoder, FupPurpose, TracingState};
use crate::code_cache::NodeEnd;
use crate::error::ErrorCause;
use crate::event::{Event, EventKind};
use crate::sink::{RunEnd, Sink};
use rtit_packet::{Packet, PacketKind};
use rtit_x86::CodeMode;

const PAGE_FAULT: u64 = 1;
const EXIT_QUALIFICATION: u64 = 1 << 1;
const EXIT_REASON: u64 = 1 << 2;

/// Whether EVDs of the types in `data` may precede a CFE of this type (Tables 33-50, 33-51). Later types of either are
/// not checked.
fn may_evds_precede_cfe(kind: u8, vector: u8, data: u64) -> bool {
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
    /// Makes an event of an informational packet; one that a FUP completes waits for it.
    pub(super) fn decode_informational_packet<S: Sink>(
        &mut self,
        packet: &Packet,
        sink: &mut S,
    ) -> Result<(), ErrorCause> {
        use EventKind as E;
        let mut fup_purpose = None;
        let mut ip = 0;
        // only timing packets come between OVF and its FUP (MODE.TSX: see `fup`)
        if self.state.tracing == TracingState::Overflow
            && !matches!(packet.kind, PacketKind::ModeTsx { .. })
        {
            self.state.tracing = TracingState::Off;
        }
        self.state.last_mov_cr3 = None;
        let (kind, value) = match packet.kind {
            PacketKind::Pip { nr, cr3 } => {
                self.apply_pip_payload(cr3, nr);
                // without a FUP before it, it belongs to a MOV CR3 on the path to the next far branch
                let on = match self.state.tracing {
                    // erratum BDM70: tracing may be off still
                    TracingState::PsbOn { unannounced: None } => self
                        .interpreter
                        .can_advance_past_instruction_of_kind(NodeEnd::MovCr3),
                    state => state == TracingState::On,
                };
                if on && self.may_be_outside_filter_ranges() {
                    self.state.has_pip_after_overflow = true;
                } else if on {
                    self.bind_pip_to_mov_cr3(sink);
                }
                (E::Paging, cr3 | u64::from(nr))
            }
            PacketKind::Vmcs { pointer } => {
                self.apply_vmcs_pointer(pointer);
                (E::Vmcs, pointer)
            }
            PacketKind::ModeExec { csl, csd, iflag } => {
                self.state.announced_mode = Some(mode_from_mode_exec(csl, csd));
                fup_purpose = Some(FupPurpose::Exec);
                let bits = u64::from(csl) | u64::from(csd) << 1 | u64::from(iflag) << 2;
                (E::ModeExec, bits)
            }
            PacketKind::ModeTsx { in_tx, tx_abort } => {
                self.state.in_transaction = Some(in_tx);
                fup_purpose = Some(FupPurpose::Tsx { abort: tx_abort });
                (E::ModeTsx, u64::from(in_tx) | u64::from(tx_abort) << 1)
            }
            PacketKind::Ptw {
                ip: with_ip,
                payload,
                ..
            } => {
                if with_ip {
                    fup_purpose = Some(FupPurpose::Address);
                } else {
                    ip = self
                        .advance_past_instruction_of_kind(NodeEnd::PtWrite, sink)
                        .unwrap_or(0);
                }
                (E::PtWrite, payload)
            }
            PacketKind::ExStop { ip } => {
                fup_purpose = ip.then_some(FupPurpose::Address);
                (E::ExStop, 0)
            }
            PacketKind::Bep { ip } => {
                fup_purpose = ip.then_some(FupPurpose::Address);
                (E::BlockEnd, 0)
            }
            PacketKind::Cfe { ip, kind, vector } => {
                if !may_evds_precede_cfe(kind, vector, self.state.pending_evd_types) {
                    return Err(ErrorCause::OtherEvent { kind });
                }
                self.state.pending_evd_types = 0;
                fup_purpose = ip.then_some(FupPurpose::Address);
                self.state.announced_mode = None;
                (E::Cfe, u64::from(kind) | u64::from(vector) << 8)
            }
            PacketKind::Evd { kind, payload } => {
                // a packet of its own for each, and all before their CFE
                if self.state.pending_evd_types & 1 << kind != 0 {
                    return Err(ErrorCause::UnexpectedPacket { name: "EVD" });
                }
                self.state.pending_evd_types |= 1 << kind;
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
                    fup_purpose = Some(FupPurpose::Address);
                } else if let Some(icnt) = icnt {
                    ip = self.advance_by_instruction_count(icnt, sink);
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
        let event = self.new_event(kind, ip, value);
        if !PendingEvents::may_event_be_pending(kind) {
            self.state.pending_events.report_pending(None, 0, sink);
        }
        match fup_purpose {
            Some(purpose) => self.state.awaiting_fup = Some(AwaitingFup { event, purpose }),
            None => {
                if let Some(event) = self.state.pending_events.keep_unless_complete(event) {
                    if PendingEvents::completes_other_events(event.kind) {
                        self.state.pending_events.report_pending(None, 0, sink);
                    }
                    sink.add_event(&event);
                }
            }
        }
        Ok(())
    }

    /// A PIP without FUP binds to the next MOV CR3.
    pub(super) fn bind_pip_to_mov_cr3<S: Sink>(&mut self, sink: &mut S) {
        self.state.last_mov_cr3 = self.advance_past_instruction_of_kind(NodeEnd::MovCr3, sink);
        if self.state.last_mov_cr3.is_some() && self.interpreter.enter_space(false) {
            sink.end_run(RunEnd::Cut, self.packet_offset());
        }
    }

    /// A packet without FUP binds to the next instruction of its kind. Returns its address, if it is on the path.
    fn advance_past_instruction_of_kind<S: Sink>(
        &mut self,
        wanted: NodeEnd,
        sink: &mut S,
    ) -> Option<u64> {
        self.confirm_tracing_enabled_by_psb_plus(sink);
        match self.state.tracing {
            TracingState::On => {
                let before = self.interpreter.counts.instructions;
                let found = self
                    .interpreter
                    .advance_past_instruction_of_kind(wanted, sink);
                self.state.instructions_past_ip += self.interpreter.counts.instructions - before;
                found
            }
            _ => None,
        }
    }

    /// Returns the address `count` instructions after the last packet with an IP; 0 if it is not known.
    fn advance_by_instruction_count<S: Sink>(&mut self, count: u16, sink: &mut S) -> u64 {
        self.confirm_tracing_enabled_by_psb_plus(sink);
        let left = u64::from(count).checked_sub(self.state.instructions_past_ip);
        self.state.instructions_past_ip = 0;
        match (self.state.tracing, left) {
            (TracingState::On, Some(left)) => self
                .interpreter
                .advance_by_instruction_count(left, sink)
                .unwrap_or(0),
            _ => 0,
        }
    }
}

/// Limit of the pending events. The most that one event has are an EVD of each type, or a block of all registers.
const MAX_PENDING: usize = 256;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PendingEvents {
    events: Vec<Event>,
    /// The last MODE.TSX that applies at the next IP packet (Table 33-27).
    arriving: Option<Event>,
    /// Address of the PWRE without PWRX.
    power: Option<u64>,
}

/// Returns the kind of event from which an event gets its address.
fn event_that_gives_address(kind: EventKind) -> Option<EventKind> {
    match kind {
        EventKind::BlockBegin | EventKind::BlockItem => Some(EventKind::BlockEnd),
        EventKind::Mwait | EventKind::Pwre => Some(EventKind::ExStop),
        EventKind::Evd => Some(EventKind::Cfe),
        _ => None,
    }
}

impl PendingEvents {
    /// Whether events of this kind wait for another one, or complete others.
    pub fn may_event_be_pending(kind: EventKind) -> bool {
        event_that_gives_address(kind).is_some() || PendingEvents::completes_other_events(kind)
    }

    /// Whether events of this kind give others their address.
    pub fn completes_other_events(kind: EventKind) -> bool {
        matches!(
            kind,
            EventKind::BlockEnd | EventKind::ExStop | EventKind::Cfe
        )
    }

    /// Returns what is known at a PSB later in the stream.
    pub fn known_at_later_psb(&self) -> PendingEvents {
        PendingEvents {
            power: self.power,
            ..PendingEvents::default()
        }
    }

    /// Whether no event waits for the next packet.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Keeps an event that gets its address from another; returns it if it need not wait.
    pub fn keep_unless_complete(&mut self, mut event: Event) -> Option<Event> {
        match event.kind {
            EventKind::Pwre => event.ip = self.power.unwrap_or(0),
            // of the PWRE before it (Table 33-44)
            EventKind::Pwrx => event.ip = self.power.take().unwrap_or(0),
            _ => {}
        }
        let known = event.kind == EventKind::Pwre && event.ip != 0;
        if known
            || event_that_gives_address(event.kind).is_none()
            || self.events.len() >= MAX_PENDING
        {
            return Some(event);
        }
        self.events.push(event);
        None
    }

    /// Reports the pending events. Those that get their address from an event of kind `by` get `ip`.
    pub fn report_pending<S: Sink>(&mut self, by: Option<EventKind>, ip: u64, sink: &mut S) {
        for mut event in self.events.drain(..) {
            let has_number = matches!(event.kind, EventKind::BlockItem | EventKind::Evd);
            if !has_number && event_that_gives_address(event.kind) == by {
                event.ip = ip;
                self.power = matches!(event.kind, EventKind::Pwre)
                    .then_some(ip)
                    .filter(|&ip| ip != 0)
                    .or(self.power);
            }
            sink.add_event(&event);
        }
    }

    /// Keeps a MODE.TSX that applies at the next IP packet; it replaces one before it.
    pub fn set_mode_tsx_of_next_ip(&mut self, event: Event) {
        self.arriving = Some(event);
    }

    /// Reports the MODE.TSX that applies at the IP packet.
    pub fn report_mode_tsx_at_ip<S: Sink>(&mut self, ip: u64, sink: &mut S) {
        if let Some(event) = self.arriving.take() {
            sink.add_event(&Event { ip, ..event });
        }
    }

    /// Reports the pending events: the packets that would complete them are lost.
    pub fn report_incomplete_events<S: Sink>(&mut self, sink: &mut S) {
        self.report_pending(None, 0, sink);
        self.report_mode_tsx_at_ip(0, sink);
        self.power = None;
    }
}

/// The mode that MODE.Exec names (Table 33-26).
pub(super) fn mode_from_mode_exec(csl: bool, csd: bool) -> CodeMode {
    match (csl, csd) {
        (true, _) => CodeMode::Bits64,
        (false, true) => CodeMode::Bits32,
        (false, false) => CodeMode::Bits16,
    }
}
