//! What a program really executed, in one streaming file form: runs of instructions with hashes.
//!
//! * [`hash`]: the polynomial hash over instruction addresses; runs combine into a chain a thread.
//! * [`Writer`]: what a tracer calls, one [`Run`] at a time.
//! * [`Reader`]: the file as a stream of [`Item`]s in bounded memory; [`threads`] and [`ThreadRuns`] on top of it.
//! * [`compare`]: does a decoded path equal the truth, and where does it part from it.
//! * [`Part`], [`Behind`]: the same for a path that is a part of the truth, or its end.
//! * [`Selector`]: the part of the truth that address filters let through.
//!
//! # The file
//!
//! RANGE and TRACING records stand among a thread's runs where the tracer set the address ranges or TraceEn of its unit.
//!
//! A 16-byte header (`rtit-truth`, two zero bytes, u32 version 1), then records of a u32 type, a u32 payload size and
//! the payload; all integers are little-endian. A file whose last record is not COMPLETE is a prefix: its recorder was
//! killed.

#![forbid(unsafe_code)]

mod compare;
mod error;
mod format;
pub mod hash;
mod part;
mod reader;
mod rounds;
mod run;
mod select;
mod selected;
mod threads;
mod writer;

pub use compare::{compare, Difference, Identical, Options, Outcome, Reason};
pub use error::Error;
pub use hash::{Chain, RunHash};
pub use part::{Behind, Part};
pub use reader::{Item, Reader};
pub use run::Run;
pub use select::{Range, Selector};
pub use selected::Selected;
pub use threads::{threads, Contents, Thread, ThreadRuns};
pub use writer::Writer;
