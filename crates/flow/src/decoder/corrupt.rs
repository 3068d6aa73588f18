//! Packets that read well and are none: cut off by a PSB, or written wrong by an erratum.

use rtit_packet::{find_psb, Kind, Packet, PacketError, PacketKind, Scanner, PSB};

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
        if let Some(psb) = cut_by_psb(packet, stream) {
            let cause = Cause::BrokenOff { psb: psb as u64 };
            self.fail(offset, cause, sink);
            scanner.seek(psb);
            scanner.set_block(None);
            return true;
        }
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
                    now: self.clock.now(),
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

/// Offset of the PSB of which `packet` has swallowed the beginning.
fn cut_by_psb(packet: &Packet, stream: Window<'_>) -> Option<usize> {
    let end = packet.end();
    let [escape, mark] = [PSB[0], PSB[1]];
    match (stream.byte(end)?, stream.byte(end + 1)?) {
        pair if pair == (mark, escape) || pair == (escape, mark) => {}
        _ => return None,
    }
    if packet.kind == PacketKind::Psb {
        return None;
    }
    let at = end.checked_sub(stream.base)?;
    if stream.bytes.get(at..)?.starts_with(&PSB) {
        return None;
    }
    let last = stream.bytes.len().min(at + PSB.len());
    let first = find_psb(stream.bytes.get(..last)?, packet.offset + 1 - stream.base)?;
    let more = stream
        .bytes
        .get(first + PSB.len()..)?
        .chunks_exact(2)
        .take_while(|pair| *pair == &PSB[..2])
        .count();
    // A longer run ends with the PSB, which is then behind the packet; one twice as long may be two PSBs.
    let psb = match more {
        0..8 => first + 2 * more,
        _ => first,
    } + stream.base;
    (psb < end).then_some(psb)
}
