//! What decoders return to Python: columns of rows, counters, and the coverage ledger.

use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyDict};
use rtit_flow::{
    BranchColumns, ByteStatus, CoverageLedger, EdgeTotal, Erratum, ErrorClass, InstructionBlock,
    InstructionColumns, LedgerSpan, RunColumns, StreamCounts, TimingSample, Totals,
};
use rtit_listing::{EndedCall, FunctionTable, NamedEdge};
use rtit_packet::table::ROWS;

use crate::arguments::{dict_of, OsText};
use crate::columns::{column_of_rows, Column};

/// Start, end, status; class of the error, its text, offset and bad value.
pub type LedgerRow = (
    u64,
    u64,
    &'static str,
    Option<&'static str>,
    Option<String>,
    Option<u64>,
    Option<u64>,
);

/// At most `max_rows` rows from number `first` on.
pub fn ledger_rows(ledger: &CoverageLedger, first: usize, max_rows: usize) -> Vec<LedgerRow> {
    let row = |span: &LedgerSpan| {
        let error = span.error.as_ref();
        (
            span.from,
            span.to,
            span.status.name(),
            error.map(|error| error.cause.error_class().name()),
            error.map(ToString::to_string),
            error.map(|error| error.offset),
            error.map(|error| error.cause.bad_value()),
        )
    };
    let spans = ledger.closed_spans().iter().skip(first).take(max_rows);
    spans.map(row).collect()
}

/// `DecoderCounts`.
pub fn counts_dict<'py>(
    py: Python<'py>,
    counts: &StreamCounts,
    ledger: &CoverageLedger,
) -> PyResult<Bound<'py, PyDict>> {
    let packets = ROWS
        .iter()
        .map(|row| (row.name, counts.packet_count(row.kind)));
    let errors = ErrorClass::ALL.map(|class| (class.name(), ledger.error_count(class)));
    let errata = Erratum::ALL.map(|erratum| (erratum.name(), counts.errata[erratum as usize]));
    let statuses = [
        ByteStatus::Exact,
        ByteStatus::Resumed,
        ByteStatus::Lost,
        ByteStatus::Elsewhere,
    ];
    let is_counted = |(_, count): &(&str, u64)| *count != 0;
    let dict = dict_of!(py,
        packets: packets.filter(is_counted).into_py_dict(py)?,
        errors: errors.into_iter().filter(is_counted).into_py_dict(py)?,
        errata: errata.into_iter().filter(is_counted).into_py_dict(py)?,
        instructions: counts.instructions,
        conditional: counts.conditional,
        indirect: counts.indirect,
        returns: counts.returns,
        compressed_returns: counts.compressed_returns,
        asynchronous: counts.asynchronous,
        cycles: counts.cycles,
        measured_cycles: counts.measured.0,
        measured_ticks: counts.measured.1,
        inactive_ticks: counts.inactive,
    )?;
    for status in statuses {
        dict.set_item(
            format!("{}_bytes", status.name()),
            ledger.byte_count(status),
        )?;
    }
    Ok(dict)
}

pub fn rows_dict(py: Python<'_>, rows: RunColumns) -> PyResult<Bound<'_, PyDict>> {
    let events = &rows.events;
    dict_of!(py,
        start: Column::from(rows.start),
        instructions: Column::from(rows.instructions),
        last: Column::from(rows.last),
        end: Column::from(rows.end),
        bits: Column::from(rows.bits),
        in_tx: Column::from(rows.in_tx),
        space: Column::from(rows.space),
        cr3: Column::from(rows.cr3),
        time: Column::from(rows.time),
        offset: Column::from(rows.offset),
        event_row: column_of_rows(events, |at| at.row),
        event_kind: column_of_rows(events, |at| at.event.kind as u8),
        event_ip: column_of_rows(events, |at| at.event.ip),
        event_value: column_of_rows(events, |at| at.event.value),
        event_time: column_of_rows(events, |at| at.event.time),
        event_offset: column_of_rows(events, |at| at.event.offset),
    )
}

pub fn instructions_dict(py: Python<'_>, rows: InstructionColumns) -> PyResult<Bound<'_, PyDict>> {
    dict_of!(py,
        ip: Column::from(rows.ips),
        size: Column::from(rows.lengths),
        time: Column::from(rows.times),
        bits: Column::from(rows.bits),
        in_tx: Column::from(rows.in_tx),
        offset: Column::from(rows.offsets),
        space: Column::from(rows.space),
        cr3: Column::from(rows.cr3),
    )
}

/// The calls of a thread. `edges` has the numbers of calls.
pub fn calls_dict<'py>(
    py: Python<'py>,
    calls: &[EndedCall],
    edges: &[NamedEdge],
    functions: &FunctionTable,
) -> PyResult<Bound<'py, PyDict>> {
    let edge = |call: &EndedCall| edges.get(call.call as usize);
    dict_of!(py,
        call: column_of_rows(calls, |call| call.id),
        parent: column_of_rows(calls, |call| call.parent),
        stack: column_of_rows(calls, |call| call.stack),
        depth: column_of_rows(calls, |call| call.depth),
        function: column_of_rows(calls, |call| functions.function_of_edge(edge(call)).name),
        kind: column_of_rows(calls, |call| call.kind as u8),
        root: column_of_rows(calls, |call| root_number(edge(call))),
        end: column_of_rows(calls, |call| call.end as u8),
        ambiguous: column_of_rows(calls, |call| u8::from(call.is_ambiguous)),
        call_site: column_of_rows(calls, |call| edge(call).map_or(0, |edge| edge.call_site)),
        entry: column_of_rows(calls, |call| edge(call).map_or(0, |edge| edge.entry)),
        first: column_of_rows(calls, |call| call.first),
        stop: column_of_rows(calls, |call| call.next),
        begin_thread: column_of_rows(calls, |call| call.begin_thread),
        end_thread: column_of_rows(calls, |call| call.end_thread),
        self_instructions: column_of_rows(calls, |call| call.own),
        total_instructions: column_of_rows(calls, |call| call.total),
        begin_time: column_of_rows(calls, |call| call.begin_time),
        end_time: column_of_rows(calls, |call| call.end_time),
        module: column_of_rows(calls, |call| functions.function_of_edge(edge(call)).module),
        functions: functions.names.as_slice(),
        modules: module_paths(functions),
    )
}

