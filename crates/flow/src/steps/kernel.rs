//! The loop over the packets that have steps.

use super::act::{Acts, Pushes};
use super::hits::{Counting, Hits};
use super::table::{find, tnt_slot, Entry, Key};
use super::wire::{before_psb, cyc, is_tnt, tip as tip_of, CYC, CYC_MASK, MTC, TIP, TIP_MASK};
use crate::stack::ReturnStack;

/// Bytes after the packets that are read, so that a packet can be looked at as a whole.
pub(crate) const AHEAD: usize = 16;

/// What the log says beside step numbers, which are below these: timing packets.
pub(crate) struct Mark;

impl Mark {
    /// With the low byte of the CTC.
    pub const MTC: u32 = 1 << 30;
    /// With a number of core cycles below 2^31.
    pub const CYC: u32 = 1 << 31;

    /// Whether it says this and not a step.
    #[inline(always)]
    pub fn is_one(entry: u32) -> bool {
        entry & (Mark::CYC | Mark::MTC) != 0
    }
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
    /// A phrase is to be made of what comes next.
    Phrase,
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

    /// Takes the CYC or MTC with which `left` begins, and gives its length, 3 at most; 0: it is none, or not to be taken
    /// here. `ORDER`: each CYC goes into the log, else `cycles` counts cycles.
    #[inline(always)]
    fn time<const ORDER: bool>(
        &mut self,
        left: &[u8],
        at: usize,
        room: usize,
        log: &mut Vec<(u32, u32)>,
    ) -> usize {
        let Some(&first) = left.first() else {
            return 0;
        };
        if first & CYC_MASK == CYC {
            let Some((count, length)) = cyc(left) else {
                return 0;
            };
            if ORDER {
                log.push((Mark::CYC | count as u32, at as u32));
            } else {
                self.cycles += count;
            }
            self.cycs += 1;
            self.other_bytes += length as u64;
            self.told = at + length;
            return length;
        }
        if first != MTC || self.leaves_mtcs || log.len() >= room || before_psb(&left[2..]) {
            return 0;
        }
        // the clock takes them in the order in which they came
        while self.cycles > 0 {
            let part = self.cycles.min(u64::from(Mark::CYC - 1));
            log.push((Mark::CYC | part as u32, at as u32));
            self.cycles -= part;
        }
        log.push((Mark::MTC | u32::from(left[1]), at as u32));
        self.mtcs += 1;
        self.other_bytes += 2;
        if self.told == at {
            self.told += 2;
        }
        2
    }

    /// Whether a packet that begins with this byte may have a step.
    pub fn takes(first: u8) -> bool {
        is_tnt(first) || first & TIP_MASK == TIP || first & CYC_MASK == CYC || first == MTC
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
    pub const BY_NUMBER: u8 = 2;
    pub const NOTHING: u8 = 3;
}

/// Takes what a step is to leave behind.
#[inline(always)]
pub(super) fn note<const KEEP: u8>(
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

/// Takes steps from `lane.at` on while `at < end` and the log is shorter than `room`. `bytes` go on for `AHEAD` more.
///
/// `RETURNS`: RETs may be compressed. `KEEP`: one of `keep`; with the order CYCs go into the log, too, else
/// `lane.cycles` counts cycles.
#[inline(never)]
pub(super) fn run<const RETURNS: bool, const KEEP: u8>(
    tables: &mut Tables<'_>,
    stack: &mut ReturnStack,
    bytes: &[u8],
    end: usize,
    room: usize,
    lane: &mut Lane,
) -> Exit {
    let (tnt, tip, ret) = (&mut *tables.tnt, &mut *tables.tip, &mut *tables.ret);
    let (acts, hits, log) = (tables.acts, &mut *tables.hits, &mut *tables.log);
    let mut hits = hits.counting();
    // what is left to be taken, and `AHEAD` bytes: where there are more, any packet is whole without a look
    let Some(bytes) = bytes.get(..end + AHEAD) else {
        return Exit::Leave;
    };
    let mut left = bytes.get(lane.at..).unwrap_or(&[]);
    if tnt.is_empty() || tip.is_empty() || ret.is_empty() {
        return Exit::Leave;
    }
    let (tnt_mask, tip_mask, ret_mask) = (tnt.len() - 1, tip.len() - 1, ret.len() - 1);
    // all but the packets' numbers, which are rarely touched, lives in registers
    let (mut base, mut last_ip, mut rest) = (lane.base, lane.last_ip, lane.rest);
    let (mut tips, mut tip_bytes) = (0u64, 0u64);
    let exit = loop {
        if left.len() <= AHEAD {
            break Exit::Leave;
        }
        if KEEP == keep::ORDER && log.len() >= room && rest == 0 {
            break Exit::Leave;
        }
        let mut byte = left[0];
        let at = bytes.len() - left.len();
        if is_tnt(byte) {
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
                left = &left[1..];
                continue;
            }
            let (deed, pushes) = acts.decode(step.act);
            take(stack, deed.peak, pushes);
            if !deed.pops {
                rest = 0;
                left = &left[1..];
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
            left = &left[usize::from(rest == 0)..];
        } else if byte & TIP_MASK == TIP {
            let Some((length, _, ip)) = tip_of(left, last_ip) else {
                break Exit::Leave;
            };
            let after = &left[length..];
            if before_psb(after) {
                break Exit::Leave;
            }
            let Some(slot) = find(tip, ip.slot(base, 0, tip_mask), base, ip) else {
                break Exit::Tip(ip);
            };
            let step = &mut tip[slot];
            note::<KEEP>(&mut step.hits, log, at, &mut hits);
            last_ip = ip;
            base = step.next;
            left = after;
            tips += 1;
            tip_bytes += length as u64;
            if RETURNS && step.act != 0 {
                let (deed, pushes) = acts.decode(step.act);
                take(stack, deed.peak, pushes);
                if deed.pops {
                    stack.drop_top();
                }
            }
        } else {
            let length = if KEEP == keep::ORDER {
                lane.time::<true>(left, at, room, log)
            } else {
                lane.time::<false>(left, at, room, log)
            };
            if length == 0 {
                break Exit::Leave;
            }
            left = &left[length..];
        }
    };
    hits.end();
    lane.at = bytes.len() - left.len();
    lane.base = base;
    lane.last_ip = last_ip;
    lane.rest = rest;
    lane.tips += tips;
    lane.other_bytes += tip_bytes;
    exit
}

/// The calls of a step that are still open, and room for those that are not.
#[inline(always)]
pub(super) fn take(stack: &mut ReturnStack, peak: u8, pushes: Pushes<'_>) {
    stack.make_room(peak);
    match pushes {
        Pushes::None => {}
        Pushes::One(site) => stack.push_site(site),
        Pushes::Many(sites) => sites.iter().for_each(|&site| stack.push_site(site)),
    }
}
