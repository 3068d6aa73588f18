//! What ran, for people to look at: the lines of a listing, and totals by function.
//!
//! Where to start: [`Lines`] is the sink that gathers steps (a stretch of code, how many of its instructions ran, when)
//! and gives them out as text in parts of bounded size. `stretch` makes the text of a stretch once, from a [`Layout`];
//! [`ByFunction`] counts the instructions of each function, [`Calls`] who called whom. [`Names`] knows what each
//! address is called, as of a time; [`table`] makes lines of columns. Nothing here opens a file or knows Python.

#![forbid(unsafe_code)]

mod by_function;
mod calls;
mod layout;
mod lines;
mod names;
mod stretch;
pub mod table;

pub use by_function::ByFunction;
pub use calls::{CallTotal, Calls, Context, Site, NONE};
pub use layout::{Field, Layout, Place, TimeScale, Wanted};
pub use lines::{Lines, Part};
pub use names::{escaped, module, Cursor, Names, Region, Source};
