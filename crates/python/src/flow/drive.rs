//! How a `Flow` goes along its stream: in slices, between which Ctrl-C and errors of pages are looked for.

use std::sync::{MutexGuard, TryLockError};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use rtit_flow::{Counts, Ledger, Segments, Settings, Sink, Spaces, Sum};

use super::Flow;
use crate::spaces::check;
use crate::stream::Stream;
use crate::way::Way;

/// Ctrl-C is looked for after this many bytes of a stream.
const SLICE: usize = 1 << 20;

/// Decoding pauses when more points wait; those of a slice come on top.
const MOST_POINTS: usize = 1 << 16;

impl Flow {
    /// Never waits: whoever waited here would hold the GIL that the other thread needs to finish.
    pub(crate) fn lock(&self) -> PyResult<MutexGuard<'_, Way>> {
        match self.way.try_lock() {
            Ok(way) => Ok(way),
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => Err(PyRuntimeError::new_err(
                "another thread is decoding with this Flow",
            )),
        }
    }

    /// Decodes until the sink is full, without the GIL. Raises what those raise who are asked for pages.
    pub(crate) fn advance<S: Sink + Send>(
        &self,
        py: Python<'_>,
        flow: &mut rtit_flow::Flow<Stream, S>,
    ) -> PyResult<()> {
        self.advance_slice(py, flow)?;
        while !Self::is_full(flow) && !flow.is_finished() {
            self.advance_slice(py, flow)?;
        }
        Ok(())
    }

    /// As `advance`, but to the end of a turn at the furthest.
    pub(super) fn advance_in_turn<S: Sink + Send>(
        &self,
        py: Python<'_>,
        flow: &mut rtit_flow::Flow<Stream, S>,
    ) -> PyResult<()> {
        self.advance_slice(py, flow)?;
        while !Self::is_full(flow) && !flow.is_finished() && !flow.is_paused() {
            self.advance_slice(py, flow)?;
        }
        Ok(())
    }

    /// Whether there is enough to be taken: points wait also while no row comes.
    fn is_full<S: Sink>(flow: &mut rtit_flow::Flow<Stream, S>) -> bool {
        flow.sink_mut().is_full() || flow.points_waiting() > MOST_POINTS
    }

    fn advance_slice<S: Sink + Send>(
        &self,
        py: Python<'_>,
        flow: &mut rtit_flow::Flow<Stream, S>,
    ) -> PyResult<()> {
        let goes_on = !Self::is_full(flow) && py.allow_threads(|| flow.advance_by(SLICE));
        if goes_on && flow.is_starved() {
            let position = flow.position();
            flow.stream_mut().go_on(py, position)?;
        }
        self.check(py)
    }

    pub(super) fn segments<S: Sum>(
        &self,
        py: Python<'_>,
        mut stream: Stream,
        spaces: Spaces,
        settings: &Settings,
    ) -> PyResult<Box<Segments<Stream, S>>> {
        if self.division.threads > 1 {
            stream.hold(py, self.division.round())?;
        }
        let all = Segments::new(stream, spaces, settings, self.division);
        Ok(Box::new(all))
    }

    /// Decodes to the end, without the GIL. Raises what those raise who are asked for pages.
    pub(super) fn sum<S: Sum>(
        &self,
        py: Python<'_>,
        all: &mut Segments<Stream, S>,
    ) -> PyResult<()> {
        while py.allow_threads(|| all.advance()) {
            if all.is_starved() {
                let position = all.position();
                all.stream_mut().go_on(py, position)?;
            }
            self.check(py)?;
        }
        self.check(py)
    }

    fn check(&self, py: Python<'_>) -> PyResult<()> {
        check(&self.missing)?;
        py.check_signals()
    }

    /// None before the first results were taken.
    pub(super) fn with<T>(&self, take: impl FnOnce(&Counts, &Ledger) -> T) -> PyResult<Option<T>> {
        Ok(self
            .lock()?
            .account()
            .map(|(counts, ledger)| take(&counts, ledger)))
    }
}
