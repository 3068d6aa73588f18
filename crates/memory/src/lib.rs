//! Memory that may be refused, without an abort.
//!
//! Where Rust's collections grow and the system has no memory, the process is aborted. What grows with the input grows by
//! this crate instead: where memory is refused the thread unwinds with `Refused`, which whoever began the work catches
//! (`caught`). It takes what was refused, and all that was found on the way, for lost. Nothing is printed.
//!
//! What is small is had from `Reserves` of the allocator, if it has some; while much of them is in use memory is scarce,
//! and work ends at the next `look`, of which there is one wherever something large grows.
//!
//! ```
//! use rtit_memory::{caught, Grow, MakeRoom};
//!
//! let mut numbers = Vec::new();
//! (0..10).for_each(|number| numbers.put(number));
//! assert!(caught(|| numbers.room(1 << 60)).is_err());
//! assert_eq!(numbers.len(), 10);
//! ```
#![forbid(unsafe_code)]

mod grow;
mod refused;
mod reserve;

pub use grow::{copied, filled, gathered, headroom, sort_by_key, Grow, MakeRoom};
pub use refused::{caught, look, refuse, Refused};
pub use reserve::Reserves;
