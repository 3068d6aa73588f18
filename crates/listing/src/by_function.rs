//! How many instructions ran in each function.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;

use rtit_flow::{AddressMap, Event, RunEnd, RunFragment, Sink, SinkNeeds, TakenTransition};
use rtit_image::demangle;

use crate::names::Cursor;

/// Everything is given to the functions and forgotten when there are more stretches than this.
const MOST_STRETCHES: usize = 1 << 19;
/// The same for the instructions in them, and for what steps run through.
const MOST_INSTRUCTIONS: usize = 1 << 24;
const MOST_PARTS: usize = 1 << 21;
/// Stands for the code of a file that belongs to no function, and for what nothing is known of.
const NONE: u32 = u32::MAX;

/// A stretch of code and how often all of it ran.
struct Tally {
    space: u32,
    start: u64,
    /// Its first length and how many there are.
    first: u32,
    count: u32,
    times: u64,
}

/// How often each stretch of code ran.
#[derive(Default)]
struct Tallies {
    all: Vec<Tally>,
    lengths: Vec<u8>,
    by_key: AddressMap<u32>,
}

impl Tallies {
    fn lengths(&self, tally: &Tally) -> &[u8] {
        let first = tally.first as usize;
        &self.lengths[first..first + tally.count as usize]
    }

    /// The one of these instructions.
    fn index(&mut self, fragment: &RunFragment<'_>) -> u32 {
        let length = fragment.lengths.len() as u64;
        let space = u64::from(fragment.space);
        let key = fragment.start ^ length.rotate_right(16) ^ space.rotate_right(8);
        let found = self.by_key.get(&key).copied();
        let same = found
            .and_then(|index| self.all.get(index as usize))
            .is_some_and(|tally| {
                tally.start == fragment.start
                    && tally.space == fragment.space
                    && self.lengths(tally) == fragment.lengths
            });
        if let (Some(index), true) = (found, same) {
            return index;
        }
        // also if other code was there before
        let index = self.all.len() as u32;
        self.by_key.insert(key, index);
        self.all.push(Tally {
            space: fragment.space,
            start: fragment.start,
            first: self.lengths.len() as u32,
            count: fragment.lengths.len() as u32,
            times: 0,
        });
        self.lengths.extend_from_slice(fragment.lengths);
        index
    }
}

/// How often a step was taken, and which stretches it runs through: a part of `ByFunction::parts`.
#[derive(Clone, Copy)]
struct Taken {
    times: u64,
    first: u32,
    parts: u32,
}

impl Taken {
    const NEVER: Taken = Taken {
        times: 0,
        first: NONE,
        parts: 0,
    };
}

/// Space, region and function.
type Owner = (u32, u32, u32);

/// Counts how often each step and each stretch of code ran, and gives the instructions to the functions that they lie
/// in when names change and at the end.
pub struct ByFunction {
    /// Those of each space, by its number.
    names: Vec<Cursor>,
    tallies: Tallies,
    /// By their number.
    steps: Vec<Taken>,
    /// The generation of the numbers.
    generation: u32,
    parts: Vec<u32>,
    /// Instructions by their owner.
    functions: HashMap<Owner, u64>,
}

impl ByFunction {
    /// `names`: those of each space that the flow is decoded with, in their order; what is in none has no name.
    pub fn new(names: Vec<Cursor>) -> ByFunction {
        ByFunction {
            names,
            tallies: Tallies::default(),
            steps: Vec::new(),
            generation: 0,
            parts: Vec::new(),
            functions: HashMap::new(),
        }
    }

    /// These instructions ran so many times while names were as they are.
    fn add(&mut self, tally: &Tally, lengths: &[u8], times: u64) {
        let space = tally.space;
        let mut ip = tally.start;
        let mut run = ((space, NONE, NONE), 0);
        for &length in lengths {
            let names = self.names.get(space as usize);
            let found = names.and_then(|names| names.find(ip));
            let owner = found.map_or((space, NONE, NONE), |found| {
                let function = found.function.map_or(NONE, |(index, _)| index);
                (space, found.region, function)
            });
            if owner != run.0 {
                self.give(run, times);
                run = (owner, 0);
            }
            run.1 += 1;
            ip = ip.wrapping_add(length.into());
        }
        self.give(run, times);
    }

