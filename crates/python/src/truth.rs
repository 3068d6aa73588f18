//! `TruthFile`: what a program really executed, and whether a decoded path equals it.

use std::collections::HashMap;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::OnceLock;

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyOSError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyIterator, PyTuple};
use rtit_truth::{
    compare, summarize, CompareOptions, Difference, DifferenceReason, Error, Identical, Outcome,
    PathFinder, Run, RunsAfter, SelectedRuns, TruthReader,
};

use crate::arguments::{os_text, Items, OsText};

/// Adds the classes of this file to the native module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<TruthFile>()
}

/// A truth file. Every call reads it anew, in bounded memory; of a thread no more than its part once `threads` has told
/// where that is.
#[pyclass(frozen, module = "rtit._core")]
pub struct TruthFile {
    path: PathBuf,
    extents: OnceLock<HashMap<u32, Range<u64>>>,
}

type ThreadRow = (u32, u32, u64, Option<u32>, bool);
type Columns<'py> = (
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
);

#[pymethods]
impl TruthFile {
    /// Opens `path` and checks its header.
    #[new]
    fn new(path: OsText) -> PyResult<Self> {
        let file = TruthFile {
            path: path.into(),
            extents: OnceLock::new(),
        };
        file.reader().map_err(|error| file.error(error))?;
        Ok(file)
    }

    /// Whether the recorder came to its end.
    #[getter]
    fn complete(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.contents(py)?.complete)
    }

    /// A row (tid, pid, instructions, wait status or None, complete) a thread; reads and checks the whole file.
    /// `complete` says that the file holds the thread's end.
    fn threads(&self, py: Python<'_>) -> PyResult<Vec<ThreadRow>> {
        let contents = self.contents(py)?;
        let row = |thread: &rtit_truth::ThreadSummary| {
            let complete = thread.status.is_some();
            (
                thread.tid,
                thread.pid,
                thread.chain.instructions,
                thread.status,
                complete,
            )
        };
        let extent = |thread: &rtit_truth::ThreadSummary| (thread.tid, thread.extent.clone());
        self.extents
            .get_or_init(|| contents.threads.iter().map(extent).collect());
        Ok(contents.threads.iter().map(row).collect())
    }

    /// At most `max` runs of a thread from run number `start` on, as little-endian columns: start (u64), instructions
    /// (u32), hash (u64).
    #[pyo3(signature = (tid, start = 0, max = 65536))]
    fn runs<'py>(&self, py: Python<'py>, tid: u32, start: u64, max: u64) -> PyResult<Columns<'py>> {
        let columns = py
            .detach(|| {
                let (mut starts, mut counts, mut hashes) = (Vec::new(), Vec::new(), Vec::new());
                let runs = self.reader_of(tid)?.thread_runs(tid).zip(0u64..);
                for (run, number) in runs {
                    let run = run?; // also an error before `start` is one
                    if number < start {
                        continue;
                    }
                    if number - start >= max {
                        break;
                    }
                    starts.extend_from_slice(&run.start.to_le_bytes());
                    counts.extend_from_slice(&run.instructions.to_le_bytes());
                    hashes.extend_from_slice(&run.hash.to_le_bytes());
                }
                Ok((starts, counts, hashes))
            })
            .map_err(|error| self.error(error))?;
        let (starts, counts, hashes) = columns;
        Ok((
            PyBytes::new(py, &starts),
            PyBytes::new(py, &counts),
            PyBytes::new(py, &hashes),
        ))
    }

    /// Compares a thread's truth with decoded runs.
    ///
    /// `decoded` is a tuple of columns (start u64, instructions u32, hash u64; bytes or arrays) or an iterable of such
    /// tuples. `filters` and `stops` are address ranges, inclusive at both ends: the truth is cut down to what tracing
    /// under these FilterEn and TraceStop ranges shows. `prefix`: either path may end before the other. `behind`: the
    /// comparison begins after so many instructions of the truth, where a run of it must begin.
    ///
    /// Returns a dict. With "identical" True: instructions, runs, shortfall, excess, repeated (instructions of the
    /// truth in rounds of loops that the decoded path leaves open), unchecked. With False: instructions (up to the last
    /// agreement), truth_index, decoded_index, truth and decoded (the runs that follow there as (start, instructions),
    /// or None), until (the instruction count by which they have parted, or None), reason.
    #[pyo3(signature = (
        tid, decoded, *, filters = Items::default(), stops = Items::default(), prefix = false, behind = 0
    ))]
    #[allow(clippy::too_many_arguments)] // keywords
    fn compare<'py>(
        &self,
        py: Python<'py>,
        tid: u32,
        decoded: &Bound<'py, PyAny>,
        filters: Items<(u64, u64)>,
        stops: Items<(u64, u64)>,
        prefix: bool,
        behind: u64,
    ) -> PyResult<Bound<'py, PyDict>> {
        let decoded = Decoded::new(decoded)?;
        let bound = if prefix { u64::MAX } else { 0 };
        let options = CompareOptions {
            shortfall: bound,
            excess: bound,
        };
        let outcome = py.detach(|| {
            let truth = RunsAfter::new(self.selected(tid, filters, stops)?, behind);
            compare(truth, decoded, options)
        });
        match outcome {
            Ok(Outcome::Identical(identical)) => identical_dict(py, &identical),
            Ok(Outcome::Different(difference)) => different_dict(py, &difference),
            Err(failure) => Err(self.failure(failure)),
        }
    }

    /// Looks for a decoded path, as of `compare`, anywhere in a thread's truth.
    ///
    /// Returns a dict: "identical"; if True also the numbers that `compare` gives then.
    #[pyo3(signature = (tid, decoded, *, filters = Items::default(), stops = Items::default()))]
    fn find<'py>(
        &self,
        py: Python<'py>,
        tid: u32,
        decoded: &Bound<'py, PyAny>,
        filters: Items<(u64, u64)>,
        stops: Items<(u64, u64)>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let decoded = Decoded::new(decoded)?;
        let found = py.detach(|| {
            let part = PathFinder::from_runs(decoded)?;
            let truth = || self.selected(tid, Items(filters.0.clone()), Items(stops.0.clone()));
            match part.find(truth()?)? {
                None => part.find_with_open_loops(truth),
                found => Ok(found),
            }
        });
        match found {
            Ok(Some(identical)) => identical_dict(py, &identical),
            Ok(None) => {
                let dict = PyDict::new(py);
                dict.set_item("identical", false)?;
                Ok(dict)
            }
            Err(failure) => Err(self.failure(failure)),
        }
    }

    /// Instructions of a thread that filters let through.
    #[pyo3(signature = (tid, *, filters = Items::default(), stops = Items::default()))]
    fn instructions(
        &self,
        py: Python<'_>,
        tid: u32,
        filters: Items<(u64, u64)>,
        stops: Items<(u64, u64)>,
    ) -> PyResult<u64> {
        let sum = py.detach(|| {
            self.selected(tid, filters, stops)?
                .try_fold(0, |sum, run| Ok(sum + u64::from(run?.instructions)))
        });
        sum.map_err(|failure| self.failure(failure))
    }

    fn __repr__(&self) -> String {
        format!("TruthFile({:?})", self.path)
    }
}

