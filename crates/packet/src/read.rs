//! Reads one packet from bytes, by the generated table.

use crate::error::PacketError;
use crate::packet::{IpPayload, PacketKind, TntPayload};
use crate::scan::PSB;
use crate::table::{self, field, FieldLayout, Kind, PacketDeclaration, ROWS};

/// Bytes of the items of an open block.
pub(crate) type ItemSize = Option<u8>;

#[derive(Clone, Copy)]
enum HeaderByte {
    Defined(Kind),
    Escape,
    Undefined,
}

/// By first byte. MODE packets share theirs; it stands here for MODE.Exec, the first of them in the table.
const FIRST: [HeaderByte; 256] = most_specific_packets(0);
/// By the byte after the escape.
const SECOND: [HeaderByte; 256] = most_specific_packets(1);

/// For each value of header byte `index` the packet with the most specific mask.
const fn most_specific_packets(index: usize) -> [HeaderByte; 256] {
    let mut opcodes = [HeaderByte::Undefined; 256];
    let mut value = 0;
    while value < 256 {
        let mut bits = 0;
        let mut i = 0;
        while i < ROWS.len() {
            let row = &ROWS[i];
            let escaped = row.header[0] == table::ESCAPE;
            if !row.only_in_block
                && escaped == (index == 1)
                && value as u8 & row.mask[index] == row.header[index]
                && row.mask[index].count_ones() > bits
            {
                bits = row.mask[index].count_ones();
                opcodes[value] = HeaderByte::Defined(row.kind);
            }
            i += 1;
        }
        value += 1;
    }
    if index == 0 {
        opcodes[table::ESCAPE as usize] = HeaderByte::Escape;
    }
    opcodes
}

const BIP: &PacketDeclaration = Kind::Bip.declaration();
const EXEC: &PacketDeclaration = Kind::ModeExec.declaration();
const TSX: &PacketDeclaration = Kind::ModeTsx.declaration();
const MNT: &PacketDeclaration = Kind::Mnt.declaration();

/// The results of a short TNT, if `first` is one outside a block.
#[inline]
pub(crate) fn parse_short_tnt(first: u8) -> Option<TntPayload> {
    matches!(FIRST[first as usize], HeaderByte::Defined(Kind::Tnt))
        .then(|| tnt_below_stop_bit(u64::from(first >> field::TNT_BITS.bit)))
}

/// The packet at the start of `rest`, which is at `offset`, and its length. `rest` is not empty.
#[inline(always)]
pub(crate) fn read_packet(
    rest: &[u8],
    offset: usize,
    block: ItemSize,
) -> Result<(PacketKind, usize), PacketError> {
    let Some(&first) = rest.first() else {
        return Err(PacketError::Truncated { offset });
    };
    let kind = match FIRST[first as usize] {
        HeaderByte::Defined(kind) => kind,
        HeaderByte::Escape => return read_escaped(rest, offset),
        HeaderByte::Undefined => {
            return Err(PacketError::UnknownOpcode {
                offset,
                first,
                second: None,
            })
        }
    };
    let ip = |kind: fn(IpPayload) -> PacketKind| {
        read_ip(rest, offset).map(|(ip, length)| (kind(ip), length))
    };
    Ok(match kind {
        Kind::Tnt => {
            if block.is_some() && first & BIP.mask[0] == BIP.header[0] {
                return read_block_item(rest, offset, block);
            }
            (
                PacketKind::Tnt(tnt_below_stop_bit(u64::from(first >> field::TNT_BITS.bit))),
                1,
            )
        }
        Kind::Tip => return ip(PacketKind::Tip),
        Kind::Cyc => return read_cyc(rest, offset, first),
        Kind::TipPge => return ip(PacketKind::TipPge),
        Kind::TipPgd => return ip(PacketKind::TipPgd),
        Kind::Fup => return ip(PacketKind::Fup),
        Kind::Mtc => {
            let length = checked_packet_size(rest, offset, kind)?;
            (
                PacketKind::Mtc {
                    ctc: read_field(rest, field::MTC_CTC) as u8,
                },
                length,
            )
        }
        Kind::Tsc => {
            let length = checked_packet_size(rest, offset, kind)?;
            (
                PacketKind::Tsc {
                    tsc: read_field(rest, field::TSC_TSC),
                },
                length,
            )
        }
        Kind::Pad => (PacketKind::Pad, 1),
        Kind::ModeExec => return read_mode(rest, offset),
        Kind::Trig => return read_trig(rest, offset),
        _ => {
            return Err(PacketError::UnknownOpcode {
                offset,
                first,
                second: None,
            })
        }
    })
}

