//! Methods of `Thread` that need the state which threads share.
//!
//! * `user_code_border`: the thread enters or leaves user code;
//! * `window_edges`: the recording window begins or ends;
//! * `output`: packets, path and counts go to the recorder.

pub(crate) mod output;
pub(crate) mod user_code_border;
mod window_edges;
