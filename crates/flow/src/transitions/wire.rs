//! Byte-level parsing of the four kinds of packets that the decode loop handles: short TNT, TIP, CYC and MTC.
//!
//! Each function gives up where the packet scanner would have to look closer: long CYCs, and packets that may have
//! swallowed the start of a PSB. The interpreter then decodes the packet. Masks come from the packet table.

use std::mem::size_of;

use rtit_packet::table::IP_PAYLOAD;
use rtit_packet::{Kind, PSB};

pub(super) const TIP: u8 = header(Kind::Tip);
pub(super) const TIP_MASK: u8 = mask(Kind::Tip);
pub(super) const CYC: u8 = header(Kind::Cyc);
pub(super) const CYC_MASK: u8 = mask(Kind::Cyc);
pub(super) const MTC: u8 = header(Kind::Mtc);
/// Exp bit in the first byte of a CYC: another byte follows.
const CYC_EXP: u8 = 4;
/// Within a CYC these bytes may be an OVF packet (erratum SKD007).
const OVF: [u8; 2] = [Kind::Ovf.row().header[0], Kind::Ovf.row().header[1]];
/// PAD and the escape byte are even, too; all larger even bytes are short TNTs.
const MAX_NOT_TNT: u8 = 2;

const fn header(kind: Kind) -> u8 {
    kind.row().header[0]
}

const fn mask(kind: Kind) -> u8 {
    kind.row().mask[0]
}

/// IP compression of a TIP, by IPBytes (Table 33-17).
#[derive(Clone, Copy)]
struct IpCompression {
    /// Bits of LastIP that the payload replaces.
    replaced: u64,
    /// Length of the packet in bytes; 0 without an IP, for a reserved value, and for the full IP.
    length: usize,
}

const IP_COMPRESSIONS: [IpCompression; 8] = ip_compressions();
const REPLACED: [u64; 8] = [
    0,
    0xffff,
    0xffff_ffff,
    // 48 bits, sign-extended
    u64::MAX,
    0xffff_ffff_ffff,
    0,
    u64::MAX,
    0,
];
/// IPBytes of an IP of eight bytes.
const FULL_IP: usize = 6;

const fn ip_compressions() -> [IpCompression; 8] {
    let mut ip_compressions = [IpCompression {
        replaced: 0,
        length: 0,
    }; 8];
    let mut i = 0;
    while i < 8 {
        if let Some(size) = IP_PAYLOAD[i] {
            if size > 0 && i != FULL_IP {
                ip_compressions[i].replaced = REPLACED[i];
                ip_compressions[i].length = size as usize + 1;
            }
        }
        i += 1;
    }
    ip_compressions
}

/// Whether a packet with this first byte is a short TNT.
#[inline(always)]
pub(super) fn is_short_tnt(first: u8) -> bool {
    first & 1 == 0 && first > MAX_NOT_TNT
}

/// Returns the length of the TIP at the start of `bytes`, the bits of LastIP that it replaces, and its IP. The slice
/// must be longer than any TIP. The length is masked to 15, so that the compiler can drop bounds checks.
#[inline(always)]
pub(super) fn tip(bytes: &[u8], last_ip: u64) -> Option<(usize, u64, u64)> {
    let word = u64::from_le_bytes(*bytes.first_chunk()?);
    let IpCompression { replaced, length } = IP_COMPRESSIONS[(word >> 5 & 7) as usize];
    if length == 0 {
        return full_tip(bytes);
    }
    // Sign-extends 48 bits; `replaced` selects the bits of a shorter payload.
    let payload = ((word << 8) as i64 >> 16) as u64;
    let ip = last_ip ^ (last_ip ^ payload) & replaced;
    Some((length & 15, replaced, ip))
}

/// As `tip`, for an IP of eight bytes.
#[cold]
fn full_tip(bytes: &[u8]) -> Option<(usize, u64, u64)> {
    let (&first, payload) = bytes.split_first()?;
    let ip = u64::from_le_bytes(*payload.first_chunk()?);
    (usize::from(first >> 5) == FULL_IP).then_some((1 + size_of::<u64>(), REPLACED[FULL_IP], ip))
}

/// Returns cycles and length of the CYC at the start of `bytes`. `None` if it has more than three bytes, may contain
/// an OVF, or may have swallowed the start of a PSB.
#[inline(always)]
pub(super) fn short_cyc(bytes: &[u8]) -> Option<(u64, usize)> {
    let [first, second, third] = *bytes.first_chunk()?;
    let mut count = u64::from(first >> 3);
    if first & CYC_EXP == 0 {
        return Some((count, 1));
    }
    if [second, third] == OVF {
        return None;
    }
    count |= u64::from(second >> 1) << 5;
    let mut length = 2;
    if second & 1 != 0 {
        if third & 1 != 0 {
            return None;
        }
        count |= u64::from(third >> 1) << 12;
        length = 3;
    }
    (!may_continue_as_psb(&bytes[length..])).then_some((count, length))
}

/// Whether `bytes` may be the rest of a PSB that the packet before them has swallowed the start of.
#[inline(always)]
pub(super) fn may_continue_as_psb(bytes: &[u8]) -> bool {
    let [first, second] = [PSB[0], PSB[1]];
    matches!(bytes.first_chunk(), Some(&pair) if pair == [first, second] || pair == [second, first])
}
