//! What ran, as text and as totals: the lines of a listing, counts by function, and calls.
//!
//! Where to start: [`ListingSink`] is the sink of a listing, [`FunctionCountSink`] counts the instructions of each
//! function, and [`CallSink`] follows calls and returns. [`Names`] has the names of addresses over time; [`table`]
//! makes lines of columns. Nothing here opens a file or knows Python.

#![forbid(unsafe_code)]

mod call_steps;
mod calls;
mod function_counts;
mod lines;
mod names;
pub mod table;

pub use calls::{
    recursive_calls, CallBatch, CallContext, CallEdge, CallSink, CallSiteAddress, CallSums,
    CallTotal, ContextRun, FinishedCalls, FunctionTable, NamedEdge, NamedFunction, ProcessCalls,
    TaskSchedule, NONE,
};
pub use function_counts::FunctionCountSink;
pub use lines::{
    AddressPeriod, InstructionFilter, LineFormat, ListingColumn, ListingSink, TimeScale,
};
pub use names::{module_name, FunctionSource, MappedRegion, NameCursor, ProcessNames};
pub use rtit_calls::{CallLog, EndedCall, SwitchPermit, Wait, NO_CALL};
