//! PSB+: from PSB to PSBEND or OVF all packets are status only (section 33.3.7).

use rtit_packet::{Packet, PacketKind};

use super::deferral::Deferral;
use super::mode::mode_of;
use super::state::{Decoder, Group, State};
use crate::error::{Cause, FlowError};
use crate::event::EventKind;
use crate::ledger::Trust;
use crate::sink::{End, Sink};
use crate::walk::Stamp;

impl Decoder {
    pub(super) fn begin_group<S: Sink>(&mut self, sink: &mut S, stamp: Stamp) -> Result<(), Cause> {
        self.flush_bound(0, sink);
        if let Err(cause) = self.walker.expect_none_waiting() {
            self.fail(stamp.offset, cause, sink);
        }
        self.last_ip = 0;
        self.new_mode = None;
        self.deferral = Deferral::default();
        self.group = Some(Group {
            offset: stamp.offset,
            ip: None,
            mode: None,
            in_tx: None,
        });
        Ok(())
    }

    pub(super) fn in_group<S: Sink>(
        &mut self,
        packet: &Packet,
        sink: &mut S,
        stamp: Stamp,
    ) -> Result<(), Cause> {
        let Some(mut group) = self.group else {
            return Ok(());
        };
        match packet.kind {
            PacketKind::Fup(ip) => group.ip = self.ip(ip),
            PacketKind::ModeExec { csl, csd, .. } => group.mode = Some(mode_of(csl, csd)),
            PacketKind::ModeTsx { in_tx, .. } => group.in_tx = Some(in_tx),
            PacketKind::Trig { .. } => self.note(packet, sink, stamp)?,
            PacketKind::Pip { nr, cr3 } => {
                let paging = Some(cr3 | u64::from(nr));
                self.walker.next_paging(cr3, nr);
                self.clock.in_guest = nr;
                if self.paging != paging {
                    self.paging = paging;
                    self.event(EventKind::Paging, 0, cr3 | u64::from(nr), sink, stamp);
                }
            }
            PacketKind::Vmcs { pointer } => {
                self.walker.next_vmcs(pointer);
                if self.vmcs != Some(pointer) {
                    self.vmcs = Some(pointer);
                    self.event(EventKind::Vmcs, 0, pointer, sink, stamp);
                }
            }
            PacketKind::Ovf => {
                self.group = None;
                self.overflow(sink, stamp);
                return Ok(());
            }
            PacketKind::PsbEnd => {
                self.group = None;
                self.end_group(group, packet.end() as u64, sink, stamp);
                return Ok(());
            }
            other => return Err(Cause::UnexpectedPacket { name: other.name() }),
        }
        self.group = Some(group);
        Ok(())
    }

    /// The state that PSB+ tells against the one that was followed up to it.
    fn end_group<S: Sink>(&mut self, group: Group, end: u64, sink: &mut S, stamp: Stamp) {
        self.past = 0;
        let at_psb = Stamp {
            offset: group.offset,
            ..stamp
        };
        self.settle(sink);
        // a PSB never comes within a compound event; only a processor that waits for a SIPI has ended it without a word
        if let State::Async { ip } = self.state {
            if group.ip.is_none() {
                self.event(EventKind::AsyncDisabled, ip, 0, sink, at_psb);
                self.counts.asynchronous += 1;
            } else {
                let cause = Cause::UnexpectedPacket { name: "PSB" };
                self.fail(group.offset, cause, sink);
            }
        }
        let in_kernel = group.ip.is_some_and(|ip| ip >> 63 != 0);
        let ours = match self.state {
            State::On if !in_kernel => true,
            _ => group.ip.is_none() || self.walker.take_turns(self.clock.by_rate()),
        };
        if !ours && self.state != State::On {
            self.pass_over(sink, at_psb);
            self.walker.advance(self.clock.by_rate(), sink);
            if let Some(mode) = group.mode {
                self.set_mode(mode);
            }
            return;
        }
        let followed = self.state == State::On && self.ledger.trust() == Trust::Exact;
        if let (true, Some(ip), Some(mode)) = (followed, group.ip, group.mode) {
            if mode != self.walker.mode {
                self.fail(group.offset, Cause::OtherMode { ip }, sink);
                self.state = State::Lost { resume: false };
                return;
            }
        }
        match (self.state, group.ip) {
            (State::On, Some(ip)) => {
                if self
                    .walker
                    .walk_to(sink, &mut self.counts, ip, at_psb)
                    .is_ok()
                {
                    self.remark_repeats(ip, group.offset, sink);
                } else {
                    self.fail(group.offset, Cause::Seam { ip }, sink);
                    self.resumed(ip, sink, stamp);
                    self.ledger.go_on(end, Trust::Exact);
                }
                self.state = State::On;
            }
            (State::On, None) if self.was_outside() => {}
            (State::On, None) => {
                self.fail(group.offset, Cause::OffUnannounced, sink);
                self.state = State::Off;
            }
            (State::Off, Some(ip)) => {
                self.walker.go_to(ip, self.clock.stamp());
                self.state = State::PsbOn {
                    unannounced: Some(group.offset),
                };
            }
            (_, Some(ip)) => {
                self.resumed(ip, sink, stamp);
                self.state = State::PsbOn { unannounced: None };
            }
            // the FUP that ends it may come behind a PSB+ (Table 33-14)
            (State::Overflow, None) => {}
            (_, None) => self.state = State::Off,
        }
        self.ledger.go_on(group.offset, Trust::Exact);
        if let Some(in_tx) = group.in_tx {
            // one that began or ended while it was followed has told so itself
            if in_tx != self.in_tx.unwrap_or(false) {
                self.event(
                    EventKind::ModeTsx,
                    group.ip.unwrap_or(0),
                    in_tx.into(),
                    sink,
                    at_psb,
                );
            }
            self.in_tx = Some(in_tx);
        }
        self.event(EventKind::Psb, group.ip.unwrap_or(0), 0, sink, at_psb);
        self.walker.reset();
        self.walker.advance(self.clock.by_rate(), sink);
        self.walker.arrive(true);
        if let Some(mode) = group.mode {
            self.set_mode(mode);
        }
        if !ours {
            self.pass_over(sink, at_psb);
        }
    }

    fn resumed<S: Sink>(&mut self, ip: u64, sink: &mut S, stamp: Stamp) {
        self.walker.go_to(ip, self.clock.stamp());
        if self.ledger.trust() == Trust::Lost {
            self.event(EventKind::Resumed, ip, 0, sink, stamp);
        }
    }

    /// A PSB+ turned tracing on, and no TIP.PGE came (erratum BDM70 puts a FUP into the PSB+ before one): it was on.
    pub(super) fn settle<S: Sink>(&mut self, sink: &mut S) {
        let State::PsbOn { unannounced } = self.state else {
            return;
        };
        if let Some(offset) = unannounced {
            let cause = Cause::OnUnannounced {
                ip: self.walker.here(),
            };
            sink.close(End::Lost, offset);
            self.ledger.fail(offset, FlowError { offset, cause });
            self.ledger.go_on(offset, Trust::Exact);
        }
        self.off_at = 0;
        self.state = State::On;
    }
}
