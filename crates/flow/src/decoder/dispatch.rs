//! Which packet goes where.

use rtit_packet::{Ip, Packet, PacketKind};

use super::state::{Decoder, State};
use crate::error::Cause;
use crate::event::EventKind;
use crate::sink::Sink;
use crate::walk::Stamp;

impl Decoder {
    pub(super) fn dispatch<S: Sink>(
        &mut self,
        packet: &Packet,
        sink: &mut S,
        stamp: Stamp,
    ) -> Result<(), Cause> {
        if matches!(self.state, State::Lost { resume: true } | State::Elsewhere) {
            self.deferral.pass(&packet.kind, self.last_ip);
        }
        if self.timing(&packet.kind, sink, stamp) {
            return Ok(());
        }
        if packet.kind == PacketKind::Psb {
            return self.begin_group(sink, stamp);
        }
        if self.group.is_some() {
            return self.in_group(packet, sink, stamp);
        }
        if self.state == State::Elsewhere {
            return self.passing(packet, sink, stamp);
        }
        let placed = matches!(
            packet.kind,
            PacketKind::Tnt(_)
                | PacketKind::Tnt64(_)
                | PacketKind::Tip(_)
                | PacketKind::TipPge(_)
                | PacketKind::Fup(_)
        );
        if placed && self.event_data != 0 {
            return Err(Cause::UnexpectedPacket {
                name: packet.kind.name(),
            });
        }
        let result = self.dispatch_flow(packet, sink, stamp);
        if placed {
            self.past = 0;
        }
        result
    }

    fn dispatch_flow<S: Sink>(
        &mut self,
        packet: &Packet,
        sink: &mut S,
        stamp: Stamp,
    ) -> Result<(), Cause> {
        let moves = matches!(
            packet.kind,
            PacketKind::Tnt(_)
                | PacketKind::Tnt64(_)
                | PacketKind::Tip(_)
                | PacketKind::TipPge(_)
                | PacketKind::TipPgd(_)
        );
        if moves || self.bound.is_none() && matches!(packet.kind, PacketKind::Fup(_)) {
            self.held.release(None, 0, sink);
        }
        let inside = match packet.kind {
            PacketKind::TipPge(_) => false,
            PacketKind::Fup(_) => true,
            _ => moves,
        };
        if inside && self.paging_after_overflow && self.may_be_outside() {
            self.paging_after_overflow = false;
            self.move_cr3(sink, stamp);
        }
        match packet.kind {
            PacketKind::Fup(ip) => {
                let ip = self.ip(ip).ok_or(Cause::NoIp { name: "FUP" })?;
                self.fup(ip, sink, stamp)
            }
            PacketKind::Tnt(tnt) | PacketKind::Tnt64(tnt) => {
                self.flush_bound(0, sink);
                self.tnt((tnt.bits, tnt.count), sink, stamp)
            }
            PacketKind::Tip(ip) => {
                let ip = self.ip(ip);
                self.flush_bound(ip.unwrap_or(0), sink);
                self.tip(ip, sink, stamp)
            }
            PacketKind::TipPge(ip) => {
                let ip = self.ip(ip);
                self.flush_bound(ip.unwrap_or(0), sink);
                self.tip_pge(ip, sink, stamp)
            }
            PacketKind::TipPgd(ip) => {
                let ip = self.ip(ip);
                self.flush_bound(0, sink);
                self.tip_pgd(ip, sink, stamp)
            }
            PacketKind::Ovf => {
                self.flush_bound(0, sink);
                self.overflow(sink, stamp);
                Ok(())
            }
            PacketKind::TraceStop => {
                self.flush_bound(0, sink);
                self.trace_stop(sink, stamp);
                Ok(())
            }
            PacketKind::PsbEnd => Err(Cause::UnexpectedPacket { name: "PSBEND" }),
            _ => {
                self.flush_bound(0, sink);
                self.note(packet, sink, stamp)
            }
        }
    }

    /// Packets that mean the same wherever they are. True if this was one.
    fn timing<S: Sink>(&mut self, kind: &PacketKind, sink: &mut S, stamp: Stamp) -> bool {
        match *kind {
            PacketKind::Pad => {}
            PacketKind::Cyc { cycles } => {
                self.clock.cyc(cycles);
                self.clock.mark(stamp.offset);
                self.catch_up(sink);
            }
            PacketKind::Mtc { ctc } => {
                if self.clock.mtc(ctc) {
                    self.resolve_doubt(stamp.offset, false);
                }
                self.clock.mark(stamp.offset);
                self.catch_up(sink);
            }
            PacketKind::Tma { ctc, fast_counter } => self.clock.tma(ctc, fast_counter),
            PacketKind::Tsc { tsc } => {
                // cycles were not counted all the time if tracing was off
                let counted = self.group.is_some() && self.state != State::Off;
                self.clock.tsc(tsc, !counted);
                self.resolve_doubt(stamp.offset, self.state == State::Off);
                self.clock.mark(stamp.offset);
                // within PSB+ the program is first followed to where the PSB was
                if self.group.is_none() {
                    self.walker.advance(self.clock.by_rate(), sink);
                }
            }
            PacketKind::Cbr { ratio } => {
                self.clock.cbr(ratio);
                self.clock.mark(stamp.offset);
                self.event(EventKind::Cbr, 0, ratio.into(), sink, stamp);
            }
            PacketKind::Mnt { payload } => self.event(EventKind::Mnt, 0, payload, sink, stamp),
            _ => return false,
        }
        true
    }

    /// Kernel code changes while it runs; within PSB+ the program is first followed to where the PSB was.
    fn catch_up<S: Sink>(&mut self, sink: &mut S) {
        if self.group.is_none() {
            self.walker.catch_up(self.clock.by_rate(), sink);
        }
    }

    /// Joins an IP payload with LastIP; `None` if it is suppressed (section 33.4.2.2).
    pub(super) fn ip(&mut self, ip: Ip) -> Option<u64> {
        const LOW_48: u64 = (1 << 48) - 1;
        let last = self.last_ip;
        self.last_ip = match ip.ip_bytes {
            1 => last & !0xffff | ip.payload & 0xffff,
            2 => last & !0xffff_ffff | ip.payload & 0xffff_ffff,
            3 => ((ip.payload << 16) as i64 >> 16) as u64,
            4 => last & !LOW_48 | ip.payload & LOW_48,
            6 => ip.payload,
            _ => return None,
        };
        Some(self.last_ip)
    }
}
