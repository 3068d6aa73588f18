//! Code bytes of an address space over time, and what ELF files say about code.
//!
//! Where to start: [`Space`] records changes (map, poke, unmap, clear, fork), each with its time;
//! [`View`] is a cursor over a space that moves forward in time and answers reads; [`elf`] reads
//! build ids, segments and symbols. Nothing here opens a file, knows Python or decodes an
//! instruction.

mod bytes;
mod change;
mod demangle;
pub mod elf;
mod error;
mod functions;
mod pager;
mod plt;
mod ranges;
mod sections;
mod source_lines;
mod space;
mod symbol;
mod symbols;
mod tables;
mod view;

pub use bytes::Bytes;
pub use demangle::demangle;
pub use error::ElfError;
pub use functions::{Function, Functions, Owned};
pub use pager::{Fetch, NoAnswer, Pager, PAGE};
pub use source_lines::source_line;
pub use space::Space;
pub use symbol::{Binding, Symbol};
pub use symbols::joined;
pub use view::{Changed, View};
