//! The packets that have steps, as bytes.

use rtit_packet::table::IP_PAYLOAD;
use rtit_packet::{Kind, PSB};

pub(super) const TIP: u8 = header(Kind::Tip);
pub(super) const TIP_MASK: u8 = mask(Kind::Tip);
pub(super) const CYC: u8 = header(Kind::Cyc);
pub(super) const CYC_MASK: u8 = mask(Kind::Cyc);
pub(super) const MTC: u8 = header(Kind::Mtc);
/// A CYC goes on in another byte.
pub(super) const CYC_MORE: u8 = 4;
/// Within a CYC it may be a packet of its own (erratum SKD007).
pub(super) const OVF: [u8; 2] = [Kind::Ovf.row().header[0], Kind::Ovf.row().header[1]];
/// Even, and neither PAD nor the escape: a short TNT.
const LAST_NO_TNT: u8 = 2;

const fn header(kind: Kind) -> u8 {
    kind.row().header[0]
}

const fn mask(kind: Kind) -> u8 {
    kind.row().mask[0]
}

/// By IPBytes (Table 33-17): length of a TIP packet, 0 if it has no IP or is none; the bits of LastIP that it replaces.
const LENGTH: [u8; 8] = lengths();
const REPLACED: [u64; 8] = [
    0,
    0xffff,
    0xffff_ffff,
    u64::MAX,
    0xffff_ffff_ffff,
    0,
    u64::MAX,
    0,
];
/// The one whose upper bits are those of bit 47.
const SIGN_EXTENDED: usize = 3;

const fn lengths() -> [u8; 8] {
    let mut lengths = [0; 8];
    let mut i = 0;
    while i < 8 {
        if let Some(size) = IP_PAYLOAD[i] {
            if size > 0 {
                lengths[i] = size + 1;
            }
        }
        i += 1;
    }
    lengths
}

/// Whether a packet that begins with this byte is a short TNT.
#[inline(always)]
pub(super) fn is_tnt(first: u8) -> bool {
    first & 1 == 0 && first > LAST_NO_TNT
}

/// A TIP that begins with this byte and goes on with these: its length, which bits of LastIP it replaces, and the IP.
#[inline(always)]
pub(super) fn tip(first: u8, more: Option<[u8; 8]>, last_ip: u64) -> Option<(u8, u64, u64)> {
    let kind = usize::from(first >> 5);
    let length = LENGTH[kind];
    let (Some(payload), true) = (more, length != 0) else {
        return None;
    };
    let mut payload = u64::from_le_bytes(payload);
    if kind == SIGN_EXTENDED {
        payload = ((payload << 16) as i64 >> 16) as u64;
    }
    let replaced = REPLACED[kind];
    Some((length, replaced, last_ip & !replaced | payload & replaced))
}

/// Whether the packet before `end` may have swallowed the beginning of a PSB.
#[inline(always)]
pub(super) fn before_psb(bytes: &[u8], end: usize) -> bool {
    let [first, second] = [PSB[0], PSB[1]];
    matches!(bytes.get(end..end + 2), Some(pair) if pair == [first, second] || pair == [second, first])
}
