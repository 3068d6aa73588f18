//! The loop over the bytes of a stream.

use rtit_packet::{find_psb, Kind, Packet, PacketKind, Scanner};

use super::fast::Stepped;
use super::later::Gate;
use super::state::{Decoder, State};
use crate::error::Cause;
use crate::lookahead::Here;
use crate::sink::{End, Sink};
use crate::walk::Stamp;
use crate::window::Window;

const LOOK_AHEAD: usize = 32;

/// Whether the next packet but for those that tell time is a TraceStop.
fn stops_next(packet: &Packet, stream: Window<'_>) -> bool {
    let from = packet.end().saturating_sub(stream.base);
    // what is looked at is there in any window
    let to = stream.bytes.len().min(from + LOOK_AHEAD);
    let mut scanner = Scanner::new(stream.bytes.get(from..to).unwrap_or(&[]));
    let next = std::iter::from_fn(|| scanner.next()).find(|packet| {
        !packet.as_ref().is_ok_and(|packet| {
            matches!(
                packet.kind.kind(),
                Kind::Pad | Kind::Cyc | Kind::Mtc | Kind::Tma | Kind::Tsc | Kind::Cbr | Kind::Mnt
            )
        })
    });
    matches!(next, Some(Ok(packet)) if packet.kind == PacketKind::TraceStop)
}

impl Decoder {
    /// Decodes until the sink is full or the window or the stream ends; false if there is no more to come (`Watch` may say
    /// so). `stream` is what `new` was given, or a later window that begins at or before `position`.
    pub fn decode<S: Sink>(&mut self, stream: Window<'_>, sink: &mut S) -> bool {
        self.decode_until(stream, usize::MAX, sink)
    }

    /// As `decode`, but also pauses at the first packet at or after `offset`, where a turn (`Spaces::turn`) may begin, and
    /// where the ledger of a part is full.
    pub fn decode_until<S: Sink>(
        &mut self,
        stream: Window<'_>,
        offset: usize,
        sink: &mut S,
    ) -> bool {
        if self.finished || self.walker.watched.gave_up() {
            return false;
        }
        if !self.later.tell(sink, &mut self.walker.watched) {
            return true;
        }
        let mut later = std::mem::take(&mut self.later);
        let mut gate = Gate {
            sink: &mut *sink,
            later: &mut later,
            packet: 0,
        };
        let goes_on = self.take_packets(stream, offset, &mut gate);
        if self.finished {
            later.tell_the_end(sink, &mut self.walker.watched);
        }
        self.later = later;
        goes_on
    }