fn read_escaped(rest: &[u8], offset: usize) -> Result<(PacketKind, usize), PacketError> {
    let Some(&second) = rest.get(1) else {
        return Err(PacketError::Truncated { offset });
    };
    let unknown = PacketError::UnknownOpcode {
        offset,
        first: table::ESCAPE,
        second: Some(second),
    };
    let HeaderByte::Defined(kind) = SECOND[second as usize] else {
        return Err(unknown);
    };
    // Headers of more than two bytes.
    if kind == Kind::Psb
        && (!rest.iter().zip(&PSB).all(|(byte, psb)| byte == psb) || is_longer_than_one_psb(rest))
    {
        return Err(PacketError::BrokenPsb { offset });
    }
    if kind == Kind::Mnt && rest.get(2).is_some_and(|&byte| byte != MNT.header[2]) {
        return Err(unknown);
    }
    let length = checked_packet_size(rest, offset, kind)?;
    let at = |field: FieldLayout| read_field(rest, field);
    let byte = |field: FieldLayout| read_field(rest, field) as u8;
    let flag = |field: FieldLayout| read_field(rest, field) != 0;
    let packet = match kind {
        Kind::Psb => PacketKind::Psb,
        Kind::PsbEnd => PacketKind::PsbEnd,
        Kind::Tnt64 => {
            let code = at(field::TNT_64_BITS);
            if code < 2 {
                return Err(PacketError::EmptyTnt { offset });
            }
            PacketKind::Tnt64(tnt_below_stop_bit(code))
        }
        Kind::Tma => PacketKind::Tma {
            ctc: at(field::TMA_CTC) as u16,
            fast_counter: at(field::TMA_FAST_COUNTER) as u16,
        },
        Kind::Cbr => PacketKind::Cbr {
            ratio: byte(field::CBR_RATIO),
        },
        Kind::Pip => PacketKind::Pip {
            nr: flag(field::PIP_NR),
            cr3: at(field::PIP_CR3),
        },
        Kind::Vmcs => PacketKind::Vmcs {
            pointer: at(field::VMCS_POINTER),
        },
        Kind::Ovf => PacketKind::Ovf,
        Kind::TraceStop => PacketKind::TraceStop,
        Kind::Mnt => PacketKind::Mnt {
            payload: at(field::MNT_PAYLOAD),
        },
        Kind::Ptw => return read_ptw(rest, offset, second),
        Kind::ExStop => PacketKind::ExStop {
            ip: flag(field::EXSTOP_IP),
        },
        Kind::Mwait => PacketKind::Mwait {
            hints: byte(field::MWAIT_HINTS),
            ext: byte(field::MWAIT_EXT),
        },
        Kind::Pwre => PacketKind::Pwre {
            hw: flag(field::PWRE_HW),
            state: byte(field::PWRE_STATE),
            sub_state: byte(field::PWRE_SUB_STATE),
        },
        Kind::Pwrx => PacketKind::Pwrx {
            last: byte(field::PWRX_LAST),
            deepest: byte(field::PWRX_DEEPEST),
            wake: byte(field::PWRX_WAKE),
        },
        Kind::Bbp => PacketKind::Bbp {
            sz: flag(field::BBP_SZ),
            kind: byte(field::BBP_TYPE),
        },
        Kind::Bep => PacketKind::Bep {
            ip: flag(field::BEP_IP),
        },
        Kind::Cfe => PacketKind::Cfe {
            ip: flag(field::CFE_IP),
            kind: byte(field::CFE_TYPE),
            vector: byte(field::CFE_VECTOR),
        },
        Kind::Evd => PacketKind::Evd {
            kind: byte(field::EVD_TYPE),
            payload: at(field::EVD_PAYLOAD),
        },
        _ => return Err(unknown),
    };
    Ok((packet, length))
}

