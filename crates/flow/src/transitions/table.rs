//! The hash table of transitions.
//!
//! A table has a power of two of entries and two possible slots for each transition. It doubles up to a limit; beyond
//! that, a new transition evicts an old one, which is built again when it is needed. With one slot, a table that was a
//! quarter full lost a tenth of its transitions to collisions.
//!
//! One generic table serves three inputs: a short TNT byte, the target of a TIP, and the call site of a compressed RET.
//! All of them hash the node together with the input ([`TransitionInput::first_slot`]).

use std::mem::size_of_val;

use rtit_huge_pages::Buffer;

/// Identifies a code node, and is its hash at the same time: (index + 1) * K modulo 2^32.
///
/// K is odd, so the multiplication is a bijection and distinct nodes have distinct keys. Only the index `u32::MAX`,
/// which no node has, would give `EMPTY`.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct NodeKey(pub(super) u32);

impl NodeKey {
    pub const EMPTY: NodeKey = NodeKey(0);
    const K: u32 = 0x9E37_79B1;
    const K_INVERSE: u32 = inverse_modulo_2_32(NodeKey::K);

    #[inline]
    pub fn from_index(index: u32) -> NodeKey {
        NodeKey(index.wrapping_add(1).wrapping_mul(NodeKey::K))
    }

    #[inline]
    pub fn node_index(self) -> u32 {
        self.0.wrapping_mul(NodeKey::K_INVERSE).wrapping_sub(1)
    }
}

/// Newton's iteration; five steps are enough for 32 bits.
const fn inverse_modulo_2_32(k: u32) -> u32 {
    let mut x = k;
    let mut i = 0;
    while i < 5 {
        x = x.wrapping_mul(2u32.wrapping_sub(k.wrapping_mul(x)));
        i += 1;
    }
    x
}

/// What selects a transition, beside the node.
pub(crate) trait TransitionInput: Copy + Default + PartialEq {
    /// XOR of the two slots that a transition may occupy; one bit.
    const SLOT_DISTANCE: usize;

    /// First slot in a table of `mask + 1` entries. `old_slot` is a slot of the transition in a table that is no
    /// larger: the only trace of a TNT byte.
    fn first_slot(self, node: NodeKey, old_slot: usize, mask: usize) -> usize;
}

/// A short TNT byte is implied by the slot and is not stored: the transitions of a node occupy 128 consecutive slots,
/// one for each value of `byte >> 1` (bit 0 of a short TNT is always 0).
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub(crate) struct ShortTnt;

/// Number of short TNT bytes, and the least size of a table: in a smaller one the slot would not imply the byte.
pub(super) const SHORT_TNTS: usize = 128;

impl TransitionInput for ShortTnt {
    /// A full period, so that the second slot implies the same TNT byte as the first.
    const SLOT_DISTANCE: usize = SHORT_TNTS;

    #[inline(always)]
    fn first_slot(self, node: NodeKey, old_slot: usize, mask: usize) -> usize {
        tnt_slot(node, half_tnt(node, old_slot), mask)
    }
}

/// First slot of a short TNT; `half`: the byte, shifted right by 1.
#[inline(always)]
pub(super) fn tnt_slot(node: NodeKey, half: u8, mask: usize) -> usize {
    node.0.wrapping_add(u32::from(half)) as usize & mask
}

/// The short TNT byte, shifted right by 1, that a slot implies.
#[inline(always)]
pub(super) fn half_tnt(node: NodeKey, slot: usize) -> u8 {
    ((slot as u32).wrapping_sub(node.0) as usize & (SHORT_TNTS - 1)) as u8
}

/// The IP of a TIP packet, after decompression against LastIP.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub(crate) struct TipTarget(pub u64);

impl TransitionInput for TipTarget {
    const SLOT_DISTANCE: usize = 1;

    #[inline(always)]
    fn first_slot(self, node: NodeKey, _old_slot: usize, mask: usize) -> usize {
        ((self.0 ^ self.0 >> 13) as u32 ^ node.0) as usize & mask
    }
}

/// Number of the call instruction to which a compressed RET returns.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct CallSite(pub u32);

impl TransitionInput for CallSite {
    const SLOT_DISTANCE: usize = 1;

    #[inline(always)]
    fn first_slot(self, node: NodeKey, _old_slot: usize, mask: usize) -> usize {
        (node.0 ^ self.0.wrapping_mul(0x85EB_CA6B)) as usize & mask
    }
}

