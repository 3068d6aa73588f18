//! `BulkUnit`: the bulk packetizer.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use rtit_unit::{AddressRange, Error, RangeKind, SavedState, Settings, Unit};

use crate::arguments::Items;

/// Adds the classes of this file to the native module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<BulkUnit>()
}

/// A trace unit for one thread in user mode: capture events in, Intel PT bytes out.
///
/// Keyword arguments are `ctl` (IA32_RTIT_CTL without TraceEn, ADDRn_CFG and output scheme), `psb_cyc`, fields of
/// `rtit.unit.TimeModel` and `rtit.unit.Parameters`, and for output that ends `circular` or `stop`, a region's size in
/// bytes. Raises ValueError for an unknown name and for a value out of range.
#[pyclass(module = "rtit._core")]
pub struct BulkUnit {
    unit: Unit,
}

#[pymethods]
impl BulkUnit {
    #[new]
    #[pyo3(signature = (**settings))]
    fn new(settings: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let mut chosen = Settings::default();
        for (name, value) in settings.into_iter().flatten() {
            let name: String = name.extract()?;
            chosen.set(&name, &text(&value)?).map_err(raise)?;
        }
        let unit = Unit::new(&chosen).map_err(raise)?;
        Ok(BulkUnit { unit })
    }

    /// Take capture events of this thread, 40 bytes a record (`rtit.capture.events`).
    ///
    /// Raises ValueError, with the byte offset, for a record that is none, cut short or out of order in time; those
    /// before it have been taken.
    fn feed(&mut self, py: Python<'_>, records: &[u8]) -> PyResult<()> {
        py.detach(|| self.unit.feed_records(records)).map_err(raise)
    }

    /// Packets were lost up to `clock`: OVF and what follows it. The thread is in user mode before the instruction at
    /// `ip` then, or in the kernel. Raises ValueError for a clock that goes back.
    #[pyo3(signature = (clock, ip = None))]
    fn overflow(&mut self, clock: u64, ip: Option<u64>) -> PyResult<()> {
        self.unit.advance_clock(clock).map_err(raise)?;
        self.unit.overflow(ip);
        Ok(())
    }

    /// Address ranges from the next enable on: at most 4 of (ADDRn_CFG, first, last), with ADDRn_CFG 1 for FilterEn, 2
    /// for TraceStop.
    fn set_ranges(&mut self, ranges: Items<(u8, u64, u64)>) -> PyResult<()> {
        let ranges: PyResult<Vec<AddressRange>> = ranges
            .0
            .into_iter()
            .map(|(cfg, first, last)| {
                let kind = match cfg {
                    1 => RangeKind::FilterEn,
                    2 => RangeKind::TraceStop,
                    _ => {
                        return Err(PyValueError::new_err(format!(
                            "ADDRn_CFG is 1 or 2, not {cfg}"
                        )))
                    }
                };
                Ok(AddressRange { kind, first, last })
            })
            .collect();
        self.unit.set_ranges(&ranges?).map_err(raise)
    }

    /// The bytes written since they were last taken; of a circular region, at most its size.
    fn take<'py>(&mut self, py: Python<'py>) -> Bound<'py, PyBytes> {
        let bytes = PyBytes::new(py, self.unit.output());
        self.unit.discard_output();
        bytes
    }

    /// All that decides what comes next, as bytes; what can be taken is no part of it.
    fn state<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.unit.save_state().to_bytes())
    }

    /// Go on as the unit did that `state` was taken from, which had the same settings. Raises ValueError, and then
    /// nothing has changed.
    fn restore(&mut self, state: &[u8]) -> PyResult<()> {
        let state = SavedState::from_bytes(state).map_err(raise)?;
        self.unit.restore_state(&state).map_err(raise)
    }

    /// IA32_RTIT_STATUS.Stopped.
    #[getter]
    fn stopped(&self) -> bool {
        self.unit.is_stopped()
    }

    /// All bytes written so far.
    #[getter]
    fn written(&self) -> u64 {
        self.unit.bytes_written()
    }
}

/// A setting's value as `Settings::set` takes it: items of a sequence have colons between them.
fn text(value: &Bound<'_, PyAny>) -> PyResult<String> {
    match value.extract::<Items<String>>() {
        Ok(items) => Ok(items.0.join(":")),
        _ => Ok(value.str()?.to_string()),
    }
}

fn raise(error: Error) -> PyErr {
    PyValueError::new_err(error.to_string())
}
