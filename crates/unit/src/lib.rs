//! The trace unit for recordings: it turns the events of a thread or of a processor into Intel PT bytes. It needs
//! neither files nor Python.
//!
//! For the same events and settings it emits the same bytes as the reference unit in `rtit.unit`, fast enough to run
//! inside an emulator. Each thread has a `TraceUnit` of its own.
//!
//! ```
//! use rtit_unit::{Settings, TraceUnit};
//!
//! let mut unit = TraceUnit::new(&Settings::default())?;
//! unit.switch_thread_in(0x40_1000); // user code begins
//! unit.advance_clock(3)?; // the third instruction is
//! unit.conditional(0x40_1008, 0x40_1000, true); // a taken branch
//! unit.advance_clock(4)?;
//! unit.syscall();
//! let bytes = unit.take_output();
//! assert_eq!(bytes[bytes.len() - 2..], [0x06, 0x01]); // TNT(T), TIP.PGD
//! # Ok::<(), rtit_unit::Error>(())
//! ```
//!
//! Start reading at `branches`, the events. `tracing_control`, `timing` and `packets` make packets of them; `unit`,
//! `saved_state` and `settings` hold the state.

#![forbid(unsafe_code)]

mod branches;
mod capture_events;
mod compression;
mod error;
mod packet_bytes;
mod packets;
mod power;
mod saved_state;
pub mod settings;
mod system;
mod timing;
mod tracing_control;
mod unit;

pub use branches::CallTracker;
pub use capture_events::{CaptureEvent, EventKind, RECORD_SIZE};
pub use error::Error;
pub use power::MwaitOperands;
pub use saved_state::{CoreState, SavedState};
pub use settings::{LegalChoices, OutputRegion, Settings, TimeModel};
pub use system::{CodeWidth, EventReport, ProcessorState};
pub use tracing_control::{AddressRange, RangeKind};
pub use unit::TraceUnit;
