//! `BulkUnit`: the bulk packetizer, a trace unit for one thread in user mode.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use rtit_unit::{AddressRange, Error, RangeKind, SavedState, Settings, Unit};

use crate::arguments::Items;

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

    fn feed(&mut self, py: Python<'_>, records: &[u8]) -> PyResult<()> {
        py.detach(|| self.unit.feed_records(records)).map_err(raise)
    }

    #[pyo3(signature = (clock, ip = None))]
    fn overflow(&mut self, clock: u64, ip: Option<u64>) -> PyResult<()> {
        self.unit.advance_clock(clock).map_err(raise)?;
        self.unit.overflow(ip);
        Ok(())
    }

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

    fn take_output<'py>(&mut self, py: Python<'py>) -> Bound<'py, PyBytes> {
        let bytes = PyBytes::new(py, self.unit.output());
        self.unit.discard_output();
        bytes
    }

    fn save_state<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.unit.save_state().to_bytes())
    }

    fn restore_state(&mut self, state: &[u8]) -> PyResult<()> {
        let state = SavedState::from_bytes(state).map_err(raise)?;
        self.unit.restore_state(&state).map_err(raise)
    }

    #[getter]
    fn stopped(&self) -> bool {
        self.unit.is_stopped()
    }

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
