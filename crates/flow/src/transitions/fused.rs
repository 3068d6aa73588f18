//! Fused transitions: several packets decoded by one lookup.
//!
//! Packet by packet no table is faster than one load a packet, but streams repeat themselves far beyond single
//! packets. A fused transition begins at a node and covers the whole short TNTs and TIPs within the next 16 bytes, or
//! fewer of them: it ends at a packet without a transition, and after a packet that takes an entry off the return
//! stack that was there before. Such a RET is looked up as usual, and the next fused transition may begin within its
//! TNT byte. CYCs and MTCs are in none.
//!
//! It is looked up by the node, these bytes, and as much of LastIP as its first TIP keeps. [`FusionBuilder`] composes
//! it from the transitions that the decode loop would take, so it cannot mean anything else; counts and logs treat it
//! as any other transition. It is removed together with the nodes that it visits.
//!
//! Much of a stream occurs once, so cost is bounded in three ways: bytes are fused when they have occurred
//! `FUSION_THRESHOLD` times; a fused transition is replaced only when it is no longer used; and each must be paid for
//! with lookups that hit (`fusion_budget`). When fewer than three of four lookups hit, packets are decoded one by one
//! for a while (`backoff_bytes`). Measured over five programs, fusion makes counting 1.4 times and rows 1.2 times as
//! fast without RET compression; with it, rows do not gain, so it is off there.

use std::mem::size_of_val;

use rtit_huge_pages::Buffer;
use rtit_packet::PSB;

use super::decode_loop::{
    apply_call_pushes, decode_packets, is_short_tnt, may_continue_as_psb, parse_tip, DecodeCursor,
    StopReason, TransitionRecorder, TransitionTables, TIP, TIP_MASK,
};
use super::node_visits::{NodeVisits, OpenIdCounters};
use super::packet_path::{CallSitePushes, StackEffect, StackEffects, STACK_DEPTH};
use super::table::{
    find_slot, tnt_slot, CallSite, EvictedTransition, NodeKey, ShortTnt, TipTarget,
    TransitionInput, TransitionTable,
};
use crate::return_stack::ReturnStack;
use crate::settings::TransitionLimits;

/// Bytes that are looked up at once.
pub(super) const WINDOW: usize = 16;

/// How often bytes must occur before they are fused.
const FUSION_THRESHOLD: u8 = 6;
/// The least threshold: with less, bytes that cannot be fused would be tried again at once.
const MIN_FUSION_THRESHOLD: u8 = 2;

/// Cost of a fused transition in lookups that hit. With results in order it is larger, since sinks keep column data
/// for it.
pub(super) const FUSION_COST: i32 = 64;
pub(super) const FUSION_COST_IN_ORDER: i32 = 256;

/// Fused transitions that may be built before any have paid for themselves, and the most that a budget can hold.
const FIRST_BUDGET: i32 = 1 << 10;
const MAX_BUDGET: i32 = 1 << 11;

/// Entries: they should stay in a cache.
const FIRST_ENTRIES: usize = 1 << 11;
const MAX_ENTRIES: usize = 1 << 13;

/// The back-off begins when the hit score, which a hit raises by 1 and a miss lowers by 3, falls to minus this.
const MAX_HIT_SCORE: i32 = 64;
const FIRST_BACKOFF: usize = 1 << 8;
const MAX_BACKOFF: usize = 1 << 12;

/// Limits of a fused transition, because batches end between transitions.
const MAX_ROWS: usize = 96;
const MAX_INSTRUCTIONS: usize = 1 << 9;

#[derive(Clone, Copy, Default, Debug)]
#[repr(align(64))]
pub(super) struct FusedTransition {
    /// The bytes, little-endian; 0 after `length` of them.
    pub low: u64,
    pub high: u64,
    /// The bits of LastIP that matter, and their value before; LastIP after.
    pub last_ip_mask: u64,
    pub last_ip_before: u64,
    pub last_ip_after: u64,
    /// `EMPTY`: the slot is free.
    pub node: NodeKey,
    pub next: NodeKey,
    /// As in `Transition`.
    pub count_or_id: u32,
    pub stack_effect: u32,
    /// Hash of bytes that may be fused here, and how often they have occurred.
    pub candidate: u16,
    pub candidate_count: u8,
    /// In bytes; of that, TIPs.
    pub length: u8,
    pub tip_bytes: u8,
    /// Number of TIPs, and `ENDS_IN_TIP`. Without TIPs LastIP does not change.
    pub tips: u8,
    /// Number of hits, up to 255; reduced when other bytes compete for the slot.
    pub uses: u8,
}

