//! Phrases: steps of several packets, looked up by their bytes as a whole.
//!
//! Programs do the same again and again, and so do their packets. A phrase begins at a node and takes the whole packets,
//! short TNTs and TIPs, of the next `WINDOW` bytes, or fewer: up to one that has no step, or that leads to a RET whose
//! call lies before the phrase. It is made when the same bytes have come often, as one step with all visits.
//!
//! It holds for (node, bytes), and where its first TIP keeps bits of LastIP for those. What a RET left of a TNT stands for
//! the first byte.

use std::mem::size_of_val;

use super::table::Left;
use crate::settings::StepLimits;

/// Bytes that are looked up at once.
pub(super) const WINDOW: usize = 16;

/// How often bytes have come when a phrase is made of them.
const OFTEN: u8 = 6;
/// With less, bytes that no phrase can be made of would be tried again at once.
const LEAST_OFTEN: u8 = 2;

/// What a phrase costs, in look-ups that find something: where only hits are counted, and where what it adds to columns is
/// kept as well.
pub(super) const PRICE: i32 = 64;
pub(super) const PRICE_IN_ORDER: i32 = 256;

/// So many phrases may be made before they have paid for themselves, and so many at once.
const FIRST_CREDIT: i32 = 1 << 10;
const MOST_CREDIT: i32 = 1 << 11;

/// Entries at first and at most: what is looked up should stay in a cache.
const FIRST: usize = 1 << 11;
const MOST: usize = 1 << 13;

/// Look-ups are worth their while if three in four find something: else they are left for a while.
const TRUST: i32 = 64;
const FIRST_PAUSE: usize = 1 << 8;
const LONGEST_PAUSE: usize = 1 << 12;

#[derive(Clone, Copy, Default, Debug)]
#[repr(align(64))]
pub(super) struct Phrase {
    /// Bytes, as many as `length`; 0 behind them.
    pub low: u64,
    pub high: u64,
    /// The bits of LastIP before that matter, what they are, and LastIP behind it.
    pub kept: u64,
    pub before: u64,
    pub after: u64,
    /// 0: nothing is here.
    pub base: u32,
    pub next: u32,
    /// As `Entry` has it.
    pub hits: u32,
    pub act: u32,
    /// Bytes that might become a phrase here, and how often they have come.
    pub tag: u16,
    pub seen: u8,
    /// Bytes, and those of TIPs.
    pub length: u8,
    pub tip_bytes: u8,
    /// How many TIPs, and `ENDS_IN_TIP`; if there are none, LastIP stays.
    pub tips: u8,
    /// How often it was found, up to 255; less when others want its place.
    pub uses: u8,
}

/// The last packet is a TIP.
pub(super) const ENDS_IN_TIP: u8 = 0x80;

/// How far a phrase goes, and what of LastIP matters: as `Phrase` has it.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Reach {
    pub length: u8,
    pub tips: u8,
    pub tip_bytes: u8,
    pub ends_in_tip: bool,
    pub kept: u64,
    /// LastIP behind it.
    pub last_ip: u64,
}

/// A place where a phrase may be.
#[derive(Clone, Copy)]
pub(super) struct At {
    pub slot: usize,
    tag: u16,
    pub low: u64,
    pub high: u64,
}

/// Of so many bytes, `WINDOW` at most: those of the first and of the second word.
const MASKS: [(u64, u64); 2 * WINDOW] = masks();

const fn masks() -> [(u64, u64); 2 * WINDOW] {
    let mut masks = [(0, 0); 2 * WINDOW];
    let mut i = 1;
    while i <= WINDOW {
        let (low, high) = masks[i - 1];
        masks[i] = if i <= 8 {
            (low << 8 | 0xff, 0)
        } else {
            (low, high << 8 | 0xff)
        };
        i += 1;
    }
    masks
}

impl Phrase {
    #[inline(always)]
    pub fn is(&self, base: u32, at: &At, last_ip: u64) -> bool {
        let (low, high) = MASKS[usize::from(self.length) % (2 * WINDOW)];
        let bytes = (at.low & low ^ self.low) | (at.high & high ^ self.high);
        let ip = last_ip & self.kept ^ self.before;
        self.base == base && bytes | ip == 0
    }
}

/// All phrases, and whether it is worth while to look for them.
#[derive(Default)]
pub(crate) struct Phrases {
    pub(super) entries: Vec<Phrase>,
    /// Number of the step, by slot.
    numbers: Vec<u32>,
    evicted: usize,
    limit: usize,
    /// Bytes that are still to be taken before there are any.
    warm: usize,
    often: u8,
    /// Look-ups that found something, less those that did not.
    trust: i32,
    credit: i32,
    price: i32,
    /// Bytes to be taken packet by packet before it is tried again, and how many when that is next decided.
    pub(super) paused: usize,
    pause: usize,
}

