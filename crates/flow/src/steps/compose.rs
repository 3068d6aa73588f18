//! Phrases made of the steps that they are to stand for.

use rtit_packet::PSB;

use super::act::{Acts, Deed, Pushes};
use super::kernel::Lane;
use super::path::STACK;
use super::phrase::{Reach, WINDOW};
use super::table::{find, tnt_slot, Entry, Key, Table};
use super::visit::Visits;
use super::wire::{is_tnt, tip, TIP, TIP_MASK};

/// Rows and instructions of a phrase: batches end between phrases.
const MOST_ROWS: usize = 96;
const MOST_INSTRUCTIONS: usize = 1 << 9;

/// Where the steps of a phrase are looked up.
pub(super) struct Known<'a> {
    pub tnt: &'a Table<()>,
    pub tip: &'a Table<u64>,
    pub ret: &'a Table<u32>,
    pub acts: &'a Acts,
    pub visits: &'a Visits,
    /// RETs may be compressed.
    pub returns: bool,
}

/// Steps one after the other as one. Kept to be used again.
#[derive(Default)]
pub(super) struct Composed {
    /// Their numbers, and where their packets begin.
    pub steps: Vec<(u32, u8)>,
    /// As `Path` has it.
    pub pushes: Vec<u32>,
    pub deed: Deed,
    /// Base of the node behind them.
    pub next: u32,
    packets: usize,
    rows: usize,
    instructions: usize,
}

impl Composed {
    /// The steps that `lane` would take with these bytes, the first of which may be what is left of a TNT: as many whole
    /// packets as are known, up to one that takes something off the return stack that lay there before. None: only one.
    pub fn follow(
        &mut self,
        known: &Known<'_>,
        lane: &Lane,
        bytes: &[u8; WINDOW],
    ) -> Option<Reach> {
        self.steps.clear();
        self.pushes.clear();
        self.deed = Deed::default();
        (self.next, self.packets, self.rows, self.instructions) = (lane.base, 0, 0, 0);
        let mut reach = Reach::at(lane.last_ip);
        while let Some(&first) = bytes.get(usize::from(reach.length)) {
            let kept = (self.steps.len(), self.deed, self.next);
            let pushed = self.pushes.clone();
            let (more, followed) = if is_tnt(first) {
                (reach.with_tnt(), self.tnt(known, first, reach.length))
            } else if first & TIP_MASK == TIP {
                let Some(more) = reach.with_tip(bytes) else {
                    break;
                };
                (more, self.tip(known, more.last_ip, reach.length))
            } else {
                break;
            };
            if followed.is_none() || self.rows > MOST_ROWS || self.instructions > MOST_INSTRUCTIONS
            {
                self.steps.truncate(kept.0);
                (self.deed, self.next, self.pushes) = (kept.1, kept.2, pushed);
                break;
            }
            reach = more;
            self.packets += 1;
            let after = bytes.get(usize::from(reach.length)).unwrap_or(&0);
            if self.deed.pops || reach.ends_in_tip && PSB.contains(after) {
                break;
            }
        }
        (self.packets > 1 || self.deed.pops && !reach.ends_in_tip).then_some(reach)
    }

    /// Takes a step: what it does to the stack, but for what `Deed::pops` says. None: with it more calls of the phrase are
    /// open at once than the stack holds.
    fn take<K: Key>(
        &mut self,
        known: &Known<'_>,
        table: &Table<K>,
        slot: usize,
        place: u8,
    ) -> Option<Deed> {
        let (entry, number): (&Entry<K>, u32) = (&table.entries[slot], table.number(slot));
        self.steps.push((number, place));
        self.rows += known.visits.rows(number);
        self.instructions += known.visits.weight(number).instructions as usize;
        self.next = entry.next;
        if !known.returns || entry.act == 0 {
            return Some(Deed::default());
        }
        let (deed, pushes) = known.acts.decode(entry.act);
        let peak = self.pushes.len() + usize::from(deed.peak);
        match pushes {
            Pushes::None => {}
            Pushes::One(site) => self.pushes.push(site),
            Pushes::Many(sites) => self.pushes.extend(sites),
        }
        if peak.max(self.pushes.len()) > STACK {
            return None;
        }
        self.deed.peak = self.deed.peak.max(peak as u8);
        Some(deed)
    }

    fn tnt(&mut self, known: &Known<'_>, mut tnt: u8, place: u8) -> Option<()> {
        while tnt != 0 {
            let slot = tnt_slot(self.next, tnt >> 1, known.tnt.mask());
            let slot = find(&known.tnt.entries, slot, self.next, ())?;
            let deed = self.take(known, known.tnt, slot, place)?;
            if !deed.pops {
                return Some(());
            }
            let Some(&site) = self.pushes.last() else {
                (self.deed.pops, self.deed.rest) = (true, deed.rest);
                return Some(());
            };
            let slot = site.slot(self.next, 0, known.ret.mask());
            let slot = find(&known.ret.entries, slot, self.next, site)?;
            self.pushes.pop();
            self.take(known, known.ret, slot, place)?;
            tnt = deed.rest;
        }
        Some(())
    }

    fn tip(&mut self, known: &Known<'_>, ip: u64, place: u8) -> Option<()> {
        let slot = ip.slot(self.next, 0, known.tip.mask());
        let slot = find(&known.tip.entries, slot, self.next, ip)?;
        let deed = self.take(known, known.tip, slot, place)?;
        if deed.pops {
            (self.deed.pops, self.deed.rest) = (self.pushes.pop().is_none(), 0);
        }
        Some(())
    }
}

impl Reach {
    fn at(last_ip: u64) -> Reach {
        Reach {
            last_ip,
            ..Reach::default()
        }
    }

    fn with_tnt(self) -> Reach {
        Reach {
            length: self.length + 1,
            ends_in_tip: false,
            ..self
        }
    }

    /// None: there is no TIP as a whole.
    fn with_tip(self, bytes: &[u8; WINDOW]) -> Option<Reach> {
        let mut tip_bytes = [0; WINDOW];
        let left = bytes.get(usize::from(self.length)..).unwrap_or(&[]);
        for (to, &byte) in tip_bytes.iter_mut().zip(left) {
            *to = byte;
        }
        let (length, replaced, last_ip) = tip(&tip_bytes, self.last_ip)?;
        let length = length as u8;
        if usize::from(self.length + length) > WINDOW {
            return None;
        }
        Some(Reach {
            length: self.length + length,
            tips: self.tips + 1,
            tip_bytes: self.tip_bytes + length,
            kept: match self.tips {
                0 => !replaced,
                _ => self.kept,
            },
            ends_in_tip: true,
            last_ip,
        })
    }
}
