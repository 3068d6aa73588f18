//! All steps of a stream: made, looked up, added up, forgotten.

use std::collections::HashMap;
use std::mem::size_of;
use std::sync::atomic::{AtomicU32, Ordering};

use rtit_memory::{filled, Grow};

use super::act::Acts;
use super::compose::Composed;
use super::effects::Effects;
use super::follow::{run, Run};
use super::hits::Hits;
use super::kernel::{keep, Exit, Lane, Tables};
use super::nodes::NodeTotals;
use super::passages::Passages;
use super::path::Path;
use super::phrase::{Phrases, PRICE, PRICE_IN_ORDER};
use super::sums::Sums;
use super::table::{tnt_slot, Key, Left, Table};
use super::visit::{Added, Taken, Visits};
use crate::code::Code;
use crate::counts::Counts;
use crate::settings::StepLimits;
use crate::sink::{Placed, Sink, Steps as _, Wants};
use crate::stack::ReturnStack;
use crate::totals::Totals;

/// First sizes of the tables: a short stream should not pay for large ones.
const FIRST_TNT: usize = 1 << 10;
const FIRST_OTHER: usize = 1 << 8;

/// No table has fewer entries (`table`).
const LEAST: usize = 128;

/// What a name takes in the index of those that visit a node, with its share of that.
const WORDS_OF_A_NAME: usize = 12;

/// Hits have 32 bits: after so many bytes, with a hit each at most twice, they are added up.
const MAX_BYTES: usize = 1 << 30;

/// A step, as it is looked up.
#[derive(Clone, Copy, Debug)]
pub(super) enum Name {
    Tnt(u32, u8),
    Tip(u32, u64),
    Return(u32, u32),
    /// By slot and number.
    Phrase(usize, u32),
}

/// No epoch comes twice, so that the numbers of one space are not taken for those of another.
fn next_epoch() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

pub(crate) struct Steps {
    limits: StepLimits,
    /// RETs may be compressed.
    pub(super) returns: bool,
    /// Steps are taken and not counted.
    pub idle: bool,
    /// What the sink wants: the tables are filled for this.
    pub(super) wants: Wants,
    pub(super) tnt: Table<()>,
    pub(super) tip: Table<u64>,
    pub(super) ret: Table<u32>,
    pub(super) phrases: Phrases,
    pub(super) acts: Acts,
    pub(super) visits: Visits,
    /// Counts another set of step numbers whenever they begin again.
    epoch: u32,
    /// The steps that visit a node; kept from the first change of code on.
    pub(super) by_node: Option<HashMap<u32, Vec<Name>>>,
    /// How many names `by_node` has.
    pub(super) names: usize,
    /// Those of a sink that wants hits.
    pub(super) hits: Hits,
    pub(super) passages: Passages,
    pub(super) effects: Effects,
    pub(super) sums: Sums,
    /// Hits that were added up.
    counted: Counts,
    nodes: NodeTotals,
    addresses: Totals,
    /// Bytes taken since hits were added up.
    bytes: usize,
    /// What the kernel wrote: step numbers or marks, with places in the window.
    pub log: Vec<(u32, u32)>,
    pub(super) path: Path,
    pub(super) composed: Composed,
    pub(super) left: Vec<Left>,
}

impl Steps {
    pub fn new(limits: StepLimits, returns: bool, alone: bool) -> Steps {
        Steps {
            limits,
            returns,
            idle: false,
            wants: Wants::Walk,
            tnt: Table::new(0, 0),
            tip: Table::new(0, 0),
            ret: Table::new(0, 0),
            phrases: Phrases::default(),
            acts: Acts::default(),
            visits: Visits::default(),
            epoch: next_epoch(),
            by_node: None,
            names: 0,
            hits: Hits::default(),
            passages: Passages::new(limits.passages, limits.phrases == 0),
            effects: Effects::default(),
            sums: Sums::default(),
            counted: Counts::default(),
            nodes: NodeTotals::default(),
            addresses: Totals::default(),
            bytes: 0,
            log: Vec::new(),
            path: Path::new(returns, alone),
            composed: Composed::default(),
            left: Vec::new(),
        }
    }

