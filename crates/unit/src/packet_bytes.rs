//! The bytes of packets, computed from the packet table's headers and fields, and the buffer that collects them.

use rtit_packet::table::{field, FieldLayout, Kind, IP_PAYLOAD, ROWS};

/// A packet of at most 8 bytes, as a little-endian word, and its size.
pub(crate) type ShortPacket = (u64, usize);

const fn header_word(kind: Kind) -> u64 {
    let bytes = ROWS[kind as usize].header;
    let (mut word, mut index) = (0, 0);
    while index < bytes.len() {
        word |= (bytes[index] as u64) << (8 * index);
        index += 1;
    }
    word
}

const fn packet_size(kind: Kind) -> usize {
    ROWS[kind as usize].size as usize
}

const fn field_bits(field: FieldLayout, value: u64) -> u64 {
    let low = (value >> field.shift) & (u64::MAX >> (64 - field.width));
    low << (8 * field.byte as u32 + field.bit)
}

const fn packet_with_field(kind: Kind, field: FieldLayout, value: u64) -> ShortPacket {
    (
        header_word(kind) | field_bits(field, value),
        packet_size(kind),
    )
}

pub(crate) const TIP: u8 = header_word(Kind::Tip) as u8;
pub(crate) const TIP_PGE: u8 = header_word(Kind::TipPge) as u8;
pub(crate) const TIP_PGD: u8 = header_word(Kind::TipPgd) as u8;
pub(crate) const FUP: u8 = header_word(Kind::Fup) as u8;

pub(crate) const PGD_SUPPRESSED: ShortPacket =
    (header_word(Kind::TipPgd), packet_size(Kind::TipPgd));
pub(crate) const TRACE_STOP: ShortPacket =
    (header_word(Kind::TraceStop), packet_size(Kind::TraceStop));
pub(crate) const OVF: ShortPacket = (header_word(Kind::Ovf), packet_size(Kind::Ovf));
pub(crate) const PSBEND: ShortPacket = (header_word(Kind::PsbEnd), packet_size(Kind::PsbEnd));
/// Outside a transaction.
pub(crate) const MODE_TSX: ShortPacket = (header_word(Kind::ModeTsx), packet_size(Kind::ModeTsx));

/// Returns the bits that IPBytes adds to the header byte of an IP packet, and the size of the payload.
pub(crate) const fn ip_header_bits_and_size(ip_bytes: u8) -> (u8, u8) {
    let bytes = match IP_PAYLOAD[ip_bytes as usize & 7] {
        Some(bytes) => bytes,
        None => 0,
    };
    (field_bits(field::IP_BYTES, ip_bytes as u64) as u8, bytes)
}

/// Returns a short TNT of at most 6 bits, given below a stop bit.
#[inline(always)]
pub(crate) fn short_tnt(tnt: u64) -> ShortPacket {
    const EMPTY: ShortPacket = packet_with_field(Kind::Tnt, field::TNT_BITS, 0);
    (EMPTY.0 | field_bits(field::TNT_BITS, tnt), EMPTY.1)
}

/// Returns a long TNT of at most 47 bits, given below a stop bit.
#[inline(always)]
pub(crate) fn long_tnt(tnt: u64) -> ShortPacket {
    const EMPTY: ShortPacket = packet_with_field(Kind::Tnt64, field::TNT_64_BITS, 0);
    (EMPTY.0 | field_bits(field::TNT_64_BITS, tnt), EMPTY.1)
}

/// Returns a MODE.Exec; `mode` as `CoreState::mode`.
pub(crate) fn mode_exec_packet(mode: u8) -> ShortPacket {
    let bit = |number: u8| u64::from(mode >> number & 1);
    let (word, size) = packet_with_field(Kind::ModeExec, field::MODE_EXEC_CSL, bit(0));
    let others =
        field_bits(field::MODE_EXEC_CSD, bit(1)) | field_bits(field::MODE_EXEC_IFLAG, bit(2));
    (word | others, size)
}

/// Returns a PIP with NR clear.
pub(crate) fn pip_packet(cr3: u64) -> ShortPacket {
    packet_with_field(Kind::Pip, field::PIP_CR3, cr3)
}

/// Returns a CFE; `alone`: a FUP that belongs to it alone follows.
pub(crate) fn cfe_packet(alone: bool, kind: u8, vector: u8) -> ShortPacket {
    let (word, size) = packet_with_field(Kind::Cfe, field::CFE_TYPE, kind.into());
    let others =
        field_bits(field::CFE_IP, alone.into()) | field_bits(field::CFE_VECTOR, vector.into());
    (word | others, size)
}

/// Returns the EVD of a page fault (type 0) with the faulting address.
pub(crate) fn page_fault_evd(address: u64) -> [u8; packet_size(Kind::Evd)] {
    let mut bytes = [0; packet_size(Kind::Evd)];
    bytes[..8].copy_from_slice(&header_word(Kind::Evd).to_le_bytes());
    bytes[field::EVD_PAYLOAD.byte..].copy_from_slice(&address.to_le_bytes());
    bytes
}

/// Returns a MWAIT packet.
pub(crate) fn mwait_packet(hints: u8, extensions: u8) -> [u8; packet_size(Kind::Mwait)] {
    let word = header_word(Kind::Mwait)
        | field_bits(field::MWAIT_HINTS, hints.into())
        | field_bits(field::MWAIT_EXT, extensions.into());
    let mut bytes = [0; packet_size(Kind::Mwait)];
    bytes[..8].copy_from_slice(&word.to_le_bytes());
    bytes
}

