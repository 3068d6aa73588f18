//! Block ids: what ran as one number for each block, and a table of the blocks.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::column_set::column_set;
use super::column_sink::{ColumnSink, RowBuffer, RowFormat, RowTemplate};
use crate::hash::AddressHasher;
use crate::sink::{LoggedTransition, RunEnd, RunFragment};

/// The sink that collects block ids. It returns them in whole runs: a run may have several blocks, of which all but the
/// last continue.
pub type BlockIdSink = ColumnSink<BlockIdFormat>;

/// Instructions one after the other in memory, up to a branch, taken or not, or to where something came between.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InstructionBlock {
    /// IP of the first instruction.
    pub start: u64,
    /// IP of the last instruction.
    pub last: u64,
    pub instructions: u32,
    /// Why it ended; `Cut` if it continues.
    pub end: RunEnd,
    /// The next block follows in memory, as a part of the same run.
    pub continues: bool,
    /// The mode of the code: 16, 32 or 64.
    pub bits: u8,
}

impl Hash for InstructionBlock {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let kind = u64::from(self.end as u8) << 8 | u64::from(self.continues);
        state.write_u64(self.start);
        state.write_u64(self.last ^ u64::from(self.instructions) << 32 ^ kind << 48);
    }
}

/// All blocks so far, by id. Sinks that share a table give the same ids.
#[derive(Clone, Debug, Default)]
pub struct BlockTable(Arc<Mutex<BlockIdMap>>);

#[derive(Debug, Default)]
struct BlockIdMap {
    blocks: Vec<InstructionBlock>,
    ids: HashMap<InstructionBlock, u32, BuildHasherDefault<AddressHasher>>,
}

impl BlockTable {
    fn lock_id_map(&self) -> MutexGuard<'_, BlockIdMap> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the blocks from id `first` on, as many as there are now.
    pub fn blocks_from_id(&self, first: usize) -> Vec<InstructionBlock> {
        let known = self.lock_id_map();
        known
            .blocks
            .get(first..)
            .map_or_else(Vec::new, <[InstructionBlock]>::to_vec)
    }
}

impl BlockIdMap {
    fn id_of_block(&mut self, block: InstructionBlock) -> u32 {
        let next = self.blocks.len() as u32;
        let id = *self.ids.entry(block).or_insert(next);
        if id == next {
            self.blocks.push(block);
        }
        id
    }
}

column_set! {
    /// Block ids.
    BlockIdColumns, BlockIdSlices, BlockIdBlock[8]
    copied { ids: u32, }
    offsets {}
    times {}
    added {}
}

#[doc(hidden)]
#[derive(Clone, Debug, Default)]
pub struct BlockIdFormat {
    table: BlockTable,
    /// Rows up to the end of the last whole run.
    whole: usize,
    /// The last block, without an id as long as the kind of its end is not known.
    last: Option<InstructionBlock>,
}

impl BlockIdSink {
    /// Ids are those of `table`.
    pub fn with_table(table: &BlockTable) -> BlockIdSink {
        let format = BlockIdFormat {
            table: table.clone(),
            ..BlockIdFormat::default()
        };
        ColumnSink::with_format(format, false)
    }
}

fn push_block_id(buffer: &mut RowBuffer<BlockIdColumns>, id: u32) {
    buffer.reserve_rows(1);
    buffer.columns.ids[buffer.len] = id;
    buffer.len += 1;
}

impl RowFormat for BlockIdFormat {
    type Columns = BlockIdColumns;
    /// Rows up to the last end of a run; 0: no run ends.
    type Extra = u32;
    /// The blocks of the open run.
    type State = Vec<u32>;
    const SPLITS_AT_TRANSACTIONS: bool = true;
    const RECORDS_AT_ONCE: bool = true;
    const ROW_BYTES: usize = 4;

    fn new_format_of_same_kind(&self) -> BlockIdFormat {
        BlockIdFormat {
            table: self.table.clone(),
            ..BlockIdFormat::default()
        }
    }

    fn append_fragment(
        &mut self,
        buffer: &mut RowBuffer<BlockIdColumns>,
        fragment: &RunFragment<'_>,
        _time: u64,
    ) {
        self.flush_waiting_rows(buffer);
        self.last = Some(InstructionBlock {
            start: fragment.start,
            last: fragment.last,
            instructions: fragment.lengths.len() as u32,
            end: RunEnd::Cut,
            continues: true,
            bits: fragment.mode.pointer_bits() as u8,
        });
    }

    fn close_run(&mut self, buffer: &mut RowBuffer<BlockIdColumns>, end: RunEnd, _offset: u64) {
        if self.last.is_none() && self.whole != buffer.len {
            // the last block of a template
            buffer.len -= 1;
            let id = buffer.columns.ids[buffer.len];
            self.last = self.table.lock_id_map().blocks.get(id as usize).copied();
        }
        if let Some(block) = self.last.take() {
            let id = self.table.lock_id_map().id_of_block(InstructionBlock {
                end,
                continues: false,
                ..block
            });
            push_block_id(buffer, id);
            self.whole = buffer.len;
        }
    }

    #[inline]
    fn flush_waiting_rows(&mut self, buffer: &mut RowBuffer<BlockIdColumns>) {
        if let Some(block) = self.last.take() {
            push_block_id(buffer, self.table.lock_id_map().id_of_block(block));
        }
    }

    fn finished_rows(&self, _buffer: &RowBuffer<BlockIdColumns>) -> usize {
        self.whole
    }

    fn add_missing_columns(
        &mut self,
        _buffer: &mut RowBuffer<BlockIdColumns>,
        _batch: &mut BlockIdColumns,
    ) {
        self.whole = 0;
    }

    fn template_data_of_format(&self, _buffer: &RowBuffer<BlockIdColumns>) -> u32 {
        self.whole as u32
    }

    #[inline(always)]
    fn copy_template_rows(
        &mut self,
        rows: &mut BlockIdSlices<'_>,
        at: usize,
        template: &RowTemplate<'_, BlockIdColumns, u32>,
        transition: &LoggedTransition,
    ) {
        template.copy_to(rows, at, transition);
        if template.extra != 0 {
            self.whole = at + template.extra as usize;
        }
    }

    fn open_row_state(&self, buffer: &RowBuffer<BlockIdColumns>) -> Vec<u32> {
        let mut ids = buffer.columns.ids[self.whole..buffer.len].to_vec();
        ids.extend(
            self.last
                .map(|block| self.table.lock_id_map().id_of_block(block)),
        );
        ids
    }

    fn resume_from_format_state(
        &mut self,
        buffer: &mut RowBuffer<BlockIdColumns>,
        open: &Vec<u32>,
    ) {
        self.whole = 0;
        self.last = None;
        buffer.reserve_rows(open.len());
        buffer.columns.ids[..open.len()].copy_from_slice(open);
        buffer.len = open.len();
    }
}
