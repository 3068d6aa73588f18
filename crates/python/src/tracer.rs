//! `Tracer`: the ptrace tracer, `check_program` and `check_processes`.

use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::time::Duration;

use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};
use rtit_tracer::{Error, Options, WindowEdge};

use crate::arguments::{Items, OsText};

/// Adds the class and the functions of this file to the native module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Tracer>()?;
    module.add_function(wrap_pyfunction!(check_program, module)?)?;
    module.add_function(wrap_pyfunction!(check_processes, module)?)
}

/// A program under the tracer. Dropping the object kills the program, or lets go of it if it was attached to. In a
/// process that was forked since there is nothing under it: `next_batch` gives None, and the others do nothing.
#[pyclass(frozen, module = "rtit._core")]
pub struct Tracer {
    /// None only while it is dropped.
    inner: Option<rtit_tracer::Tracer>,
}

/// The variables of a dict, in its order: a program may go through them, and is to run the same each time.
struct Variables(Vec<(OsText, OsText)>);

impl<'a, 'py> FromPyObject<'a, 'py> for Variables {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Variables> {
        let entry = |(name, value): (Bound<'py, PyAny>, Bound<'py, PyAny>)| {
            Ok((name.extract()?, value.extract()?))
        };
        let dict = object.cast::<PyDict>()?;
        Ok(Variables(
            dict.iter().map(entry).collect::<PyResult<Vec<_>>>()?,
        ))
    }
}

type Environment = Option<Variables>;

/// File, offset in it; or number of instructions, since the start.
type EdgeRow = (Option<OsText>, u64, u64, bool);

fn edge((path, offset, count, relative): EdgeRow) -> WindowEdge {
    match path {
        Some(path) => WindowEdge::Code {
            path: path.0.into_vec(),
            offset,
        },
        None if relative => WindowEdge::AfterStart(count),
        None => WindowEdge::After(count),
    }
}

fn options(argv: Items<OsText>, env: Environment, cwd: Option<OsText>) -> Options {
    let entry = |(OsText(mut name), value): (OsText, OsText)| {
        name.push("=");
        name.push(value.0);
        name
    };
    Options {
        environment: env.map(|env| env.0.into_iter().map(entry).collect()),
        directory: cwd.map(PathBuf::from),
        ..Options::new(argv.0.into_iter().map(|word| word.0))
    }
}

/// rtit.errors.RecordError with the exit code that goes with the error.
fn record_error(py: Python<'_>, error: &Error) -> PyErr {
    let raised = py
        .import("rtit.errors")
        .and_then(|module| module.getattr("RecordError"))
        .and_then(|class| class.call1((error.to_string(), error.exit_code())));
    match raised {
        Ok(value) => PyErr::from_value(value),
        Err(error) => error,
    }
}

/// Raises what `Tracer` would raise before it starts anything.
#[pyfunction]
#[pyo3(signature = (argv, *, env = None, cwd = None))]
fn check_program(
    py: Python<'_>,
    argv: Items<OsText>,
    env: Environment,
    cwd: Option<OsText>,
) -> PyResult<()> {
    let options = options(argv, env, cwd);
    py.detach(|| rtit_tracer::Tracer::check(&options))
        .map_err(|error| record_error(py, &error))
}

/// Raises what `Tracer.attach` would raise before it stops anything.
#[pyfunction]
fn check_processes(py: Python<'_>, pids: Items<u32>) -> PyResult<()> {
    rtit_tracer::Tracer::check_processes(&pids.0).map_err(|error| record_error(py, &error))
}

