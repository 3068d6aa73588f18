//! `Tracer`: the ptrace tracer, `check_program` and `check_processes`.

use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::time::Duration;

use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};
use rtit_tracer::{Error, TraceOptions, WindowEdge};

use crate::arguments::{dict_of, BoundedItems, OsText};

pyo3::import_exception!(rtit.errors, RecordError);

#[pyclass(frozen, module = "rtit._core")]
pub struct Tracer {
    /// None only while it is dropped.
    inner: Option<rtit_tracer::Tracer>,
}

/// Path or None, offset in the file, number of instructions, whether from the start of tracing on.
type WindowEdgeRow = (Option<OsText>, u64, u64, bool);

fn window_edge_from_tuple((path, offset, count, is_relative): WindowEdgeRow) -> WindowEdge {
    match path {
        Some(path) => WindowEdge::Code {
            path: path.0.into_vec(),
            offset,
        },
        None if is_relative => WindowEdge::AfterStart(count),
        None => WindowEdge::After(count),
    }
}

fn trace_options(
    argv: BoundedItems<OsText>,
    env: Option<&Bound<'_, PyDict>>,
    cwd: Option<OsText>,
) -> PyResult<TraceOptions> {
    let variable = |(name, value): (Bound<'_, PyAny>, Bound<'_, PyAny>)| {
        let OsText(mut variable) = name.extract()?;
        variable.push("=");
        variable.push(value.extract::<OsText>()?.0);
        Ok(variable)
    };
    // In the order of the dict: a program may read them in order, and is to run the same each time.
    let environment = env.map(|env| env.iter().map(variable).collect::<PyResult<_>>());
    Ok(TraceOptions {
        environment: environment.transpose()?,
        directory: cwd.map(PathBuf::from),
        ..TraceOptions::new(argv.0.into_iter().map(|word| word.0))
    })
}

fn into_record_error(error: Error) -> PyErr {
    RecordError::new_err((error.to_string(), error.exit_code()))
}

#[pyfunction]
#[pyo3(signature = (argv, *, env = None, cwd = None))]
pub fn check_program(
    py: Python<'_>,
    argv: BoundedItems<OsText>,
    env: Option<&Bound<'_, PyDict>>,
    cwd: Option<OsText>,
) -> PyResult<()> {
    let options = trace_options(argv, env, cwd)?;
    py.detach(|| rtit_tracer::Tracer::check_program(&options))
        .map_err(into_record_error)
}

#[pyfunction]
pub fn check_processes(pids: BoundedItems<u32>) -> PyResult<()> {
    rtit_tracer::Tracer::check_processes(&pids.0).map_err(into_record_error)
}

#[pymethods]
impl Tracer {
    #[new]
    #[pyo3(signature = (
        argv, *, env = None, cwd = None, no_aslr = false, truth = None, cut_at_branches = false,
        pin = true, blocked = Some(BoundedItems::default()), start = None, stop = None
    ))]
    #[allow(clippy::too_many_arguments)] // each is a keyword of the Python class
    fn new(
        py: Python<'_>,
        argv: BoundedItems<OsText>,
        env: Option<&Bound<'_, PyDict>>,
        cwd: Option<OsText>,
        no_aslr: bool,
        truth: Option<OsText>,
        cut_at_branches: bool,
        pin: bool,
        blocked: Option<BoundedItems<i32>>,
        start: Option<WindowEdgeRow>,
        stop: Option<WindowEdgeRow>,
    ) -> PyResult<Self> {
        let options = TraceOptions {
            no_aslr,
            truth: truth.map(PathBuf::from),
            cut_at_branches,
            pin,
            blocked_signals: blocked.map(|signals| signals.0),
            start: start.map(window_edge_from_tuple),
            stop: stop.map(window_edge_from_tuple),
            ..trace_options(argv, env, cwd)?
        };
        let tracer = py
            .detach(|| rtit_tracer::Tracer::start_program(&options))
            .map_err(into_record_error)?;
        Ok(Tracer {
            inner: Some(tracer),
        })
    }

    #[staticmethod]
    #[pyo3(signature = (pids, *, truth = None, cut_at_branches = false))]
    fn attach(
        py: Python<'_>,
        pids: BoundedItems<u32>,
        truth: Option<OsText>,
        cut_at_branches: bool,
    ) -> PyResult<Self> {
        let truth = truth.map(PathBuf::from);
        let tracer = py
            .detach(|| {
                rtit_tracer::Tracer::attach_to_processes(&pids.0, truth.as_deref(), cut_at_branches)
            })
            .map_err(into_record_error)?;
        Ok(Tracer {
            inner: Some(tracer),
        })
    }

    fn next_batch<'py>(
        &self,
        py: Python<'py>,
        timeout: f64,
    ) -> PyResult<Option<(Bound<'py, PyBytes>, Bound<'py, PyList>)>> {
        let timeout = Duration::try_from_secs_f64(timeout).map_err(|_| {
            PyValueError::new_err(format!("timeout is not a number of seconds: {timeout}"))
        })?;
        let Some(inner) = self.tracer_of_this_process() else {
            return Ok(None);
        };
        let Some(batch) = py.detach(|| inner.next_batch(timeout)) else {
            return Ok(None);
        };
        let blobs = batch.blobs.iter().map(|blob| PyBytes::new(py, blob));
        Ok(Some((
            PyBytes::new(py, &batch.records),
            PyList::new(py, blobs)?,
        )))
    }

    fn signal(&self, number: i32) -> PyResult<()> {
        let sent = self
            .tracer_of_this_process()
            .map_or(Ok(()), |inner| inner.signal_first_process(number));
        sent.map_err(|error| PyOSError::new_err((error.raw_os_error(), error.to_string())))
    }

    fn release(&self) {
        if let Some(inner) = self.tracer_of_this_process() {
            inner.release_all_threads();
        }
    }

    fn kill(&self) {
        if let Some(inner) = self.tracer_of_this_process() {
            inner.kill_all_processes();
        }
    }

    #[getter]
    fn pid(&self) -> u32 {
        self.inner
            .as_ref()
            .map_or(0, rtit_tracer::Tracer::first_process_id)
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let Some(inner) = self.tracer_of_this_process() else {
            return Ok(PyDict::new(py));
        };
        let stats = inner.tracer_stats();
        dict_of!(py,
            retired: stats.retired,
            stops: stats.stops,
            seconds: stats.seconds,
            processes: stats.processes,
        )
    }
}

impl Tracer {
    /// None in a process that was forked since.
    fn tracer_of_this_process(&self) -> Option<&rtit_tracer::Tracer> {
        self.inner
            .as_ref()
            .filter(|inner| inner.is_owned_by_this_process())
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        let inner = self.inner.take();
        // Other Python threads run while this one waits for the tracing thread.
        Python::attach(|py| py.detach(move || drop(inner)));
    }
}