    /// Makes ready for a sink. False: everything is to be walked.
    pub fn begin(&mut self, wants: Wants) -> bool {
        if self.limits.entries < LEAST || wants == Wants::Walk {
            return false;
        }
        if self.wants != wants {
            // hits of another meaning
            self.recycle();
            self.wants = wants;
            self.make_tables();
        }
        true
    }

    /// Empty and small.
    fn make_tables(&mut self) {
        let limit = 1 << self.limits.entries.ilog2();
        self.tnt = Table::new(FIRST_TNT, limit);
        self.tip = Table::new(FIRST_OTHER, limit);
        self.ret = Table::new(FIRST_OTHER, limit);
        let price = match self.wants {
            Wants::Order => PRICE_IN_ORDER,
            _ => PRICE,
        };
        self.phrases = Phrases::new(&self.limits, price);
    }

    /// How much is kept beside the tables, about in words.
    fn words(&self) -> usize {
        self.visits.size() + self.acts.len() + self.names * WORDS_OF_A_NAME
    }

    /// About how many bytes are in use, beside what has been counted.
    pub fn size(&self) -> usize {
        let tables = self.tnt.bytes() + self.tip.bytes() + self.ret.bytes() + self.phrases.bytes();
        let log = self.log.capacity() * size_of::<(u32, u32)>();
        let more = self.effects.words() + self.sums.words();
        let passages = self.passages.size(self.hits.trail.len());
        (self.words() + more) * size_of::<u32>() + passages + tables + log
    }

    /// As `forget_all`, and the tables are as small as they were at first. Nothing may be in the log.
    pub fn let_go(&mut self, code: &Code) {
        if self.wants != Wants::Walk {
            self.forget_all(code);
            self.make_tables();
            self.log = Vec::new();
        }
    }

    /// The most bytes that the kernel may take at once: places in the log have 32 bits.
    pub fn stride(&self) -> usize {
        self.limits.stride.clamp(1, MAX_BYTES)
    }

    pub fn visits(&self) -> &Visits {
        &self.visits
    }

    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    pub(super) fn keeps(&self) -> u8 {
        match self.wants {
            Wants::Order => keep::ORDER,
            _ if self.idle => keep::NOTHING,
            Wants::Hits => keep::BY_NUMBER,
            _ => keep::HITS,
        }
    }

