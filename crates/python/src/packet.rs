//! `_core.scan_packets` and `_core.find_psb`.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};
use rtit_packet::{table, PacketKind, Scanner, Tnt};

/// Adds the packet functions to the module, and the names of packets by their numbers.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let names: Vec<_> = table::ROWS.iter().map(|row| row.name).collect();
    module.add("PACKETS", PyTuple::new(module.py(), names)?)?;
    module.add_function(wrap_pyfunction!(scan_packets, module)?)?;
    module.add_function(wrap_pyfunction!(find_psb, module)?)
}

/// An error of the scan: offset, message, and whether the data just ended.
type Failure = (usize, String, bool);

/// Read at most `limit` packets of `data` from byte `offset` on.
///
/// block: 4 or 8 inside a block with items of that size, else 0. Returns (packets, next offset, block, error): packets
/// as (offset, size, name, fields) with the fields of `rtit.packets`; next offset and block to go on with; error None
/// or (offset, message, truncated), with the next offset still at the bad packet.
#[pyfunction]
#[pyo3(signature = (data, offset = 0, limit = 65536, block = 0))]
fn scan_packets<'py>(
    py: Python<'py>,
    data: &[u8],
    offset: usize,
    limit: usize,
    block: u8,
) -> PyResult<(Bound<'py, PyList>, usize, u8, Option<Failure>)> {
    let mut scanner = Scanner::at(data, offset);
    scanner.set_block((block != 0).then_some(block));
    let packets = PyList::empty(py);
    let mut failure = None;
    while packets.len() < limit {
        match scanner.next() {
            Some(Ok(packet)) => {
                let fields = fields(py, &packet.kind)?;
                packets.append((packet.offset, packet.length, packet.kind.name(), fields))?;
            }
            Some(Err(error)) => {
                failure = Some((error.offset(), error.to_string(), error.is_truncated()));
                break;
            }
            None => break,
        }
    }
    Ok((
        packets,
        scanner.position(),
        scanner.block().unwrap_or(0),
        failure,
    ))
}

/// Offset of the first PSB that begins at or after byte `start`, or None.
#[pyfunction]
#[pyo3(signature = (data, start = 0))]
fn find_psb(data: &[u8], start: usize) -> Option<usize> {
    rtit_packet::find_psb(data, start)
}

fn fields<'py>(py: Python<'py>, kind: &PacketKind) -> PyResult<Bound<'py, PyDict>> {
    let fields = PyDict::new(py);
    match kind {
        PacketKind::Tnt(tnt) | PacketKind::Tnt64(tnt) => fields.set_item("bits", letters(tnt))?,
        other => {
            let mut result = Ok(());
            other.fields(|name, value| {
                if result.is_ok() {
                    result = fields.set_item(name, value);
                }
            });
            result?;
            if let PacketKind::Trig { icnt: None, .. } = other {
                fields.set_item("icnt", py.None())?;
            }
            if let PacketKind::Tip(ip)
            | PacketKind::TipPge(ip)
            | PacketKind::TipPgd(ip)
            | PacketKind::Fup(ip) = other
            {
                if ip.suppressed() {
                    fields.set_item("payload", py.None())?;
                }
            }
        }
    }
    Ok(fields)
}

/// The results as T and N, oldest first.
fn letters(tnt: &Tnt) -> String {
    (0..tnt.count)
        .map(|index| {
            if tnt.get(index) == Some(true) {
                'T'
            } else {
                'N'
            }
        })
        .collect()
}
