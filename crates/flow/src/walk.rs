//! The walker: where the program is, and how packets move it through the code.
//!
//! Nothing is handed to the sink before it is known that the packet at hand can be honoured: a packet that disagrees
//! with the code leaves no instructions behind that it did not confirm.

mod again;
mod ahead;
mod arrive;
mod carry;
mod parked;
mod round;
mod stamp;
mod walker;
mod way;

pub(crate) use carry::WalkerCarry;
pub(crate) use stamp::Stamp;
pub(crate) use walker::Walker;
