//! The sinks that give results in order, as columns.
//!
//! `column_sink` collects all of them. Its formats have a file each: runs, runs with hashes, branches, instructions,
//! block ids.

mod block_ids;
mod branches;
pub(crate) mod buffer_pool;
mod column_set;
mod column_sink;
mod hashed_runs;
mod indexed_branches;
mod instructions;
mod runs;

pub use block_ids::{BlockIdColumns, BlockIdSink, BlockTable, InstructionBlock};
pub use branches::{BranchColumns, BranchSink};
pub use column_sink::{ColumnSink, OrderedSink};
pub use hashed_runs::{HashedRun, HashedRunColumns, HashedRunSink};
pub use indexed_branches::IndexedBranchSink;
pub use instructions::{InstructionColumns, InstructionSink};
pub use runs::{InstructionRun, PositionedEvent, RunColumns, RunSink};
