//! `calls`: who called whom, for Python.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use rtit_listing::{CallTotal, Calls, Context, NONE};

use crate::advance::advance;
use crate::column::Column;
use crate::flow::Flow;
use crate::names::Names;
use crate::way::{taken, Way, Whole};

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(calls, module)?)
}

/// Decodes to the end and follows calls and returns; `names` has the names of the stream's process, `most` says between
/// how many pairs of places calls are told apart.
///
/// Columns (u64), a row all calls from one place to another: from_region, from_offset, to_region, to_offset (the row of
/// `names`, sorted by start, and an offset in its file; without a region 2^64-1 and an address; what ran first was
/// called from region 2^64-1, offset 0), calls, inclusive (instructions until they returned; of calls within one
/// another once). And a row a call within others: parent (its row, or 2^64-1), call (row of the columns above), own
/// (instructions of the called function itself). And of one row how many calls are their callers' own: beyond (too
/// deep, or in too many contexts), between (other places than the first `most`).
#[pyfunction]
fn calls<'py>(
    py: Python<'py>,
    flow: &Flow,
    names: &Names,
    most: usize,
) -> PyResult<Bound<'py, PyDict>> {
    let decoding = flow.decoding();
    decoding.taking(|way| {
        if let Some((stream, spaces, settings)) = way.take() {
            let sink = Calls::new(names.cursor(), most);
            let inner = rtit_flow::StreamDecoder::with_sink(stream, spaces, &settings, sink);
            *way = Way::Calls(Box::new(inner));
        }
        let Way::Calls(inner) = way else {
            return Err(taken());
        };
        advance(py, decoding.raisers(), inner)?;
        let (rows, contexts) = py.detach(|| inner.sink_mut().finish());
        let (beyond, between) = (inner.sink_mut().beyond(), inner.sink_mut().between());
        way.end(Whole::Calls);
        let columns = PyDict::new(py);
        let wide = |number: u32| match number {
            NONE => u64::MAX,
            number => number.into(),
        };
        let put = |name: &str, column: Vec<u64>| columns.set_item(name, Column::from(column));
        let of = |value: &dyn Fn(&CallTotal) -> u64| rows.iter().map(value).collect();
        put("from_region", of(&|row| wide(row.from.region)))?;
        put("from_offset", of(&|row| row.from.offset))?;
        put("to_region", of(&|row| wide(row.to.region)))?;
        put("to_offset", of(&|row| row.to.offset))?;
        put("calls", of(&|row| row.calls))?;
        put("inclusive", of(&|row| row.inclusive))?;
        let of = |value: &dyn Fn(&Context) -> u64| contexts.iter().map(value).collect();
        put("parent", of(&|row| wide(row.parent)))?;
        put("call", of(&|row| wide(row.call)))?;
        put("own", of(&|row| row.own))?;
        put("beyond", vec![beyond])?;
        put("between", vec![between])?;
        Ok(columns)
    })
}
