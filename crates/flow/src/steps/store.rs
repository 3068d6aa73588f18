//! All steps of a stream: made, looked up, added up, forgotten.

use std::collections::HashMap;
use std::mem::size_of;
use std::sync::atomic::{AtomicU32, Ordering};

use super::act::Acts;
use super::compose::Composed;
use super::follow::{run, Run};
use super::hits::Hits;
use super::kernel::{keep, Exit, Lane, Tables};
use super::nodes::NodeTotals;
use super::path::Path;
use super::phrase::{Phrases, PRICE, PRICE_IN_ORDER};
use super::table::{Left, Table};
use super::visit::Visits;
use crate::code::Code;
use crate::counts::Counts;
use crate::settings::{Settings, StepLimits};
use crate::sink::Wants;
use crate::stack::ReturnStack;
use crate::totals::Totals;

/// First sizes of the tables: a short stream should not pay for large ones.
const FIRST_TNT: usize = 1 << 10;
const FIRST_OTHER: usize = 1 << 8;

/// No table has fewer entries (`table`); of one space among others none has more at first.
pub(super) const LEAST: usize = 128;

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
pub(super) fn next_epoch() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

pub(crate) struct Steps {
    limits: StepLimits,
    /// Those that are added up, at most.
    pub(super) places: usize,
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
    pub(super) epoch: u32,
    /// The steps that visit a node; kept from the first change of code on.
    pub(super) by_node: Option<HashMap<u32, Vec<Name>>>,
    /// How many names `by_node` has.
    pub(super) names: usize,
    /// Those of a sink that wants hits.
    pub(super) hits: Hits,
    /// Hits that were added up.
    pub(super) counted: Counts,
    pub(super) nodes: NodeTotals,
    pub(super) addresses: Totals,
    /// Bytes taken since hits were added up.
    pub(super) bytes: usize,
    /// What the kernel wrote: step numbers or marks, with places in the window.
    pub log: Vec<(u32, u32)>,
    pub(super) path: Path,
    pub(super) composed: Composed,
    pub(super) left: Vec<Left>,
}

impl Steps {
    pub fn new(settings: &Settings, alone: bool) -> Steps {
        let limits = settings.steps;
        let returns = !settings.no_retcomp;
        Steps {
            limits,
            places: settings.places,
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
            counted: Counts::default(),
            nodes: NodeTotals::default(),
            addresses: Totals::keeping(settings.places),
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
        self.addresses.keep(self.most_places());
        true
    }

    /// So many have counts of their own: of hits, which are handed over edge by edge, all.
    pub(super) fn most_places(&self) -> usize {
        match self.wants {
            Wants::Hits => usize::MAX,
            _ => self.places,
        }
    }

    /// Empty and small.
    fn make_tables(&mut self) {
        let limit = 1 << self.limits.entries.ilog2();
        let [tnt, other] = match self.path.is_alone() {
            true => [FIRST_TNT, FIRST_OTHER],
            false => [LEAST; 2],
        };
        self.tnt = Table::new(tnt, limit);
        self.tip = Table::new(other, limit);
        self.ret = Table::new(other, limit);
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
        self.words() * size_of::<u32>() + tables + log
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
    pub fn run(
        &mut self,
        places: bool,
        stack: &mut ReturnStack,
        bytes: &[u8],
        end: usize,
        room: usize,
        lane: &mut Lane,
    ) -> Exit {
        let kernel = match (self.returns, self.keeps()) {
            (false, keep::HITS) => run::<false, { keep::HITS }> as Run,
            (true, keep::HITS) => run::<true, { keep::HITS }>,
            (false, keep::ORDER) => run::<false, { keep::ORDER }>,
            (true, keep::ORDER) => run::<true, { keep::ORDER }>,
            (false, keep::BY_NUMBER) => run::<false, { keep::BY_NUMBER }>,
            (true, keep::BY_NUMBER) => run::<true, { keep::BY_NUMBER }>,
            (false, _) => run::<false, { keep::NOTHING }>,
            (true, _) => run::<true, { keep::NOTHING }>,
        };
        let by_phrases = !places || !self.returns;
        let phrases = by_phrases.then_some(&mut self.phrases);
        let mut tables = Tables {
            tnt: &mut self.tnt.entries,
            tip: &mut self.tip.entries,
            ret: &mut self.ret.entries,
            acts: &self.acts,
            hits: &mut self.hits,
            log: &mut self.log,
        };
        kernel(&mut tables, phrases, stack, bytes, end, room, lane)
    }

    /// The kernel took `bytes` bytes: hits are added up when they might not fit any more, and all begins anew when
    /// what is kept of steps long replaced takes too much room. Nothing may be in the log.
    pub fn keep_within_limit(&mut self, code: &Code, bytes: usize) {
        self.bytes += bytes;
        self.phrases.warm_up(bytes);
        if self.words() > self.limits.words {
            self.recycle();
        } else if self.bytes > MAX_BYTES {
            self.settle();
        }
        if self.nodes.is_large() {
            self.nodes.move_to(code, &mut self.addresses);
        }
    }

    /// What was counted is forgotten; the steps stay.
    pub fn start_again(&mut self) {
        self.settle();
        self.counted = Counts::default();
        self.nodes = NodeTotals::default();
        self.addresses = Totals::keeping(self.most_places());
    }
}