    /// As `decode_until`, of a sink that has been told all of the last packet.
    fn take_packets<S: Sink>(&mut self, stream: Window<'_>, offset: usize, sink: &mut S) -> bool {
        if self.searching && !self.search(stream) {
            return true;
        }
        let offset = offset.min(stream.limit());
        let mut scanner = Scanner::within(stream.bytes, stream.base, self.position);
        scanner.set_block(self.block);
        if !self.clock.begun && scanner.position() < offset {
            self.clock.begin(&Here {
                stream,
                offset: scanner.position() as u64,
                block: self.block,
                in_group: false,
                off: false,
            });
        }
        while !sink.is_full()
            && scanner.position() < offset
            && !self.searching
            && !self.ledger.is_full()
            && !self.walker.watched.gave_up()
        {
            if self.state == State::On && self.is_unbound() {
                match self.steps(stream, offset, &mut scanner, sink) {
                    Stepped::On => continue,
                    Stepped::Not => {}
                    Stepped::Never => {
                        if self.short_tnts(stream, offset, &mut scanner, sink) {
                            continue;
                        }
                    }
                }
            }
            let block = scanner.block();
            let in_block = block.is_some();
            match scanner.next() {
                Some(Ok(packet)) if self.begins_turn(&packet) => {
                    scanner.seek(packet.offset);
                    scanner.set_block(block);
                    break;
                }
                Some(Ok(packet))
                    if packet.length > 1 && self.corrupt(&packet, stream, &mut scanner, sink) => {}
                Some(Ok(packet)) => {
                    let row = packet.kind.kind().row();
                    if in_block && !row.in_block {
                        let cause = Cause::InBlock { name: row.name };
                        self.fail(packet.offset as u64, cause, sink);
                    }
                    if packet.kind.kind() == Kind::Cyc {
                        self.look_ahead(0, packet.offset, block, stream);
                    }
                    self.stops = self.moved_cr3.is_some() && stops_next(&packet, stream);
                    self.take(&packet, sink);
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
                        scanner.seek(stream.end());
                    } else {
                        self.seek_psb(error.offset() + 1, stream, &mut scanner);
                    }
                }
                None => {
                    self.finish(stream.end() as u64, sink);
                    break;
                }
            }
        }
        self.walker.give_hits(sink);
        self.position = scanner.position();
        self.block = scanner.block();
        !self.finished && !self.walker.watched.gave_up()
    }

    /// Before a CYC at `offset`; see `Clock::look_ahead`.
    #[inline]
    pub(super) fn look_ahead(
        &mut self,
        uncounted: u64,
        offset: usize,
        block: Option<u8>,
        stream: Window<'_>,
    ) {
        let offset = offset as u64;
        if self.clock.looks_ahead(offset) {
            let here = Here {
                stream,
                offset,
                block,
                in_group: self.group.is_some(),
                off: self.state == State::Off,
            };
            self.clock.look_ahead(uncounted, &here);
        }
    }

    /// Moves to the next PSB, or to the end of the stream. False if this window does not tell where that is.
    fn search(&mut self, stream: Window<'_>) -> bool {
        let found = find_psb(stream.bytes, self.position.saturating_sub(stream.base));
        let found = found.map(|at| at + stream.base);
        self.searching = !stream.last && found.is_none_or(|at| at >= stream.limit());
        self.position = match found {
            Some(at) if !self.searching => at,
            _ if self.searching => self.position.max(stream.limit()),
            _ => stream.end(),
        };
        !self.searching
    }

    /// Nothing waits for what comes next.
    fn is_unbound(&self) -> bool {
        self.bound.is_none() && self.group.is_none() && self.event_data == 0 && self.held.is_empty()
    }

    /// Goes on at the next PSB from `offset` on.
    pub(super) fn seek_psb(
        &mut self,
        offset: usize,
        stream: Window<'_>,
        scanner: &mut Scanner<'_>,
    ) {
        self.clock.lose();
        self.position = offset;
        self.search(stream);
        scanner.set_block(None);
        scanner.seek(self.position);
    }

    fn finish<S: Sink>(&mut self, length: u64, sink: &mut S) {
        self.flush_bound(0, sink);
        self.held.lose(sink);
        sink.close(End::EndOfStream, length);
        self.ledger.finish(length);
        self.finished = true;
    }

    /// Most of a stream: short TNTs one after the other while the program is followed, without the scanner. Whether there
    /// were any.
    #[inline]
    fn short_tnts<S: Sink>(
        &mut self,
        stream: Window<'_>,
        until: usize,
        scanner: &mut Scanner<'_>,
        sink: &mut S,
    ) -> bool {
        let start = Scanner::position(scanner);
        if scanner.block().is_some() {
            return false;
        }
        let (time, now) = (self.clock.stamp(), self.clock.by_rate());
        let mut at = start;
        let bytes = start.checked_sub(stream.base);
        for &byte in bytes.and_then(|at| stream.bytes.get(at..)).unwrap_or(&[]) {
            // even and neither PAD nor the escape
            if byte & 1 != 0 || byte <= 2 || at >= until || sink.is_full() {
                break;
            }
            let count = 6 - byte.leading_zeros() as u8;
            let bits = u64::from(byte >> 1) & ((1 << count) - 1);
            let offset = at as u64;
            let stamp = Stamp { offset, time, now };
            at += 1;
            sink.packet(offset);
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
            self.after_branch = true;
            self.past = 0;
            self.walker.keep_within_limit();
            scanner.seek(at);
        }
        at > start
    }

    #[inline]
    fn take<S: Sink>(&mut self, packet: &Packet, sink: &mut S) {
        let offset = packet.offset as u64;
        let stamp = Stamp {
            offset,
            time: self.clock.stamp(),
            now: self.clock.by_rate(),
        };
        self.counts.packet(packet.kind.kind());
        self.walker.keep_within_limit();
        sink.packet(offset);
        let result = self.dispatch(packet, sink, stamp);
        if let Err(cause) = result {
            self.fail(offset, cause, sink);
            let moves = matches!(packet.kind, PacketKind::Tip(_) | PacketKind::TipPgd(_));
            // it did not fit what went before, and says where the program is now
            if moves && self.state == (State::Lost { resume: true }) {
                if let Err(cause) = self.dispatch(packet, sink, stamp) {
                    self.fail(offset, cause, sink);
                }
            }
        }
        if self.walker.next_turn() != u64::MAX || self.walker.turns() != self.doubt.turns {
            self.note_arrivals(packet);
        }
    }
}
