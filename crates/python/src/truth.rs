//! `TruthFile`: what a program really executed, and whether a decoded path equals it.

use std::collections::HashMap;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::OnceLock;

use pyo3::buffer::{Element, PyBuffer};
use pyo3::exceptions::{PyOSError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyIterator, PyTuple};
use rtit_truth::{
    compare_paths, summarize_truth_file, CompareOptions, ComparisonOutcome, DifferenceReason,
    Error, IdenticalPaths, PathDifference, PathFinder, PathRun, RunsAfter, SelectedRuns,
    ThreadSummary, TruthReader, TruthSummary,
};

use crate::arguments::{dict_of, os_text_to_str, BoundedItems, OsText};
use crate::errors::error_about_file;

/// Every call reads the file again, in bounded memory; of a thread only its part once `threads` was called.
#[pyclass(frozen, module = "rtit._core")]
pub struct TruthFile {
    path: PathBuf,
    extents: OnceLock<HashMap<u32, Range<u64>>>,
}

type ThreadRow = (u32, u32, u64, Option<u32>, bool);
/// Address ranges, inclusive at both ends.
type Ranges = BoundedItems<(u64, u64)>;

#[pymethods]
impl TruthFile {
    #[new]
    fn new(path: OsText) -> PyResult<Self> {
        let file = TruthFile {
            path: path.into(),
            extents: OnceLock::new(),
        };
        file.open_reader()
            .map_err(|error| file.python_error_of(error))?;
        Ok(file)
    }

    #[getter]
    fn complete(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.read_summary(py)?.complete)
    }

    fn threads(&self, py: Python<'_>) -> PyResult<Vec<ThreadRow>> {
        let contents = self.read_summary(py)?;
        let row = |thread: &ThreadSummary| {
            let (status, is_complete) = (thread.status, thread.status.is_some());
            let instructions = thread.chain.instructions;
            (thread.tid, thread.pid, instructions, status, is_complete)
        };
        let extent = |thread: &ThreadSummary| (thread.tid, thread.extent.clone());
        self.extents
            .get_or_init(|| contents.threads.iter().map(extent).collect());
        Ok(contents.threads.iter().map(row).collect())
    }

    #[pyo3(signature = (
        tid, decoded, *, filters = BoundedItems::default(), stops = BoundedItems::default(), prefix = false, skip = 0
    ))]
    #[allow(clippy::too_many_arguments)] // keywords
    fn compare<'py>(
        &self,
        py: Python<'py>,
        tid: u32,
        decoded: &Bound<'py, PyAny>,
        filters: Ranges,
        stops: Ranges,
        prefix: bool,
        skip: u64,
    ) -> PyResult<Bound<'py, PyDict>> {
        let decoded = DecodedRuns::new(decoded)?;
        let bound = if prefix { u64::MAX } else { 0 };
        let options = CompareOptions {
            shortfall: bound,
            excess: bound,
        };
        let outcome = py.detach(|| {
            let truth = RunsAfter::new(self.select_traced_runs(tid, filters, stops)?, skip);
            compare_paths(truth, decoded, options)
        });
        match outcome? {
            ComparisonOutcome::Identical(identical) => identical_paths_dict(py, &identical),
            ComparisonOutcome::Different(difference) => path_difference_dict(py, &difference),
        }
    }

    #[pyo3(signature = (tid, decoded, *, filters = BoundedItems::default(), stops = BoundedItems::default()))]
    fn find<'py>(
        &self,
        py: Python<'py>,
        tid: u32,
        decoded: &Bound<'py, PyAny>,
        filters: Ranges,
        stops: Ranges,
    ) -> PyResult<Bound<'py, PyDict>> {
        let decoded = DecodedRuns::new(decoded)?;
        let found = py.detach(|| {
            let finder = PathFinder::from_runs(decoded)?;
            let truth = || {
                self.select_traced_runs(
                    tid,
                    BoundedItems(filters.0.clone()),
                    BoundedItems(stops.0.clone()),
                )
            };
            match finder.find_path_in_truth(truth()?)? {
                None => finder.find_with_open_loops(truth),
                found => Ok(found),
            }
        });
        match found? {
            Some(identical) => identical_paths_dict(py, &identical),
            None => dict_of!(py, identical: false),
        }
    }

    #[pyo3(signature = (tid, *, filters = BoundedItems::default(), stops = BoundedItems::default()))]
    fn instructions(
        &self,
        py: Python<'_>,
        tid: u32,
        filters: Ranges,
        stops: Ranges,
    ) -> PyResult<u64> {
        py.detach(|| {
            self.select_traced_runs(tid, filters, stops)?
                .try_fold(0, |sum, run| Ok(sum + u64::from(run?.instructions)))
        })
    }

    fn __repr__(&self) -> String {
        format!("TruthFile({:?})", self.path)
    }
}

impl TruthFile {
    fn open_reader(&self) -> Result<TruthReader, Error> {
        TruthReader::open_truth_file(&self.path)
    }

    fn open_reader_of_thread(&self, tid: u32) -> Result<TruthReader, Error> {
        match self.extents.get().and_then(|extents| extents.get(&tid)) {
            Some(extent) => self.open_reader()?.for_thread(tid, extent),
            None => self.open_reader(),
        }
    }

