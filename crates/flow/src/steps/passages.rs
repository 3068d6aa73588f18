//! Passages: pieces of earlier streams, which are taken as a whole where they come again.
//!
//! A decoder that is kept (`Persistent`) sees the same packets stream after stream. A passage is what the kernel took
//! from one place between packets to another: TNTs, TIPs and MTCs that all had steps. It holds for the node and the LastIP
//! at its beginning and for its bytes, all of which are compared, and for the entries of the return stack that it takes
//! off (`effects`). Its end is told by its bytes, so that other streams with the same packets have the same passages, or by
//! a packet that has no step.
//!
//! After a passage the one is looked for first that followed it last, and then by the bytes.

use std::mem::size_of;

use rtit_packet::PSB;

use super::kernel::{Lane, Mark};
use super::purse::Purse;
use super::wire::before_psb;
use crate::settings::StepLimits;

/// A passage ends where the bytes say so, once in `OFTEN` bytes, but neither sooner nor later than this.
const LEAST: usize = 64;
const MOST: usize = 512;
const OFTEN: u32 = 128;

/// With fewer steps than one in so many bytes phrases do as well.
const LONG_STEPS: usize = 8;

/// If less than one byte in so many was known, all begins anew when there is no more room.
const LITTLE: usize = 4;

/// So many that begin alike are looked at.
const ALIKE: usize = 4;

/// A passage that ends elsewhere is looked up by so many bytes, some of which may be behind its end.
const BEGINNING: usize = 8;

/// First size of the index.
const FIRST: usize = 1 << 8;

#[derive(Clone, Copy, Debug)]
pub(super) struct Passage {
    /// Where its bytes begin in those of all, and how many it has.
    bytes: u32,
    length: u32,
    /// Base of the node before it and behind it, and LastIP.
    base: u32,
    next: u32,
    before: u64,
    after: u64,
    /// What of the trail is its own.
    pub steps: (u32, u32),
    /// Likewise of the places of MTCs.
    mtcs: (u32, u32),
    tips: u32,
    other_bytes: u32,
    /// What its place in the index is made of, and one more than the number of an older one with the same place.
    hash: u32,
    older: u32,
    /// The one that came after it when it came last.
    then: u32,
}

/// Where a passage began that is being taken packet by packet.
#[derive(Clone, Copy, Debug)]
struct Begun {
    at: usize,
    /// Where it is to end.
    stop: usize,
    base: u32,
    last_ip: u64,
    trail: usize,
    log: usize,
    tips: u64,
    other_bytes: u64,
    cycs: u64,
}

#[derive(Default)]
pub(crate) struct Passages {
    /// Bytes in memory, at most about; 0: there are no passages.
    limit: usize,
    least: usize,
    often: u32,
    long_steps: usize,
    bytes: Vec<u8>,
    /// Where MTCs are in their passages.
    mtcs: Vec<u32>,
    pub all: Vec<Passage>,
    /// One more than the number of a passage.
    index: Vec<u32>,
    begun: Option<Begun>,
    /// Where what begins at a place is to end, as it was found last.
    told: (usize, usize),
    /// There is no more room.
    full: bool,
    /// A stream has gone before: what comes once is not worth keeping.
    ready: bool,
    /// The one that was taken last, and the one that is likely to come next.
    last: Option<usize>,
    expected: usize,
    /// Bytes of this stream that were known, and all that have steps.
    known: usize,
    took: usize,
    pub purse: Purse,
}

impl Passages {
    /// Without a time before phrases they are short.
    pub fn new(limits: &StepLimits) -> Passages {
        let eager = limits.phrases == 0;
        Passages {
            limit: limits.passages.min(u32::MAX as usize),
            least: if eager { 4 } else { LEAST },
            often: if eager { 2 } else { OFTEN },
            long_steps: if eager { usize::MAX } else { LONG_STEPS },
            purse: Purse::new(limits.passages_part),
            ..Passages::default()
        }
    }

    /// There are none in this stream.
    pub fn is_off(&self) -> bool {
        self.limit == 0 || !self.ready
    }

