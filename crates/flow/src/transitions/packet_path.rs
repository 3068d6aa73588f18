//! The path of one packet through the code: the meaning of a transition.
//!
//! [`PacketPath`] follows a packet from a node over the nodes and links of the code cache, once, when its transition is
//! built. It follows plain branches only. Everything that is an event or an error, waits for another packet or may
//! enter another address space gives `None`: then there is no transition, and the interpreter decodes the packet.
//!
//! # Stack effects
//!
//! With RET compression most transitions push at most one call site, so what they do to the return stack fits into 32
//! bits of the table entry ([`StackEffects::encode_stack_effect`]). The few others are indices into a list of
//! [`LargeStackEffect`]s. 0 means that the stack stays as it is, which the decode loop tests first.

use rtit_image::SpaceView;

use super::node_visits::MAX_NODE;
use crate::code_cache::{CodeCache, NodeEnd};

/// Nodes on a path before the one at which a packet takes effect. The interpreter handles longer chains; it also
/// detects those that never end.
const MAX_CHAIN: usize = 16;

/// Entries of the return stack.
pub(super) const STACK_DEPTH: usize = 64;

/// How a node on a path ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BranchOutcome {
    /// Execution continued without a packet.
    Continued,
    NotTaken,
    Taken,
    /// A compressed RET to the call site with this number.
    Returned(u32),
    /// A TIP gave the target. `TipReturn`: of a RET.
    Tip(u64),
    TipReturn(u64),
}

/// Where a packet leads from a node, or as far as it leads without the return stack. Reused for every new transition.
#[derive(Default)]
pub(super) struct PacketPath {
    /// RETs may be compressed.
    has_retc: bool,
    /// There is one address space and no thread schedule, so far transfers stay in the space.
    has_single_space: bool,
    /// The nodes on the path, and how each ended.
    pub visits: Vec<(u32, BranchOutcome)>,
    /// Call sites without a RET on the path; the last 64 matter.
    pub pushes: Vec<u32>,
    /// How many were open at once, at most 64.
    pub peak: usize,
    /// The next node; the node with the RET if the path ends before a RET.
    pub next: u32,
    /// Set if the path ends before a RET that returns to a call before the path: the outcomes after that of the RET,
    /// as a short TNT byte or 0.
    pub pending_tnt: Option<u8>,
}

impl PacketPath {
    pub fn new(has_retc: bool, has_single_space: bool) -> PacketPath {
        PacketPath {
            has_retc,
            has_single_space,
            ..PacketPath::default()
        }
    }

    pub fn has_single_space(&self) -> bool {
        self.has_single_space
    }

    fn start_at_node(&mut self, node: u32) {
        self.visits.clear();
        self.pushes.clear();
        self.peak = 0;
        self.next = node;
        self.pending_tnt = None;
    }

    fn visit_node(&mut self, code: &CodeCache, node: u32, outcome: BranchOutcome) -> Option<()> {
        if node > MAX_NODE {
            return None;
        }
        self.visits.push((node, outcome));
        let (first, calls) = code.calls_of_node(code.node_at(node));
        self.pushes.extend((first..).take(calls.len()));
        self.peak = self.peak.max(self.pushes.len()).min(STACK_DEPTH);
        Some(())
    }

    /// Follows a short TNT byte.
    pub fn follow_tnt(
        &mut self,
        code: &mut CodeCache,
        view: &SpaceView,
        start: u32,
        tnt: u8,
    ) -> Option<()> {
        self.start_at_node(start);
        let (bits, count) = tnt_outcomes(tnt);
        for left in (0..count).rev() {
            let taken = bits >> left & 1 != 0;
            self.follow_chain(code, view, NodeEnd::continues_without_packet)?;
            let node = self.next;
            match code.node_at(node).end {
                NodeEnd::Conditional => {
                    let outcome = if taken {
                        BranchOutcome::Taken
                    } else {
                        BranchOutcome::NotTaken
                    };
                    self.visit_node(code, node, outcome)?;
                    self.next = code.successor_node(view, node, taken)?;
                }
                NodeEnd::Return if taken && self.has_retc => {
                    if self.pushes.is_empty() && code.calls_of_node(code.node_at(node)).1.is_empty()
                    {
                        self.pending_tnt = Some(short_tnt_of(bits, left));
                        return Some(());
                    }
                    self.visit_node(code, node, BranchOutcome::Continued)?;
                    if self.pushes.len() > STACK_DEPTH {
                        return None;
                    }
                    let site = self.pushes.pop()?;
                    if let Some(last) = self.visits.last_mut() {
                        last.1 = BranchOutcome::Returned(site);
                    }
                    self.next = code.node_after_return(view, node, site)?;
                }
                _ => return None,
            }
        }
        Some(())
    }

