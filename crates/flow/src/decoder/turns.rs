//! Whose turn it is on the logical processor: threads that are followed, and others that are passed over.
//!
//! A turn begins in the kernel. In user code it shows where the program arrives next, at a TIP.PGE, a far transfer or a
//! PSB+; so a stretch of user code that goes on over the beginning of a turn contradicts it, and the ledger has it.

use rtit_packet::{Packet, PacketKind};

use super::mode::mode_of;
use super::state::{Decoder, State};
use crate::error::{Cause, FlowError};
use crate::ledger::Trust;
use crate::sink::{End, Sink};
use crate::walk::Stamp;

impl Decoder {
    /// The number of turns that have begun (`Spaces::turn`).
    pub fn turns(&self) -> usize {
        self.walker.turns()
    }

    /// The turns in which anything ran, in order; 0 is what was before the first.
    pub fn visited(&self) -> &[usize] {
        self.walker.visited()
    }

    /// `decode` has returned because a turn may begin with the next packet.
    pub fn is_paused(&self) -> bool {
        self.paused_at == Some(self.position)
    }

    /// Whether decoding pauses before this packet, with which a turn may begin: results of two are never mixed.
    pub(super) fn begins_turn(&mut self, packet: &Packet) -> bool {
        let arrives = matches!(
            packet.kind,
            PacketKind::TipPge(_) | PacketKind::Tip(_) | PacketKind::Fup(_) | PacketKind::PsbEnd
        );
        if !arrives || self.clock.by_rate() < self.walker.next_turn() {
            return false;
        }
        let pauses = self.paused_at != Some(packet.offset);
        self.paused_at = Some(packet.offset);
        pauses
    }

    /// What follows is not to be followed.
    pub(super) fn pass_over<S: Sink>(&mut self, sink: &mut S, stamp: Stamp) {
        sink.close(End::Cut, stamp.offset);
        self.held.lose(sink);
        if self.ledger.trust() != Trust::Elsewhere {
            self.trust_before = self.ledger.trust();
            self.ledger.go_on(stamp.offset, Trust::Elsewhere);
        }
        self.walker.reset();
        self.deferral.after_tnt = false;
        self.state = State::Elsewhere;
    }

    /// It is followed again.
    pub(super) fn come_back(&mut self, stamp: Stamp) {
        if self.ledger.trust() == Trust::Elsewhere {
            self.ledger.go_on(stamp.offset, self.trust_before);
        }
    }

    /// A packet of what is passed over.
    pub(super) fn passing<S: Sink>(
        &mut self,
        packet: &Packet,
        sink: &mut S,
        stamp: Stamp,
    ) -> Result<(), Cause> {
        match packet.kind {
            PacketKind::TipPge(ip) => {
                let ip = self.ip(ip);
                return self.tip_pge(ip, sink, stamp);
            }
            PacketKind::Ovf => self.overflow(sink, stamp),
            PacketKind::Tip(ip) => {
                let mode = self.new_mode.take().unwrap_or(self.walker.mode);
                self.walker.mode = mode;
                let due = self.clock.by_rate() >= self.walker.next_turn();
                if let (Some(ip), true) = (self.ip(ip), due) {
                    if !self.may_be_deferred(ip) {
                        self.resume(ip, mode, sink, stamp);
                    }
                }
            }
            PacketKind::Fup(ip) => drop(self.ip(ip)),
            PacketKind::TipPgd(ip) => {
                self.ip(ip);
                self.new_mode = None;
                self.off_at = 0;
                self.state = State::Off;
            }
            PacketKind::TraceStop => {
                self.off_at = 0;
                self.state = State::Off;
            }
            PacketKind::Pip { nr, cr3 } => {
                self.paging = Some(cr3 | u64::from(nr));
                self.clock.in_guest = nr;
                self.walker.next_paging(cr3, nr);
            }
            PacketKind::Vmcs { pointer } => {
                self.vmcs = Some(pointer);
                self.walker.next_vmcs(pointer);
            }
            PacketKind::ModeExec { csl, csd, .. } => self.new_mode = Some(mode_of(csl, csd)),
            PacketKind::ModeTsx { in_tx, .. } => self.in_tx = Some(in_tx),
            _ => {}
        }
        Ok(())
    }

    /// The program has arrived: CR3 must not contradict whose turn it is.
    pub(super) fn note_contradiction(&mut self, offset: u64) {
        if let Some(cr3) = self.walker.take_contradiction() {
            let trust = self.ledger.trust();
            let cause = Cause::OtherProcess { cr3 };
            self.ledger.fail(offset, FlowError { offset, cause });
            self.ledger.go_on(offset, trust);
        }
    }

    /// A stretch of user code ends: it must not have gone on into another turn. It may end in the tick in which that begins.
    pub(super) fn expect_one_turn(&self) -> Result<(), Cause> {
        let since = self.walker.next_turn();
        if self.clock.by_rate() <= since || self.walker.here() >> 63 != 0 {
            return Ok(());
        }
        Err(Cause::TwoTurns { since })
    }

    /// The packet was taken.
    pub(super) fn note_arrivals(&mut self, packet: &Packet) {
        let timed = packet.offset == self.doubt.told;
        match packet.kind {
            PacketKind::Cyc { .. } => self.doubt.told = packet.end(),
            PacketKind::Tnt(_)
            | PacketKind::Tnt64(_)
            | PacketKind::Tip(_)
            | PacketKind::TipPge(_)
            | PacketKind::TipPgd(_)
            | PacketKind::Ovf => {}
            _ if timed => self.doubt.told = packet.end(),
            _ => {}
        }
        let arrivals = self.walker.arrivals();
        if self.doubt.arrivals == arrivals {
            return;
        }
        self.doubt.arrivals = arrivals;
        let turns = self.walker.turns();
        if self.doubt.turns != turns {
            self.doubt.turns = turns;
            let kernel = self.doubt.in_kernel.then_some(self.doubt.last);
            let from = self.doubt.from.take().or(kernel);
            if let Some(from) = from.filter(|_| !self.walker.is_idle()) {
                let since = self.clock.by_rate();
                let (offset, cause) = (packet.offset as u64, Cause::EitherTurn { since, from });
                self.ledger.remark(offset, FlowError { offset, cause });
            }
        }
        self.doubt.last = packet.offset as u64;
        self.doubt.in_kernel = self.walker.here() >> 63 != 0;
        let until = self.walker.next_turn();
        let latest = self.clock.latest().filter(|_| timed);
        let certain = latest.is_some_and(|latest| latest < until);
        // what is certain here was certain before
        self.doubt.from = match certain {
            true => None,
            false => self.doubt.from.or(Some(packet.offset as u64)),
        };
    }

    /// A packet told the time. `begins`: tracing was off, so that what ran before was over when it was turned off, and one
    /// thread's: it was not the next one's.
    pub(super) fn resolve_doubt(&mut self, offset: u64, begins: bool) {
        let Some(from) = self.doubt.from.take() else {
            return;
        };
        let due = self.walker.due(self.clock.by_rate());
        if due <= usize::from(begins) {
            return;
        }
        if self.state == State::On {
            // the kernel goes on: it is told where the turn is taken; user code that does is a contradiction
            self.doubt.from = Some(from).filter(|_| self.walker.here() >> 63 != 0);
        } else {
            let since = self.walker.next_turn();
            let cause = Cause::EitherTurn { since, from };
            self.ledger.remark(offset, FlowError { offset, cause });
        }
    }
}