/// The last packet is a TIP.
const ENDS_IN_TIP: u8 = 0x80;

impl FusedTransition {
    #[inline(always)]
    fn matches_key(&self, node: NodeKey, key: &FusionKey, last_ip: u64) -> bool {
        let (low, high) = MASKS[usize::from(self.length) % (2 * WINDOW)];
        let bytes = (key.low & low ^ self.low) | (key.high & high ^ self.high);
        let ip = last_ip & self.last_ip_mask ^ self.last_ip_before;
        self.node == node && bytes | ip == 0
    }
}

/// The next bytes, and the slot of a fused transition for them.
#[derive(Clone, Copy)]
pub(super) struct FusionKey {
    pub slot: usize,
    hash: u16,
    low: u64,
    high: u64,
}

impl FusionKey {
    /// The first `length` bytes as two words.
    pub fn masked_first_bytes(&self, length: u8) -> (u64, u64) {
        let (low, high) = MASKS[usize::from(length)];
        (self.low & low, self.high & high)
    }
}

/// Masks of the first and the second word, by the number of bytes, at most `WINDOW`.
const MASKS: [(u64, u64); 2 * WINDOW] = byte_masks_by_length();

const fn byte_masks_by_length() -> [(u64, u64); 2 * WINDOW] {
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

/// The table of fused transitions, with budget and back-off.
#[derive(Default)]
pub(super) struct FusedTransitions {
    entries: Buffer<FusedTransition>,
    /// By slot.
    ids: Buffer<u32>,
    evicted_since_growth: usize,
    max_entries: usize,
    /// Bytes that are decoded before the table is created.
    warm_up_bytes: usize,
    threshold: u8,
    hit_score: i32,
    fusion_budget: i32,
    fusion_cost: i32,
    /// Bytes to decode packet by packet before the next lookup, and the next back-off.
    backoff_bytes: usize,
    next_backoff: usize,
}

impl FusedTransitions {
    pub fn new(limits: &TransitionLimits, fusion_cost: i32) -> FusedTransitions {
        let is_eager = limits.fusion_warm_up == 0;
        FusedTransitions {
            max_entries: (1 << limits.entries.ilog2()).min(MAX_ENTRIES),
            warm_up_bytes: limits.fusion_warm_up,
            threshold: if is_eager {
                MIN_FUSION_THRESHOLD
            } else {
                FUSION_THRESHOLD
            },
            next_backoff: FIRST_BACKOFF,
            fusion_cost: if is_eager { 0 } else { fusion_cost },
            fusion_budget: FIRST_BUDGET * fusion_cost,
            ..FusedTransitions::default()
        }
    }

    pub fn size_in_bytes(&self) -> usize {
        size_of_val(&self.entries[..]) + size_of_val(&self.ids[..])
    }

    /// Counts decoded bytes; creates the table when the warm-up is over.
    pub fn warm_up(&mut self, bytes: usize) {
        self.warm_up_bytes = self.warm_up_bytes.saturating_sub(bytes);
        if self.entries.is_empty() && self.warm_up_bytes == 0 && self.max_entries != 0 {
            self.resize_table(FIRST_ENTRIES.min(self.max_entries));
        }
    }

    fn resize_table(&mut self, size: usize) {
        self.entries = Buffer::filled(FusedTransition::default(), size);
        self.ids = Buffer::filled(0, size);
        self.evicted_since_growth = 0;
    }

    pub fn clear(&mut self) {
        self.entries.fill(FusedTransition::default());
        self.evicted_since_growth = 0;
    }

    /// The key of these bytes. `pending_tnt` replaces the first byte unless it is 0.
    #[inline(always)]
    pub fn fusion_key(&self, node: NodeKey, bytes: &[u8; WINDOW], pending_tnt: u8) -> FusionKey {
        let word = |from: usize| {
            let bytes = bytes
                .get(from..from + 8)
                .and_then(|bytes| bytes.try_into().ok());
            u64::from_le_bytes(bytes.unwrap_or_default())
        };
        let (mut low, high) = (word(0), word(8));
        if pending_tnt != 0 {
            low = low & !0xff | u64::from(pending_tnt);
        }
        let mixed = (low ^ u64::from(node.0)).wrapping_mul(0x9E37_79B9_7F4A_7C15)
            ^ high.wrapping_mul(0xD6E8_FEB8_6659_FD93);
        let mixed = mixed ^ mixed >> 32;
        FusionKey {
            slot: (mixed >> 12) as usize & (self.entries.len() - 1),
            hash: mixed as u16 | 1,
            low,
            high,
        }
    }

    /// Accounts for a miss after `hits` lookups that hit. Returns whether the bytes should be fused.
    #[inline]
    fn count_miss(&mut self, key: &FusionKey, hits: i32) -> bool {
        self.count_hits(hits);
        let entry = &mut self.entries[key.slot];
        if entry.candidate == key.hash {
            entry.candidate_count += 1;
            if entry.candidate_count >= self.threshold {
                entry.candidate_count = 0;
                entry.uses >>= 2;
                if self.fusion_budget >= self.fusion_cost && entry.uses == 0 {
                    self.fusion_budget -= self.fusion_cost;
                    return true;
                }
            }
        } else if entry.candidate_count != 0 {
            entry.candidate_count -= 1;
        } else {
            entry.candidate = key.hash;
        }
        if self.fusion_cost == 0 {
            return false;
        }
        self.hit_score -= 3;
        self.backoff_bytes = WINDOW;
        if self.hit_score <= -MAX_HIT_SCORE {
            self.hit_score = 0;
            self.backoff_bytes = self.next_backoff;
            self.next_backoff = (self.next_backoff * 2).min(MAX_BACKOFF);
        }
        false
    }

    #[inline]
    fn count_hits(&mut self, hits: i32) {
        self.hit_score = self.hit_score.saturating_add(hits).min(MAX_HIT_SCORE);
        self.fusion_budget = self
            .fusion_budget
            .saturating_add(hits)
            .min(MAX_BUDGET * self.fusion_cost);
        if self.hit_score == MAX_HIT_SCORE {
            self.next_backoff = FIRST_BACKOFF;
        }
    }

    /// Inserts a fused transition at the slot of `key`. Appends what it evicts to `evicted`.
    pub fn insert_transition(
        &mut self,
        key: &FusionKey,
        transition: FusedTransition,
        id: u32,
        evicted: &mut Vec<EvictedTransition>,
    ) {
        if self.entries[key.slot].node != NodeKey::EMPTY {
            self.evicted_since_growth += 1;
            self.remove_slot(key.slot, evicted);
        }
        self.entries[key.slot] = transition;
        self.ids[key.slot] = id;
        if self.evicted_since_growth * 4 > self.entries.len()
            && self.entries.len() < self.max_entries
        {
            evicted.extend(
                self.nonzero_counts()
                    .map(|(id, count)| EvictedTransition { id, count }),
            );
            self.resize_table((self.entries.len() * 4).min(self.max_entries));
        }
    }

    fn remove_slot(&mut self, slot: usize, evicted: &mut Vec<EvictedTransition>) {
        evicted.push(EvictedTransition {
            id: self.ids[slot],
            count: self.entries[slot].count_or_id,
        });
        self.entries[slot] = FusedTransition::default();
    }

    /// Removes the transition with this id if it is still in the slot.
    pub fn remove_if_present(
        &mut self,
        slot: usize,
        id: u32,
        evicted: &mut Vec<EvictedTransition>,
    ) {
        let holds = |fused: &FusedTransition| fused.node != NodeKey::EMPTY && self.ids[slot] == id;
        if self.entries.get(slot).is_some_and(holds) {
            self.remove_slot(slot, evicted);
        }
    }

    /// Ids and counts of the transitions with a count.
    pub fn nonzero_counts(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        let entries = self.entries.iter().zip(&self.ids);
        entries
            .filter(|(fused, _)| fused.node != NodeKey::EMPTY && fused.count_or_id != 0)
            .map(|(fused, &id)| (id, fused.count_or_id))
    }

    /// Calls `add` with each id and count, and resets the counts.
    pub fn drain_counts(&mut self, mut add: impl FnMut(u32, u32)) {
        for (fused, &id) in self.entries.iter_mut().zip(&self.ids) {
            if fused.node != NodeKey::EMPTY && fused.count_or_id != 0 {
                add(id, std::mem::take(&mut fused.count_or_id));
            }
        }
    }

    /// The slots in use and their ids.
    pub fn used_slots(&self) -> impl Iterator<Item = (usize, u32)> + '_ {
        let entries = self.entries.iter().zip(&self.ids).enumerate();
        entries
            .filter(|(_, (fused, _))| fused.node != NodeKey::EMPTY)
            .map(|(slot, (_, &id))| (slot, id))
    }
}

