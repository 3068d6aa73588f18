//! DWARF as far as lines of source need it: units, and the programs that make their lines. Nothing is kept of a unit
//! that was gone over, and what many units share costs each of them: who asks says what all of it may cost.

mod files;
mod program;
mod sections;
mod unit;
mod work;

pub(crate) use program::{Program, Row};
pub(crate) use sections::with_dwarf;
pub(crate) use unit::{Declared, Unit, Windows};
pub(crate) use work::{Slice, Stop, Told, Work};
