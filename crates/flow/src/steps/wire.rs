//! The packets that have steps, as bytes.

use std::mem::size_of;

use rtit_packet::table::IP_PAYLOAD;
use rtit_packet::{Kind, PSB};

pub(super) const TIP: u8 = header(Kind::Tip);
pub(super) const TIP_MASK: u8 = mask(Kind::Tip);
pub(super) const CYC: u8 = header(Kind::Cyc);
pub(super) const CYC_MASK: u8 = mask(Kind::Cyc);
pub(super) const MTC: u8 = header(Kind::Mtc);
/// A CYC goes on in another byte.
const CYC_MORE: u8 = 4;
/// Within a CYC it may be a packet of its own (erratum SKD007).
const OVF: [u8; 2] = [Kind::Ovf.row().header[0], Kind::Ovf.row().header[1]];
/// Even, and neither PAD nor the escape: a short TNT.
const LAST_NO_TNT: u8 = 2;

const fn header(kind: Kind) -> u8 {
    kind.row().header[0]
}

const fn mask(kind: Kind) -> u8 {
    kind.row().mask[0]
}

/// A TIP by IPBytes (Table 33-17).
#[derive(Clone, Copy)]
struct Form {
    /// The bits of LastIP that it replaces.
    replaced: u64,
    /// In bytes, 0 if it has no IP or is none, or is the longest.
    length: usize,
}

const FORMS: [Form; 8] = forms();
const REPLACED: [u64; 8] = [
    0,
    0xffff,
    0xffff_ffff,
    // its upper bits are those of bit 47
    u64::MAX,
    0xffff_ffff_ffff,
    0,
    u64::MAX,
    0,
];
/// The longest: eight bytes.
const WHOLE: usize = 6;

const fn forms() -> [Form; 8] {
    let mut forms = [Form {
        replaced: 0,
        length: 0,
    }; 8];
    let mut i = 0;
    while i < 8 {
        if let Some(size) = IP_PAYLOAD[i] {
            if size > 0 && i != WHOLE {
                forms[i].replaced = REPLACED[i];
                forms[i].length = size as usize + 1;
            }
        }
        i += 1;
    }
    forms
}

/// Whether a packet that begins with this byte is a short TNT.
#[inline(always)]
pub(super) fn is_tnt(first: u8) -> bool {
    first & 1 == 0 && first > LAST_NO_TNT
}

/// The TIP at the beginning of these bytes, of which there are more than the longest has: its length, at most 15 as far as
/// the compiler sees, which bits of LastIP it replaces, and the IP.
#[inline(always)]
pub(super) fn tip(bytes: &[u8], last_ip: u64) -> Option<(usize, u64, u64)> {
    let word = u64::from_le_bytes(*bytes.first_chunk()?);
    let Form { replaced, length } = FORMS[(word >> 5 & 7) as usize];
    if length == 0 {
        return whole(bytes);
    }
    // as wide as one that is extended by its sign; all that is shorter is the same
    let payload = ((word << 8) as i64 >> 16) as u64;
    let ip = last_ip ^ (last_ip ^ payload) & replaced;
    Some((length & 15, replaced, ip))
}

/// As `tip`, of the longest.
#[cold]
fn whole(bytes: &[u8]) -> Option<(usize, u64, u64)> {
    let (&first, payload) = bytes.split_first()?;
    let ip = u64::from_le_bytes(*payload.first_chunk()?);
    (usize::from(first >> 5) == WHOLE).then_some((1 + size_of::<u64>(), REPLACED[WHOLE], ip))
}

/// The CYC at the beginning of these bytes: how many cycles, and its length. None: it has more than three bytes, or may be
/// none, or may have swallowed the beginning of a PSB.
#[inline(always)]
pub(super) fn cyc(bytes: &[u8]) -> Option<(u64, usize)> {
    let [first, second, third] = *bytes.first_chunk()?;
    let mut count = u64::from(first >> 3);
    if first & CYC_MORE == 0 {
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
    (!before_psb(&bytes[length..])).then_some((count, length))
}

/// Whether the packet before these bytes may have swallowed the beginning of a PSB.
#[inline(always)]
pub(super) fn before_psb(bytes: &[u8]) -> bool {
    let [first, second] = [PSB[0], PSB[1]];
    matches!(bytes.first_chunk(), Some(&pair) if pair == [first, second] || pair == [second, first])
}