impl Phrases {
    pub fn new(limits: &StepLimits, price: i32) -> Phrases {
        Phrases {
            limit: (1 << limits.entries.ilog2()).min(MOST),
            warm: limits.phrases,
            often: if limits.phrases == 0 {
                LEAST_OFTEN
            } else {
                OFTEN
            },
            pause: FIRST_PAUSE,
            price: if limits.phrases == 0 { 0 } else { price },
            credit: FIRST_CREDIT * price,
            ..Phrases::default()
        }
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// How many bytes they take.
    pub fn bytes(&self) -> usize {
        size_of_val(&self.entries[..]) + size_of_val(&self.numbers[..])
    }

    /// So many bytes were taken: from some on there are phrases.
    pub fn warm_up(&mut self, bytes: usize) {
        self.warm = self.warm.saturating_sub(bytes);
        if self.entries.is_empty() && self.warm == 0 && self.limit != 0 {
            self.resize(FIRST.min(self.limit));
        }
    }

    fn resize(&mut self, size: usize) {
        self.entries = vec![Phrase::default(); size];
        self.numbers = vec![0; size];
        self.evicted = 0;
    }

    pub fn clear(&mut self) {
        self.entries.fill(Phrase::default());
        self.evicted = 0;
    }

    /// The place of the phrase that begins with these bytes; `rest` as `Lane` has it.
    #[inline(always)]
    pub fn at(&self, base: u32, bytes: &[u8; WINDOW], rest: u8) -> At {
        let word = |from: usize| {
            let bytes = bytes
                .get(from..from + 8)
                .and_then(|bytes| bytes.try_into().ok());
            u64::from_le_bytes(bytes.unwrap_or_default())
        };
        let (mut low, high) = (word(0), word(8));
        if rest != 0 {
            low = low & !0xff | u64::from(rest);
        }
        let mixed = (low ^ u64::from(base)).wrapping_mul(0x9E37_79B9_7F4A_7C15)
            ^ high.wrapping_mul(0xD6E8_FEB8_6659_FD93);
        let mixed = mixed ^ mixed >> 32;
        At {
            slot: (mixed >> 12) as usize & (self.entries.len() - 1),
            tag: mixed as u16 | 1,
            low,
            high,
        }
    }

    /// So many look-ups found something, and then one nothing. Whether a phrase is to be made.
    #[inline]
    pub fn missed(&mut self, at: &At, found: i32) -> bool {
        self.found(found);
        let entry = &mut self.entries[at.slot];
        if entry.tag == at.tag {
            entry.seen += 1;
            if entry.seen >= self.often {
                entry.seen = 0;
                entry.uses >>= 2;
                if self.credit >= self.price && entry.uses == 0 {
                    self.credit -= self.price;
                    return true;
                }
            }
        } else if entry.seen != 0 {
            entry.seen -= 1;
        } else {
            entry.tag = at.tag;
        }
        if self.price == 0 {
            return false;
        }
        self.trust -= 3;
        self.paused = WINDOW;
        if self.trust <= -TRUST {
            self.trust = 0;
            self.paused = self.pause;
            self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        }
        false
    }

    /// So many look-ups found something.
    #[inline]
    pub fn found(&mut self, times: i32) {
        self.trust = self.trust.saturating_add(times).min(TRUST);
        self.credit = self
            .credit
            .saturating_add(times)
            .min(MOST_CREDIT * self.price);
        if self.trust == TRUST {
            self.pause = FIRST_PAUSE;
        }
    }

    /// Puts a phrase at a place; `left` takes what it pushes out.
    pub fn put(&mut self, at: &At, phrase: Phrase, number: u32, left: &mut Vec<Left>) {
        if self.entries[at.slot].base != 0 {
            self.evicted += 1;
            self.remove(at.slot, left);
        }
        self.entries[at.slot] = phrase;
        self.numbers[at.slot] = number;
        if self.evicted * 4 > self.entries.len() && self.entries.len() < self.limit {
            self.empty(left);
            self.resize((self.entries.len() * 4).min(self.limit));
        }
    }

    fn empty(&mut self, left: &mut Vec<Left>) {
        let hits = self.hits();
        left.extend(hits.map(|(number, hits)| Left { number, hits }));
    }

    fn remove(&mut self, slot: usize, left: &mut Vec<Left>) {
        left.push(Left {
            number: self.numbers[slot],
            hits: self.entries[slot].hits,
        });
        self.entries[slot] = Phrase::default();
    }

    /// Removes a phrase, if it is still there.
    pub fn remove_if(&mut self, slot: usize, number: u32, left: &mut Vec<Left>) {
        let is_it = |phrase: &Phrase| phrase.base != 0 && self.numbers[slot] == number;
        if self.entries.get(slot).is_some_and(is_it) {
            self.remove(slot, left);
        }
    }

    /// Numbers and hits of all.
    pub fn hits(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        let all = self.entries.iter().zip(&self.numbers);
        all.filter(|(phrase, _)| phrase.base != 0 && phrase.hits != 0)
            .map(|(phrase, &number)| (number, phrase.hits))
    }

    /// Hands over all hits and begins at 0.
    pub fn drain_hits(&mut self, mut take: impl FnMut(u32, u32)) {
        for (phrase, &number) in self.entries.iter_mut().zip(&self.numbers) {
            if phrase.base != 0 && phrase.hits != 0 {
                take(number, std::mem::take(&mut phrase.hits));
            }
        }
    }

    /// Slots and numbers of all.
    pub fn live(&self) -> impl Iterator<Item = (usize, u32)> + '_ {
        let all = self.entries.iter().zip(&self.numbers).enumerate();
        all.filter(|(_, (phrase, _))| phrase.base != 0)
            .map(|(slot, (_, &number))| (slot, number))
    }
}

/// The bytes of a phrase of this length.
pub(super) fn cut(at: &At, length: u8) -> (u64, u64) {
    let (low, high) = MASKS[usize::from(length)];
    (at.low & low, at.high & high)
}