pub(super) type DecodeFn = fn(
    &mut TransitionTables<'_>,
    Option<&mut FusedTransitions>,
    &mut ReturnStack,
    &[u8],
    usize,
    usize,
    &mut DecodeCursor,
) -> StopReason;

/// As `decode_loop::decode`; looks for fused transitions first.
pub(super) fn decode_with_fusion<const RETC: bool, R: TransitionRecorder>(
    tables: &mut TransitionTables<'_>,
    fused: Option<&mut FusedTransitions>,
    stack: &mut ReturnStack,
    bytes: &[u8],
    end: usize,
    max_log: usize,
    cursor: &mut DecodeCursor,
) -> StopReason {
    let Some(fused) = fused.filter(|fused| !fused.entries.is_empty() && !tables.ret.is_empty())
    else {
        return decode_packets::<RETC, R>(tables, stack, bytes, end, max_log, cursor);
    };
    loop {
        if fused.backoff_bytes == 0 {
            let decode_fused = decode_fused::<RETC, R>;
            if let Some(reason) = decode_fused(tables, fused, stack, bytes, end, max_log, cursor) {
                return reason;
            }
        }
        let start = cursor.offset;
        let stop = end.min(start.saturating_add(fused.backoff_bytes.max(1)));
        let reason = decode_packets::<RETC, R>(tables, stack, bytes, stop, max_log, cursor);
        fused.backoff_bytes = fused.backoff_bytes.saturating_sub(cursor.offset - start);
        let can_continue =
            cursor.offset >= stop && cursor.offset < end && tables.log.len() < max_log;
        if reason != StopReason::NotHandled || !can_continue {
            return reason;
        }
    }
}

