//! The tables of steps: of a power of two of entries, two places for each, growing up to a limit.
//!
//! A node is named by its base: (number + 1) * K modulo 2^32, which is another for every number, and never 0. The steps
//! of a node by TNT are at base + packet / 2, or 128 from there, so that in a table of 128 entries or more the base alone is
//! the key.

use std::mem::size_of_val;

const K: u32 = 0x9E37_79B1;
/// K * INVERSE = 1 modulo 2^32.
const INVERSE: u32 = inverse(K);
/// Short TNTs, halved.
const TNTS: u32 = 128;

const fn inverse(k: u32) -> u32 {
    let mut x = k;
    let mut i = 0;
    while i < 5 {
        x = x.wrapping_mul(2u32.wrapping_sub(k.wrapping_mul(x)));
        i += 1;
    }
    x
}

#[inline]
pub(crate) fn base_of(node: u32) -> u32 {
    node.wrapping_add(1).wrapping_mul(K)
}

#[inline]
pub(crate) fn node_of(base: u32) -> u32 {
    base.wrapping_mul(INVERSE).wrapping_sub(1)
}

/// What a step is looked up by, beside the node. A TNT is told by the slot and is not kept.
pub(crate) trait Key: Copy + Default + PartialEq {
    /// How far the other slot of a step is, one bit.
    const OTHER: usize;

    /// Slot in a table of `mask` + 1 entries; `at`: the slot in a smaller or equal table, which TNTs need.
    fn slot(self, base: u32, at: usize, mask: usize) -> usize;
}

impl Key for () {
    const OTHER: usize = TNTS as usize;

    #[inline(always)]
    fn slot(self, base: u32, at: usize, mask: usize) -> usize {
        let tnt = (at as u32).wrapping_sub(base) & (TNTS - 1);
        tnt_slot(base, tnt as u8, mask)
    }
}

/// A target.
impl Key for u64 {
    const OTHER: usize = 1;

    #[inline(always)]
    fn slot(self, base: u32, _at: usize, mask: usize) -> usize {
        ((self ^ self >> 13) as u32 ^ base) as usize & mask
    }
}

/// A call site.
impl Key for u32 {
    const OTHER: usize = 1;

    #[inline(always)]
    fn slot(self, base: u32, _at: usize, mask: usize) -> usize {
        (base ^ self.wrapping_mul(0x85EB_CA6B)) as usize & mask
    }
}

/// `half`: a TNT packet, halved.
#[inline(always)]
pub(super) fn tnt_slot(base: u32, half: u8, mask: usize) -> usize {
    base.wrapping_add(u32::from(half)) as usize & mask
}

/// Where a step is that belongs to `slot`.
#[inline(always)]
pub(super) fn find<K: Key>(entries: &[Entry<K>], slot: usize, base: u32, key: K) -> Option<usize> {
    let is_it = |slot: usize| entries[slot].base == base && entries[slot].key == key;
    if is_it(slot) {
        return Some(slot);
    }
    let other = other::<K>(slot, entries.len());
    is_it(other).then_some(other)
}

/// In the smallest table there is none.
#[inline(always)]
fn other<K: Key>(slot: usize, entries: usize) -> usize {
    (slot ^ K::OTHER) & (entries - 1)
}

#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Entry<K> {
    /// 0: nothing is here.
    pub base: u32,
    /// Base of the node that comes next.
    pub next: u32,
    /// How often the step was taken and not yet added up; for sinks that want the order, its number.
    pub hits: u32,
    /// What it does to the return stack (`Acts`).
    pub act: u32,
    pub key: K,
}

pub(crate) struct Table<K> {
    pub entries: Vec<Entry<K>>,
    /// Number of the step, by slot.
    numbers: Vec<u32>,
    used: usize,
    evicted: usize,
    limit: usize,
}

/// A step that left its place with hits that were not added up.
pub(crate) struct Left {
    pub number: u32,
    pub hits: u32,
}

impl<K: Key> Table<K> {
    /// `first` entries, and at most `limit`: both a power of two, 128 at least.
    pub fn new(first: usize, limit: usize) -> Table<K> {
        Table {
            entries: vec![Entry::default(); first.min(limit)],
            numbers: vec![0; first.min(limit)],
            used: 0,
            evicted: 0,
            limit,
        }
    }

    pub fn mask(&self) -> usize {
        self.entries.len() - 1
    }

    pub fn number(&self, slot: usize) -> u32 {
        self.numbers[slot]
    }

    /// Forgets all steps.
    pub fn clear(&mut self) {
        self.entries.fill(Entry::default());
        self.used = 0;
        self.evicted = 0;
    }

    /// Puts a step where it belongs; `left` takes those that it pushes out.
    pub fn put(&mut self, slot: usize, entry: Entry<K>, number: u32, left: &mut Vec<Left>) {
        self.place(slot, entry, number, left);
        let crowded = self.used * 2 > self.entries.len() || self.evicted * 16 > self.entries.len();
        if crowded && self.entries.len() < self.limit {
            self.grow(left);
        }
    }

