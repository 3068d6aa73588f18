//! What `Flow` gives in several columns.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use rtit_flow::{Block, RunColumns, Totals};

use crate::as_bytes::{halves, octets, words};
use crate::column::Column;

/// A batch, as `Flow.next` says.
pub fn rows_dict(py: Python<'_>, rows: RunColumns) -> PyResult<Bound<'_, PyDict>> {
    let columns = PyDict::new(py);
    columns.set_item("start", Column::from(rows.start))?;
    columns.set_item("instructions", Column::from(rows.instructions))?;
    columns.set_item("last", Column::from(rows.last))?;
    columns.set_item("end", Column::from(rows.end))?;
    columns.set_item("bits", Column::from(rows.bits))?;
    columns.set_item("in_tx", Column::from(rows.in_tx))?;
    columns.set_item("space", Column::from(rows.space))?;
    columns.set_item("time", Column::from(rows.time))?;
    columns.set_item("offset", Column::from(rows.offset))?;
    let events = &rows.events;
    columns.set_item("event_row", words(py, events, |at| at.row)?)?;
    columns.set_item("event_kind", octets(py, events, |at| at.event.kind as u8)?)?;
    columns.set_item("event_ip", words(py, events, |at| at.event.ip)?)?;
    columns.set_item("event_value", words(py, events, |at| at.event.value)?)?;
    columns.set_item("event_time", words(py, events, |at| at.event.time)?)?;
    columns.set_item("event_offset", words(py, events, |at| at.event.offset)?)?;
    Ok(columns)
}

/// What numbers mean, as `Flow.blocks` says.
pub fn block_columns(blocks: &[Block]) -> [Column; 6] {
    let words = |number: fn(&Block) -> u64| blocks.iter().map(number).collect::<Column>();
    let octets = |number: fn(&Block) -> u8| blocks.iter().map(number).collect::<Column>();
    let instructions = blocks.iter().map(|block| block.instructions).collect();
    [
        words(|block| block.start),
        words(|block| block.last),
        instructions,
        octets(|block| block.end as u8),
        octets(|block| block.continues.into()),
        octets(|block| block.bits),
    ]
}

/// As `Flow.totals` says.
pub fn totals_dict<'py>(py: Python<'py>, mut totals: Totals) -> PyResult<Bound<'py, PyDict>> {
    let columns = PyDict::new(py);
    let runs = totals.run_rows();
    columns.set_item("run_start", words(py, runs.clone(), |run| run.start)?)?;
    let instructions = halves(py, runs.clone(), |run| run.instructions)?;
    columns.set_item("run_instructions", instructions)?;
    columns.set_item("run_count", words(py, runs, |run| run.count)?)?;
    columns.set_item("other_runs", totals.uncounted_runs())?;
    totals.drop_runs();
    let edges = totals.edge_rows();
    columns.set_item("edge_from", words(py, edges.clone(), |edge| edge.from)?)?;
    columns.set_item("edge_to", words(py, edges.clone(), |edge| edge.to)?)?;
    columns.set_item("edge_kind", octets(py, edges.clone(), |edge| edge.kind)?)?;
    columns.set_item("edge_count", words(py, edges, |edge| edge.count)?)?;
    columns.set_item("other_edges", totals.uncounted_edges().as_slice())?;
    Ok(columns)
}