impl TruthFile {
    fn reader(&self) -> Result<TruthReader, Error> {
        TruthReader::open(&self.path)
    }

    fn reader_of(&self, tid: u32) -> Result<TruthReader, Error> {
        match self.extents.get().and_then(|extents| extents.get(&tid)) {
            Some(extent) => self.reader()?.for_thread(tid, extent),
            None => self.reader(),
        }
    }

    /// A thread's runs, as far as these ranges show them.
    fn selected(
        &self,
        tid: u32,
        filters: Items<(u64, u64)>,
        stops: Items<(u64, u64)>,
    ) -> Result<impl Iterator<Item = Result<Run, Failure>> + use<>, Failure> {
        let reader = self.reader_of(tid).map_err(Failure::Truth)?;
        let runs = SelectedRuns::new(reader, tid, filters.0, stops.0);
        Ok(runs.map(|run| run.map_err(Failure::Truth)))
    }

    fn failure(&self, failure: Failure) -> PyErr {
        match failure {
            Failure::Truth(error) => self.error(error),
            Failure::Python(error) => error,
        }
    }

    fn contents(&self, py: Python<'_>) -> PyResult<rtit_truth::TruthSummary> {
        py.detach(|| summarize(self.reader()?))
            .map_err(|error| self.error(error))
    }

    /// The exception for an error: OSError, or rtit.errors.TruthError with source and offset.
    fn error(&self, error: Error) -> PyErr {
        let (message, offset) = match error {
            Error::Io(error) => {
                let reason = error.to_string();
                return match error.raw_os_error() {
                    Some(code) => Python::attach(|py| {
                        os_text(py, self.path.as_os_str()).map_or_else(
                            |error| error,
                            |path| PyOSError::new_err((code, reason, path.unbind())),
                        )
                    }),
                    None => PyOSError::new_err(reason),
                };
            }
            error => (error.message(), error.offset()),
        };
        Python::attach(|py| {
            let build = || -> PyResult<PyErr> {
                let class = py.import("rtit.errors")?.getattr("TruthError")?;
                let fields = PyDict::new(py);
                fields.set_item("source", os_text(py, self.path.as_os_str())?)?;
                fields.set_item("offset", offset)?;
                Ok(PyErr::from_value(class.call((message,), Some(&fields))?))
            };
            build().unwrap_or_else(|error| error)
        })
    }
}

