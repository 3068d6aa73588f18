//! What happens to a thread among others: methods of `Thread` that need what is shared.
//!
//! * `entering`, `leaving`: user code's two borders; `edges`: where tracing begins and ends;
//! * `tally`: where it counts; `sending`: what the recorder gets; `look`: what is done every now and then.

mod edges;
pub(crate) mod entering;
pub(crate) mod leaving;
pub(crate) mod look;
mod sending;
pub(crate) mod tally;