    /// The runs of a thread that tracing with these FilterEn and TraceStop ranges shows.
    fn select_traced_runs(
        &self,
        tid: u32,
        filters: Ranges,
        stops: Ranges,
    ) -> PyResult<impl Iterator<Item = PyResult<PathRun>> + use<'_>> {
        let reader = self
            .open_reader_of_thread(tid)
            .map_err(|error| self.python_error_of(error))?;
        let runs = SelectedRuns::new(reader, tid, filters.0, stops.0);
        Ok(runs.map(|run| run.map_err(|error| self.python_error_of(error))))
    }

    fn read_summary(&self, py: Python<'_>) -> PyResult<TruthSummary> {
        py.detach(|| summarize_truth_file(self.open_reader()?))
            .map_err(|error| self.python_error_of(error))
    }

    /// OSError for an error of the system, else TruthError with path and offset.
    fn python_error_of(&self, error: Error) -> PyErr {
        Python::attach(|py| match error {
            Error::Io(error) => {
                let reason = error.to_string();
                let Some(code) = error.raw_os_error() else {
                    return PyOSError::new_err(reason);
                };
                match os_text_to_str(py, self.path.as_os_str()) {
                    Ok(path) => PyOSError::new_err((code, reason, path.unbind())),
                    Err(error) => error,
                }
            }
            error => {
                let (message, offset) = (error.message(), error.offset());
                error_about_file(py, "TruthError", message, &self.path, offset, None)
            }
        })
    }
}

fn identical_paths_dict<'py>(
    py: Python<'py>,
    identical: &IdenticalPaths,
) -> PyResult<Bound<'py, PyDict>> {
    dict_of!(py,
        identical: true,
        instructions: identical.instructions,
        runs: identical.runs,
        shortfall: identical.shortfall,
        excess: identical.excess,
        repeated: identical.repeated,
        unchecked: identical.unchecked,
    )
}

fn path_difference_dict<'py>(
    py: Python<'py>,
    difference: &PathDifference,
) -> PyResult<Bound<'py, PyDict>> {
    let row = |run: Option<PathRun>| run.map(|run| (run.start, run.instructions));
    let until = match difference.reason {
        DifferenceReason::Path { until } => Some(until),
        _ => None,
    };
    dict_of!(py,
        identical: false,
        instructions: difference.instructions,
        truth_index: difference.truth_index,
        decoded_index: difference.decoded_index,
        truth: row(difference.truth),
        decoded: row(difference.decoded),
        until: until,
        reason: difference.reason.to_string(),
    )
}

/// Runs from Python: columns, or an iterator of them.
struct DecodedRuns {
    chunks: Option<Py<PyIterator>>,
    runs: std::vec::IntoIter<PathRun>,
}

impl DecodedRuns {
    fn new(decoded: &Bound<'_, PyAny>) -> PyResult<Self> {
        if let Ok(columns) = decoded.cast::<PyTuple>() {
            return Ok(DecodedRuns {
                chunks: None,
                runs: runs_of_columns(columns.as_any())?.into_iter(),
            });
        }
        let chunks = Some(decoded.try_iter()?.unbind());
        Ok(DecodedRuns {
            chunks,
            runs: Vec::new().into_iter(),
        })
    }

    /// Reads the next chunk; false at the end.
    fn read_next_chunk(&mut self) -> PyResult<bool> {
        let Some(chunks) = &self.chunks else {
            return Ok(false);
        };
        Python::attach(|py| {
            py.check_signals()?;
            match chunks.bind(py).clone().next() {
                Some(chunk) => {
                    self.runs = runs_of_columns(&chunk?)?.into_iter();
                    Ok(true)
                }
                None => Ok(false),
            }
        })
    }
}

impl Iterator for DecodedRuns {
    type Item = PyResult<PathRun>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(run) = self.runs.next() {
                return Some(Ok(run));
            }
            match self.read_next_chunk() {
                Ok(true) => {}
                Ok(false) => return None,
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

fn runs_of_columns(columns: &Bound<'_, PyAny>) -> PyResult<Vec<PathRun>> {
    let (start, instructions, hash): (Bound<'_, PyAny>, Bound<'_, PyAny>, Bound<'_, PyAny>) =
        columns.extract()?;
    let starts: Vec<u64> = column_numbers(&start, "start")?;
    let counts: Vec<u32> = column_numbers(&instructions, "instructions")?;
    let hashes: Vec<u64> = column_numbers(&hash, "hash")?;
    if starts.len() != counts.len() || starts.len() != hashes.len() {
        return Err(PyValueError::new_err(format!(
            "the columns differ in length: {} starts, {} instructions, {} hashes",
            starts.len(),
            counts.len(),
            hashes.len()
        )));
    }
    let rows = starts.into_iter().zip(counts).zip(hashes);
    let run = |((start, instructions), hash)| PathRun {
        start,
        instructions,
        hash,
    };
    Ok(rows.map(run).collect())
}

fn column_numbers<T: Element>(column: &Bound<'_, PyAny>, name: &str) -> PyResult<Vec<T>> {
    match PyBuffer::<T>::get(column) {
        Ok(buffer) => buffer.to_vec(column.py()),
        // An empty array may be at an address that is not aligned.
        Err(_) if column.len().is_ok_and(|length| length == 0) => Ok(Vec::new()),
        Err(_) => Err(PyTypeError::new_err(format!(
            "column {name} is not a buffer of u{}",
            size_of::<T>() * 8
        ))),
    }
}
