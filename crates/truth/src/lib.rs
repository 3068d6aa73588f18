//! The truth file: what a program really executed, as runs of instructions with hashes.
//!
//! * [`hash`]: the hash over instruction addresses, of runs and of whole paths.
//! * [`TruthWriter`]: writes a file, one [`Run`] at a time.
//! * [`TruthReader`]: reads a file as [`TruthItem`]s in bounded memory; [`summarize`] uses it.
//! * [`compare`]: compares a decoded path with the truth and finds the first difference.
//! * [`PathFinder`], [`RunsAfter`]: the same for a path that is part of the truth.
//! * [`TracedPathSelector`]: the part of the truth that address filters let through.
//!
//! # The file
//!
//! A 16-byte header (`rtit-truth`, two zero bytes, u32 version 1), then records of a u32 type, a u32 payload size and
//! the payload; all integers are little-endian. RANGE and TRACING records are among a thread's runs at the points where
//! its address ranges or TraceEn were set. A file without COMPLETE as last record is a prefix: its recorder was killed.

#![forbid(unsafe_code)]

mod address_filter;
mod compare;
mod error;
pub mod format;
pub mod hash;
mod loop_iterations;
mod path_search;
mod reader;
mod writer;

pub use address_filter::{FilterRange, SelectedRuns, TracedPathSelector};
pub use compare::{
    compare_paths, CompareOptions, ComparisonOutcome, DifferenceReason, IdenticalPaths,
    PathDifference,
};
pub use error::Error;
pub use hash::{PathHash, PathRun, RunHash};
pub use path_search::{PathFinder, RunsAfter};
pub use reader::{summarize_truth_file, ThreadSummary, TruthItem, TruthReader, TruthSummary};
pub use writer::TruthWriter;