fn identical_dict<'py>(py: Python<'py>, identical: &Identical) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("identical", true)?;
    dict.set_item("instructions", identical.instructions)?;
    dict.set_item("runs", identical.runs)?;
    dict.set_item("shortfall", identical.shortfall)?;
    dict.set_item("excess", identical.excess)?;
    dict.set_item("repeated", identical.repeated)?;
    dict.set_item("unchecked", identical.unchecked)?;
    Ok(dict)
}

fn different_dict<'py>(py: Python<'py>, difference: &Difference) -> PyResult<Bound<'py, PyDict>> {
    let row = |run: Option<Run>| run.map(|run| (run.start, run.instructions));
    let dict = PyDict::new(py);
    dict.set_item("identical", false)?;
    dict.set_item("instructions", difference.instructions)?;
    dict.set_item("truth_index", difference.truth_index)?;
    dict.set_item("decoded_index", difference.decoded_index)?;
    dict.set_item("truth", row(difference.truth))?;
    dict.set_item("decoded", row(difference.decoded))?;
    let until = match difference.reason {
        DifferenceReason::Path { until } => Some(until),
        _ => None,
    };
    dict.set_item("until", until)?;
    dict.set_item("reason", difference.reason.to_string())?;
    Ok(dict)
}

enum Failure {
    Truth(Error),
    Python(PyErr),
}

/// Decoded runs out of Python: chunks of columns, taken one at a time.
struct Decoded {
    chunks: Option<Py<PyIterator>>,
    runs: std::vec::IntoIter<Run>,
}

impl Decoded {
    fn new(decoded: &Bound<'_, PyAny>) -> PyResult<Self> {
        if let Ok(columns) = decoded.cast::<PyTuple>() {
            return Ok(Decoded {
                chunks: None,
                runs: rows(columns.as_any())?.into_iter(),
            });
        }
        let chunks = Some(decoded.try_iter()?.unbind());
        Ok(Decoded {
            chunks,
            runs: Vec::new().into_iter(),
        })
    }

    /// The next chunk that Python has; false when there is none.
    fn refill(&mut self) -> PyResult<bool> {
        let Some(chunks) = &self.chunks else {
            return Ok(false);
        };
        Python::attach(|py| {
            py.check_signals()?;
            match chunks.bind(py).clone().next() {
                Some(chunk) => {
                    self.runs = rows(&chunk?)?.into_iter();
                    Ok(true)
                }
                None => Ok(false),
            }
        })
    }
}

impl Iterator for Decoded {
    type Item = Result<Run, Failure>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(run) = self.runs.next() {
                return Some(Ok(run));
            }
            match self.refill() {
                Ok(true) => {}
                Ok(false) => return None,
                Err(error) => return Some(Err(Failure::Python(error))),
            }
        }
    }
}

fn rows(columns: &Bound<'_, PyAny>) -> PyResult<Vec<Run>> {
    let (start, instructions, hash): (Bound<'_, PyAny>, Bound<'_, PyAny>, Bound<'_, PyAny>) =
        columns.extract()?;
    let starts: Vec<u64> = column(&start, "start", u64::from_le_bytes)?;
    let counts: Vec<u32> = column(&instructions, "instructions", u32::from_le_bytes)?;
    let hashes: Vec<u64> = column(&hash, "hash", u64::from_le_bytes)?;
    if starts.len() != counts.len() || starts.len() != hashes.len() {
        return Err(PyValueError::new_err(format!(
            "the columns differ in length: {} starts, {} instructions, {} hashes",
            starts.len(),
            counts.len(),
            hashes.len()
        )));
    }
    let rows = starts.into_iter().zip(counts).zip(hashes);
    let row = |((start, instructions), hash)| Run {
        start,
        instructions,
        hash,
    };
    Ok(rows.map(row).collect())
}

/// A column out of bytes or out of an array of its own type.
fn column<T: pyo3::buffer::Element + Copy + Default, const N: usize>(
    object: &Bound<'_, PyAny>,
    name: &str,
    value: fn([u8; N]) -> T,
) -> PyResult<Vec<T>> {
    if let Ok(array) = PyBuffer::<T>::get(object) {
        return array.to_vec(object.py());
    }
    let bytes = PyBuffer::<u8>::get(object).map_err(|_| {
        PyTypeError::new_err(format!(
            "column {name} is neither bytes nor an array of u{}",
            N * 8
        ))
    })?;
    let bytes = bytes.to_vec(object.py())?;
    let items = bytes.chunks_exact(N);
    if !items.remainder().is_empty() {
        return Err(PyValueError::new_err(format!(
            "column {name} has {} bytes, no multiple of {N}",
            bytes.len()
        )));
    }
    let items = items.filter_map(|item| item.first_chunk::<N>());
    Ok(items.map(|item| value(*item)).collect())
}
