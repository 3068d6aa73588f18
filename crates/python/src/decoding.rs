//! What a `Flow` decodes with: one thread at a time.

use std::sync::{Mutex, MutexGuard};

use pyo3::prelude::*;
use rtit_flow::{Counts, CoverageLedger, ParallelConfig, Settings, Spaces};

use crate::exclusive;
use crate::raising::Raisers;
use crate::stream::Stream;
use crate::way::Way;

pub(crate) struct Decoding {
    way: Mutex<Way>,
    raisers: Raisers,
    parallel_config: ParallelConfig,
}

impl Decoding {
    pub fn new(
        parts: (Stream, Spaces, Settings),
        raisers: Raisers,
        parallel_config: ParallelConfig,
    ) -> Decoding {
        Decoding {
            way: Mutex::new(Way::Open(Some(Box::new(parts)))),
            raisers,
            parallel_config,
        }
    }

    pub fn raisers(&self) -> &Raisers {
        &self.raisers
    }

    pub fn parallel_config(&self) -> ParallelConfig {
        self.parallel_config
    }

    /// Returns what `take` returns.
    pub fn taking<T>(&self, take: impl FnOnce(&mut Way) -> PyResult<T>) -> PyResult<T> {
        take(&mut *self.lock()?)
    }

    pub fn lock(&self) -> PyResult<MutexGuard<'_, Way>> {
        exclusive::lock(&self.way, "Trace")
    }

    /// What `take` makes of the counts and the ledger so far; None before the first results were taken.
    pub fn account<T>(
        &self,
        take: impl FnOnce(&Counts, &CoverageLedger) -> T,
    ) -> PyResult<Option<T>> {
        let way = self.lock()?;
        Ok(way.account().map(|(counts, ledger)| take(&counts, ledger)))
    }
}
