//! The loop over the packets that have steps.

use rtit_packet::table::IP_PAYLOAD;
use rtit_packet::{Kind, PSB};

use super::act::{Acts, Pushes};
use super::hits::{Counting, Hits};
use super::table::{find, tnt_slot, Entry, Key};
use crate::stack::ReturnStack;

/// Bytes after the packets that are read, so that a packet can be looked at as a whole.
pub(crate) const AHEAD: usize = 16;

const TIP: u8 = header(Kind::Tip);
const TIP_MASK: u8 = mask(Kind::Tip);
const CYC: u8 = header(Kind::Cyc);
const CYC_MASK: u8 = mask(Kind::Cyc);
const MTC: u8 = header(Kind::Mtc);
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

/// What the log says beside step numbers, which are below these: timing packets.
pub(crate) struct Mark;

impl Mark {
    /// With the low byte of the CTC.
    pub const MTC: u32 = 1 << 30;
    /// With a number of core cycles below 2^31.
    pub const CYC: u32 = 1 << 31;
}

/// Why the kernel stopped. `lane.at` is at the packet that was not taken, or that was taken in part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Exit {
    /// Another packet, the end of the bytes, or the log is full.
    Leave,
    /// No step is known for the TNT, or for the rest of one.
    Tnt(u8),
    Tip(u64),
    /// Before a RET: none is known to this call site, and `lane.rest` follows it.
    Return(u32),
    /// Before a RET without a call; `lane.rest` follows it.
    NoCall,
}

/// Where the program is in the stream and in the code.
pub(crate) struct Lane {
    pub at: usize,
    pub base: u32,
    pub last_ip: u64,
    /// What a RET left of the TNT at `at`, 0 if nothing.
    pub rest: u8,
    /// Packets so far, and the bytes of all but the TNTs.
    pub tips: u64,
    pub cycs: u64,
    pub mtcs: u64,
    pub other_bytes: u64,
    /// Core cycles that the log does not tell.
    pub cycles: u64,
    /// End of the last CYC and of the MTCs right behind it; `NONE` if there was no CYC.
    pub told: usize,
    /// MTCs are the walker's: what time they tell may settle something.
    pub leaves_mtcs: bool,
}

impl Lane {
    pub const NONE: usize = usize::MAX;

    pub fn new(base: u32, last_ip: u64) -> Lane {
        Lane {
            at: 0,
            base,
            last_ip,
            rest: 0,
            tips: 0,
            cycs: 0,
            mtcs: 0,
            other_bytes: 0,
            cycles: 0,
            told: Lane::NONE,
            leaves_mtcs: false,
        }
    }

    /// Whether a packet that begins with this byte may have a step.
    pub fn takes(first: u8) -> bool {
        first & 1 == 0 && first > LAST_NO_TNT
            || first & TIP_MASK == TIP
            || first & CYC_MASK == CYC
            || first == MTC
    }
}

pub(super) struct Tables<'a> {
    pub tnt: &'a mut [Entry<()>],
    pub tip: &'a mut [Entry<u64>],
    pub ret: &'a mut [Entry<u32>],
    pub acts: &'a Acts,
    pub hits: &'a mut Hits,
    pub log: &'a mut Vec<(u32, u32)>,
}

/// What the kernel does with a step.
pub(super) mod keep {
    /// It is counted where it is.
    pub const HITS: u8 = 0;
    /// It goes into the log, as (number, index of the packet in `bytes`).
    pub const ORDER: u8 = 1;
    /// It is counted by its number.
    pub const BY_NUMBER: u8 = 3;
    pub const NOTHING: u8 = 2;
}

/// Takes what a step is to leave behind.
#[inline(always)]
fn note<const KEEP: u8>(
    step: &mut u32,
    log: &mut Vec<(u32, u32)>,
    at: usize,
    hits: &mut Counting<'_>,
) {
    match KEEP {
        keep::ORDER => log.push((*step, at as u32)),
        keep::HITS => *step = step.wrapping_add(1),
        keep::BY_NUMBER => hits.count(*step),
        _ => {}
    }
}

