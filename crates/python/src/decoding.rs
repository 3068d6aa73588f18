//! What a `Flow` decodes with: one thread at a time, until memory is refused.

use std::sync::{Mutex, MutexGuard};

use pyo3::prelude::*;
use rtit_flow::{Counts, Division, Ledger, Settings, Spaces};

use crate::exclusive;
use crate::heap::{bounded, ends_work, no_memory};
use crate::raising::Raisers;
use crate::stream::Stream;
use crate::way::Way;

pub(crate) struct Decoding {
    way: Mutex<Way>,
    raisers: Raisers,
    division: Division,
}

impl Decoding {
    pub fn new(
        parts: (Stream, Spaces, Settings),
        raisers: Raisers,
        division: Division,
    ) -> Decoding {
        Decoding {
            way: Mutex::new(Way::Open(Some(Box::new(parts)))),
            raisers,
            division,
        }
    }

    pub fn raisers(&self) -> &Raisers {
        &self.raisers
    }

    pub fn division(&self) -> Division {
        self.division
    }

    /// What `take` gives. Where memory is refused, be it by Python, this is the end: what was taken so far is whole, and
    /// nothing more comes of it but MemoryError.
    pub fn taking<T>(
        &self,
        py: Python<'_>,
        take: impl FnOnce(&mut Way) -> PyResult<T>,
    ) -> PyResult<T> {
        let mut way = self.open(py)?;
        let taken = bounded(py, || take(&mut way));
        if ends_work(py, &taken) {
            *way = Way::Refused;
        }
        taken
    }

    /// MemoryError if it has been refused some.
    pub fn open(&self, py: Python<'_>) -> PyResult<MutexGuard<'_, Way>> {
        let way = exclusive::lock(&self.way, "Trace")?;
        match *way {
            Way::Refused => Err(no_memory(py)),
            _ => Ok(way),
        }
    }

    /// What `take` makes of the counts and the ledger so far; None before the first results were taken.
    pub fn account<T>(
        &self,
        py: Python<'_>,
        take: impl FnOnce(&Counts, &Ledger) -> T,
    ) -> PyResult<Option<T>> {
        let way = self.open(py)?;
        Ok(way.account().map(|(counts, ledger)| take(&counts, ledger)))
    }
}
