//! Intel PT packets plus code bytes: what ran.
//!
//! Where to start: [`Flow`] holds a stream, pulls rows of runs and events out of it and keeps the [`Ledger`]. Below it
//! are `decoder` (what each packet does to the state of tracing), `walk` (how packets move the program through the
//! code), `code` (instructions decoded once into nodes), `stack` (RET compression) and `time` (timing packets to TSC).
//! A [`Sink`] decides what becomes of the flow. Nothing here opens a file or knows Python.
//!
//! An instruction at which an event strikes (FUP) has not run, INT n and INT3 included; a SYSCALL that TIP.PGD ends has.

mod bitmap;
mod branches;
mod code;
mod counts;
mod decoder;
mod edge_hits;
mod errata;
mod error;
mod event;
mod hash;
mod hashed;
mod instructions;
mod kept;
mod ledger;
mod persistent;
mod rows;
mod settings;
mod sink;
mod spaces;
mod stack;
mod steps;
mod stream;
mod time;
mod timed;
mod totals;
mod walk;
mod window;

pub use bitmap::{added, class, Index, Which};
pub use branches::Branches;
pub use counts::Counts;
pub use decoder::Decoder;
pub use edge_hits::EdgeHits;
pub use errata::{Cpu, Errata, Erratum};
pub use error::{Cause, ErrorClass, FlowError};
pub use event::{Event, EventKind};
pub use hash::{mix, of_sequence, AddressMap, K};
pub use hashed::{HashedRun, HashedRuns};
pub use instructions::Instructions;
pub use ledger::{Ledger, Span, Trust};
pub use persistent::Persistent;
pub use rows::{Columns, PlacedEvent, Rows, Run};
pub use settings::{FilterRanges, Settings, Start, StepLimits, MAX_RANGES};
pub use sink::{Counting, End, Sequence, Sink, Step, Wants};
pub use spaces::{SpaceKey, Spaces};
pub use stream::{Flow, RunIter};
pub use time::{GuestTsc, TimeSettings};
pub use timed::TimedInstructions;
pub use totals::{EdgeTotal, RunTotal, Totals};
pub use window::{Source, Window};
