//! What ran, as text and as totals: the lines of a listing, counts by function, and calls.
//!
//! Where to start: [`Lines`] is the sink of a listing, [`ByFunction`] counts the instructions of each function, and
//! [`CallSink`] follows calls and returns. [`Names`] has the names of addresses over time; [`table`] makes lines of
//! columns. Nothing here opens a file or knows Python.

#![forbid(unsafe_code)]

mod by_function;
mod calls;
mod lines;
mod names;
pub mod table;

pub use by_function::ByFunction;
pub use calls::{CallContext, CallEdge, CallSink, CallTotal, Site, ThreadCalls, NONE};
pub use lines::{AddressPeriod, Field, InstructionFilter, LineFormat, Lines, TimeScale};
pub use names::{module_name, FunctionSource, NameCursor, Names, Region};
