//! What a step does to the return stack, in 32 bits where it is one of the usual things.

/// In this order: the stack keeps at most 64 - `peak` of its entries, `push` goes on it, and if `pops` the top goes off.
/// After a TNT `pops` means that a RET is next whose call lies before the step, and that `rest` is left of the byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Deed {
    /// How many calls are open at once within the step, over those that are open before it; at most 64.
    pub peak: u8,
    pub pops: bool,
    /// A short TNT packet, 0 if nothing is left.
    pub rest: u8,
}

const SITE_BITS: u32 = 20;
const SITE: u32 = (1 << SITE_BITS) - 1;
const PUSH: u32 = 1 << SITE_BITS;
const PEAK_BIT: u32 = SITE_BITS + 1;
const MAX_PEAK: u32 = 3;
const POP: u32 = 1 << 23;
/// Short TNTs are even: the upper seven bits tell all.
const REST_BIT: u32 = 24;
/// The rest is the index of an `Unusual`.
const UNUSUAL: u32 = 1 << 31;

/// Several pushes, or deeper ones.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unusual {
    first: u32,
    count: u32,
    deed: Deed,
}

/// Deeds that do not fit into 32 bits.
#[derive(Default)]
pub(crate) struct Acts {
    unusual: Vec<Unusual>,
    pushes: Vec<u32>,
}

impl Acts {
    pub fn len(&self) -> usize {
        self.unusual.len() + self.pushes.len()
    }

    pub fn clear(&mut self) {
        self.unusual.clear();
        self.pushes.clear();
    }

    /// The 32 bits: 0 if the stack stays as it is.
    pub fn encode(&mut self, deed: Deed, pushes: &[u32]) -> u32 {
        let low = match *pushes {
            [] => Some(0),
            [site] if site <= SITE => Some(PUSH | site),
            _ => None,
        };
        match low {
            Some(low) if u32::from(deed.peak) <= MAX_PEAK => {
                low | u32::from(deed.peak) << PEAK_BIT
                    | if deed.pops { POP } else { 0 }
                    | u32::from(deed.rest >> 1) << REST_BIT
            }
            _ => {
                let first = self.pushes.len() as u32;
                self.pushes.extend(pushes);
                self.unusual.push(Unusual {
                    first,
                    count: pushes.len() as u32,
                    deed,
                });
                UNUSUAL | (self.unusual.len() - 1) as u32
            }
        }
    }

    /// The deed and what it pushes; `act` is not 0.
    #[inline(always)]
    pub fn decode(&self, act: u32) -> (Deed, Pushes<'_>) {
        if act & UNUSUAL == 0 {
            let deed = Deed {
                peak: (act >> PEAK_BIT & MAX_PEAK) as u8,
                pops: act & POP != 0,
                rest: ((act >> REST_BIT) as u8) << 1,
            };
            let pushes = match act & PUSH {
                0 => Pushes::None,
                _ => Pushes::One(act & SITE),
            };
            return (deed, pushes);
        }
        self.unusual(act)
    }

    #[cold]
    fn unusual(&self, act: u32) -> (Deed, Pushes<'_>) {
        let Some(unusual) = self.unusual.get((act & !UNUSUAL) as usize) else {
            return (Deed::default(), Pushes::None);
        };
        let from = unusual.first as usize;
        let pushes = self.pushes.get(from..from + unusual.count as usize);
        (unusual.deed, Pushes::Many(pushes.unwrap_or(&[])))
    }
}

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
    fn what_is_encoded_is_decoded() {
        let mut acts = Acts::default();
        for peak in [0, 1, 3, 4, 64] {
            for rest in [0, 4, 0xfe] {
                for pops in [false, true] {
                    for pushes in [&[][..], &[7], &[SITE], &[SITE + 1], &[1, 2, 3]] {
                        let deed = Deed { peak, pops, rest };
                        let act = acts.encode(deed, pushes);
                        let (decoded, found) = acts.decode(act);
                        assert_eq!(decoded, deed);
                        let found = match found {
                            Pushes::None => vec![],
                            Pushes::One(site) => vec![site],
                            Pushes::Many(sites) => sites.to_vec(),
                        };
                        assert_eq!(found, pushes);
                    }
                }
            }
        }
        assert_eq!(acts.encode(Deed::default(), &[]), 0);
    }
}
