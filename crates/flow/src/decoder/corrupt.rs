//! Packets that read well and are none: written wrong by an erratum.

use rtit_packet::{Kind, Packet, PacketError, PacketKind, Scanner};

use super::state::Decoder;
use crate::errata::Erratum;
use crate::error::Cause;
use crate::sink::Sink;
use crate::walk::Stamp;
use crate::window::Window;

impl Decoder {
    /// Deals with a packet of several bytes that must not be taken at its word; true if it was one.
    pub(super) fn corrupt<S: Sink>(
        &mut self,
        packet: &Packet,
        stream: Window<'_>,
        scanner: &mut Scanner<'_>,
        sink: &mut S,
    ) -> bool {
        let offset = packet.offset as u64;
        let byte = |at: usize| stream.byte(packet.offset + at).unwrap_or(0);
        match packet.kind {
            // its second byte is the escape of an OVF, whose other byte reads as a CYC
            PacketKind::Cyc { .. } if self.errata.has(Erratum::Skd007) => {
                if packet.length != 2 || byte(1) != 0x02 || byte(2) != 0xf3 {
                    return false;
                }
                self.counts.erratum(Erratum::Skd007);
                self.counts.packet(Kind::Ovf);
                let stamp = Stamp {
                    offset: offset + 1,
                    time: self.clock.stamp(),
                    now: self.clock.by_rate(),
                };
                self.group = None;
                self.flush_bound(0, sink);
                self.overflow(sink, stamp);
                scanner.seek(packet.offset + 3);
                scanner.set_block(None);
                true
            }
            // corrupt values show in the reserved bits, if at all
            PacketKind::Tma { .. } if self.errata.has(Erratum::Skz84) => {
                let reserved = [byte(4), byte(6) & 0xfe];
                let Some(&bad) = reserved.iter().find(|&&byte| byte != 0) else {
                    return false;
                };
                if self.errata.is_known() {
                    self.counts.erratum(Erratum::Skz84);
                    self.counts.packet(Kind::Tma);
                    scanner.seek(packet.end() + 1);
                    return true;
                }
                // a stray byte may follow, which could be any packet
                let error = PacketError::Reserved {
                    offset: packet.offset,
                    packet: Kind::Tma.name(),
                    byte: bad,
                };
                self.fail(offset, Cause::Packet(error), sink);
                self.seek_psb(packet.offset + 1, stream, scanner);
                true
            }
            _ => false,
        }
    }
}