    /// Bytes that are to be taken packet by packet before passages are looked for; 0: they may be now.
    #[inline]
    pub fn pause(&mut self, lane: &Lane) -> usize {
        match (&self.begun, lane.rest) {
            (Some(_), _) => 0,
            (None, 0) => self.purse.pause(),
            // none begins within a packet
            (None, _) => self.purse.pause().max(1),
        }
    }

    /// So many bytes have been taken.
    pub fn took(&mut self, bytes: usize) {
        self.took += bytes;
        self.purse.took(bytes);
    }

    /// Bytes that may be spent on what comes beside them.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// How many bytes they take, with their trail.
    pub fn size(&self, trail: usize) -> usize {
        let words = self.mtcs.len() + self.index.len() + trail;
        self.bytes.len() + words * size_of::<u32>() + self.all.len() * size_of::<Passage>()
    }

    /// All are forgotten, as their trail is to be.
    pub fn clear(&mut self) {
        *self = Passages {
            limit: self.limit,
            least: self.least,
            often: self.often,
            long_steps: self.long_steps,
            ready: self.ready,
            known: self.known,
            took: self.took,
            purse: std::mem::take(&mut self.purse),
            ..Passages::default()
        };
    }

    /// Another stream begins, after one that was counted by number if `ready`. True: what is kept is not what comes, all
    /// is to begin anew.
    pub fn start_again(&mut self, ready: bool) -> bool {
        self.ready = ready;
        self.purse.start_again();
        let other = self.full && self.known < self.took / LITTLE;
        (self.last, self.expected) = (None, 0);
        (self.known, self.took) = (0, 0);
        other
    }

    /// The passage that begins at `lane`, if one is known of which `may` says that it can be taken; its steps are those of
    /// this part of the trail. `room`: of the log.
    #[inline]
    pub fn find(
        &mut self,
        bytes: &[u8],
        end: usize,
        room: usize,
        lane: &Lane,
        mut may: impl FnMut(usize, (u32, u32)) -> bool,
    ) -> Option<usize> {
        // what is told of times by an MTC right behind a CYC is the kernel's
        if lane.rest != 0 || lane.leaves_mtcs || lane.told == lane.at {
            return None;
        }
        let expected = self.expected;
        let mut fits = |passages: &Passages, number: usize| {
            passages.fits(number, bytes, end, room, lane) && may(number, passages.all[number].steps)
        };
        match fits(self, expected) {
            true => Some(expected),
            false => self.look_up(bytes, end, lane, fits),
        }
    }

    fn look_up(
        &mut self,
        bytes: &[u8],
        end: usize,
        lane: &Lane,
        mut fits: impl FnMut(&Passages, usize) -> bool,
    ) -> Option<usize> {
        self.purse.looked(self.index.len());
        let mask = self.index.len().checked_sub(1)?;
        let stop = cut(bytes, lane.at, end, self.least, self.often);
        self.told = (lane.at, stop);
        for stop in [stop, lane.at + BEGINNING] {
            let hash = hash(lane.base, bytes.get(lane.at..stop)?);
            let mut older = *self.index.get(hash as usize & mask)?;
            for _ in 0..ALIKE {
                let Some(number) = (older as usize).checked_sub(1) else {
                    break;
                };
                if fits(self, number) {
                    return Some(number);
                }
                older = self.all.get(number)?.older;
            }
        }
        None
    }

    #[inline]
    fn fits(&self, number: usize, bytes: &[u8], end: usize, room: usize, lane: &Lane) -> bool {
        let Some(passage) = self.all.get(number) else {
            return false;
        };
        let after = lane.at + passage.length as usize;
        passage.base == lane.base
            && passage.before == lane.last_ip
            && after <= end
            && bytes.get(lane.at..after) == Some(self.bytes_of(passage))
            && !before_psb(bytes.get(after..).unwrap_or(&[]))
            && (passage.mtcs.0 == passage.mtcs.1
                // with the cycles before them
                || passage.mtcs().len() < room && lane.cycles < Mark::CYC.into())
    }