#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Transition<I> {
    /// `EMPTY`: the slot is free.
    pub node: NodeKey,
    pub next: NodeKey,
    /// The id of the transition if the sink needs ids, else how often it was taken since counts were last flushed.
    pub count_or_id: u32,
    /// Its effect on the return stack, encoded by `StackEffects`; 0: none.
    pub stack_effect: u32,
    pub input: I,
}

/// A transition that was removed from a table, with the count that it had.
pub(crate) struct EvictedTransition {
    pub id: u32,
    pub count: u32,
}

pub(crate) struct TransitionTable<I> {
    pub entries: Buffer<Transition<I>>,
    /// By slot. Apart from `entries`, since the decode loop never reads it.
    ids: Buffer<u32>,
    used: usize,
    evicted_since_growth: usize,
    max_entries: usize,
}

impl<I: TransitionInput> TransitionTable<I> {
    /// Both sizes are powers of two, `SHORT_TNTS` at least.
    pub fn new(first_entries: usize, max_entries: usize) -> TransitionTable<I> {
        let entries = first_entries.min(max_entries);
        TransitionTable {
            entries: Buffer::filled(Transition::default(), entries),
            ids: Buffer::filled(0, entries),
            used: 0,
            evicted_since_growth: 0,
            max_entries,
        }
    }

    pub fn slot_mask(&self) -> usize {
        self.entries.len() - 1
    }

    pub fn transition_id(&self, slot: usize) -> u32 {
        self.ids[slot]
    }

    pub fn clear(&mut self) {
        self.entries.fill(Transition::default());
        self.used = 0;
        self.evicted_since_growth = 0;
    }

    /// Inserts a transition at its first slot `slot` or its second one. Doubles a crowded table, up to the limit.
    /// Appends what it evicts to `evicted`.
    pub fn insert_transition(
        &mut self,
        slot: usize,
        transition: Transition<I>,
        id: u32,
        evicted: &mut Vec<EvictedTransition>,
    ) {
        self.insert_without_growing(slot, transition, id, evicted);
        let is_crowded = self.used * 2 > self.entries.len()
            || self.evicted_since_growth * 16 > self.entries.len();
        if is_crowded && self.entries.len() < self.max_entries {
            self.grow_table(evicted);
        }
    }

    fn insert_without_growing(
        &mut self,
        mut slot: usize,
        transition: Transition<I>,
        id: u32,
        evicted: &mut Vec<EvictedTransition>,
    ) {
        if self.entries[slot].node != NodeKey::EMPTY {
            let second = second_slot::<I>(slot, self.entries.len());
            if self.entries[second].node == NodeKey::EMPTY {
                slot = second;
            } else {
                self.evicted_since_growth += 1;
                self.remove_slot(slot, evicted);
            }
        }
        self.used += 1;
        self.entries[slot] = transition;
        self.ids[slot] = id;
    }

    fn remove_slot(&mut self, slot: usize, evicted: &mut Vec<EvictedTransition>) {
        evicted.push(EvictedTransition {
            id: self.ids[slot],
            count: self.entries[slot].count_or_id,
        });
        self.entries[slot] = Transition::default();
        self.used -= 1;
    }

    fn grow_table(&mut self, evicted: &mut Vec<EvictedTransition>) {
        let size = (self.entries.len() * 2).min(self.max_entries);
        let entries = std::mem::replace(
            &mut self.entries,
            Buffer::filled(Transition::default(), size),
        );
        let ids = std::mem::replace(&mut self.ids, Buffer::filled(0, size));
        self.used = 0;
        for (old_slot, (transition, id)) in entries.into_iter().zip(ids).enumerate() {
            if transition.node != NodeKey::EMPTY {
                let slot = transition
                    .input
                    .first_slot(transition.node, old_slot, size - 1);
                self.insert_without_growing(slot, transition, id, evicted);
            }
        }
        self.evicted_since_growth = 0;
    }

    /// Removes the transition of `node` by `input` if it is in the table. `slot`: its first slot.
    pub fn remove_if_present(
        &mut self,
        slot: usize,
        node: NodeKey,
        input: I,
        evicted: &mut Vec<EvictedTransition>,
    ) {
        if let Some(slot) = find_slot(&self.entries, slot, node, input) {
            self.remove_slot(slot, evicted);
        }
    }

