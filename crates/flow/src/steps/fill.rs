//! Steps that are missing are made.

use rtit_image::View;

use super::act::Deed;
use super::compose::Known;
use super::kernel::{keep, Lane};
use super::phrase::{cut, Phrase, ENDS_IN_TIP, WINDOW};
use super::store::{Name, Steps};
use super::table::{base_of, node_of, tnt_slot, Entry, Key};
use crate::code::{Code, Stop};
use crate::sink::Wants;

impl Steps {
    /// Makes the step of a short TNT. False: the walker must take the packet.
    pub fn fill_tnt(&mut self, code: &mut Code, view: &View, base: u32, tnt: u8) -> bool {
        let start = node_of(base);
        if code.node(start).stop == Stop::Dead || self.path.of_tnt(code, view, start, tnt).is_none()
        {
            return false;
        }
        let (number, act) = self.keep(code);
        self.name(number, Name::Tnt(base, tnt >> 1));
        let slot = tnt_slot(base, tnt >> 1, self.tnt.mask());
        let entry = self.entry(base, number, act, ());
        self.tnt.put(slot, entry, number, &mut self.left);
        self.add_up_left();
        true
    }

    /// Makes the step of a TIP to `ip`. False: the walker must take the packet.
    pub fn fill_tip(&mut self, code: &mut Code, view: &View, base: u32, ip: u64) -> bool {
        let start = node_of(base);
        if code.node(start).stop == Stop::Dead || self.path.of_tip(code, view, start, ip).is_none()
        {
            return false;
        }
        let (number, act) = self.keep(code);
        self.name(number, Name::Tip(base, ip));
        let slot = ip.slot(base, 0, self.tip.mask());
        let entry = self.entry(base, number, act, ip);
        self.tip.put(slot, entry, number, &mut self.left);
        self.add_up_left();
        true
    }

    /// Makes the step of the RET at the end of a node to a call site, takes it, and gives the base that comes next; `at`
    /// is the place of the packet. None: the walker must take it.
    pub fn fill_return(
        &mut self,
        code: &mut Code,
        view: &View,
        base: u32,
        site: u32,
        at: usize,
    ) -> Option<u32> {
        let node = node_of(base);
        if code.node(node).stop == Stop::Dead {
            return None;
        }
        self.path.of_return(code, view, node, site)?;
        let (number, _) = self.keep(code);
        self.name(number, Name::Return(base, site));
        let slot = site.slot(base, 0, self.ret.mask());
        let mut entry = self.entry(base, number, 0, site);
        match self.keeps() {
            keep::ORDER => self.log.push((number, at as u32)),
            keep::HITS => entry.hits = 1,
            keep::BY_NUMBER => self.hits.count(number),
            _ => {}
        }
        let next = entry.next;
        self.ret.put(slot, entry, number, &mut self.left);
        self.add_up_left();
        Some(next)
    }

    /// Makes the phrase that begins at `lane`, if there can be one.
    pub fn fill_phrase(&mut self, bytes: &[u8], lane: &Lane) {
        let window = bytes.get(lane.at..lane.at + WINDOW);
        let window: Option<&[u8; WINDOW]> = window.and_then(|window| window.try_into().ok());
        let Some(mut window) = window.copied() else {
            return;
        };
        if lane.rest != 0 {
            window[0] = lane.rest;
        }
        let known = Known {
            tnt: &self.tnt,
            tip: &self.tip,
            ret: &self.ret,
            acts: &self.acts,
            visits: &self.visits,
            returns: self.returns,
        };
        let composed = &mut self.composed;
        let Some(reach) = composed.follow(&known, lane, &window) else {
            return;
        };
        let number = self.visits.join(&composed.steps);
        if self.wants == Wants::Hits {
            self.hits.reach(number);
        }
        let at = self.phrases.at(lane.base, &window, 0);
        let (low, high) = cut(&at, reach.length);
        let phrase = Phrase {
            low,
            high,
            kept: reach.kept,
            before: lane.last_ip & reach.kept,
            after: reach.last_ip,
            base: lane.base,
            next: composed.next,
            hits: match self.wants {
                Wants::Order | Wants::Hits => number,
                _ => 0,
            },
            act: match self.returns {
                true => self.acts.encode(composed.deed, &composed.pushes),
                false => 0,
            },
            length: reach.length,
            tip_bytes: reach.tip_bytes,
            tips: reach.tips | if reach.ends_in_tip { ENDS_IN_TIP } else { 0 },
            ..Phrase::default()
        };
        self.name(number, Name::Phrase(at.slot, number));
        self.phrases.put(&at, phrase, number, &mut self.left);
        self.add_up_left();
    }

    /// Gives the path that was just followed a number, and its deed 32 bits.
    fn keep(&mut self, code: &Code) -> (u32, u32) {
        let number = self.visits.add(code, &self.path.visits);
        if self.wants == Wants::Hits {
            self.hits.reach(number);
        }
        let deed = Deed {
            peak: self.path.peak as u8,
            pops: self.path.rest.is_some(),
            rest: self.path.rest.unwrap_or(0),
        };
        let act = match self.returns {
            true => self.acts.encode(deed, &self.path.pushes),
            false => 0,
        };
        (number, act)
    }

    fn entry<K>(&self, base: u32, number: u32, act: u32, key: K) -> Entry<K> {
        Entry {
            base,
            next: base_of(self.path.next),
            hits: match self.wants {
                Wants::Order | Wants::Hits => number,
                _ => 0,
            },
            act,
            key,
        }
    }

    pub(super) fn name(&mut self, number: u32, name: Name) {
        if let Some(by_node) = &mut self.by_node {
            for (node, _) in self.visits.of(number) {
                self.names += 1;
                by_node.entry(node).or_default().push(name);
            }
        }
    }
}
