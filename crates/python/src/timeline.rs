//! Events of timelines, in the formats of Perfetto and Chrome.
//!
//! Perfetto: <https://perfetto.dev/docs/reference/trace-packet-proto>. Chrome: the Trace Event Format. Only begins and
//! ends of calls are written here, because a trace has millions of them; `rtit.views.timeline` writes the rest.

use std::fmt::Write;

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::arguments::BoundedItems;
use crate::columns::append_buffer;

/// The track, the time in nanoseconds, and the number of the name; `END` ends the innermost slice of the track.
type TimelineEvent = (u64, u64, u64);
const END: u64 = 0;

fn events_from_columns(columns: [&Bound<'_, PyAny>; 3]) -> PyResult<Vec<TimelineEvent>> {
    let mut numbers: [Vec<u64>; 3] = Default::default();
    for (column, numbers) in columns.into_iter().zip(&mut numbers) {
        append_buffer(column.py(), &PyBuffer::get(column)?, numbers)?;
    }
    let [tracks, times, names] = numbers;
    if [times.len(), names.len()] != [tracks.len(); 2] {
        return Err(PyValueError::new_err("columns of different lengths"));
    }
    let rows = tracks.into_iter().zip(times).zip(names);
    Ok(rows
        .map(|((track, time), name)| (track, time, name))
        .collect())
}

fn push_varint(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

fn push_number_field(bytes: &mut Vec<u8>, field: u64, value: u64) {
    push_varint(bytes, field << 3);
    push_varint(bytes, value);
}

fn push_message_field(bytes: &mut Vec<u8>, field: u64, message: &[u8]) {
    push_varint(bytes, field << 3 | 2);
    push_varint(bytes, message.len() as u64);
    bytes.extend_from_slice(message);
}

// Fields of Trace, TracePacket and TrackEvent, and their values.
const TRACE_PACKET: u64 = 1;
const PACKET_TIMESTAMP: u64 = 8;
const PACKET_SEQUENCE: u64 = 10;
const PACKET_EVENT: u64 = 11;
const PACKET_FLAGS: u64 = 13;
const EVENT_CATEGORY: u64 = 3;
const EVENT_TYPE: u64 = 9;
const EVENT_NAME: u64 = 10;
const EVENT_TRACK: u64 = 11;
const SLICE_BEGIN: u64 = 1;
const SLICE_END: u64 = 2;
const NEEDS_INTERNED_NAMES: u64 = 2;
/// The interned category of all slices: Perfetto does not show slices without one.
const CATEGORY: u64 = 1;
const SEQUENCE: u64 = 1;

#[pyfunction]
pub fn encode_perfetto_events<'py>(
    py: Python<'py>,
    tracks: &Bound<'_, PyAny>,
    times: &Bound<'_, PyAny>,
    names: &Bound<'_, PyAny>,
) -> PyResult<Bound<'py, PyBytes>> {
    let events = events_from_columns([tracks, times, names])?;
    let bytes = py.detach(|| {
        let (mut bytes, mut event, mut packet) = (Vec::new(), Vec::new(), Vec::new());
        for (track, time, name) in events {
            event.clear();
            if name != END {
                push_number_field(&mut event, EVENT_CATEGORY, CATEGORY);
                push_number_field(&mut event, EVENT_NAME, name);
            }
            let kind = if name == END { SLICE_END } else { SLICE_BEGIN };
            push_number_field(&mut event, EVENT_TYPE, kind);
            push_number_field(&mut event, EVENT_TRACK, track);
            packet.clear();
            push_number_field(&mut packet, PACKET_TIMESTAMP, time);
            push_number_field(&mut packet, PACKET_SEQUENCE, SEQUENCE);
            push_message_field(&mut packet, PACKET_EVENT, &event);
            push_number_field(&mut packet, PACKET_FLAGS, NEEDS_INTERNED_NAMES);
            push_message_field(&mut bytes, TRACE_PACKET, &packet);
        }
        bytes
    });
    Ok(PyBytes::new(py, &bytes))
}

#[pyfunction]
pub fn encode_chrome_events<'py>(
    py: Python<'py>,
    pid: u64,
    tracks: &Bound<'_, PyAny>,
    times: &Bound<'_, PyAny>,
    names: &Bound<'_, PyAny>,
    labels: BoundedItems<String>,
) -> PyResult<Bound<'py, PyBytes>> {
    let events = events_from_columns([tracks, times, names])?;
    let text = py.detach(|| {
        let mut text = String::new();
        for (track, time, name) in events {
            let kind = if name == END { 'E' } else { 'B' };
            let (microseconds, rest) = (time / 1000, time % 1000);
            // Writing to a string cannot fail.
            let _ = write!(
                text,
                r#"{{"ph":"{kind}","pid":{pid},"tid":{track},"ts":{microseconds}.{rest:03}"#,
            );
            if name != END {
                let label = labels
                    .0
                    .get(name as usize - 1)
                    .map_or("\"\"", String::as_str);
                let _ = write!(text, r#","cat":"call","name":{label}"#);
            }
            text.push_str("},\n");
        }
        text
    });
    Ok(PyBytes::new(py, text.as_bytes()))
}
