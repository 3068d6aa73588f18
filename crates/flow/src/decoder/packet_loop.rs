//! The loop over the packets of a stream.
//!
//! `decode_packets` runs until the sink is full, the window or the stream ends, or decoding must pause. While execution
//! is followed and nothing is pending it first tries the transition tables (`table_driven`), then short TNTs without
//! the packet scanner, then one packet by the scanner and `packet_dispatch`. It pauses between packets only;
//! `backpressure` handles packets with more instructions than a sink takes.

use super::table_driven::FastPathResult;
use super::{Decoder, TracingState};
use crate::backpressure::BackpressureSink;
use crate::error::ErrorCause;
use crate::sink::{RunEnd, Sink};
use crate::stream_decoder::StreamWindow;
use crate::time::ScanPosition;
use rtit_packet::{Kind, Packet, PacketKind, PacketScanner};

const LOOK_AHEAD: usize = 32;

/// Whether the next packet but timing is a TraceStop.
fn is_followed_by_trace_stop(packet: &Packet, stream: StreamWindow<'_>) -> bool {
    let from = packet.end_offset().saturating_sub(stream.base);
    // what is looked at is there in any window
    let to = stream.bytes.len().min(from + LOOK_AHEAD);
    let mut scanner = PacketScanner::new(stream.bytes.get(from..to).unwrap_or(&[]));
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
    /// Decodes until the sink is full or the window or the stream ends; false if the stream has ended or was cancelled
    /// (`CancellationToken`). `stream` is that of `new`, or a later window that begins at or before `position`.
    pub fn decode_window<S: Sink>(&mut self, stream: StreamWindow<'_>, sink: &mut S) -> bool {
        self.decode_until_offset(stream, usize::MAX, sink)
    }

    /// As `decode_window`, but also pauses at the first packet at or after `offset`, where a scheduling interval may
    /// begin, and where the ledger of a part is full.
    pub fn decode_until_offset<S: Sink>(
        &mut self,
        stream: StreamWindow<'_>,
        offset: usize,
        sink: &mut S,
    ) -> bool {
        if self.state.is_at_end || self.interpreter.cancellation.is_cancelled() {
            return false;
        }
        if !self
            .deferred_calls
            .deliver_to_sink(sink, false, &mut self.interpreter.cancellation)
        {
            return true;
        }
        let mut deferred_calls = std::mem::take(&mut self.deferred_calls);
        let mut bounded_sink = BackpressureSink {
            sink: &mut *sink,
            deferred_calls: &mut deferred_calls,
            packet: 0,
        };
        let continues = self.decode_packets(stream, offset, &mut bounded_sink);
        if self.state.is_at_end {
            deferred_calls.deliver_to_sink(sink, true, &mut self.interpreter.cancellation);
        }
        self.deferred_calls = deferred_calls;
        continues
    }

    /// Does as `decode_until_offset`, when no calls are deferred.
    fn decode_packets<S: Sink>(
        &mut self,
        stream: StreamWindow<'_>,
        offset: usize,
        sink: &mut S,
    ) -> bool {
        if self.state.is_searching_psb && !self.search_psb(stream) {
            return true;
        }
        let offset = offset.min(stream.packet_start_limit());
        let mut scanner = PacketScanner::for_window(stream.bytes, stream.base, self.state.position);
        scanner.set_block_item_size(self.state.block);
        if !self.clock.begun && scanner.next_packet_offset() < offset {
            self.clock.begin_stream(&ScanPosition {
                stream,
                offset: scanner.next_packet_offset() as u64,
                block: self.state.block,
                in_psb_plus: false,
                off: false,
            });
        }
        while !sink.is_full()
            && scanner.next_packet_offset() < offset
            && !self.state.is_searching_psb
            && !self.ledger.is_full()
            && !self.interpreter.cancellation.is_cancelled()
        {
            if self.state.tracing == TracingState::On && self.has_no_pending_state() {
                match self.decode_by_transitions(stream, offset, &mut scanner, sink) {
                    FastPathResult::Decoded => continue,
                    FastPathResult::NotHandled => {}
                    FastPathResult::Disallowed => {
                        if self.decode_short_tnts(stream, offset, &mut scanner, sink) {
                            continue;
                        }
                    }
                }
            }
            let block = scanner.block_item_size();
            let in_block = block.is_some();
            match scanner.next() {
                Some(Ok(packet)) if self.must_pause_before(&packet) => {
                    scanner.seek_to(packet.offset);
                    scanner.set_block_item_size(block);
                    break;
                }
                Some(Ok(packet))
                    if packet.length > 1
                        && self.work_around_erratum(&packet, stream, &mut scanner, sink) => {}
                Some(Ok(packet)) => {
                    let row = packet.kind.kind().declaration();
                    if in_block && !row.in_block {
                        let cause = ErrorCause::InBlock { name: row.name };
                        self.begin_loss(packet.offset as u64, cause, sink);
                    }
                    if packet.kind.kind() == Kind::Cyc {
                        self.look_ahead_before_cyc(0, packet.offset, block, stream);
                    }
                    self.tracestop_follows = self.state.last_mov_cr3.is_some()
                        && is_followed_by_trace_stop(&packet, stream);
                    self.decode_packet(&packet, sink);
                }
                Some(Err(error)) => {
                    let cut = error.is_truncated();
                    let cause = if cut {
                        ErrorCause::CutPacket
                    } else {
                        ErrorCause::Packet(error)
                    };
                    self.begin_loss(error.offset() as u64, cause, sink);
                    if cut {
                        scanner.seek_to(stream.end());
                    } else {
                        self.seek_psb(error.offset() + 1, stream, &mut scanner);
                    }
                }
                None => {
                    self.finish_stream(stream.end() as u64, sink);
                    break;
                }
            }
        }
        self.interpreter.report_transition_counts(sink);
        self.state.position = scanner.next_packet_offset();
        self.state.block = scanner.block_item_size();
        !self.state.is_at_end && !self.interpreter.cancellation.is_cancelled()
    }

    /// Before a CYC at `offset`; see `EstimatedClock::look_ahead_to_next_time`.
    #[inline]
    pub(super) fn look_ahead_before_cyc(
        &mut self,
        uncounted: u64,
        offset: usize,
        block: Option<u8>,
        stream: StreamWindow<'_>,
    ) {
        let offset = offset as u64;
        if self.clock.needs_lookahead_before_cyc(offset) {
            let here = ScanPosition {
                stream,
                offset,
                block,
                in_psb_plus: self.state.psb_plus.is_some(),
                off: self.state.tracing == TracingState::Off,
            };
            self.clock.look_ahead_to_next_time(uncounted, &here);
        }
    }

    /// Whether nothing waits for the next packet.
    fn has_no_pending_state(&self) -> bool {
        self.state.awaiting_fup.is_none()
            && self.state.psb_plus.is_none()
            && self.state.pending_evd_types == 0
            && self.state.pending_events.is_empty()
    }

    fn finish_stream<S: Sink>(&mut self, length: u64, sink: &mut S) {
        self.flush_awaiting_fup(0, sink);
        self.state.pending_events.report_incomplete_events(sink);
        sink.end_run(RunEnd::EndOfStream, length);
        self.ledger.finish_ledger(length);
        self.state.is_at_end = true;
    }

    /// Most of a stream: short TNTs one after the other while the program is followed, without the scanner. Whether
    /// there were any.
    #[inline]
    fn decode_short_tnts<S: Sink>(
        &mut self,
        stream: StreamWindow<'_>,
        until: usize,
        scanner: &mut PacketScanner<'_>,
        sink: &mut S,
    ) -> bool {
        let start = PacketScanner::next_packet_offset(scanner);
        if scanner.block_item_size().is_some() {
            return false;
        }
        self.set_current_packet(start as u64);
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
            self.interpreter.packet.offset = offset;
            at += 1;
            sink.begin_packet(offset);
            if let Err(cause) = self.interpreter.apply_tnt(sink, (bits, count)) {
                self.begin_loss(offset, cause, sink);
                break;
            }
        }
        if at > start {
            let packets = (at - start) as u64;
            self.interpreter.counts.add_packets(Kind::Tnt, packets);
            self.state.after_branch = true;
            self.state.instructions_past_ip = 0;
            self.interpreter.keep_cache_within_limit();
            scanner.seek_to(at);
        }
        at > start
    }

    #[inline]
    fn decode_packet<S: Sink>(&mut self, packet: &Packet, sink: &mut S) {
        let offset = packet.offset as u64;
        self.set_current_packet(offset);
        self.interpreter.counts.add_packets(packet.kind.kind(), 1);
        self.interpreter.keep_cache_within_limit();
        sink.begin_packet(offset);
        let result = self.dispatch_packet(packet, sink);
        if let Err(cause) = result {
            self.begin_loss(offset, cause, sink);
            let moves = matches!(packet.kind, PacketKind::Tip(_) | PacketKind::TipPgd(_));
            // it contradicts the packets before, and gives the current IP
            if moves && self.state.tracing == (TracingState::Lost { resume: true }) {
                if let Err(cause) = self.dispatch_packet(packet, sink) {
                    self.begin_loss(offset, cause, sink);
                }
            }
        }
        if self.interpreter.selector.next_interval_start() != u64::MAX
            || self.interpreter.selector.begun_interval_count() != self.ambiguous.intervals_begun
        {
            self.track_ambiguity(packet);
        }
    }
}
