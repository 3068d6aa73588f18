//! Steps are forgotten: all of them, or those of nodes that died.

use std::collections::HashMap;

use super::store::{next_epoch, Name, Steps, LEAST};
use super::table::{tnt_slot, Key};
use crate::code::Code;
use crate::sink::Wants;

impl Steps {
    /// Forgets all steps; what they counted stays.
    pub(super) fn recycle(&mut self) {
        self.settle();
        self.tnt.clear();
        self.tip.clear();
        self.ret.clear();
        self.phrases.clear();
        self.acts.clear();
        self.visits.clear();
        self.hits.clear();
        self.by_node = None;
        self.names = 0;
        self.epoch = next_epoch();
    }

    /// All numbers of nodes and call sites are about to become invalid.
    pub fn forget_all(&mut self, code: &Code) {
        if self.wants == Wants::Walk {
            return;
        }
        self.recycle();
        self.nodes.move_to(code, &mut self.addresses);
    }

    /// Forgets the steps that visit nodes which died.
    pub fn forget(&mut self, dead: &[u32]) {
        if dead.is_empty() || self.wants == Wants::Walk {
            return;
        }
        if self.by_node.is_none() {
            self.index();
        }
        for node in dead {
            let names = self
                .by_node
                .as_mut()
                .and_then(|by_node| by_node.remove(node));
            let names = names.unwrap_or_default();
            self.names -= names.len();
            for name in names {
                self.remove(name);
            }
        }
        self.add_up_left();
    }

    fn index(&mut self) {
        self.by_node = Some(HashMap::new());
        let mut names = Vec::new();
        for (slot, entry) in self.tnt.live() {
            let half = (slot as u32).wrapping_sub(entry.base) as usize & (LEAST - 1);
            names.push((self.tnt.number(slot), Name::Tnt(entry.base, half as u8)));
        }
        for (slot, entry) in self.tip.live() {
            names.push((self.tip.number(slot), Name::Tip(entry.base, entry.key)));
        }
        for (slot, entry) in self.ret.live() {
            names.push((self.ret.number(slot), Name::Return(entry.base, entry.key)));
        }
        for (slot, number) in self.phrases.live() {
            names.push((number, Name::Phrase(slot, number)));
        }
        for (number, name) in names {
            self.name(number, name);
        }
    }

    /// Removes a step, if it is still there.
    fn remove(&mut self, name: Name) {
        match name {
            Name::Tnt(base, half) => {
                let slot = tnt_slot(base, half, self.tnt.mask());
                self.tnt.remove_if(slot, base, (), &mut self.left);
            }
            Name::Tip(base, ip) => {
                let slot = ip.slot(base, 0, self.tip.mask());
                self.tip.remove_if(slot, base, ip, &mut self.left);
            }
            Name::Return(base, site) => {
                let slot = site.slot(base, 0, self.ret.mask());
                self.ret.remove_if(slot, base, site, &mut self.left);
            }
            Name::Phrase(slot, number) => {
                self.phrases.remove_if(slot, number, &mut self.left);
            }
        }
    }
}