    /// Follows a TIP to `ip`. Sets `pending_tnt` to 0 if it is the target of a RET that returns to a call before the
    /// path.
    pub fn follow_tip(
        &mut self,
        code: &mut CodeCache,
        view: &SpaceView,
        start: u32,
        ip: u64,
    ) -> Option<()> {
        self.start_at_node(start);
        self.follow_chain(code, view, |stop| {
            stop.continues_without_packet() && stop != NodeEnd::VmEntry
        })?;
        let node = self.next;
        let (stop, mode) = (code.node_at(node).end, code.node_at(node).mode);
        match stop {
            NodeEnd::Far | NodeEnd::Syscall if !self.has_single_space => return None,
            NodeEnd::IndirectJump | NodeEnd::IndirectCall | NodeEnd::Far | NodeEnd::Syscall => {
                self.visit_node(code, node, BranchOutcome::Tip(ip))?;
            }
            NodeEnd::Return => {
                self.visit_node(code, node, BranchOutcome::TipReturn(ip))?;
                if self.pushes.len() > STACK_DEPTH {
                    return None;
                }
                if self.pushes.pop().is_none() {
                    self.pending_tnt = Some(0);
                }
            }
            _ => return None,
        }
        self.next = code.find_or_decode_node(view, ip, mode).ok()?;
        Some(())
    }

    /// Follows the compressed RET at the end of a node to a call site.
    pub fn follow_return(
        &mut self,
        code: &mut CodeCache,
        view: &SpaceView,
        start: u32,
        site: u32,
    ) -> Option<()> {
        self.start_at_node(start);
        self.visit_node(code, start, BranchOutcome::Returned(site))?;
        self.next = code.node_after_return(view, start, site)?;
        Some(())
    }

    /// Follows nodes after which execution continues without a packet.
    fn follow_chain(
        &mut self,
        code: &mut CodeCache,
        view: &SpaceView,
        continues: impl Fn(NodeEnd) -> bool,
    ) -> Option<()> {
        for _ in 0..MAX_CHAIN {
            if !continues(code.node_at(self.next).end) {
                return Some(());
            }
            let node = self.next;
            self.visit_node(code, node, BranchOutcome::Continued)?;
            self.next = code.successor_node(view, node, false)?;
        }
        None
    }
}

/// Returns the outcomes of a short TNT byte, the oldest in the highest bit, and their number.
#[inline]
pub(crate) fn tnt_outcomes(tnt: u8) -> (u64, u8) {
    let count = (6 - (tnt | 2).leading_zeros() as i32).max(0) as u8;
    (u64::from(tnt >> 1) & ((1 << count) - 1), count)
}

/// Returns the short TNT byte of the last `count` of these outcomes; 0 if there is none.
fn short_tnt_of(outcomes: u64, count: u8) -> u8 {
    match count {
        0 => 0,
        _ => ((1 << count | outcomes & ((1 << count) - 1)) << 1) as u8,
    }
}

/// The effect, in this order: the stack keeps at most 64 - `peak` of its entries; the open calls are pushed; if
/// `pops`, the top is dropped. After a TNT `pops` means that a RET is next which returns to a call before the
/// transition, and that `pending_tnt` is left of the byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct StackEffect {
    /// How many calls of the transition are open at once; at most 64.
    pub peak: u8,
    pub pops: bool,
    /// A short TNT byte, 0 if nothing is left.
    pub pending_tnt: u8,
}

const SITE_BITS: u32 = 20;
const SITE: u32 = (1 << SITE_BITS) - 1;
const PUSH: u32 = 1 << SITE_BITS;
const PEAK_BIT: u32 = SITE_BITS + 1;
const MAX_PEAK: u32 = 3;
const POP: u32 = 1 << 23;
/// Short TNTs are even: the upper seven bits suffice.
const PENDING_BIT: u32 = 24;
/// The other bits are the index of a `LargeStackEffect`.
const LARGE: u32 = 1 << 31;

/// Several pushes, or deeper ones.
#[derive(Clone, Copy, Debug)]
struct LargeStackEffect {
    first_push: u32,
    push_count: u32,
    effect: StackEffect,
}

