//! The scanner: a slice of bytes as a sequence of packets; and the search for PSBs (section 33.3.7).

use memchr::memmem;

use crate::error::PacketError;
use crate::packet::{Packet, PacketKind};
use crate::read::{parse_short_tnt, read_packet, ItemSize};

/// Reads one packet after the other and knows whether it is between BBP and BEP (section 33.4.1.1).
///
/// Every call of [`next`](PacketScanner::next) that gives a packet moves on. An error is given once, with the
/// scanner still at the bad packet; after it `next` gives `None` until
/// [`seek_next_psb`](PacketScanner::seek_next_psb) or [`seek_to`](PacketScanner::seek_to).
#[derive(Clone, Debug)]
pub struct PacketScanner<'a> {
    data: &'a [u8],
    /// Offset of `data` in what is scanned.
    base: usize,
    /// From `position` to the end; empty after an error.
    rest: &'a [u8],
    position: usize,
    block: ItemSize,
}

impl<'a> PacketScanner<'a> {
    /// Starts at byte 0, outside a block.
    pub fn new(data: &'a [u8]) -> Self {
        Self::starting_at(data, 0)
    }

    /// Starts at byte `position`, a packet boundary outside a block.
    pub fn starting_at(data: &'a [u8], position: usize) -> Self {
        Self::for_window(data, 0, position)
    }

    /// As `starting_at`, for a window: `data` begins at offset `base` of the stream. All offsets are those of the
    /// stream.
    pub fn for_window(data: &'a [u8], base: usize, position: usize) -> Self {
        let rest = position.checked_sub(base).and_then(|at| data.get(at..));
        Self {
            data,
            base,
            rest: rest.unwrap_or_default(),
            position,
            block: None,
        }
    }

    /// The bytes that are scanned; byte 0 of them is at the offset that [`for_window`](PacketScanner::for_window) was
    /// given.
    pub fn scanned_bytes(&self) -> &'a [u8] {
        self.data
    }

    /// From the next packet to the end; empty after an error.
    pub(crate) fn remaining_bytes(&self) -> &'a [u8] {
        self.rest
    }

    /// Offset of the next packet, or of the one that could not be read.
    pub fn next_packet_offset(&self) -> usize {
        self.position
    }

    /// Inside a block the bytes of its items: 4 or 8.
    pub fn block_item_size(&self) -> Option<u8> {
        self.block
    }

    /// Continues at byte `position`, a packet boundary outside a block.
    pub fn seek_to(&mut self, position: usize) {
        *self = Self::for_window(self.data, self.base, position);
    }

    /// Continues inside or outside a block, as [`block_item_size`](PacketScanner::block_item_size) said: for scanning
    /// in parts. Sizes other than 4 mean 8.
    pub fn set_block_item_size(&mut self, block: Option<u8>) {
        self.block = block.map(|size| if size == 4 { 4 } else { 8 });
    }

    /// Continues at the next PSB (after an error: that follows the bad packet's first byte) and returns its offset.
    /// Without one it returns `None` and the scanner is at the end.
    pub fn seek_next_psb(&mut self) -> Option<usize> {
        let stopped = self.rest.is_empty();
        let from = self.position.saturating_add(usize::from(stopped));
        let found = find_psb(self.data, from.saturating_sub(self.base)).map(|at| at + self.base);
        self.seek_to(found.unwrap_or(self.base + self.data.len()));
        found
    }

    /// The next packet; `None` at the end of the data and after an error.
    #[inline]
    #[allow(clippy::should_implement_trait)] // it is: `Iterator` calls this one
    pub fn next(&mut self) -> Option<Result<Packet, PacketError>> {
        let &first = self.rest.first()?;
        if self.block.is_none() {
            // Most packets of most streams: worth a place in the caller's loop.
            if let Some(tnt) = parse_short_tnt(first) {
                let offset = self.position;
                self.advance_past_packet(1);
                return Some(Ok(Packet {
                    offset,
                    length: 1,
                    kind: PacketKind::Tnt(tnt),
                }));
            }
        }
        Some(self.read_current_packet())
    }

    #[inline(never)]
    fn read_current_packet(&mut self) -> Result<Packet, PacketError> {
        let offset = self.position;
        let (kind, length) = read_packet(self.rest, offset, self.block)
            .and_then(|(kind, length)| match kind {
                PacketKind::Psb => Ok((kind, length)),
                _ if length > 1 && has_psb_within(self.rest, length) => {
                    Err(PacketError::BrokenOff { offset })
                }
                _ => Ok((kind, length)),
            })
            .inspect_err(|_| self.rest = &[])?;
        self.advance_past_packet(length);
        if let PacketKind::Bbp { sz, .. } = kind {
            self.block = Some(if sz { 4 } else { 8 });
        } else if self.block.is_some() && kind.ends_pebs_block() {
            self.block = None;
        }
        Ok(Packet {
            offset,
            length,
            kind,
        })
    }

    #[inline]
    fn advance_past_packet(&mut self, length: usize) {
        self.position += length;
        self.rest = self.rest.get(length..).unwrap_or_default();
    }
}

impl Iterator for PacketScanner<'_> {
    type Item = Result<Packet, PacketError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        PacketScanner::next(self)
    }
}

/// The bytes of a PSB.
pub const PSB: [u8; 16] = [
    0x02, 0x82, 0x02, 0x82, 0x02, 0x82, 0x02, 0x82, 0x02, 0x82, 0x02, 0x82, 0x02, 0x82, 0x02, 0x82,
];

/// Offset of the first PSB that begins at or after `from`; `None` if there is none (or `from` is past the end).
///
/// The payload of a packet before a PSB may look like its beginning, so that a run of 02H 82H is longer than 16 bytes:
/// the PSB is the end of the run.
pub fn find_psb(data: &[u8], from: usize) -> Option<usize> {
    let start = from + memmem::find(data.get(from..)?, &PSB)?;
    let after = data.get(start + PSB.len()..)?;
    let longer = after
        .chunks_exact(2)
        .take_while(|pair| *pair == &PSB[..2])
        .count();
    Some(start + 2 * longer)
}

/// Whether a PSB begins within the `length` bytes of a packet at the beginning of `data`: then these are no packet. A
/// run of 02H 82H that continues after the packet with a whole PSB is the packet's own bytes and that PSB, unless it is
/// long enough for another.
pub fn has_psb_within(data: &[u8], length: usize) -> bool {
    let [first, second] = [PSB[0], PSB[1]];
    let after = data.get(length..).unwrap_or(&[]);
    match after {
        [one, two, ..] if [*one, *two] == [first, second] => {}
        [one, two, ..] if [*one, *two] == [second, first] => {}
        _ => return false,
    }
    let seen = data.len().min(length + PSB.len());
    let Some(at) = data.get(1..seen).and_then(|seen| memmem::find(seen, &PSB)) else {
        return false;
    };
    let run = data.get(1 + at + PSB.len()..).unwrap_or(&[]);
    let more = run
        .chunks_exact(2)
        .take(PSB.len() / 2)
        .take_while(|pair| *pair == [first, second])
        .count();
    match more {
        0..8 => 1 + at + 2 * more < length,
        _ => 1 + at < length,
    }
}