/// Whether the run of 02H 82H that begins with `psb` is longer than one PSB and is not two. A run ends with its PSB
/// (`find_psb`).
fn is_longer_than_one_psb(psb: &[u8]) -> bool {
    let more = psb.get(PSB.len()..).unwrap_or(&[]);
    let pairs = more
        .chunks_exact(2)
        .take(PSB.len() / 2)
        .take_while(|pair| *pair == &PSB[..2])
        .count();
    // at the end of the data this is unknown
    let after = more.get(2 * pairs..).unwrap_or(&[]);
    (1..PSB.len() / 2).contains(&pairs) && !PSB[..2].starts_with(after)
}

#[inline]
fn read_ip(rest: &[u8], offset: usize) -> Result<(IpPayload, usize), PacketError> {
    let ip_bytes = read_field(rest, field::IP_BYTES) as u8;
    let Some(Some(size)) = table::IP_PAYLOAD.get(ip_bytes as usize) else {
        return Err(reserved_bits_error(rest, offset, 0));
    };
    let length = 1 + *size as usize;
    check_length(rest, offset, length)?;
    Ok((
        IpPayload {
            ip_bytes,
            payload: read_little_endian(rest, 1, *size as usize),
        },
        length,
    ))
}

#[inline]
fn read_cyc(rest: &[u8], offset: usize, first: u8) -> Result<(PacketKind, usize), PacketError> {
    let low = u64::from(first >> field::CYC_CYCLES.bit);
    if first & 4 == 0 {
        return Ok((PacketKind::Cyc { cycles: low }, 1));
    }
    let mut cycles = low;
    let mut length = 1;
    loop {
        let Some(&byte) = rest.get(length) else {
            return Err(PacketError::Truncated { offset });
        };
        cycles |= u64::from(byte >> 1) << (7 * length - 2);
        length += 1;
        if byte & 1 == 0 {
            return Ok((PacketKind::Cyc { cycles }, length));
        }
        if length == table::CYC_MAX_BYTES {
            return Err(PacketError::LongCyc { offset });
        }
    }
}

fn read_mode(rest: &[u8], offset: usize) -> Result<(PacketKind, usize), PacketError> {
    let Some(&byte) = rest.get(1) else {
        return Err(PacketError::Truncated { offset });
    };
    let flag = |field: FieldLayout| read_field(rest, field) != 0;
    let (packet, (mask, value)) = if byte & EXEC.mask[1] == EXEC.header[1] {
        let exec = PacketKind::ModeExec {
            csl: flag(field::MODE_EXEC_CSL),
            csd: flag(field::MODE_EXEC_CSD),
            iflag: flag(field::MODE_EXEC_IFLAG),
        };
        (exec, table::MODE_EXEC_INVALID)
    } else if byte & TSX.mask[1] == TSX.header[1] {
        let tsx = PacketKind::ModeTsx {
            in_tx: flag(field::MODE_TSX_IN_TX),
            tx_abort: flag(field::MODE_TSX_TX_ABORT),
        };
        (tsx, table::MODE_TSX_INVALID)
    } else {
        return Err(reserved_bits_error(rest, offset, 1));
    };
    if byte & mask == value {
        return Err(reserved_bits_error(rest, offset, 1));
    }
    Ok((packet, 2))
}

fn read_ptw(rest: &[u8], offset: usize, second: u8) -> Result<(PacketKind, usize), PacketError> {
    let payload_bytes = read_field(rest, field::PTW_PAYLOAD_BYTES) as u8;
    let Some(Some(size)) = table::PTW_PAYLOAD.get(payload_bytes as usize) else {
        return Err(PacketError::Reserved {
            offset,
            packet: Kind::Ptw.name(),
            byte: second,
        });
    };
    let length = 2 + *size as usize;
    check_length(rest, offset, length)?;
    let ip = read_field(rest, field::PTW_IP) != 0;
    Ok((
        PacketKind::Ptw {
            ip,
            payload_bytes,
            payload: read_little_endian(rest, 2, *size as usize),
        },
        length,
    ))
}

