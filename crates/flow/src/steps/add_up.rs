//! What steps counted: added up, and handed over.

use std::mem::replace;

use super::store::Steps;
use super::visit::Taken;
use crate::code::Code;
use crate::counts::Counts;
use crate::sink::{Placed, Sink, Steps as _, Wants};
use crate::totals::Totals;

impl Steps {
    pub(super) fn add_up_left(&mut self) {
        while let Some(left) = self.left.pop() {
            self.add_up(left.number, left.hits);
        }
    }

    fn add_up(&mut self, number: u32, hits: u32) {
        if hits == 0 || matches!(self.wants, Wants::Order | Wants::Hits) {
            return;
        }
        self.add(number, hits.into());
    }

    fn add(&mut self, number: u32, hits: u64) {
        self.visits.weight(number).add_to(&mut self.counted, hits);
        if matches!(self.wants, Wants::Totals | Wants::Hits) {
            for (node, how) in self.visits.of(number) {
                self.nodes.add(node, how, hits);
            }
        }
    }

    /// Adds up all hits.
    pub(super) fn settle(&mut self) {
        self.bytes = 0;
        if self.wants == Wants::Order {
            return;
        }
        if self.wants == Wants::Hits {
            let mut hits = std::mem::take(&mut self.hits);
            hits.drain()
                .for_each(|(number, hits)| self.add(number, hits.into()));
            self.hits = hits;
            return;
        }
        // in the order of their numbers, which is that of what they visit in memory
        let mut all = vec![0; self.visits.len()];
        let mut take = |number: u32, hits: u32| all[number as usize] += u64::from(hits);
        self.tnt.drain_hits(&mut take);
        self.tip.drain_hits(&mut take);
        self.ret.drain_hits(&mut take);
        self.phrases.drain_hits(&mut take);
        for (hits, number) in all.into_iter().zip(0..) {
            if hits != 0 {
                self.add(number, hits);
            }
        }
    }

    /// Adds what the kernel counted.
    pub fn add_counts(&self, counts: &mut Counts) {
        let counted = &self.counted;
        counts.instructions += counted.instructions;
        counts.conditional += counted.conditional;
        counts.indirect += counted.indirect;
        counts.returns += counted.returns;
        counts.compressed_returns += counted.compressed_returns;
        if matches!(self.wants, Wants::Order | Wants::Hits) {
            for (number, hits) in self.hits.all() {
                self.visits.weight(number).add_to(counts, hits.into());
            }
            return;
        }
        let hits = self
            .tnt
            .hits()
            .chain(self.tip.hits())
            .chain(self.ret.hits())
            .chain(self.phrases.hits());
        for (number, hits) in hits {
            self.visits.weight(number).add_to(counts, hits.into());
        }
    }

    /// Hands all hits to a sink that wants them, and begins at 0.
    pub fn give_hits<S: Sink>(&mut self, code: &Code, sink: &mut S) {
        if self.wants == Wants::Hits {
            self.give_of_tables(code, sink);
        }
        // also of spaces that were let go
        if !self.nodes.is_empty() || !self.addresses.is_empty() {
            self.nodes.move_to(code, &mut self.addresses);
            let totals = self.take_addresses();
            totals.each_edge(|from, to, kind, times| sink.edge_times(from, to, kind, times));
        }
    }

    fn give_of_tables<S: Sink>(&mut self, code: &Code, sink: &mut S) {
        let taken = Taken {
            placed: &[],
            epoch: self.epoch,
            code,
            visits: &self.visits,
        };
        for (number, hits) in self.hits.drain() {
            let weight = self.visits.weight(number);
            weight.add_to(&mut self.counted, hits.into());
            let placed = Placed {
                number,
                ..Placed::default()
            };
            sink.hits(&taken.step(placed), hits.into());
        }
    }

    /// Takes what was added up by address.
    pub fn take_totals(&mut self, code: &Code, to: &mut Totals) {
        self.settle();
        self.nodes.move_to(code, &mut self.addresses);
        to.join(self.take_addresses());
    }

    /// How many places have been added up by address.
    pub fn places(&self) -> usize {
        self.addresses.places()
    }

    /// Takes what others have added up by address.
    pub fn take_over(&mut self, others: &mut Steps) {
        if !others.addresses.is_empty() {
            self.addresses.join(others.take_addresses());
        }
    }

    /// Takes all that others have counted in this code.
    pub fn absorb(&mut self, mut others: Steps, code: &Code) {
        others.forget_all(code);
        self.take_over(&mut others);
        self.counted.add_flow(&others.counted);
    }

    fn take_addresses(&mut self) -> Totals {
        let empty = Totals::keeping(self.most_places());
        replace(&mut self.addresses, empty)
    }
}
