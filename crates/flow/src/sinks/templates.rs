//! The rows that a transition adds to columns, kept so that they are copied when the transition recurs.

use super::column_set::ColumnSet;
use crate::sink::{LoggedTransition, TakenTransition};

/// Blocks that are kept, at most: transitions beyond are replayed each time.
const MAX_BLOCKS: usize = 1 << 19;

/// Value of `Entry::first` for a transition that was not met, and for one that was met once and is not kept.
const NOT_MET: u32 = u32::MAX;
const MET_ONCE: u32 = u32::MAX - 1;

/// The rows of one transition, without its blocks.
#[derive(Clone, Copy, Debug)]
struct Entry<E> {
    /// Index of the first block, `NOT_MET`, or `MET_ONCE`.
    first: u32,
    rows: u32,
    early_rows: u32,
    last_packet: u8,
    extra: E,
}

/// The rows of one transition.
pub struct Template<'a, C: ColumnSet, E> {
    blocks: &'a [C::Block],
    /// The number of rows, with the one that the transition leaves unfinished.
    pub(super) rows: usize,
    /// Rows that begin before the first branch of the transition.
    early_rows: usize,
    /// Where the last packet of the transition begins, in bytes after the first.
    pub(super) last_packet: u8,
    /// What else the format needs to know.
    pub(super) extra: E,
}

impl<C: ColumnSet, E> Template<'_, C, E> {
    /// The number of rows that `copy_to` overwrites.
    #[inline(always)]
    pub(super) fn overwrites(&self) -> usize {
        self.blocks.len() * C::BLOCK
    }

    /// Writes all rows from `at` on. Rows after those of the template, up to the end of a block, have no meaning.
    #[inline(always)]
    pub(super) fn copy_to(
        &self,
        columns: &mut C::Slices<'_>,
        at: usize,
        transition: &LoggedTransition,
    ) {
        let (before, after) = transition.times;
        let mut to = at;
        for block in self.blocks {
            C::copy_block(columns, to, block, transition.offset, after);
            to += C::BLOCK;
        }
        if before != after && self.early_rows != 0 {
            C::fill_times(columns, at..at + self.early_rows, before);
        }
    }
}

/// The templates of all transitions of one generation, by the number of the transition.
#[derive(Clone, Debug)]
pub(super) struct Templates<C: ColumnSet, E> {
    generation: u32,
    entries: Vec<Entry<E>>,
    blocks: Vec<C::Block>,
}

impl<C: ColumnSet, E> Default for Templates<C, E> {
    fn default() -> Self {
        Templates {
            generation: 0,
            entries: Vec::new(),
            blocks: Vec::new(),
        }
    }
}

impl<C: ColumnSet, E: Copy + Default> Templates<C, E> {
    /// Returns whether these are the templates of `generation`.
    pub fn are_of(&self, generation: u32) -> bool {
        self.generation == generation
    }

    #[inline(always)]
    pub fn get(&self, number: u32) -> Option<Template<'_, C, E>> {
        let entry = self.entries.get(number as usize)?;
        let (first, rows) = (entry.first as usize, entry.rows as usize);
        Some(Template {
            blocks: self.blocks.get(first..first + rows.div_ceil(C::BLOCK))?,
            rows,
            early_rows: entry.early_rows as usize,
            last_packet: entry.last_packet,
            extra: entry.extra,
        })
    }

    pub fn is_full(&self) -> bool {
        self.blocks.len() > MAX_BLOCKS
    }

    /// Returns whether a transition that has no template is met for the first time. Many are met once, and to keep a
    /// template costs more than to replay the transition.
    pub fn is_first_time(&mut self, step: &impl TakenTransition) -> bool {
        let entry = self.entry(step);
        let is_first = entry.first == NOT_MET;
        if is_first {
            entry.first = MET_ONCE;
        }
        is_first
    }

    /// Keeps the first `rows` rows of `columns` as those of a transition whose last packet has this offset.
    pub fn insert(
        &mut self,
        step: &impl TakenTransition,
        columns: &C,
        rows: usize,
        last_offset: u64,
        extra: E,
    ) {
        let _ = self.entry(step);
        let first = self.blocks.len() as u32;
        self.blocks.extend(columns.blocks(rows, step.offset()));
        *self.entry(step) = Entry {
            first,
            rows: rows as u32,
            early_rows: columns.early_rows(rows) as u32,
            last_packet: last_offset.wrapping_sub(step.offset()) as u8,
            extra,
        };
    }

    /// The entry of a transition. The entries of another generation are dropped.
    fn entry(&mut self, step: &impl TakenTransition) -> &mut Entry<E> {
        if self.generation != step.generation() {
            self.entries.clear();
            self.blocks.clear();
            self.generation = step.generation();
        }
        let number = step.id() as usize;
        if number >= self.entries.len() {
            let none = Entry {
                first: NOT_MET,
                rows: 0,
                early_rows: 0,
                last_packet: 0,
                extra: E::default(),
            };
            self.entries.resize(number + 1, none);
        }
        &mut self.entries[number]
    }
}