pub(super) type Kernel = fn(Tables<'_>, &mut ReturnStack, &[u8], usize, usize, &mut Lane) -> Exit;

/// Takes steps from `lane.at` on while `at < end` and the log is shorter than `room`. `bytes` go on for `AHEAD` more.
///
/// `RETURNS`: RETs may be compressed. `KEEP`: one of `keep`; with the order CYCs go into the log, too, else
/// `lane.cycles` counts cycles.
#[inline(never)]
pub(super) fn run<const RETURNS: bool, const KEEP: u8>(
    tables: Tables<'_>,
    stack: &mut ReturnStack,
    bytes: &[u8],
    end: usize,
    room: usize,
    lane: &mut Lane,
) -> Exit {
    let Tables {
        tnt,
        tip,
        ret,
        acts,
        hits,
        log,
    } = tables;
    let mut hits = hits.counting();
    if end + AHEAD > bytes.len() || tnt.is_empty() || tip.is_empty() || ret.is_empty() {
        return Exit::Leave;
    }
    let (tnt_mask, tip_mask, ret_mask) = (tnt.len() - 1, tip.len() - 1, ret.len() - 1);
    // all but the packets' numbers, which are rarely touched, lives in registers
    let (mut at, mut base, mut last_ip, mut rest) = (lane.at, lane.base, lane.last_ip, lane.rest);
    let (mut tips, mut other_bytes, mut cycles) = (0u64, 0u64, lane.cycles);
    let exit = loop {
        if at >= end || log.len() >= room && rest == 0 {
            break Exit::Leave;
        }
        let mut byte = bytes[at];
        if byte & 1 == 0 && byte > LAST_NO_TNT {
            if RETURNS && rest != 0 {
                byte = rest;
            }
            let Some(slot) = find(tnt, tnt_slot(base, byte >> 1, tnt_mask), base, ()) else {
                break Exit::Tnt(byte);
            };
            let step = &mut tnt[slot];
            note::<KEEP>(&mut step.hits, log, at, &mut hits);
            base = step.next;
            if !RETURNS || step.act == 0 {
                rest = 0;
                at += 1;
                continue;
            }
            let (deed, pushes) = acts.decode(step.act);
            take(stack, deed.peak, pushes);
            if !deed.pops {
                rest = 0;
                at += 1;
                continue;
            }
            rest = deed.rest;
            let Some(site) = stack.top_site() else {
                break Exit::NoCall;
            };
            let Some(slot) = find(ret, site.slot(base, 0, ret_mask), base, site) else {
                break Exit::Return(site);
            };
            let step = &mut ret[slot];
            stack.drop_top();
            note::<KEEP>(&mut step.hits, log, at, &mut hits);
            base = step.next;
            at += usize::from(rest == 0);
        } else if byte & TIP_MASK == TIP {
            let kind = usize::from(byte >> 5);
            let length = LENGTH[kind];
            let payload = bytes
                .get(at + 1..at + 9)
                .and_then(|bytes| bytes.try_into().ok());
            let (Some(payload), true) = (payload, length != 0) else {
                break Exit::Leave;
            };
            if before_psb(bytes, at + usize::from(length)) {
                break Exit::Leave;
            }
            let mut payload = u64::from_le_bytes(payload);
            if kind == SIGN_EXTENDED {
                payload = ((payload << 16) as i64 >> 16) as u64;
            }
            let ip = last_ip & !REPLACED[kind] | payload & REPLACED[kind];
            let Some(slot) = find(tip, ip.slot(base, 0, tip_mask), base, ip) else {
                break Exit::Tip(ip);
            };
            let step = &mut tip[slot];
            note::<KEEP>(&mut step.hits, log, at, &mut hits);
            last_ip = ip;
            base = step.next;
            at += usize::from(length);
            tips += 1;
            other_bytes += u64::from(length);
            if RETURNS && step.act != 0 {
                let (deed, pushes) = acts.decode(step.act);
                take(stack, deed.peak, pushes);
                if deed.pops {
                    stack.drop_top();
                }
            }
        } else if byte & CYC_MASK == CYC {
            let mut count = u64::from(byte >> 3);
            let mut length = 1;
            if byte & CYC_MORE != 0 {
                let (second, third) = (bytes[at + 1], bytes[at + 2]);
                if [second, third] == OVF {
                    break Exit::Leave;
                }
                count |= u64::from(second >> 1) << 5;
                length = 2;
                if second & 1 != 0 {
                    if third & 1 != 0 {
                        break Exit::Leave;
                    }
                    count |= u64::from(third >> 1) << 12;
                    length = 3;
                }
                if before_psb(bytes, at + length) {
                    break Exit::Leave;
                }
            }
            if KEEP == keep::ORDER {
                log.push((Mark::CYC | count as u32, at as u32));
            } else {
                cycles += count;
            }
            lane.cycs += 1;
            at += length;
            other_bytes += length as u64;
            lane.told = at;
        } else if byte == MTC {
            if lane.leaves_mtcs || before_psb(bytes, at + 2) {
                break Exit::Leave;
            }
            if KEEP != keep::ORDER {
                // the clock takes them in the order in which they came
                while cycles > 0 {
                    let part = cycles.min(u64::from(Mark::CYC - 1));
                    log.push((Mark::CYC | part as u32, at as u32));
                    cycles -= part;
                }
            }
            log.push((Mark::MTC | u32::from(bytes[at + 1]), at as u32));
            lane.mtcs += 1;
            if lane.told == at {
                lane.told += 2;
            }
            at += 2;
            other_bytes += 2;
        } else {
            break Exit::Leave;
        }
    };
    hits.end();
    lane.at = at;
    lane.base = base;
    lane.last_ip = last_ip;
    lane.rest = rest;
    lane.tips += tips;
    lane.other_bytes += other_bytes;
    lane.cycles = cycles;
    exit
}

/// Whether the packet before `end` may have swallowed the beginning of a PSB.
#[inline(always)]
fn before_psb(bytes: &[u8], end: usize) -> bool {
    let [first, second] = [PSB[0], PSB[1]];
    matches!(bytes.get(end..end + 2), Some(pair) if pair == [first, second] || pair == [second, first])
}

/// The calls of a step that are still open, and room for those that are not.
#[inline(always)]
fn take(stack: &mut ReturnStack, peak: u8, pushes: Pushes<'_>) {
    stack.make_room(peak);
    match pushes {
        Pushes::None => {}
        Pushes::One(site) => stack.push_site(site),
        Pushes::Many(sites) => sites.iter().for_each(|&site| stack.push_site(site)),
    }
}
