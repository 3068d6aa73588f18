//! What is known of a stream's bytes, and how much was in them.

use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyDict};
use rtit_flow::{ByteStatus, Counts, CoverageLedger, Erratum, ErrorClass, Span};
use rtit_packet::table::ROWS;

/// from, to, trust; class of the error, its text, offset and bad value
pub type LedgerRow = (
    u64,
    u64,
    &'static str,
    Option<&'static str>,
    Option<String>,
    Option<u64>,
    Option<u64>,
);

/// At most `most` rows from number `first` on.
pub fn ledger_rows(ledger: &CoverageLedger, first: usize, most: usize) -> Vec<LedgerRow> {
    let row = |span: &Span| {
        let error = span.error.as_ref();
        (
            span.from,
            span.to,
            span.status.name(),
            error.map(|error| error.cause.class().name()),
            error.map(ToString::to_string),
            error.map(|error| error.offset),
            error.map(|error| error.cause.value()),
        )
    };
    let spans = ledger.spans().iter().skip(first).take(most);
    spans.map(row).collect()
}

pub fn counts_dict<'py>(
    py: Python<'py>,
    counts: &Counts,
    ledger: &CoverageLedger,
) -> PyResult<Bound<'py, PyDict>> {
    let packets = PyDict::new(py);
    for row in ROWS.iter().filter(|row| counts.packets_of(row.kind) != 0) {
        packets.set_item(row.name, counts.packets_of(row.kind))?;
    }
    let errors = PyDict::new(py);
    for class in ErrorClass::ALL {
        if ledger.errors(class) != 0 {
            errors.set_item(class.name(), ledger.errors(class))?;
        }
    }
    let errata = PyDict::new(py);
    for erratum in Erratum::ALL {
        let count = counts.errata[erratum as usize];
        if count != 0 {
            errata.set_item(erratum.name(), count)?;
        }
    }
    let dict = PyDict::new(py);
    dict.set_item("errata", errata)?;
    dict.set_item("packets", packets)?;
    dict.set_item("errors", errors)?;
    for status in [
        ByteStatus::Exact,
        ByteStatus::Resumed,
        ByteStatus::Lost,
        ByteStatus::Elsewhere,
    ] {
        dict.set_item(format!("{}_bytes", status.name()), ledger.bytes(status))?;
    }
    dict.set_item("instructions", counts.instructions)?;
    dict.set_item("conditional", counts.conditional)?;
    dict.set_item("indirect", counts.indirect)?;
    dict.set_item("returns", counts.returns)?;
    dict.set_item("compressed_returns", counts.compressed_returns)?;
    dict.set_item("asynchronous", counts.asynchronous)?;
    dict.set_item("cycles", counts.cycles)?;
    dict.set_item("measured_cycles", counts.measured.0)?;
    dict.set_item("measured_ticks", counts.measured.1)?;
    dict.set_item("inactive_ticks", counts.inactive)?;
    Ok(dict)
}

/// Names of the numbers in a column.
pub fn numbered<'py>(
    py: Python<'py>,
    names: impl IntoIterator<Item = (u8, &'static str)>,
) -> PyResult<Bound<'py, PyDict>> {
    names.into_iter().into_py_dict(py)
}