/// Returns a PWRE of a C-state that an instruction requested.
pub(crate) fn pwre_packet(state: u8, sub_state: u8) -> ShortPacket {
    let (word, size) = packet_with_field(Kind::Pwre, field::PWRE_STATE, state.into());
    (
        word | field_bits(field::PWRE_SUB_STATE, sub_state.into()),
        size,
    )
}

pub(crate) fn exstop_packet(has_ip: bool) -> ShortPacket {
    packet_with_field(Kind::ExStop, field::EXSTOP_IP, has_ip.into())
}

pub(crate) fn pwrx_packet(last: u8, deepest: u8, reason: u8) -> ShortPacket {
    let (word, size) = packet_with_field(Kind::Pwrx, field::PWRX_LAST, last.into());
    let others = field_bits(field::PWRX_DEEPEST, deepest.into())
        | field_bits(field::PWRX_WAKE, reason.into());
    (word | others, size)
}

/// Returns a TSC packet with the low 56 bits.
pub(crate) fn tsc_packet(tsc: u64) -> ShortPacket {
    packet_with_field(Kind::Tsc, field::TSC_TSC, tsc)
}

pub(crate) fn tma_packet(ctc: u64, fast_counter: u64) -> ShortPacket {
    let (word, size) = packet_with_field(Kind::Tma, field::TMA_CTC, ctc);
    (
        word | field_bits(field::TMA_FAST_COUNTER, fast_counter),
        size,
    )
}

pub(crate) fn cbr_packet(ratio: u64) -> ShortPacket {
    packet_with_field(Kind::Cbr, field::CBR_RATIO, ratio)
}

pub(crate) fn mtc_packet(ctc: u64) -> ShortPacket {
    // A constant: looking the table up here shows in a profile.
    const EMPTY: ShortPacket = packet_with_field(Kind::Mtc, field::MTC_CTC, 0);
    (EMPTY.0 | field_bits(field::MTC_CTC, ctc), EMPTY.1)
}

/// Returns a CYC in its shortest form, for fewer than 2^61 cycles: 5 bits in the first byte, 7 in each further one,
/// each byte with a bit that announces another (Table 33-33).
pub(crate) fn cyc_packet(cycles: u64) -> ([u8; 9], usize) {
    let mut bytes = [0; 9];
    let (word, _) = packet_with_field(Kind::Cyc, field::CYC_CYCLES, cycles);
    bytes[0] = word as u8;
    let mut rest = cycles >> field::CYC_CYCLES.width;
    let mut count = 1;
    let mut more = 1 << (field::CYC_CYCLES.bit - 1);
    while rest != 0 && count < bytes.len() {
        bytes[count - 1] |= more;
        bytes[count] = (rest << 1) as u8;
        more = 1;
        rest >>= 7;
        count += 1;
    }
    (bytes, count)
}

/// Only PSB is longer.
const SLOT: usize = 16;
const FIRST_SIZE: usize = 4096;

/// A buffer with room after `position`, so that a packet is stored whole and then counted.
#[derive(Clone, Default)]
pub(crate) struct PacketBuffer {
    bytes: Vec<u8>,
    position: usize,
}

impl PacketBuffer {
    #[inline(always)]
    pub(crate) fn position(&self) -> usize {
        self.position
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        self.bytes.get(..self.position).unwrap_or_default()
    }

    #[inline(always)]
    pub(crate) fn put_packet(&mut self, (word, size): ShortPacket) {
        self.next_packet_slot()[..8].copy_from_slice(&word.to_le_bytes());
        self.position += size;
    }

    /// Stores `first`, then the `size` low bytes of `word`.
    #[inline(always)]
    pub(crate) fn put_ip_packet(&mut self, first: u8, word: u64, size: u8) {
        let slot = self.next_packet_slot();
        slot[0] = first;
        slot[1..9].copy_from_slice(&word.to_le_bytes());
        self.position += 1 + usize::from(size);
    }

    pub(crate) fn put_bytes(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(SLOT) {
            self.next_packet_slot()[..part.len()].copy_from_slice(part);
            self.position += part.len();
        }
    }

    pub(crate) fn truncate_packets(&mut self, position: usize) {
        self.position = self.position.min(position);
    }

    /// Drops all but the last `count` bytes and returns how many were dropped.
    pub(crate) fn keep_last(&mut self, count: usize) -> usize {
        let gone = self.position.saturating_sub(count);
        self.bytes.copy_within(gone..self.position, 0);
        self.position -= gone;
        gone
    }

    /// Reserves `size` bytes after the position; `advance_position` counts those that were used.
    #[inline(always)]
    pub(crate) fn reserve_bytes(&mut self, size: usize) -> &mut [u8] {
        while self.bytes.len() < self.position + size + SLOT {
            self.grow_buffer();
        }
        &mut self.bytes[self.position..self.position + size]
    }

    #[inline(always)]
    pub(crate) fn advance_position(&mut self, size: usize) {
        self.position += size;
    }

    /// Returns whether the next packet needs no more memory.
    #[inline(always)]
    pub(crate) fn has_room(&self) -> bool {
        self.bytes.len() - self.position >= SLOT
    }

    #[inline(always)]
    fn next_packet_slot(&mut self) -> &mut [u8] {
        if !self.has_room() {
            self.grow_buffer();
        }
        &mut self.bytes[self.position..self.position + SLOT]
    }

    #[cold]
    fn grow_buffer(&mut self) {
        self.bytes.resize((2 * self.bytes.len()).max(FIRST_SIZE), 0);
    }
}
