//! What a transition does to the return stack, encoded in 32 bits.
//!
//! With RET compression most transitions push at most one call site, so their effect fits into the table entry
//! ([`StackEffects::encode`]). The few others are indices into a list of [`LargeEffect`]s. 0 means that the stack
//! stays as it is, which the decode loop tests first.

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
/// The other bits are the index of a `LargeEffect`.
const LARGE: u32 = 1 << 31;

/// Several pushes, or deeper ones.
#[derive(Clone, Copy, Debug)]
struct LargeEffect {
    first_push: u32,
    push_count: u32,
    effect: StackEffect,
}

/// Encodes and decodes effects; owns those that do not fit into 32 bits.
#[derive(Default)]
pub(crate) struct StackEffects {
    large: Vec<LargeEffect>,
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
    pub fn encode(&mut self, effect: StackEffect, pushes: &[u32]) -> u32 {
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
                self.large.push(LargeEffect {
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
    pub fn decode(&self, encoded: u32) -> (StackEffect, Pushes<'_>) {
        if encoded & LARGE == 0 {
            let effect = StackEffect {
                peak: (encoded >> PEAK_BIT & MAX_PEAK) as u8,
                pops: encoded & POP != 0,
                pending_tnt: ((encoded >> PENDING_BIT) as u8) << 1,
            };
            let pushes = match encoded & PUSH {
                0 => Pushes::None,
                _ => Pushes::One(encoded & SITE),
            };
            return (effect, pushes);
        }
        self.decode_large(encoded)
    }

    #[cold]
    fn decode_large(&self, encoded: u32) -> (StackEffect, Pushes<'_>) {
        let Some(large) = self.large.get((encoded & !LARGE) as usize) else {
            return (StackEffect::default(), Pushes::None);
        };
        let first = large.first_push as usize;
        let pushes = self.pushes.get(first..first + large.push_count as usize);
        (large.effect, Pushes::Many(pushes.unwrap_or(&[])))
    }
}

/// Call sites to push, the innermost last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pushes<'a> {
    None,
    One(u32),
    Many(&'a [u32]),
}

#[cfg(test)]
mod tests {
    use super::*;

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
                        let encoded = effects.encode(effect, pushes);
                        let (decoded, decoded_pushes) = effects.decode(encoded);
                        assert_eq!(decoded, effect);
                        let decoded_pushes = match decoded_pushes {
                            Pushes::None => vec![],
                            Pushes::One(site) => vec![site],
                            Pushes::Many(sites) => sites.to_vec(),
                        };
                        assert_eq!(decoded_pushes, pushes);
                    }
                }
            }
        }
        assert_eq!(effects.encode(StackEffect::default(), &[]), 0);
    }
}
