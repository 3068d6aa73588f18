//! `BulkUnit`: the bulk packetizer, a trace unit for one thread in user mode or for a processor.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use rtit_unit::{
    AddressRange, CodeWidth, Error, EventReport, MwaitOperands, ProcessorState, RangeKind,
    SavedState, Settings, TraceUnit,
};

use crate::arguments::BoundedItems;

#[pyclass(module = "rtit._core")]
pub struct BulkUnit {
    unit: TraceUnit,
}

#[pymethods]
impl BulkUnit {
    #[new]
    #[pyo3(signature = (**settings))]
    fn new(settings: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let mut chosen = Settings::default();
        for (name, value) in settings.into_iter().flatten() {
            let name: String = name.extract()?;
            chosen
                .set_by_name(&name, &setting_text(&value)?)
                .map_err(into_python_error)?;
        }
        let unit = TraceUnit::new(&chosen).map_err(into_python_error)?;
        Ok(BulkUnit { unit })
    }

    fn feed(&mut self, py: Python<'_>, records: &[u8]) -> PyResult<()> {
        py.detach(|| self.unit.feed_records(records))
            .map_err(into_python_error)
    }

    #[pyo3(signature = (clock, ip = None))]
    fn overflow(&mut self, clock: u64, ip: Option<u64>) -> PyResult<()> {
        self.unit.advance_clock(clock).map_err(into_python_error)?;
        self.unit.apply_overflow(ip);
        Ok(())
    }

    fn start(&mut self, ip: u64, state: StateArguments, cr3: u64) -> PyResult<()> {
        self.unit.start_in_state(ip, processor_state(state)?, cr3);
        self.unit.enable_tracing();
        Ok(())
    }

    fn stop(&mut self, clock: u64) -> PyResult<()> {
        self.unit.advance_clock(clock).map_err(into_python_error)?;
        self.unit.disable_tracing();
        Ok(())
    }

    #[pyo3(signature = (clock, target, state, event_ip = None, vector = None, page_fault = None, iret = None))]
    #[allow(clippy::too_many_arguments)] // a call from Python
    fn transfer(
        &mut self,
        clock: u64,
        target: u64,
        state: StateArguments,
        event_ip: Option<u64>,
        vector: Option<u8>,
        page_fault: Option<u64>,
        iret: Option<u64>,
    ) -> PyResult<()> {
        self.unit.advance_clock(clock).map_err(into_python_error)?;
        let interrupt = |vector| EventReport::Interrupt { vector, page_fault };
        let report = match iret {
            Some(ip) => Some(EventReport::Iret { ip }),
            None => vector.map(interrupt),
        };
        self.unit
            .transfer(target, processor_state(state)?, event_ip, report);
        Ok(())
    }

    fn mov_cr3(&mut self, clock: u64, next_ip: u64, cr3: u64) -> PyResult<()> {
        self.unit.advance_clock(clock).map_err(into_python_error)?;
        self.unit.mov_cr3(next_ip, cr3);
        Ok(())
    }

    fn set_interrupt_flag(
        &mut self,
        clock: u64,
        ip: u64,
        next_ip: u64,
        flag: bool,
    ) -> PyResult<()> {
        self.unit.advance_clock(clock).map_err(into_python_error)?;
        self.unit.set_interrupt_flag(ip, next_ip, flag);
        Ok(())
    }

    #[pyo3(signature = (clock, ip, state, sub_state, mwait = None))]
    fn sleep(
        &mut self,
        clock: u64,
        ip: u64,
        state: u8,
        sub_state: u8,
        mwait: Option<(u8, u8)>,
    ) -> PyResult<()> {
        self.unit.advance_clock(clock).map_err(into_python_error)?;
        let operands = |(hints, extensions)| MwaitOperands { hints, extensions };
        self.unit.sleep(ip, state, sub_state, mwait.map(operands));
        Ok(())
    }

    fn enter_smm(&mut self, clock: u64, ip: u64) -> PyResult<()> {
        self.unit.advance_clock(clock).map_err(into_python_error)?;
        self.unit.enter_smm(ip);
        Ok(())
    }

    fn leave_smm(&mut self, clock: u64, ip: u64, state: StateArguments, cr3: u64) -> PyResult<()> {
        self.unit.advance_clock(clock).map_err(into_python_error)?;
        self.unit.leave_smm(ip, processor_state(state)?, cr3);
        Ok(())
    }

    fn wake(&mut self, clock: u64, last: u8, deepest: u8, reason: u8) -> PyResult<()> {
        self.unit.advance_clock(clock).map_err(into_python_error)?;
        self.unit.wake(last, deepest, reason);
        Ok(())
    }

    fn set_ranges(&mut self, ranges: BoundedItems<(u8, u64, u64)>) -> PyResult<()> {
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
        self.unit.set_ranges(&ranges?).map_err(into_python_error)
    }

    fn take_output<'py>(&mut self, py: Python<'py>) -> Bound<'py, PyBytes> {
        let bytes = PyBytes::new(py, self.unit.untaken_output());
        self.unit.discard_output();
        bytes
    }

    fn save_state<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.unit.save_state().to_bytes())
    }

    fn restore_state(&mut self, state: &[u8]) -> PyResult<()> {
        let state = SavedState::from_bytes(state).map_err(into_python_error)?;
        self.unit.restore_state(&state).map_err(into_python_error)
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

/// CPL is 3, width of code in bits, RFLAGS.IF.
type StateArguments = (bool, u8, bool);

fn processor_state((user, bits, interrupt_flag): StateArguments) -> PyResult<ProcessorState> {
    let code = match bits {
        16 => CodeWidth::Bits16,
        32 => CodeWidth::Bits32,
        64 => CodeWidth::Bits64,
        _ => {
            let message = format!("code has 16, 32 or 64 bits, not {bits}");
            return Err(PyValueError::new_err(message));
        }
    };
    Ok(ProcessorState {
        user,
        code,
        interrupt_flag,
    })
}

/// A setting's value as `Settings::set_by_name` takes it: items of a sequence have colons between them.
fn setting_text(value: &Bound<'_, PyAny>) -> PyResult<String> {
    match value.extract::<BoundedItems<String>>() {
        Ok(items) => Ok(items.0.join(":")),
        _ => Ok(value.str()?.to_string()),
    }
}

fn into_python_error(error: Error) -> PyErr {
    PyValueError::new_err(error.to_string())
}
