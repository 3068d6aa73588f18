//! How a stream is decoded in slices, with a look at Ctrl-C and at who is asked for pages after each.

use pyo3::prelude::*;
use rtit_flow::{
    AdditiveDecoder, AdditiveSink, ParallelConfig, Settings, Sink, Spaces, StreamDecoder,
};

use crate::raising::{check, Raisers};
use crate::stream::Stream;

/// Ctrl-C is looked for after this many bytes of a stream.
const SLICE: usize = 1 << 20;

/// Decoding pauses when more points wait; those of a slice come on top.
const MOST_POINTS: usize = 1 << 16;

/// Decodes until the sink is full, without the GIL. Raises what those raise who are asked for pages, and
/// what signal handlers raise.
pub fn advance<S: Sink + Send>(
    py: Python<'_>,
    raisers: &Raisers,
    flow: &mut StreamDecoder<Stream, S>,
) -> PyResult<()> {
    advance_slice(py, raisers, flow)?;
    while !is_full(flow) && !flow.is_finished() {
        advance_slice(py, raisers, flow)?;
    }
    Ok(())
}

/// As `advance`, but to the end of a turn at the furthest.
pub fn advance_in_turn<S: Sink + Send>(
    py: Python<'_>,
    raisers: &Raisers,
    flow: &mut StreamDecoder<Stream, S>,
) -> PyResult<()> {
    advance_slice(py, raisers, flow)?;
    while !is_full(flow) && !flow.is_finished() && !flow.is_paused() {
        advance_slice(py, raisers, flow)?;
    }
    Ok(())
}

/// Whether there is enough to be taken: points wait also while no row comes.
fn is_full<S: Sink>(flow: &mut StreamDecoder<Stream, S>) -> bool {
    flow.sink_mut().is_full() || flow.samples_waiting() > MOST_POINTS
}

fn advance_slice<S: Sink + Send>(
    py: Python<'_>,
    raisers: &Raisers,
    flow: &mut StreamDecoder<Stream, S>,
) -> PyResult<()> {
    let goes_on = !is_full(flow) && py.detach(|| flow.advance_by(SLICE));
    if goes_on && flow.is_starved() {
        let position = flow.position();
        flow.stream_mut().go_on(py, position)?;
    }
    go_on(py, raisers)
}

/// The stream for as many threads as `config` says.
pub fn segments<S: AdditiveSink>(
    py: Python<'_>,
    config: ParallelConfig,
    (mut stream, spaces, settings): (Stream, Spaces, Settings),
) -> PyResult<Box<AdditiveDecoder<Stream, S>>> {
    if config.threads > 1 {
        stream.hold(py, config.round_bytes(), 0)?;
    }
    Ok(Box::new(AdditiveDecoder::new(
        stream, spaces, &settings, config,
    )))
}

/// Decodes to the end, without the GIL. Raises what those raise who are asked for pages, and
/// what signal handlers raise.
pub fn sum<S: AdditiveSink>(
    py: Python<'_>,
    raisers: &Raisers,
    all: &mut AdditiveDecoder<Stream, S>,
) -> PyResult<()> {
    while py.detach(|| all.advance()) {
        if all.is_starved() {
            let position = all.position();
            all.stream_mut().go_on(py, position)?;
        }
        go_on(py, raisers)?;
    }
    go_on(py, raisers)
}

/// Looks at who was asked for pages, and for Ctrl-C.
pub fn go_on(py: Python<'_>, raisers: &Raisers) -> PyResult<()> {
    check(py, raisers)?;
    py.check_signals()
}
