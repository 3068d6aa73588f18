//! What `Flow` gives in several columns, as little-endian bytes by name.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use rtit_flow::{Columns, EdgeTotal, RunTotal};

use crate::as_bytes::{halves, octets, words};

/// What a sink has gathered, as `Flow.next` says; it begins anew.
pub fn rows_dict<'py>(py: Python<'py>, sink: &mut Columns) -> PyResult<Bound<'py, PyDict>> {
    let columns = PyDict::new(py);
    let runs = sink.runs();
    columns.set_item("start", words(py, runs.start, |&word| word)?)?;
    columns.set_item("instructions", halves(py, runs.instructions, |&half| half)?)?;
    columns.set_item("last", words(py, runs.last, |&word| word)?)?;
    columns.set_item("end", PyBytes::new(py, runs.end))?;
    columns.set_item("bits", PyBytes::new(py, runs.bits))?;
    columns.set_item("in_tx", PyBytes::new(py, runs.in_tx))?;
    columns.set_item("time", words(py, runs.time, |&word| word)?)?;
    columns.set_item("offset", words(py, runs.offset, |&word| word)?)?;
    let events = &sink.clear();
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