    fn bytes_of(&self, passage: &Passage) -> &[u8] {
        let from = passage.bytes as usize;
        let bytes = self.bytes.get(from..from + passage.length as usize);
        bytes.unwrap_or(&[])
    }

    /// Takes a passage.
    #[inline]
    pub fn take(&mut self, number: usize, lane: &mut Lane, log: &mut Vec<(u32, u32)>) {
        let passage = self.all[number];
        let places = self.mtcs.get(passage.mtcs());
        for &place in places.unwrap_or(&[]) {
            let at = lane.at as u32 + place;
            if lane.cycles > 0 {
                log.push((Mark::CYC | lane.cycles as u32, at));
                lane.cycles = 0;
            }
            let payload = self.bytes[passage.bytes as usize + place as usize + 1];
            log.push((Mark::MTC | u32::from(payload), at));
        }
        lane.mtcs += passage.mtcs().len() as u64;
        lane.at += passage.length as usize;
        lane.base = passage.next;
        lane.last_ip = passage.after;
        lane.tips += u64::from(passage.tips);
        lane.other_bytes += u64::from(passage.other_bytes);
        self.expected = passage.then as usize;
        self.comes(number);
        self.known += passage.length as usize;
        let (from, to) = passage.steps;
        self.purse.won(passage.length, to - from);
    }

    /// A passage begins at `lane`, or goes on there: where the kernel is to stop, and whether it leaves a trail.
    pub fn begin(
        &mut self,
        bytes: &[u8],
        end: usize,
        lane: &Lane,
        trail: &[u32],
        log: usize,
    ) -> (usize, bool) {
        let (told, (least, often)) = (self.told, (self.least, self.often));
        let begun = *self.begun.get_or_insert_with(|| Begun {
            at: lane.at,
            stop: match told {
                (at, stop) if at == lane.at && (at + 1..=end).contains(&stop) => stop,
                _ => cut(bytes, lane.at, end, least, often),
            },
            base: lane.base,
            last_ip: lane.last_ip,
            trail: trail.len(),
            log,
            tips: lane.tips,
            other_bytes: lane.other_bytes,
            cycs: lane.cycs,
        });
        (begun.stop, !self.full)
    }

    /// Whether packets of a passage have been taken.
    pub fn is_begun(&self) -> bool {
        self.begun.is_some()
    }

    /// What has begun is none.
    pub fn abandon(&mut self, trail: &mut Vec<u32>) {
        self.told = (usize::MAX, 0);
        if let Some(begun) = self.begun.take() {
            trail.truncate(begun.trail);
            self.purse.tried(begun.stop - begun.at, None);
        }
    }

    /// Keeps what was taken up to `lane`, which is between packets. `more`: bytes that others keep of passages.
    pub fn end(
        &mut self,
        bytes: &[u8],
        lane: &Lane,
        trail: &mut Vec<u32>,
        log: &[(u32, u32)],
        more: usize,
    ) {
        let Some(begun) = self.begun else {
            return;
        };
        let taken = bytes.get(begun.at..lane.at).unwrap_or(&[]);
        let last = taken.last();
        // a packet that ends before the last byte does not have the beginning of a PSB behind it, here or elsewhere: that
        // would be a TNT as the first byte
        let whole = last.is_some_and(|last| *last != PSB[1]) && lane.cycs == begun.cycs;
        self.full |= self.size(trail.len()) + taken.len() + more > self.limit;
        // by all of it, if others end there, too
        let told = match lane.at >= begun.stop {
            true => begun.stop,
            false => begun.at + BEGINNING,
        };
        let told = bytes.get(begun.at..told);
        let steps = trail.len() - begun.trail;
        let pays = !self.full && steps.saturating_mul(self.long_steps) >= taken.len();
        self.begun = None;
        self.purse.tried(taken.len(), (!self.full).then_some(steps));
        let (Some(told), true) = (told, whole && lane.rest == 0 && pays) else {
            self.told = (usize::MAX, 0);
            trail.truncate(begun.trail);
            return;
        };
        let hash = hash(begun.base, told);
        let first_mtc = self.mtcs.len() as u32;
        let marks = log.get(begun.log..).unwrap_or(&[]).iter();
        let mtcs = marks.filter(|&&(mark, _)| mark & (Mark::MTC | Mark::CYC) == Mark::MTC);
        self.mtcs.extend(mtcs.map(|&(_, at)| at - begun.at as u32));
        self.all.push(Passage {
            bytes: self.bytes.len() as u32,
            length: taken.len() as u32,
            base: begun.base,
            next: lane.base,
            before: begun.last_ip,
            after: lane.last_ip,
            steps: (begun.trail as u32, trail.len() as u32),
            mtcs: (first_mtc, self.mtcs.len() as u32),
            tips: (lane.tips - begun.tips) as u32,
            other_bytes: (lane.other_bytes - begun.other_bytes) as u32,
            hash,
            older: 0,
            then: self.all.len() as u32 + 1,
        });
        self.bytes.extend_from_slice(taken);
        self.expected = self.all.len();
        self.comes(self.all.len() - 1);
        match self.all.len() * 2 > self.index.len() {
            true => self.index_again(),
            false => self.find_later(self.all.len() - 1),
        }
    }

