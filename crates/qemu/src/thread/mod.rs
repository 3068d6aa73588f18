//! One recorded thread and its trace unit: translation blocks in, packets and executed path out.
//!
//! Nothing here calls QEMU, the recorder or another thread. The one way out is `RecordedThread::periodic_check`, a
//! function pointer to `thread_events::run_periodic_check`.
//!
//! * `translation_block`: the facts about a block that are known before it runs; `block_arena`: blocks by number;
//! * `thread_state`: the thread;
//! * `block_transitions`: the step from one block to the next; `path_memo`: several steps at once, from memory;
//! * `executed_path`: the path as the truth file has it;
//! * `thread_counters`: execution counts instead of a trace.

pub(crate) mod block_arena;
pub(crate) mod block_transitions;
pub(crate) mod executed_path;
pub(crate) mod path_memo;
pub(crate) mod thread_counters;
pub(crate) mod thread_state;
pub(crate) mod translation_block;