/// Decodes as long as lookups of fused transitions hit. `None`: the next packet is to be decoded by itself.
#[inline(never)]
fn decode_fused<const RETC: bool, R: TransitionRecorder>(
    tables: &mut TransitionTables<'_>,
    fused: &mut FusedTransitions,
    stack: &mut ReturnStack,
    bytes: &[u8],
    end: usize,
    max_log: usize,
    cursor: &mut DecodeCursor,
) -> Option<StopReason> {
    let (ret, effects, log) = (&mut *tables.ret, tables.stack_effects, &mut *tables.log);
    let mut counters: OpenIdCounters<'_> = tables.counters.open_for_loop();
    let (mut offset, mut node) = (cursor.offset, cursor.node);
    let (mut last_ip, mut pending) = (cursor.last_ip, cursor.pending_tnt);
    let (mut tip_count, mut tip_bytes, mut hits) = (0, 0, 0);
    let outcome = loop {
        let window = bytes.get(offset..offset + WINDOW);
        let window: Option<&[u8; WINDOW]> = window.and_then(|window| window.try_into().ok());
        let (Some(window), true) = (window, offset < end && log.len() < max_log) else {
            fused.count_hits(hits);
            break None;
        };
        let key = fused.fusion_key(node, window, pending);
        let transition = &mut fused.entries[key.slot];
        let after = offset + usize::from(transition.length);
        let is_hit = transition.matches_key(node, &key, last_ip);
        if is_hit && after > end {
            fused.count_hits(hits);
            fused.backoff_bytes = WINDOW;
            break None;
        }
        if !is_hit || may_continue_as_psb(bytes.get(after..).unwrap_or(&[])) {
            break fused
                .count_miss(&key, hits)
                .then_some(StopReason::FusionDue);
        }
        R::record_transition(&mut transition.count_or_id, offset, log, &mut counters);
        transition.uses = transition.uses.saturating_add(1);
        node = transition.next;
        pending = 0;
        offset = after;
        if transition.tips != 0 {
            last_ip = transition.last_ip_after;
        }
        tip_count += u64::from(transition.tips & !ENDS_IN_TIP);
        tip_bytes += u64::from(transition.tip_bytes);
        hits += 1;
        if !RETC || transition.stack_effect == 0 {
            continue;
        }
        let ends_in_tip = transition.tips & ENDS_IN_TIP != 0;
        let (effect, pushes) = effects.decode_stack_effect(transition.stack_effect);
        apply_call_pushes(stack, effect.peak, pushes);
        if !effect.pops {
            continue;
        }
        if ends_in_tip {
            stack.drop_top();
            continue;
        }
        // The RET is in the last TNT byte of the fused transition.
        pending = effect.pending_tnt;
        offset -= 1;
        let Some(site) = stack.top_call_site().map(CallSite) else {
            break Some(StopReason::ReturnWithoutCall);
        };
        let Some(slot) = find_slot(ret, site.first_slot(node, 0, ret.len() - 1), node, site) else {
            break Some(StopReason::MissingReturn(site));
        };
        let transition = &mut ret[slot];
        stack.drop_top();
        R::record_transition(&mut transition.count_or_id, offset, log, &mut counters);
        node = transition.next;
        offset += usize::from(pending == 0);
    };
    counters.close();
    cursor.offset = offset;
    cursor.node = node;
    cursor.last_ip = last_ip;
    cursor.pending_tnt = pending;
    cursor.tip_count += tip_count;
    cursor.non_tnt_bytes += tip_bytes;
    outcome
}