pub fn module_paths(functions: &FunctionTable) -> Vec<OsText> {
    let paths = functions.modules.iter();
    paths.map(|path| OsText(path.to_os_string())).collect()
}

/// Returns 1 for each recursive row of a call tree, by parent, function and `CallKind`.
#[pyfunction]
pub fn recursive_calls(
    py: Python<'_>,
    parents: PyBuffer<u32>,
    functions: PyBuffer<u32>,
    kinds: PyBuffer<u8>,
) -> PyResult<Column> {
    let (parents, functions) = (parents.to_vec(py)?, functions.to_vec(py)?);
    let kinds = kinds.to_vec(py)?;
    let found = py.detach(|| rtit_listing::recursive_calls(&parents, &functions, &kinds));
    Ok(Column::from(found))
}

/// The `RootKind` of a root, 5 for other calls.
pub fn root_number(edge: Option<&NamedEdge>) -> u8 {
    let root = edge.and_then(|edge| edge.edge.root);
    root.map_or(5, |(kind, _)| kind as u8)
}

pub fn branches_dict(py: Python<'_>, rows: BranchColumns) -> PyResult<Bound<'_, PyDict>> {
    dict_of!(py,
        source: Column::from(rows.from),
        target: Column::from(rows.to),
        kind: Column::from(rows.kind),
        time: Column::from(rows.time),
        offset: Column::from(rows.offset),
        space: Column::from(rows.space),
        target_space: Column::from(rows.target_space),
    )
}

pub fn blocks_dict<'py>(
    py: Python<'py>,
    blocks: &[InstructionBlock],
) -> PyResult<Bound<'py, PyDict>> {
    dict_of!(py,
        start: column_of_rows(blocks, |block| block.start),
        last: column_of_rows(blocks, |block| block.last),
        instructions: column_of_rows(blocks, |block| block.instructions),
        end: column_of_rows(blocks, |block| block.end as u8),
        continues: column_of_rows(blocks, |block| u8::from(block.continues)),
        bits: column_of_rows(blocks, |block| block.bits),
    )
}

pub fn samples_dict<'py>(
    py: Python<'py>,
    samples: &[TimingSample],
) -> PyResult<Bound<'py, PyDict>> {
    dict_of!(py,
        offset: column_of_rows(samples, |sample| sample.offset),
        time: column_of_rows(samples, |sample| sample.time),
        cycles: column_of_rows(samples, |sample| sample.cycles),
        frequency: column_of_rows(samples, |sample| sample.frequency),
        known: column_of_rows(samples, |sample| u8::from(sample.known)),
        span: column_of_rows(samples, |sample| sample.span),
    )
}

/// `TotalColumns`.
pub fn totals_dict(py: Python<'_>, mut totals: Totals) -> PyResult<Bound<'_, PyDict>> {
    let runs = totals.iter_runs();
    let run_start = column_of_rows(runs.clone(), |run| run.start);
    let run_instructions = column_of_rows(runs.clone(), |run| run.instructions);
    let run_count = column_of_rows(runs, |run| run.count);
    let uncounted_runs = totals.uncounted_runs();
    totals.drop_runs();
    let dict = edges_dict(py, totals.iter_edges())?;
    dict.set_item("run_start", run_start)?;
    dict.set_item("run_instructions", run_instructions)?;
    dict.set_item("run_count", run_count)?;
    dict.set_item("uncounted_runs", uncounted_runs)?;
    dict.set_item("uncounted_edges", totals.uncounted_edges().as_slice())?;
    Ok(dict)
}

pub fn edges_dict(
    py: Python<'_>,
    edges: impl Iterator<Item = EdgeTotal> + Clone,
) -> PyResult<Bound<'_, PyDict>> {
    dict_of!(py,
        edge_source: column_of_rows(edges.clone(), |edge| edge.from),
        edge_target: column_of_rows(edges.clone(), |edge| edge.to),
        edge_kind: column_of_rows(edges.clone(), |edge| edge.kind),
        edge_count: column_of_rows(edges, |edge| edge.count),
    )
}