    fn place(&mut self, mut slot: usize, entry: Entry<K>, number: u32, left: &mut Vec<Left>) {
        if self.entries[slot].base != 0 {
            let other = other::<K>(slot, self.entries.len());
            if self.entries[other].base == 0 {
                slot = other;
            } else {
                self.evicted += 1;
                self.remove(slot, left);
            }
        }
        self.used += 1;
        self.entries[slot] = entry;
        self.numbers[slot] = number;
    }

    pub fn remove(&mut self, slot: usize, left: &mut Vec<Left>) {
        left.push(Left {
            number: self.numbers[slot],
            hits: self.entries[slot].hits,
        });
        self.entries[slot] = Entry::default();
        self.used -= 1;
    }

    fn grow(&mut self, left: &mut Vec<Left>) {
        let size = (self.entries.len() * 2).min(self.limit);
        let entries = std::mem::replace(&mut self.entries, vec![Entry::default(); size]);
        let numbers = std::mem::replace(&mut self.numbers, vec![0; size]);
        self.used = 0;
        for (at, (entry, number)) in entries.into_iter().zip(numbers).enumerate() {
            if entry.base != 0 {
                let slot = entry.key.slot(entry.base, at, size - 1);
                self.place(slot, entry, number, left);
            }
        }
        self.evicted = 0;
    }

    /// As `remove`, if the step with this key is there.
    pub fn remove_if(&mut self, slot: usize, base: u32, key: K, left: &mut Vec<Left>) {
        if let Some(slot) = find(&self.entries, slot, base, key) {
            self.remove(slot, left);
        }
    }

    /// How many bytes it takes.
    pub fn bytes(&self) -> usize {
        size_of_val(&self.entries[..]) + size_of_val(&self.numbers[..])
    }

    /// Numbers and hits of the steps.
    pub fn hits(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        let numbers = self.numbers.iter();
        let all = self.entries.iter().zip(numbers);
        all.filter(|(entry, _)| entry.hits != 0)
            .map(|(entry, &number)| (number, entry.hits))
    }

    /// Hands over all hits and begins at 0.
    pub fn drain_hits(&mut self, mut take: impl FnMut(u32, u32)) {
        for (entry, &number) in self.entries.iter_mut().zip(&self.numbers) {
            if entry.hits != 0 {
                take(number, std::mem::take(&mut entry.hits));
            }
        }
    }

    /// The steps and their slots.
    pub fn live(&self) -> impl Iterator<Item = (usize, &Entry<K>)> {
        self.entries
            .iter()
            .enumerate()
            .filter(|(_, entry)| entry.base != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_and_its_base() {
        for node in [0, 1, 2, 77, 1 << 29, u32::MAX - 1] {
            assert_ne!(base_of(node), 0);
            assert_eq!(node_of(base_of(node)), node);
        }
    }

    #[test]
    fn growing_moves_every_step_to_its_slot() {
        let mut left = Vec::new();
        let mut tnt: Table<()> = Table::new(128, 1 << 12);
        let mut tip: Table<u64> = Table::new(128, 1 << 12);
        let mut known = Vec::new();
        for node in 0..100 {
            let (base, half) = (base_of(node), (node * 37 % 126 + 2) as u8);
            let ip = u64::from(node) * 0x1234_5678_9abc;
            let slot = tnt_slot(base, half, tnt.mask());
            let entry = |key| Entry {
                base,
                next: node,
                hits: node,
                act: 0,
                key,
            };
            tnt.put(
                slot,
                Entry {
                    base,
                    next: node,
                    hits: node,
                    act: 0,
                    key: (),
                },
                node,
                &mut left,
            );
            tip.put(ip.slot(base, 0, tip.mask()), entry(ip), node, &mut left);
            known.push((base, half, ip, node));
        }
        assert!(tnt.entries.len() > 128 && tip.entries.len() > 128);
        let lost: Vec<u32> = left.iter().map(|left| left.number).collect();
        let mut found = 0;
        for (base, half, ip, node) in known {
            let at = tnt_slot(base, half, tnt.mask());
            if let Some(at) = find(&tnt.entries, at, base, ()) {
                assert_eq!((tnt.entries[at].next, tnt.number(at)), (node, node));
                found += 1;
            } else {
                assert!(lost.contains(&node));
            }
            let at = ip.slot(base, 0, tip.mask());
            if let Some(at) = find(&tip.entries, at, base, ip) {
                assert_eq!(tip.number(at), node);
                found += 1;
            } else {
                assert!(lost.contains(&node));
            }
        }
        assert!(found > 100);
        // nothing is lost without being handed over
        assert_eq!(tnt.live().count() + tip.live().count() + left.len(), 200);
    }
}