fn read_block_item(
    rest: &[u8],
    offset: usize,
    block: ItemSize,
) -> Result<(PacketKind, usize), PacketError> {
    let size = block.unwrap_or(8) as usize;
    check_length(rest, offset, 1 + size)?;
    let id = read_field(rest, field::BIP_ID) as u8;
    Ok((
        PacketKind::Bip {
            id,
            sz: size == 4,
            payload: read_little_endian(rest, 1, size),
        },
        1 + size,
    ))
}

fn read_trig(rest: &[u8], offset: usize) -> Result<(PacketKind, usize), PacketError> {
    let length = checked_packet_size(rest, offset, Kind::Trig)?;
    let icntv = read_field(rest, field::TRIG_ICNTV) != 0;
    let more = table::TRIG_PAYLOAD[usize::from(icntv)].unwrap_or(0) as usize;
    check_length(rest, offset, length + more)?;
    let packet = PacketKind::Trig {
        ip: read_field(rest, field::TRIG_IP) != 0,
        mult: read_field(rest, field::TRIG_MULT) != 0,
        trbv: read_field(rest, field::TRIG_TRBV) as u8,
        icnt: icntv.then(|| read_little_endian(rest, length, more) as u16),
    };
    Ok((packet, length + more))
}

/// The results below the stop bit of `code`, which is at least 2.
#[inline]
fn tnt_below_stop_bit(code: u64) -> TntPayload {
    let count = code.checked_ilog2().unwrap_or(0);
    TntPayload {
        count: count as u8,
        bits: code & !(1 << count),
    }
}

#[inline]
fn check_length(rest: &[u8], offset: usize, length: usize) -> Result<(), PacketError> {
    if rest.len() < length {
        return Err(PacketError::Truncated { offset });
    }
    Ok(())
}

#[inline]
fn checked_packet_size(rest: &[u8], offset: usize, kind: Kind) -> Result<usize, PacketError> {
    let length = kind.declaration().size as usize;
    check_length(rest, offset, length).map(|()| length)
}

#[cold]
fn reserved_bits_error(rest: &[u8], offset: usize, at: usize) -> PacketError {
    let first = rest.first().copied().unwrap_or(0);
    let packet = match FIRST[first as usize] {
        HeaderByte::Defined(Kind::ModeExec) => "MODE",
        HeaderByte::Defined(kind) => kind.name(),
        _ => "packet",
    };
    PacketError::Reserved {
        offset,
        packet,
        byte: rest.get(at).copied().unwrap_or(0),
    }
}

/// The low `size` (at most 8) bytes from `at` on; bytes past the end read as 0.
#[inline]
pub(crate) fn read_little_endian(rest: &[u8], at: usize, size: usize) -> u64 {
    let mut bytes = [0; 8];
    if let Some(eight) = rest.get(at..at + 8) {
        bytes.copy_from_slice(eight);
    } else {
        let some = rest.get(at..).unwrap_or_default();
        bytes
            .iter_mut()
            .zip(some)
            .for_each(|(to, from)| *to = *from);
    }
    u64::from_le_bytes(bytes) & low_bits_mask(8 * size as u32)
}

/// The value of a field; the packet is in `rest` in whole.
#[inline]
pub(crate) fn read_field(rest: &[u8], field: FieldLayout) -> u64 {
    let size = (field.bit + field.width).div_ceil(8) as usize;
    (read_little_endian(rest, field.byte, size) >> field.bit & low_bits_mask(field.width))
        << field.shift
}

#[inline]
const fn low_bits_mask(width: u32) -> u64 {
    match u64::MAX.checked_shr(64 - width) {
        Some(mask) => mask,
        None => 0,
    }
}
