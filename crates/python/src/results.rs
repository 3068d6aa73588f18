//! What `Flow` gives in several columns, as little-endian bytes by name.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use rtit_flow::{EdgeTotal, Rows, RunTotal};

use crate::as_bytes::{halves, octets, words};

/// As `Flow.next` says.
pub fn rows_dict<'py>(py: Python<'py>, rows: &Rows) -> PyResult<Bound<'py, PyDict>> {
    let columns = PyDict::new(py);
    let runs = &rows.runs;
    columns.set_item("start", words(py, runs, |run| run.start)?)?;
    columns.set_item("instructions", halves(py, runs, |run| run.instructions)?)?;
    columns.set_item("last", words(py, runs, |run| run.last)?)?;
    columns.set_item("end", octets(py, runs, |run| run.end)?)?;
    columns.set_item("bits", octets(py, runs, |run| run.bits)?)?;
    columns.set_item("in_tx", octets(py, runs, |run| run.in_tx.into())?)?;
    columns.set_item("time", words(py, runs, |run| run.time)?)?;
    columns.set_item("offset", words(py, runs, |run| run.offset)?)?;
    let events = &rows.events;
    columns.set_item("event_row", words(py, events, |at| at.row)?)?;
    columns.set_item("event_kind", octets(py, events, |at| at.event.kind as u8)?)?;
    columns.set_item("event_ip", words(py, events, |at| at.event.ip)?)?;
    columns.set_item("event_value", words(py, events, |at| at.event.value)?)?;
    columns.set_item("event_time", words(py, events, |at| at.event.time)?)?;
    columns.set_item("event_offset", words(py, events, |at| at.event.offset)?)?;
    Ok(columns)
}

/// As `Flow.totals` says.
pub fn totals_dict<'py>(
    py: Python<'py>,
    runs: &[RunTotal],
    edges: &[EdgeTotal],
) -> PyResult<Bound<'py, PyDict>> {
    let columns = PyDict::new(py);
    columns.set_item("run_start", words(py, runs, |run| run.start)?)?;
    let instructions = halves(py, runs, |run| run.instructions)?;
    columns.set_item("run_instructions", instructions)?;
    columns.set_item("run_count", words(py, runs, |run| run.count)?)?;
    columns.set_item("edge_from", words(py, edges, |edge| edge.from)?)?;
    columns.set_item("edge_to", words(py, edges, |edge| edge.to)?)?;
    columns.set_item("edge_kind", octets(py, edges, |edge| edge.kind)?)?;
    columns.set_item("edge_count", words(py, edges, |edge| edge.count)?)?;
    Ok(columns)
}