/// The tables from which fused transitions are composed.
pub(super) struct FusionTables<'a> {
    pub tnt: &'a TransitionTable<ShortTnt>,
    pub tip: &'a TransitionTable<TipTarget>,
    pub ret: &'a TransitionTable<CallSite>,
    pub stack_effects: &'a StackEffects,
    pub visits: &'a NodeVisits,
    /// RETs may be compressed.
    pub has_retc: bool,
}

/// The packets that a fused transition covers.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct FusedLength {
    /// In bytes; of that, TIPs.
    pub length: u8,
    pub tips: u8,
    pub tip_bytes: u8,
    ends_in_tip: bool,
    pub last_ip_mask: u64,
    /// LastIP after the packets.
    pub last_ip: u64,
}

impl FusedLength {
    /// As `FusedTransition::tips`.
    pub fn tips_and_end(&self) -> u8 {
        self.tips | if self.ends_in_tip { ENDS_IN_TIP } else { 0 }
    }

    fn extended_by_tnt(self) -> FusedLength {
        FusedLength {
            length: self.length + 1,
            ends_in_tip: false,
            ..self
        }
    }

    /// `None` if the next packet is no whole TIP.
    fn extended_by_tip(self, bytes: &[u8; WINDOW]) -> Option<FusedLength> {
        let mut tip_bytes = [0; WINDOW];
        let left = bytes.get(usize::from(self.length)..).unwrap_or(&[]);
        for (to, &byte) in tip_bytes.iter_mut().zip(left) {
            *to = byte;
        }
        let (length, replaced, last_ip) = parse_tip(&tip_bytes, self.last_ip)?;
        let length = length as u8;
        if usize::from(self.length + length) > WINDOW {
            return None;
        }
        Some(FusedLength {
            length: self.length + length,
            tips: self.tips + 1,
            tip_bytes: self.tip_bytes + length,
            last_ip_mask: match self.tips {
                0 => !replaced,
                _ => self.last_ip_mask,
            },
            ends_in_tip: true,
            last_ip,
        })
    }
}

/// Composes a fused transition. Reused for every new one.
#[derive(Default)]
pub(super) struct FusionBuilder {
    /// Ids of the parts, each with the start of its packet in bytes after the start of the first.
    pub parts: Vec<(u32, u8)>,
    /// As in `PacketPath`.
    pub pushes: Vec<u32>,
    pub effect: StackEffect,
    /// The node after the last part.
    pub next: NodeKey,
    packets: usize,
    rows: usize,
    instructions: usize,
}

