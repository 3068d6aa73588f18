//! State that all threads of the process share, and that the process shares with the recorder.
//!
//! * `shared_state`: all of it; a lock protects the part that changes.
//! * `config`: the recorder's settings. `trace_selection`: address filters and recording window.
//! * `reported_code`: the code bytes that the decoder has; `block_registry`: translated blocks, and reports of new
//!   code.
//! * `block_ring`: blocks that the program has run and that a second thread follows.
//! * `block_counters`: execution counts, for `rtit stat`.
//! * `signal_frames`: recognizes the entry of a signal handler.
//! * `recorder_link`: messages to the recorder.

pub(crate) mod block_counters;
pub(crate) mod block_registry;
pub(crate) mod block_ring;
pub(crate) mod config;
pub(crate) mod recorder_link;
pub(crate) mod reported_code;
pub(crate) mod shared_state;
pub(crate) mod signal_frames;
pub(crate) mod trace_selection;
