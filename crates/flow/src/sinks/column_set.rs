//! Sets of columns: rows of results as one vector for each column.

use std::fmt::Debug;

/// The columns of one kind of row, as vectors of equal length.
///
/// A set is both the buffer that a sink writes and the batch that it returns. Columns that a sink does not need stay
/// empty. [`column_set!`] implements this.
pub trait ColumnSet: Clone + Debug + Default + Send {
    /// The columns as slices: those that are always present have one length, which the compiler sees.
    type Slices<'a>;
    /// A few rows of a template. Blocks are copied as a whole, which costs less than to copy as many rows as there are.
    type Block: Clone + Debug + Send;
    /// Rows of a block.
    const BLOCK: usize;

    fn row_count(&self) -> usize;
    /// Changes the number of rows. Offset columns are only filled if `with_offsets`.
    fn resize_columns(&mut self, rows: usize, with_offsets: bool);
    fn column_slices(&mut self) -> Self::Slices<'_>;
    /// Takes the first `rows` rows out. The `open` rows after them become the first; the number of rows stays the same.
    fn take_first_rows(&mut self, rows: usize, open: usize) -> Self;
    /// The first `rows` rows as blocks. Offsets are relative to `first_offset`, which is less than 256 bytes before.
    fn row_blocks(&self, rows: usize, first_offset: u64) -> impl Iterator<Item = Self::Block>;
    /// The number of leading rows, of the first `rows`, whose time is 0.
    fn leading_rows_without_time(&self, rows: usize) -> usize;
    /// Writes a block to the rows from `at` on: `offset` is that of the transition, and `time` the time of all of them.
    fn copy_block(
        slices: &mut Self::Slices<'_>,
        at: usize,
        block: &Self::Block,
        offset: u64,
        time: u64,
    );
    /// Sets the time of some rows.
    fn set_row_times(slices: &mut Self::Slices<'_>, rows: std::ops::Range<usize>, time: u64);
}

/// Declares a set of columns with its slices and its blocks.
///
/// `copied` columns are those that a template holds. A template holds `offsets` relative to the packet of its
/// transition, and does not hold `times`: a sink computes both when it copies a template. `added` are no columns of the
/// buffer: a sink fills them when it returns a batch.
macro_rules! column_set {
    (
        $(#[$doc:meta])*
        $name:ident, $slices:ident, $block:ident [$size:literal]
        copied { $($(#[$copied_doc:meta])* $copied:ident: $type:ty,)+ }
        offsets { $($(#[$offset_doc:meta])* $offset:ident)? }
        times { $($(#[$time_doc:meta])* $time:ident)? }
        added { $($(#[$added_doc:meta])* $added:ident: $added_type:ty,)* }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct $name {
            $($(#[$copied_doc])* pub $copied: Vec<$type>,)+
            $($(#[$offset_doc])* pub $offset: Vec<u64>,)?
            $($(#[$time_doc])* pub $time: Vec<u64>,)?
            $($(#[$added_doc])* pub $added: Vec<$added_type>,)*
        }

        #[doc(hidden)]
        pub struct $slices<'a> {
            $(pub(super) $copied: &'a mut [$type],)+
            $(pub(super) $offset: &'a mut [u64],)?
            $(pub(super) $time: &'a mut [u64],)?
        }

        #[doc(hidden)]
        #[derive(Clone, Debug, Default)]
        pub struct $block {
            $($copied: [$type; $size],)+
            $($offset: [u8; $size],)?
        }

        #[allow(unused_variables)] // of columns that some sets do not have
        impl $crate::sinks::column_set::ColumnSet for $name {
            type Slices<'a> = $slices<'a>;
            type Block = $block;
            const BLOCK: usize = $size;

            fn row_count(&self) -> usize {
                [$(self.$copied.len(),)+][0]
            }

            fn resize_columns(&mut self, rows: usize, with_offsets: bool) {
                $(self.$copied.resize(rows, 0);)+
                $(if with_offsets {
                    self.$offset.resize(rows, 0);
                })?
                $(self.$time.resize(rows, 0);)?
            }

            #[inline(always)]
            fn column_slices(&mut self) -> $slices<'_> {
                let rows = self.row_count();
                $slices {
                    $($copied: &mut self.$copied[..rows],)+
                    $($offset: &mut self.$offset[..],)?
                    $($time: &mut self.$time[..rows],)?
                }
            }

            fn take_first_rows(&mut self, rows: usize, open: usize) -> Self {
                use $crate::sinks::buffer_pool::take_front_of_column;
                $name {
                    $($copied: take_front_of_column(&mut self.$copied, rows, open),)+
                    $($offset: take_front_of_column(&mut self.$offset, rows, open),)?
                    $($time: take_front_of_column(&mut self.$time, rows, open),)?
                    $($added: Vec::new(),)*
                }
            }

            fn row_blocks(&self, rows: usize, first_offset: u64) -> impl Iterator<Item = $block> {
                let block = move |first: usize| {
                    let mut block = $block::default();
                    for (to, from) in (first..rows.min(first + $size)).enumerate() {
                        $(block.$copied[to] = self.$copied[from];)+
                        $(if let Some(&offset) = self.$offset.get(from) {
                            block.$offset[to] = offset.wrapping_sub(first_offset) as u8;
                        })?
                    }
                    block
                };
                (0..rows).step_by($size).map(block)
            }

            fn leading_rows_without_time(&self, rows: usize) -> usize {
                let times: &[&[u64]] = &[$(&self.$time[..rows])?];
                let is_early = |time: &&u64| **time == 0;
                times.first().map_or(0, |times| times.iter().take_while(is_early).count())
            }

            #[inline(always)]
            fn copy_block(slices: &mut $slices<'_>, at: usize, block: &$block, offset: u64, time: u64) {
                $(slices.$copied[at..at + $size].copy_from_slice(&block.$copied);)+
                $(if let Some(offsets) = slices.$offset.get_mut(at..at + $size) {
                    offsets.copy_from_slice(&block.$offset.map(|relative| offset + u64::from(relative)));
                })?
                $(slices.$time[at..at + $size].copy_from_slice(&[time; $size]);)?
            }

            #[inline(always)]
            fn set_row_times(slices: &mut $slices<'_>, rows: std::ops::Range<usize>, time: u64) {
                $(slices.$time[rows].fill(time);)?
            }
        }
    };
}
pub(super) use column_set;
