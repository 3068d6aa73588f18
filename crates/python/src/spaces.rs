//! Address spaces by CR3, NR and VMCS pointer, and by turns, as `Flow` takes them.

use std::collections::HashMap;
use std::sync::Arc;

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use rtit_flow::{GuestViews, SpaceKey, Spaces};

use crate::arguments::All;
use crate::image::Space;
use crate::interrupt::Interrupt;
use crate::raising::{Raisers, Raising};

/// The code; None: what runs is passed over; whether it is no matter of doubt when its turns begin; of the guest that
/// the thread runs the code of its process and of its kernel, None where that is not known.
pub type Whose = (
    Option<Py<Space>>,
    bool,
    Option<Py<Space>>,
    Option<Py<Space>>,
);
/// Of each turn when it begins (TSC), and whose it is, a number of those who have turns.
pub type Turns = (PyBuffer<u64>, PyBuffer<u32>, All<Whose>);

/// The code of a stream, and who is asked while one goes through it: for pages, and whether to go on.
pub struct Coded {
    pub spaces: Spaces,
    pub raisers: Raisers,
}

impl Coded {
    /// `space` for everything, and those of `others` where their keys hold: (CR3, NR) or (CR3, NR, VMCS pointer).
    pub fn new(space: &Space, others: Option<&Bound<'_, PyDict>>) -> PyResult<Coded> {
        let mut spaces = Spaces::new(space.inner().view());
        let (watch, interrupt) = Interrupt::new();
        spaces.set_cancellation(watch);
        spaces.set_code_cache_pool(space.learned());
        let mut raisers: Raisers = vec![interrupt];
        raisers.extend(raising(space));
        for (key, other) in others.into_iter().flatten() {
            let (cr3, nr, vmcs) = match key.extract::<(u64, u64, Option<u64>)>() {
                Ok(key) => key,
                Err(_) => {
                    let (cr3, nr) = key.extract::<(u64, u64)>()?;
                    (cr3, nr, None)
                }
            };
            if nr > 1 {
                return Err(PyValueError::new_err(format!("NR is {nr}, not 0 or 1")));
            }
            let other = other.cast::<Space>()?.get();
            spaces.add_space(SpaceKey::new(cr3, nr != 0, vmcs), other.inner().view());
            raisers.extend(raising(other));
        }
        Ok(Coded { spaces, raisers })
    }

    /// In these turns of threads other code than `space`'s, with which this was made. ValueError if they are not in
    /// order, or somebody's who is not there.
    pub fn with_turns(mut self, space: &Bound<'_, Space>, turns: &Turns) -> PyResult<Coded> {
        let (since, numbers, All(whose)) = turns;
        let mut known = HashMap::from([(space.as_ptr() as usize, 0)]);
        let mut number = |of: &mut Coded, space: &Option<Py<Space>>| {
            space.as_ref().map(|space| {
                *known.entry(space.as_ptr() as usize).or_insert_with(|| {
                    of.raisers.extend(raising(space.get()));
                    of.spaces.add_view(space.get().inner().view())
                })
            })
        };
        for (space, idle, process, kernel) in whose {
            let view = number(&mut self, space);
            let process = number(&mut self, process);
            let kernel = number(&mut self, kernel);
            let guest = GuestViews { process, kernel };
            let idle = *idle;
            self.spaces
                .add_thread(rtit_flow::ScheduledThread { view, guest, idle });
        }
        let since = since.to_vec(space.py())?;
        let numbers = numbers.to_vec(space.py())?;
        if since.len() != numbers.len() {
            let (times, all) = (since.len(), numbers.len());
            let message = format!("{times} times of turns, but numbers of {all}");
            return Err(PyValueError::new_err(message));
        }
        let mut last = 0;
        for (since, number) in since.into_iter().zip(numbers) {
            if since < last {
                let message = format!("a turn at {since} comes after one at {last}");
                return Err(PyValueError::new_err(message));
            }
            if number as usize >= whose.len() {
                let message = format!("a turn of number {number} of {}", whose.len());
                return Err(PyValueError::new_err(message));
            }
            last = since;
            self.spaces.add_interval(since, number);
        }
        Ok(self)
    }

    /// With the code of the kernel, and of guests; the last ones added.
    pub fn with_shared(mut self, kernel: Option<&Space>, guest: Option<&Space>) -> Coded {
        if let Some(space) = kernel {
            self.raisers.extend(raising(space));
            self.spaces.set_kernel(space.inner().view());
        }
        if let Some(space) = guest {
            self.raisers.extend(raising(space));
            self.spaces.set_guest(space.inner().view());
        }
        self
    }
}

/// Who is asked for its pages.
fn raising(space: &Space) -> Option<Arc<dyn Raising>> {
    space.missing().map(|missing| missing as Arc<dyn Raising>)
}