    fn give(&mut self, (owner, instructions): (Owner, u64), times: u64) {
        if instructions > 0 {
            *self.functions.entry(owner).or_default() += instructions * times;
        }
    }

    /// Counts of steps become counts of stretches.
    fn settle_steps(&mut self) {
        for step in &mut self.steps {
            let times = std::mem::take(&mut step.times);
            let first = step.first as usize;
            let parts = self.parts.get(first..first + step.parts as usize);
            for &part in parts.unwrap_or(&[]) {
                if let Some(tally) = self.tallies.all.get_mut(part as usize) {
                    tally.times += times;
                }
            }
        }
    }

    fn forget_steps(&mut self) {
        self.settle_steps();
        self.steps.clear();
        self.parts.clear();
    }

    fn settle(&mut self) {
        self.settle_steps();
        let mut tallies = std::mem::take(&mut self.tallies);
        for tally in tallies.all.iter().filter(|tally| tally.times > 0) {
            self.add(tally, tallies.lengths(tally), tally.times);
        }
        tallies.all.iter_mut().for_each(|tally| tally.times = 0);
        self.tallies = tallies;
    }

    fn keep_small(&mut self) {
        if self.tallies.all.len() > MOST_STRETCHES
            || self.tallies.lengths.len() > MOST_INSTRUCTIONS
            || self.parts.len() > MOST_PARTS
        {
            self.settle();
            self.forget_steps();
            self.tallies = Tallies::default();
        }
    }

    /// Notes what a step runs through.
    #[cold]
    fn learn(&mut self, step: &impl TakenTransition, number: usize) {
        self.keep_small();
        if self.steps.len() <= number {
            self.steps.resize(number + 1, Taken::NEVER);
        }
        let first = self.parts.len() as u32;
        step.replay(&mut Parts {
            tallies: &mut self.tallies,
            parts: &mut self.parts,
        });
        if let Some(taken) = self.steps.get_mut(number) {
            *taken = Taken {
                times: 1,
                first,
                parts: self.parts.len() as u32 - first,
            };
        }
    }

    /// Instructions by (function, path of its file); a name is empty where there is none.
    pub fn finish(&mut self) -> BTreeMap<(String, OsString), u64> {
        self.settle();
        let mut found = BTreeMap::new();
        for (&(space, region, function), &count) in &self.functions {
            let names = self.names.get(space as usize);
            let region = names.and_then(|names| names.names().region(region));
            let functions = region
                .and_then(|region| region.source.as_ref())
                .and_then(|source| source.functions());
            let function = functions.and_then(|all| all.all().get(function as usize));
            let name = function.map_or(String::new(), |function| demangle(&function.name));
            let path = region.map_or(OsString::new(), |region| (*region.path).to_owned());
            *found.entry((name, path)).or_default() += count;
        }
        found
    }
}

impl Sink for ByFunction {
    const NEEDS: SinkNeeds = SinkNeeds::Order;

    fn extend_run(&mut self, fragment: &RunFragment<'_>, _time: u64) {
        self.keep_small();
        let index = self.tallies.index(fragment);
        if let Some(tally) = self.tallies.all.get_mut(index as usize) {
            tally.times += 1;
        }
    }

    fn end_run(&mut self, _end: RunEnd, _offset: u64) {}

    fn event(&mut self, _event: &Event) {}

    fn set_code_time(&mut self, time: u64) {
        if self.names.iter().any(|names| names.changes_by(time)) {
            self.settle();
            for names in &mut self.names {
                names.advance(time);
            }
        }
    }

    #[inline]
    fn take_transition(&mut self, step: &impl TakenTransition) {
        if step.generation() != self.generation {
            self.forget_steps();
            self.generation = step.generation();
        }
        let number = step.id() as usize;
        match self.steps.get_mut(number) {
            Some(taken) if taken.first != NONE => taken.times += 1,
            _ => self.learn(step, number),
        }
    }
}

/// The stretches of one step.
struct Parts<'a> {
    tallies: &'a mut Tallies,
    parts: &'a mut Vec<u32>,
}

impl Sink for Parts<'_> {
    fn extend_run(&mut self, fragment: &RunFragment<'_>, _time: u64) {
        let index = self.tallies.index(fragment);
        self.parts.push(index);
    }

    fn end_run(&mut self, _end: RunEnd, _offset: u64) {}

    fn event(&mut self, _event: &Event) {}
}
