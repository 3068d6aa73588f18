//! Workarounds for errata: where the packets of known processors deviate from the chapter.
//!
//! Which errata apply is in [`crate::errata`]. Here is what the decoder does about those that need more than one line:
//! packets with wrong bytes (SKD007, SKZ84), a FUP after OVF outside the filter ranges (APL12), and a VM entry that
//! looks like an event (SKD022).

use super::{Decoder, TracingState};
use crate::coverage_ledger::ByteStatus;
use crate::error::ErrorCause;
use crate::event::EventKind;
use crate::settings::Erratum;
use crate::sink::Sink;
use crate::stream_decoder::StreamWindow;
use rtit_packet::{Kind, Packet, PacketError, PacketKind, PacketScanner};

impl Decoder {
    /// Deals with a packet of several bytes that must not be taken at its word; true if it was one.
    pub(super) fn work_around_erratum<S: Sink>(
        &mut self,
        packet: &Packet,
        stream: StreamWindow<'_>,
        scanner: &mut PacketScanner<'_>,
        sink: &mut S,
    ) -> bool {
        let offset = packet.offset as u64;
        let byte = |at: usize| stream.byte_at(packet.offset + at).unwrap_or(0);
        match packet.kind {
            // its second byte is the escape of an OVF, whose other byte reads as a CYC
            PacketKind::Cyc { .. } if self.errata.has_erratum(Erratum::Skd007) => {
                if packet.length != 2 || byte(1) != 0x02 || byte(2) != 0xf3 {
                    return false;
                }
                self.interpreter.counts.add_erratum(Erratum::Skd007);
                self.interpreter.counts.add_packets(Kind::Ovf, 1);
                self.set_current_packet(offset + 1);
                self.state.psb_plus = None;
                self.flush_awaiting_fup(0, sink);
                self.handle_overflow(sink);
                scanner.seek_to(packet.offset + 3);
                scanner.set_block_item_size(None);
                true
            }
            // corrupt values show in the reserved bits, if at all
            PacketKind::Tma { .. } if self.errata.has_erratum(Erratum::Skz84) => {
                let reserved = [byte(4), byte(6) & 0xfe];
                let Some(&bad) = reserved.iter().find(|&&byte| byte != 0) else {
                    return false;
                };
                if self.errata.is_processor_known() {
                    self.interpreter.counts.add_erratum(Erratum::Skz84);
                    self.interpreter.counts.add_packets(Kind::Tma, 1);
                    scanner.seek_to(packet.end_offset() + 1);
                    return true;
                }
                // a stray byte may follow, which could be any packet
                let error = PacketError::Reserved {
                    offset: packet.offset,
                    packet: Kind::Tma.name(),
                    byte: bad,
                };
                self.begin_loss(offset, ErrorCause::Packet(error), sink);
                self.seek_psb(packet.offset + 1, stream, scanner);
                true
            }
            _ => false,
        }
    }

    /// Erratum APL12: nothing has run since a FUP that came after OVF, perhaps though tracing was outside the filter
    /// ranges. Packets that do not depend on PacketEn may come before the next one shows that.
    pub(super) fn may_be_outside_filter_ranges(&self) -> bool {
        self.state.tracing == TracingState::On
            && self.errata.has_erratum(Erratum::Apl12)
            && self.instructions_at_overflow_fup == Some(self.interpreter.counts.instructions)
    }

    /// Whether execution was outside the filter ranges (`may_be_outside_filter_ranges`). If so, tracing is off.
    pub(super) fn is_outside_filter_ranges(&mut self) -> bool {
        let outside = self.may_be_outside_filter_ranges();
        if outside {
            self.interpreter.counts.add_erratum(Erratum::Apl12);
            self.instructions_at_overflow_fup = None;
            self.state.tracing = TracingState::Off;
        }
        outside
    }

    /// Erratum SKD022: the FUP of an event, and the VM entry there has run.
    pub(super) fn handle_vm_entry_that_disabled_tracing<S: Sink>(
        &mut self,
        at: u64,
        target: Option<u64>,
        sink: &mut S,
    ) -> bool {
        let asked = self.errata.has_erratum(Erratum::Skd022) || !self.errata.is_processor_known();
        if !asked
            || self.ledger.current_status() == ByteStatus::Lost
            || self.interpreter.next_instruction_address() != at
        {
            return false;
        }
        let Some(entry) = self.interpreter.vm_entry_at_current_ip() else {
            return false;
        };
        if !self.errata.is_processor_known() {
            self.begin_loss(
                self.interpreter.packet.offset,
                ErrorCause::VmEntryOrEvent { ip: at },
                sink,
            );
            return false;
        }
        self.interpreter.run_vm_entry(entry, sink);
        self.interpreter.counts.add_erratum(Erratum::Skd022);
        self.report_event(EventKind::Disabled, at, target.unwrap_or(0), sink);
        true
    }
}
