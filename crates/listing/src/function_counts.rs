//! The number of instructions that ran in each function.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;

use rtit_flow::{AddressMap, Event, RunEnd, RunFragment, Sink, SinkNeeds, TakenTransition};
use rtit_image::demangle;

use crate::names::NameCursor;

/// Ranges of code, instructions in them, and ranges of transitions. With more, all counts are added to their functions
/// and the tables are emptied.
const MAX_RANGES: usize = 1 << 19;
const MAX_INSTRUCTIONS: usize = 1 << 24;
const MAX_TRANSITION_RANGES: usize = 1 << 21;
/// No function, or no region.
const NONE: u32 = u32::MAX;

/// A range of code, and how often all of it ran.
struct RangeCount {
    space: u32,
    start: u64,
    /// Index of its first length, and the number of instructions.
    first: u32,
    instructions: u32,
    count: u64,
}

/// How often each range of code ran.
#[derive(Default)]
struct RangeCounts {
    all: Vec<RangeCount>,
    lengths: Vec<u8>,
    by_key: AddressMap<u32>,
}

impl RangeCounts {
    fn instruction_lengths(&self, range_count: &RangeCount) -> &[u8] {
        let first = range_count.first as usize;
        &self.lengths[first..first + range_count.instructions as usize]
    }

    /// Returns the index of the range of a fragment.
    fn index_of_fragment(&mut self, fragment: &RunFragment<'_>) -> u32 {
        let length = fragment.lengths.len() as u64;
        let space = u64::from(fragment.space);
        let key = fragment.start ^ length.rotate_right(16) ^ space.rotate_right(8);
        let found = self.by_key.get(&key).copied();
        let same = found
            .and_then(|index| self.all.get(index as usize))
            .is_some_and(|range_count| {
                range_count.start == fragment.start
                    && range_count.space == fragment.space
                    && self.instruction_lengths(range_count) == fragment.lengths
            });
        if let (Some(index), true) = (found, same) {
            return index;
        }
        // this replaces other code that was there before
        let index = self.all.len() as u32;
        self.by_key.insert(key, index);
        self.all.push(RangeCount {
            space: fragment.space,
            start: fragment.start,
            first: self.lengths.len() as u32,
            instructions: fragment.lengths.len() as u32,
            count: 0,
        });
        self.lengths.extend_from_slice(fragment.lengths);
        index
    }
}

/// How often a transition was taken, and its ranges, a slice of `FunctionCountSink::transition_ranges`.
#[derive(Clone, Copy)]
struct TransitionCount {
    count: u64,
    first: u32,
    ranges: u32,
}

impl TransitionCount {
    const NEVER: TransitionCount = TransitionCount {
        count: 0,
        first: NONE,
        ranges: 0,
    };
}

/// Space, region and function.
type Owner = (u32, u32, u32);

/// Counts how often each transition and each range of code ran. When names change and at the end, it adds the
/// instructions to their functions.
pub struct FunctionCountSink {
    /// Of each space, by its number.
    names: Vec<NameCursor>,
    range_counts: RangeCounts,
    /// By transition id.
    transitions: Vec<TransitionCount>,
    /// The generation of the ids.
    generation: u32,
    /// Indices of the ranges of transitions.
    transition_ranges: Vec<u32>,
    functions: HashMap<Owner, u64>,
}

impl FunctionCountSink {
    /// `names` are those of each space that the flow is decoded with, in their order.
    pub fn new(names: Vec<NameCursor>) -> FunctionCountSink {
        FunctionCountSink {
            names,
            range_counts: RangeCounts::default(),
            transitions: Vec::new(),
            generation: 0,
            transition_ranges: Vec::new(),
            functions: HashMap::new(),
        }
    }

    /// Adds the instructions of a range, by the current names.
    fn add_range(&mut self, range_count: &RangeCount, lengths: &[u8]) {
        let space = range_count.space;
        let mut ip = range_count.start;
        let mut run = ((space, NONE, NONE), 0);
        for &length in lengths {
            let names = self.names.get(space as usize);
            let found = names.and_then(|names| names.find_name_of_address(ip));
            let owner = found.map_or((space, NONE, NONE), |found| {
                let function = found.function.map_or(NONE, |(index, _)| index);
                (space, found.region, function)
            });
            if owner != run.0 {
                self.add_to_function(run, range_count.count);
                run = (owner, 0);
            }
            run.1 += 1;
            ip = ip.wrapping_add(length.into());
        }
        self.add_to_function(run, range_count.count);
    }

    fn add_to_function(&mut self, (owner, instructions): (Owner, u64), count: u64) {
        if instructions > 0 {
            *self.functions.entry(owner).or_default() += instructions * count;
        }
    }