    /// Runs the kernel from `lane.at` to at most `end`, with room for `room` entries in the log. `places`: which packet
    /// each row came from is asked for; then phrases pay only where RETs are not compressed, as they are longer there.
    #[allow(clippy::too_many_arguments)] // as the kernel's, and the code
    pub fn run(
        &mut self,
        places: bool,
        code: &Code,
        stack: &mut ReturnStack,
        bytes: &[u8],
        end: usize,
        room: usize,
        lane: &mut Lane,
    ) -> Exit {
        let keeps = self.keeps();
        if keeps == keep::BY_NUMBER && !self.passages.is_off() {
            let kernel = match self.returns {
                false => [
                    run::<false, { keep::BY_NUMBER }> as Run,
                    run::<false, { keep::TRAIL }>,
                ],
                true => [
                    run::<true, { keep::BY_NUMBER }>,
                    run::<true, { keep::TRAIL }>,
                ],
            };
            return self.run_by_passages(kernel, code, stack, bytes, end, room, lane);
        }
        let mut tables = Tables {
            tnt: &mut self.tnt.entries,
            tip: &mut self.tip.entries,
            ret: &mut self.ret.entries,
            acts: &self.acts,
            hits: &mut self.hits,
            log: &mut self.log,
        };
        let kernel = match (self.returns, keeps) {
            (false, keep::HITS) => run::<false, { keep::HITS }> as Run,
            (true, keep::HITS) => run::<true, { keep::HITS }>,
            (false, keep::ORDER) => run::<false, { keep::ORDER }>,
            (true, keep::ORDER) => run::<true, { keep::ORDER }>,
            (false, keep::BY_NUMBER) => run::<false, { keep::BY_NUMBER }>,
            (true, keep::BY_NUMBER) => run::<true, { keep::BY_NUMBER }>,
            (false, _) => run::<false, { keep::NOTHING }>,
            (true, _) => run::<true, { keep::NOTHING }>,
        };
        let phrases = (!places || !self.returns).then_some(&mut self.phrases);
        kernel(&mut tables, phrases, stack, bytes, end, room, lane)
    }

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
    fn settle(&mut self) {
        self.bytes = 0;
        if self.wants == Wants::Order {
            return;
        }
        if self.wants == Wants::Hits {
            self.spread();
            let mut hits = std::mem::take(&mut self.hits);
            hits.drain()
                .for_each(|(number, hits)| self.add(number, hits.into()));
            self.hits = hits;
            return;
        }
        // in the order of their numbers, which is that of what they visit in memory
        let mut all = filled(self.visits.len(), 0);
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

    /// The kernel took `bytes` bytes: hits are added up when they might not fit any more, and all begins anew when
    /// what is kept of steps long replaced takes too much room. Nothing may be in the log.
    pub fn keep_within_limit(&mut self, bytes: usize) {
        self.bytes += bytes;
        self.phrases.warm_up(bytes);
        if self.words() > self.limits.words {
            self.recycle();
        } else if self.bytes > MAX_BYTES {
            self.settle();
        }
    }

    /// What was counted is forgotten; the steps stay.
    pub fn start_again(&mut self) {
        self.settle();
        self.counted = Counts::default();
        self.nodes = NodeTotals::default();
        self.addresses = Totals::default();
        self.begin_passage();
        if self.passages.start_again(self.wants == Wants::Hits) {
            self.forget_passages();
        }
    }

    /// What was counted of them has been added up.
    fn forget_passages(&mut self) {
        self.passages.clear();
        self.effects.clear();
        self.sums.clear();
        self.hits.trail.clear();
    }

    /// Forgets all steps; what they counted stays.
    fn recycle(&mut self) {
        self.settle();
        self.tnt.clear();
        self.tip.clear();
        self.ret.clear();
        self.phrases.clear();
        self.acts.clear();
        self.visits.clear();
        self.hits.clear();
        self.forget_passages();
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
        self.spread();
        self.forget_passages();
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

    /// Passages that were counted become steps.
    fn spread(&mut self) {
        let (sums, hits) = (&mut self.sums, &mut self.hits);
        sums.spread(&self.passages, &self.visits, hits, false);
    }

    fn index(&mut self) {
        self.by_node = Some(HashMap::new());
        let mut names = Vec::new();
        for (slot, entry) in self.tnt.live() {
            let half = (slot as u32).wrapping_sub(entry.base) as usize & (LEAST - 1);
            names.put((self.tnt.number(slot), Name::Tnt(entry.base, half as u8)));
        }
        for (slot, entry) in self.tip.live() {
            names.put((self.tip.number(slot), Name::Tip(entry.base, entry.key)));
        }
        for (slot, entry) in self.ret.live() {
            names.put((self.ret.number(slot), Name::Return(entry.base, entry.key)));
        }
        for (slot, number) in self.phrases.live() {
            names.put((number, Name::Phrase(slot, number)));
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
        if self.wants != Wants::Hits {
            return;
        }
        let taken = Taken {
            placed: &[],
            epoch: self.epoch,
            code,
            visits: &self.visits,
        };
        let (all, hits) = (&mut self.sums, &mut self.hits);
        let sums = all.spread(&self.passages, &self.visits, hits, true);
        for (sum, times) in sums {
            let Some(sum) = self.sums.sum(sum) else {
                continue;
            };
            sum.add_to(&mut self.counted, times.into());
            let (number, steps) = (sum.number, &sum.steps[..]);
            let added = Added {
                number,
                steps,
                taken: &taken,
            };
            sink.sum_hits(&added, times.into());
        }
        for (number, hits) in self.hits.drain() {
            let weight = self.visits.weight(number);
            weight.add_to(&mut self.counted, hits.into());
            let placed = Placed {
                number,
                ..Placed::default()
            };
            sink.hits(&taken.step(placed), hits.into());
        }
        if !self.nodes.is_empty() || !self.addresses.is_empty() {
            self.nodes.move_to(code, &mut self.addresses);
            let totals = std::mem::take(&mut self.addresses);
            totals.each_edge(|from, to, kind, times| sink.edge_times(from, to, kind, times));
        }
    }

    /// Takes what was added up by address.
    pub fn take_totals(&mut self, code: &Code, to: &mut Totals) {
        self.settle();
        self.nodes.move_to(code, &mut self.addresses);
        to.join(std::mem::take(&mut self.addresses));
    }
}
