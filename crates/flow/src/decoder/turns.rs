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
        if !arrives || self.clock.now() < self.walker.next_turn() {
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
                let due = self.clock.now() >= self.walker.next_turn();
                if let (Some(ip), true) = (self.ip(ip), due) {
                    self.resume(ip, mode, sink, stamp);
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

    /// A stretch of user code ends: it must not have gone on into another turn.
    pub(super) fn expect_one_turn(&self) -> Result<(), Cause> {
        let since = self.walker.next_turn();
        if self.clock.now() < since || self.walker.here() >> 63 != 0 {
            return Ok(());
        }
        Err(Cause::TwoTurns { since })
    }
}