    /// Behind the last one.
    #[inline]
    fn comes(&mut self, number: usize) {
        let last = self.last.replace(number);
        if let Some(last) = last.and_then(|last| self.all.get_mut(last)) {
            last.then = number as u32;
        }
    }

    fn find_later(&mut self, number: usize) {
        let slot = self.all[number].hash as usize & (self.index.len() - 1);
        self.all[number].older = std::mem::replace(&mut self.index[slot], number as u32 + 1);
    }

    #[cold]
    fn index_again(&mut self) {
        self.index = vec![0; (self.index.len() * 2).max(FIRST)];
        (0..self.all.len()).for_each(|number| self.find_later(number));
    }
}

/// Of the node and the bytes at which a passage begins.
fn hash(base: u32, bytes: &[u8]) -> u32 {
    let mix = |hash: u64, word: u64| {
        (hash ^ word)
            .wrapping_mul(0x9E37_79B9_7F4A_7C15)
            .rotate_left(29)
    };
    let words = bytes.chunks_exact(8);
    let last = words.remainder().iter();
    let last = last.fold(0, |word, &byte| word << 8 | u64::from(byte));
    let words = words.map(|word| word.try_into().map_or(0, u64::from_le_bytes));
    let hash = words.fold(mix(bytes.len() as u64, base.into()), mix);
    let hash = mix(hash, last);
    (hash ^ hash >> 32) as u32
}

impl Passage {
    fn mtcs(&self) -> std::ops::Range<usize> {
        self.mtcs.0 as usize..self.mtcs.1 as usize
    }
}

/// Where the passage that begins at `at` is to end: a place that is told by the bytes before it, if there is one.
fn cut(bytes: &[u8], at: usize, end: usize, least: usize, often: u32) -> usize {
    let last = end.min(at + MOST);
    let from = last.min(at + least);
    let window = bytes.get(from.saturating_sub(4)..last).unwrap_or(&[]);
    let told = window.windows(4).position(|word| {
        let word = word.try_into().map_or(0, u32::from_le_bytes);
        word.wrapping_mul(0x9E37_79B1) >> 16 & (often - 1) == 0 && word >> 24 != PSB[1].into()
    });
    told.map_or(last, |place| (from + place).max(at + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// When there is no more room, and little of a stream was known.
    #[test]
    fn what_is_kept_gives_way() {
        let cases = [
            (true, 24, true),
            (true, 26, false),
            (true, 60, false),
            (false, 0, false),
        ];
        for (full, known, anew) in cases {
            let mut passages = Passages::new(&StepLimits::default());
            (passages.full, passages.known) = (full, known);
            passages.took(100);
            assert_eq!(passages.start_again(true), anew, "{full} {known}");
            // what was known of a stream says nothing of the next one
            passages.took(100);
            assert_eq!(passages.start_again(true), full, "{full} {known}");
        }
    }
}
