//! What `Flow` gives in several columns.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use rtit_flow::{Block, PlacedEvent, RunColumns, Totals};

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
    let u64s = |number: fn(&PlacedEvent) -> u64| events.iter().map(number).collect::<Column>();
    let kinds: Column = events.iter().map(|at| at.event.kind as u8).collect();
    columns.set_item("event_row", u64s(|at| at.row))?;
    columns.set_item("event_kind", kinds)?;
    columns.set_item("event_ip", u64s(|at| at.event.ip))?;
    columns.set_item("event_value", u64s(|at| at.event.value))?;
    columns.set_item("event_time", u64s(|at| at.event.time))?;
    columns.set_item("event_offset", u64s(|at| at.event.offset))?;
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
    let starts: Column = runs.clone().map(|run| run.start).collect();
    let instructions: Column = runs.clone().map(|run| run.instructions).collect();
    let counts: Column = runs.map(|run| run.count).collect();
    columns.set_item("run_start", starts)?;
    columns.set_item("run_instructions", instructions)?;
    columns.set_item("run_count", counts)?;
    columns.set_item("uncounted_runs", totals.uncounted_runs())?;
    totals.drop_runs();
    let edges = totals.edge_rows();
    let sources: Column = edges.clone().map(|edge| edge.from).collect();
    let targets: Column = edges.clone().map(|edge| edge.to).collect();
    let kinds: Column = edges.clone().map(|edge| edge.kind).collect();
    let counts: Column = edges.map(|edge| edge.count).collect();
    columns.set_item("edge_source", sources)?;
    columns.set_item("edge_target", targets)?;
    columns.set_item("edge_kind", kinds)?;
    columns.set_item("edge_count", counts)?;
    columns.set_item("uncounted_edges", totals.uncounted_edges().as_slice())?;
    Ok(columns)
}