/// Encodes and decodes effects; owns those that do not fit into 32 bits.
#[derive(Default)]
pub(crate) struct StackEffects {
    large: Vec<LargeStackEffect>,
    pushes: Vec<u32>,
}

impl StackEffects {
    pub fn len(&self) -> usize {
        self.large.len() + self.pushes.len()
    }

    pub fn clear(&mut self) {
        self.large.clear();
        self.pushes.clear();
    }

    /// Returns the code of an effect that pushes these call sites; 0 if the stack stays as it is.
    pub fn encode_stack_effect(&mut self, effect: StackEffect, pushes: &[u32]) -> u32 {
        let low = match *pushes {
            [] => Some(0),
            [site] if site <= SITE => Some(PUSH | site),
            _ => None,
        };
        match low {
            Some(low) if u32::from(effect.peak) <= MAX_PEAK => {
                low | u32::from(effect.peak) << PEAK_BIT
                    | if effect.pops { POP } else { 0 }
                    | u32::from(effect.pending_tnt >> 1) << PENDING_BIT
            }
            _ => {
                let first_push = self.pushes.len() as u32;
                self.pushes.extend(pushes);
                self.large.push(LargeStackEffect {
                    first_push,
                    push_count: pushes.len() as u32,
                    effect,
                });
                LARGE | (self.large.len() - 1) as u32
            }
        }
    }

    /// Returns the effect and its pushes; `encoded` is not 0.
    #[inline(always)]
    pub fn decode_stack_effect(&self, encoded: u32) -> (StackEffect, CallSitePushes<'_>) {
        if encoded & LARGE == 0 {
            let effect = StackEffect {
                peak: (encoded >> PEAK_BIT & MAX_PEAK) as u8,
                pops: encoded & POP != 0,
                pending_tnt: ((encoded >> PENDING_BIT) as u8) << 1,
            };
            let pushes = match encoded & PUSH {
                0 => CallSitePushes::None,
                _ => CallSitePushes::One(encoded & SITE),
            };
            return (effect, pushes);
        }
        self.decode_large_stack_effect(encoded)
    }

    #[cold]
    fn decode_large_stack_effect(&self, encoded: u32) -> (StackEffect, CallSitePushes<'_>) {
        let Some(large) = self.large.get((encoded & !LARGE) as usize) else {
            return (StackEffect::default(), CallSitePushes::None);
        };
        let first = large.first_push as usize;
        let pushes = self.pushes.get(first..first + large.push_count as usize);
        (large.effect, CallSitePushes::Many(pushes.unwrap_or(&[])))
    }
}

/// Call sites to push, the innermost last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CallSitePushes<'a> {
    None,
    One(u32),
    Many(&'a [u32]),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_tnt_round_trips_through_its_outcomes() {
        assert_eq!(tnt_outcomes(0b0000_0110), (1, 1));
        assert_eq!(tnt_outcomes(0b1010_0110), (0b01_0011, 6));
        assert_eq!(tnt_outcomes(0), (0, 0));
        for tnt in (4..=254u8).step_by(2) {
            let (bits, count) = tnt_outcomes(tnt);
            assert_eq!(short_tnt_of(bits, count), tnt);
        }
        assert_eq!(short_tnt_of(0b101, 0), 0);
        assert_eq!(short_tnt_of(0b101, 2), 0b1010);
    }

    #[test]
    fn decode_inverts_encode() {
        let mut effects = StackEffects::default();
        for peak in [0, 1, 3, 4, 64] {
            for pending_tnt in [0, 4, 0xfe] {
                for pops in [false, true] {
                    for pushes in [&[][..], &[7], &[SITE], &[SITE + 1], &[1, 2, 3]] {
                        let effect = StackEffect {
                            peak,
                            pops,
                            pending_tnt,
                        };
                        let encoded = effects.encode_stack_effect(effect, pushes);
                        let (decoded, decoded_pushes) = effects.decode_stack_effect(encoded);
                        assert_eq!(decoded, effect);
                        let decoded_pushes = match decoded_pushes {
                            CallSitePushes::None => vec![],
                            CallSitePushes::One(site) => vec![site],
                            CallSitePushes::Many(sites) => sites.to_vec(),
                        };
                        assert_eq!(decoded_pushes, pushes);
                    }
                }
            }
        }
        assert_eq!(effects.encode_stack_effect(StackEffect::default(), &[]), 0);
    }
}