impl FusionBuilder {
    /// Composes the transitions that the decode loop would take from `cursor`: as many whole packets as have
    /// transitions, up to one that takes an entry off the return stack that was there before. The first of `bytes` may
    /// be a pending TNT. `None` if there is nothing to fuse.
    pub fn compose_transitions(
        &mut self,
        tables: &FusionTables<'_>,
        cursor: &DecodeCursor,
        bytes: &[u8; WINDOW],
    ) -> Option<FusedLength> {
        self.parts.clear();
        self.pushes.clear();
        self.effect = StackEffect::default();
        (self.next, self.packets, self.rows, self.instructions) = (cursor.node, 0, 0, 0);
        let mut covered = FusedLength {
            last_ip: cursor.last_ip,
            ..FusedLength::default()
        };
        while let Some(&first) = bytes.get(usize::from(covered.length)) {
            let saved = (self.parts.len(), self.effect, self.next);
            let saved_pushes = self.pushes.clone();
            let (extended, added) = if is_short_tnt(first) {
                (
                    covered.extended_by_tnt(),
                    self.add_tnt(tables, first, covered.length),
                )
            } else if first & TIP_MASK == TIP {
                let Some(extended) = covered.extended_by_tip(bytes) else {
                    break;
                };
                let target = TipTarget(extended.last_ip);
                (extended, self.add_tip(tables, target, covered.length))
            } else {
                break;
            };
            if added.is_none() || self.rows > MAX_ROWS || self.instructions > MAX_INSTRUCTIONS {
                self.parts.truncate(saved.0);
                (self.effect, self.next, self.pushes) = (saved.1, saved.2, saved_pushes);
                break;
            }
            covered = extended;
            self.packets += 1;
            let after = bytes.get(usize::from(covered.length)).unwrap_or(&0);
            if self.effect.pops || covered.ends_in_tip && PSB.contains(after) {
                break;
            }
        }
        (self.packets > 1 || self.effect.pops && !covered.ends_in_tip).then_some(covered)
    }

    /// Adds a transition and returns its stack effect, of which `pops` and `pending_tnt` are left to the caller.
    /// `None` if more calls would be open at once than the return stack holds.
    fn add_transition<I: TransitionInput>(
        &mut self,
        tables: &FusionTables<'_>,
        table: &TransitionTable<I>,
        slot: usize,
        packet_start: u8,
    ) -> Option<StackEffect> {
        let (transition, id) = (&table.entries[slot], table.transition_id(slot));
        self.parts.push((id, packet_start));
        self.rows += tables.visits.max_rows_of_transition(id);
        self.instructions += tables.visits.instruction_mix(id).instructions as usize;
        self.next = transition.next;
        if !tables.has_retc || transition.stack_effect == 0 {
            return Some(StackEffect::default());
        }
        let (effect, pushes) = tables
            .stack_effects
            .decode_stack_effect(transition.stack_effect);
        let peak = self.pushes.len() + usize::from(effect.peak);
        match pushes {
            CallSitePushes::None => {}
            CallSitePushes::One(site) => self.pushes.push(site),
            CallSitePushes::Many(sites) => self.pushes.extend(sites),
        }
        if peak.max(self.pushes.len()) > STACK_DEPTH {
            return None;
        }
        self.effect.peak = self.effect.peak.max(peak as u8);
        Some(effect)
    }

    fn add_tnt(&mut self, tables: &FusionTables<'_>, mut tnt: u8, packet_start: u8) -> Option<()> {
        while tnt != 0 {
            let slot = tnt_slot(self.next, tnt >> 1, tables.tnt.slot_mask());
            let slot = find_slot(&tables.tnt.entries, slot, self.next, ShortTnt)?;
            let effect = self.add_transition(tables, tables.tnt, slot, packet_start)?;
            if !effect.pops {
                return Some(());
            }
            let Some(&site) = self.pushes.last() else {
                (self.effect.pops, self.effect.pending_tnt) = (true, effect.pending_tnt);
                return Some(());
            };
            let site = CallSite(site);
            let slot = site.first_slot(self.next, 0, tables.ret.slot_mask());
            let slot = find_slot(&tables.ret.entries, slot, self.next, site)?;
            self.pushes.pop();
            self.add_transition(tables, tables.ret, slot, packet_start)?;
            tnt = effect.pending_tnt;
        }
        Some(())
    }

    fn add_tip(
        &mut self,
        tables: &FusionTables<'_>,
        target: TipTarget,
        packet_start: u8,
    ) -> Option<()> {
        let slot = target.first_slot(self.next, 0, tables.tip.slot_mask());
        let slot = find_slot(&tables.tip.entries, slot, self.next, target)?;
        let effect = self.add_transition(tables, tables.tip, slot, packet_start)?;
        if effect.pops {
            (self.effect.pops, self.effect.pending_tnt) = (self.pushes.pop().is_none(), 0);
        }
        Some(())
    }
}