    /// Adds the counts of transitions to their ranges.
    fn flush_transitions(&mut self) {
        for transition in &mut self.transitions {
            let count = std::mem::take(&mut transition.count);
            let first = transition.first as usize;
            let ranges = first..first + transition.ranges as usize;
            for &range in self.transition_ranges.get(ranges).unwrap_or(&[]) {
                if let Some(range_count) = self.range_counts.all.get_mut(range as usize) {
                    range_count.count += count;
                }
            }
        }
    }

    fn clear_transitions(&mut self) {
        self.flush_transitions();
        self.transitions.clear();
        self.transition_ranges.clear();
    }

    /// Adds all counts to their functions.
    fn flush_counts(&mut self) {
        self.flush_transitions();
        let mut range_counts = std::mem::take(&mut self.range_counts);
        for range_count in range_counts
            .all
            .iter()
            .filter(|range_count| range_count.count > 0)
        {
            self.add_range(range_count, range_counts.instruction_lengths(range_count));
        }
        range_counts
            .all
            .iter_mut()
            .for_each(|range_count| range_count.count = 0);
        self.range_counts = range_counts;
    }

    fn limit_memory(&mut self) {
        if self.range_counts.all.len() > MAX_RANGES
            || self.range_counts.lengths.len() > MAX_INSTRUCTIONS
            || self.transition_ranges.len() > MAX_TRANSITION_RANGES
        {
            self.flush_counts();
            self.clear_transitions();
            self.range_counts = RangeCounts::default();
        }
    }

    #[cold]
    fn add_transition(&mut self, transition: &impl TakenTransition, id: usize) {
        self.limit_memory();
        if self.transitions.len() <= id {
            self.transitions.resize(id + 1, TransitionCount::NEVER);
        }
        let first = self.transition_ranges.len() as u32;
        transition.replay_to_sink(&mut RangeSink {
            range_counts: &mut self.range_counts,
            ranges: &mut self.transition_ranges,
        });
        self.transitions[id] = TransitionCount {
            count: 1,
            first,
            ranges: self.transition_ranges.len() as u32 - first,
        };
    }

    /// Returns the instructions by function and path of its file, each empty if unknown.
    pub fn finish_counts(&mut self) -> BTreeMap<(String, OsString), u64> {
        self.flush_counts();
        let mut found = BTreeMap::new();
        for (&(space, region, function), &count) in &self.functions {
            let names = self.names.get(space as usize);
            let region = names.and_then(|names| names.process_names().region_at_index(region));
            let functions = region
                .and_then(|region| region.functions.as_ref())
                .and_then(|source| source.read_functions());
            let function =
                functions.and_then(|all| all.functions_by_offset().get(function as usize));
            let name = function.map_or(String::new(), |function| demangle(&function.name));
            let path = region.map_or(OsString::new(), |region| (*region.path).to_owned());
            *found.entry((name, path)).or_default() += count;
        }
        found
    }
}

impl Sink for FunctionCountSink {
    const NEEDS: SinkNeeds = SinkNeeds::Order;

    fn extend_run(&mut self, fragment: &RunFragment<'_>, _time: u64) {
        self.limit_memory();
        let index = self.range_counts.index_of_fragment(fragment);
        if let Some(range_count) = self.range_counts.all.get_mut(index as usize) {
            range_count.count += 1;
        }
    }

    fn end_run(&mut self, _end: RunEnd, _offset: u64) {}

    fn add_event(&mut self, _event: &Event) {}

    fn set_code_time(&mut self, time: u64) {
        if self
            .names
            .iter()
            .any(|names| names.may_names_change_by(time))
        {
            self.flush_counts();
            for names in &mut self.names {
                names.advance_to_time(time);
            }
        }
    }

    #[inline]
    fn take_transition(&mut self, transition: &impl TakenTransition) {
        if transition.transition_generation() != self.generation {
            self.clear_transitions();
            self.generation = transition.transition_generation();
        }
        let id = transition.transition_id() as usize;
        match self.transitions.get_mut(id) {
            Some(known) if known.first != NONE => known.count += 1,
            _ => self.add_transition(transition, id),
        }
    }
}

/// Collects the ranges of one transition.
struct RangeSink<'a> {
    range_counts: &'a mut RangeCounts,
    ranges: &'a mut Vec<u32>,
}

impl Sink for RangeSink<'_> {
    fn extend_run(&mut self, fragment: &RunFragment<'_>, _time: u64) {
        let index = self.range_counts.index_of_fragment(fragment);
        self.ranges.push(index);
    }

    fn end_run(&mut self, _end: RunEnd, _offset: u64) {}

    fn add_event(&mut self, _event: &Event) {}
}
