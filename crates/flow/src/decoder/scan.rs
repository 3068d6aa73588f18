//! The loop over the bytes of a stream.

use rtit_packet::{Kind, Packet, PacketKind, Scanner};

use super::{Decoder, State};
use crate::error::Cause;
use crate::sink::{End, Sink};
use crate::walk::Stamp;

impl Decoder {
    /// Decodes until the sink is full or the stream ends; false if there is no more to come. `stream` must be what
    /// `new` was given.
    pub fn decode<S: Sink>(&mut self, stream: &[u8], sink: &mut S) -> bool {
        self.decode_until(stream, usize::MAX, sink)
    }

    /// As `decode`, but also pauses at the first packet at or after `offset`.
    pub fn decode_until<S: Sink>(&mut self, stream: &[u8], offset: usize, sink: &mut S) -> bool {
        if self.finished {
            return false;
        }
        let mut scanner = Scanner::at(stream, self.position);
        scanner.set_block(self.block);
        while !sink.is_full() && scanner.position() < offset {
            if self.state == State::On && self.bound.is_none() && self.group.is_none() {
                self.short_tnts(stream, offset, &mut scanner, sink);
            }
            match scanner.next() {
                Some(Ok(packet)) => {
                    self.take(&packet, sink);
                    if let PacketKind::Unknown { opcode, .. } = packet.kind {
                        let flags = stream.get(packet.offset + 1).copied().unwrap_or(0);
                        self.unknown(opcode, flags, sink, packet.offset as u64);
                    }
                }
                Some(Err(error)) => {
                    let cut = error.is_truncated();
                    let cause = if cut {
                        Cause::CutPacket
                    } else {
                        Cause::Packet(error)
                    };
                    self.fail(error.offset() as u64, cause, sink);
                    if cut {
                        scanner.seek(stream.len());
                    } else {
                        scanner.resync();
                    }
                }
                None => {
                    self.finish(stream.len() as u64, sink);
                    break;
                }
            }
        }
        self.position = scanner.position();
        self.block = scanner.block();
        !self.finished
    }

    fn finish<S: Sink>(&mut self, length: u64, sink: &mut S) {
        self.flush_bound(0, sink);
        sink.close(End::EndOfStream, length);
        self.ledger.finish(length);
        self.finished = true;
    }

    /// Most of a stream: short TNTs one after the other while the program is followed, without the scanner.
    #[inline]
    fn short_tnts<S: Sink>(
        &mut self,
        stream: &[u8],
        until: usize,
        scanner: &mut Scanner<'_>,
        sink: &mut S,
    ) {
        let start = Scanner::position(scanner);
        if scanner.block().is_some() {
            return;
        }
        let time = self.clock.now();
        let mut at = start;
        while let Some(&byte) = stream.get(at) {
            // even and neither PAD nor the escape
            if byte & 1 != 0 || byte <= 2 || at >= until || sink.is_full() {
                break;
            }
            let count = 6 - byte.leading_zeros() as u8;
            let bits = u64::from(byte >> 1) & ((1 << count) - 1);
            let offset = at as u64;
            let stamp = Stamp { offset, time };
            at += 1;
            let counts = &mut self.counts;
            if let Err(cause) = self.walker.tnt(sink, counts, (bits, count), stamp) {
                self.fail(offset, cause, sink);
                break;
            }
        }
        if at > start {
            if let Some(count) = self.counts.packets.get_mut(Kind::Tnt as usize) {
                *count += (at - start) as u64;
            }
            self.walker.keep_within_limit();
            scanner.seek(at);
        }
    }

    #[inline]
    fn take<S: Sink>(&mut self, packet: &Packet, sink: &mut S) {
        let offset = packet.offset as u64;
        let stamp = Stamp {
            offset,
            time: self.clock.now(),
        };
        self.counts.packet(packet.kind.kind());
        self.walker.keep_within_limit();
        let result = self.dispatch(packet, sink, stamp);
        if let Err(cause) = result {
            self.fail(offset, cause, sink);
        }
    }
}
