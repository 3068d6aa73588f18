//! Address spaces by CR3, NR and VMCS pointer, and by turns, as `Flow` takes them.

use std::collections::HashMap;
use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use rtit_flow::{SpaceKey, Spaces};

use crate::image::Space;
use crate::missing::Missing;

/// TSC, and the code; None: what runs is passed over; whether it is no matter of doubt when it begins.
pub type Turn = (u64, Option<Py<Space>>, bool);

/// The code of a stream, and who is asked for pages of it.
pub struct Coded {
    pub spaces: Spaces,
    pub missing: Vec<Arc<Missing>>,
}

impl Coded {
    /// `space` for everything, and those of `others` where their keys hold: (CR3, NR) or (CR3, NR, VMCS pointer).
    pub fn new(space: &Space, others: Option<&Bound<'_, PyDict>>) -> PyResult<Coded> {
        let mut spaces = Spaces::new(space.inner().view());
        let mut missing: Vec<_> = space.missing().into_iter().collect();
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
            let other = other.downcast::<Space>()?.get();
            spaces.add(SpaceKey::new(cr3, nr != 0, vmcs), other.inner().view());
            missing.extend(other.missing());
        }
        Ok(Coded { spaces, missing })
    }

    /// In these turns of threads other code than `space`'s, with which this was made. ValueError if they are not in order.
    pub fn with_turns(mut self, space: &Bound<'_, Space>, turns: &[Turn]) -> PyResult<Coded> {
        let mut known = HashMap::from([(space.as_ptr() as usize, 0)]);
        let mut last = 0;
        for (since, space, idle) in turns {
            if *since < last {
                return Err(PyValueError::new_err(format!(
                    "a turn at {since} comes after one at {last}"
                )));
            }
            last = *since;
            let view = space.as_ref().map(|space| {
                *known.entry(space.as_ptr() as usize).or_insert_with(|| {
                    self.missing.extend(space.get().missing());
                    self.spaces.add_view(space.get().inner().view())
                })
            });
            match idle {
                true => self.spaces.idle(*since, view),
                false => self.spaces.turn(*since, view),
            }
        }
        Ok(self)
    }

    /// With the code of the kernel, and of guests; the last ones added.
    pub fn with_shared(mut self, kernel: Option<&Space>, guest: Option<&Space>) -> Coded {
        if let Some(space) = kernel {
            self.missing.extend(space.missing());
            self.spaces.kernel(space.inner().view());
        }
        if let Some(space) = guest {
            self.missing.extend(space.missing());
            self.spaces.guest(space.inner().view());
        }
        self
    }
}

/// Raises what one of those has raised who were asked for pages.
pub fn check(missing: &[Arc<Missing>]) -> PyResult<()> {
    missing.iter().try_for_each(|missing| missing.check())
}