#[pymethods]
impl Tracer {
    /// Start `argv` (looked up in the PATH of `env`) under the tracer; it waits at its first instruction until then.
    ///
    /// `start` and `stop` are rows (path or None, offset in it, number of instructions, relative to the start) and say
    /// where tracing is switched on and off for good. `blocked` are the signals that the program starts with blocked;
    /// None are those of the calling thread. Raises rtit.errors.RecordError with `exit_code` 127 (not found), 126 (not
    /// executable), 125 (anything else).
    #[new]
    #[pyo3(signature = (
        argv, *, env = None, cwd = None, no_aslr = false, truth = None, cut_at_branches = false,
        pin = true, blocked = Some(Items::default()), start = None, stop = None
    ))]
    #[allow(clippy::too_many_arguments)] // each is a keyword of the Python class
    fn new(
        py: Python<'_>,
        argv: Items<OsText>,
        env: Environment,
        cwd: Option<OsText>,
        no_aslr: bool,
        truth: Option<OsText>,
        cut_at_branches: bool,
        pin: bool,
        blocked: Option<Items<i32>>,
        start: Option<EdgeRow>,
        stop: Option<EdgeRow>,
    ) -> PyResult<Self> {
        let options = Options {
            no_aslr,
            truth: truth.map(PathBuf::from),
            cut_at_branches,
            pin,
            blocked_signals: blocked.map(|signals| signals.0),
            start: start.map(edge),
            stop: stop.map(edge),
            ..options(argv, env, cwd)
        };
        let tracer = py
            .detach(|| rtit_tracer::Tracer::start(&options))
            .map_err(|error| record_error(py, &error))?;
        Ok(Tracer {
            inner: Some(tracer),
        })
    }

    /// Trace the processes `pids`, which run already, with all their threads and what they start.
    ///
    /// They are let go by `kill` and when the object is dropped. Raises rtit.errors.RecordError where one of them
    /// cannot be attached to.
    #[staticmethod]
    #[pyo3(signature = (pids, *, truth = None, cut_at_branches = false))]
    fn attach(
        py: Python<'_>,
        pids: Items<u32>,
        truth: Option<OsText>,
        cut_at_branches: bool,
    ) -> PyResult<Self> {
        let truth = truth.map(PathBuf::from);
        let tracer = py
            .detach(|| rtit_tracer::Tracer::attach(&pids.0, truth.as_deref(), cut_at_branches))
            .map_err(|error| record_error(py, &error))?;
        Ok(Tracer {
            inner: Some(tracer),
        })
    }

    /// The events since the last call as (records, blobs): `records` is a multiple of 40 bytes, see
    /// `rtit.capture.events`. Empty if nothing happens within `timeout` seconds; None after the last event.
    fn next_batch<'py>(
        &self,
        py: Python<'py>,
        timeout: f64,
    ) -> PyResult<Option<(Bound<'py, PyBytes>, Bound<'py, PyList>)>> {
        let timeout = Duration::try_from_secs_f64(timeout).map_err(|_| {
            PyValueError::new_err(format!("timeout is no number of seconds: {timeout}"))
        })?;
        let Some(inner) = self.ours() else {
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

    /// Send signal `number` to the first process. Raises ProcessLookupError if it has ended.
    fn signal(&self, number: i32) -> PyResult<()> {
        match self.ours() {
            Some(inner) => inner
                .signal(number)
                .map_err(|error| PyOSError::new_err((error.raw_os_error(), error.to_string()))),
            None => Ok(()),
        }
    }

    /// Let everything run on without being stepped, from each thread's next stop on.
    fn release(&self) {
        if let Some(inner) = self.ours() {
            inner.release();
        }
    }

    /// Kill the program and everything that it started, or let go of them if they were attached to; the events still
    /// come to their end.
    fn kill(&self) {
        if let Some(inner) = self.ours() {
            inner.kill();
        }
    }

    /// The first process.
    #[getter]
    fn pid(&self) -> u32 {
        self.inner.as_ref().map_or(0, rtit_tracer::Tracer::pid)
    }

    /// A dict: `retired` instructions, `stops`, `seconds` so far, and the `processes` that exist now.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = PyDict::new(py);
        if let Some(inner) = self.ours() {
            let now = inner.stats();
            stats.set_item("retired", now.retired)?;
            stats.set_item("stops", now.stops)?;
            stats.set_item("seconds", now.seconds)?;
            stats.set_item("processes", now.processes)?;
        }
        Ok(stats)
    }
}

impl Tracer {
    fn ours(&self) -> Option<&rtit_tracer::Tracer> {
        self.inner.as_ref().filter(|inner| inner.is_ours())
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        let inner = self.inner.take();
        // Waiting for the tracing thread takes a moment; other Python threads need not.
        Python::attach(|py| py.detach(move || drop(inner)));
    }
}