    pub fn size_in_bytes(&self) -> usize {
        size_of_val(&self.entries[..]) + size_of_val(&self.ids[..])
    }

    /// Ids and counts of the transitions with a count.
    pub fn nonzero_counts(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        let entries = self.entries.iter().zip(&self.ids);
        entries
            .filter(|(transition, _)| transition.count_or_id != 0)
            .map(|(transition, &id)| (id, transition.count_or_id))
    }

    /// Calls `add` with each id and count, and resets the counts.
    pub fn drain_counts(&mut self, mut add: impl FnMut(u32, u32)) {
        for (transition, &id) in self.entries.iter_mut().zip(&self.ids) {
            if transition.count_or_id != 0 {
                add(id, std::mem::take(&mut transition.count_or_id));
            }
        }
    }

    /// The slots in use and their transitions.
    pub fn used_slots(&self) -> impl Iterator<Item = (usize, &Transition<I>)> {
        let slots = self.entries.iter().enumerate();
        slots.filter(|(_, transition)| transition.node != NodeKey::EMPTY)
    }
}

/// The slot of a transition with the first slot `slot`.
#[inline(always)]
pub(super) fn find_slot<I: TransitionInput>(
    entries: &[Transition<I>],
    slot: usize,
    node: NodeKey,
    input: I,
) -> Option<usize> {
    let holds = |slot: usize| entries[slot].node == node && entries[slot].input == input;
    if holds(slot) {
        return Some(slot);
    }
    let second = second_slot::<I>(slot, entries.len());
    holds(second).then_some(second)
}

/// The same slot in a table of 128 TNT transitions, which is too small for two.
#[inline(always)]
fn second_slot<I: TransitionInput>(slot: usize, entries: usize) -> usize {
    (slot ^ I::SLOT_DISTANCE) & (entries - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_key_round_trips_through_its_index() {
        for index in [0, 1, 2, 77, 1 << 29, u32::MAX - 1] {
            assert_ne!(NodeKey::from_index(index), NodeKey::EMPTY);
            assert_eq!(NodeKey::from_index(index).node_index(), index);
        }
    }

    #[test]
    fn growing_keeps_or_evicts_every_transition() {
        fn transition<I>(node: NodeKey, id: u32, input: I) -> Transition<I> {
            Transition {
                node,
                next: NodeKey(id),
                count_or_id: id,
                stack_effect: 0,
                input,
            }
        }
        let mut evicted = Vec::new();
        let mut tnt = TransitionTable::new(128, 1 << 12);
        let mut tip = TransitionTable::new(128, 1 << 12);
        let mut inserted = Vec::new();
        for id in 0..100 {
            let (node, half) = (NodeKey::from_index(id), (id * 37 % 126 + 2) as u8);
            let target = TipTarget(u64::from(id) * 0x1234_5678_9abc);
            let slot = tnt_slot(node, half, tnt.slot_mask());
            tnt.insert_transition(slot, transition(node, id, ShortTnt), id, &mut evicted);
            let slot = target.first_slot(node, 0, tip.slot_mask());
            tip.insert_transition(slot, transition(node, id, target), id, &mut evicted);
            inserted.push((node, half, target, id));
        }
        assert!(tnt.entries.len() > 128 && tip.entries.len() > 128);
        let evicted_ids: Vec<u32> = evicted.iter().map(|evicted| evicted.id).collect();
        let mut found = 0;
        for (node, half, target, id) in inserted {
            let slot = tnt_slot(node, half, tnt.slot_mask());
            if let Some(slot) = find_slot(&tnt.entries, slot, node, ShortTnt) {
                assert_eq!(
                    (tnt.entries[slot].next.0, tnt.transition_id(slot)),
                    (id, id)
                );
                found += 1;
            } else {
                assert!(evicted_ids.contains(&id));
            }
            let slot = target.first_slot(node, 0, tip.slot_mask());
            if let Some(slot) = find_slot(&tip.entries, slot, node, target) {
                assert_eq!(tip.transition_id(slot), id);
                found += 1;
            } else {
                assert!(evicted_ids.contains(&id));
            }
        }
        assert!(found > 100);
        assert_eq!(
            tnt.used_slots().count() + tip.used_slots().count() + evicted.len(),
            200
        );
    }
}
