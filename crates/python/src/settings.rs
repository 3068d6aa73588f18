//! How a stream is to be read, as Python says it.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use rtit_flow::{Cpu, FilterRanges, GuestTsc, Settings, TimeSettings, TransitionLimits};

use crate::start::Beginning;

/// The keywords of `Flow`.
pub struct Given {
    pub mtc_freq: u8,
    pub tsc_ctc: (u32, u32),
    pub max_nonturbo_ratio: u8,
    pub start_time: u64,
    pub no_tnt: bool,
    pub no_retcomp: bool,
    pub cpu: Option<(u16, u16, u8)>,
    pub ranges: Vec<(u64, u64)>,
    pub start: Option<Beginning>,
    pub guest_tsc: (u64, u64),
    pub walk: bool,
    pub points: bool,
    pub places: usize,
}

pub fn settings_of(given: Given) -> PyResult<Settings> {
    let mtc_freq = given.mtc_freq;
    if mtc_freq > 15 {
        return Err(PyValueError::new_err(format!(
            "mtc_freq is {mtc_freq}, not 0 to 15"
        )));
    }
    if given.places == 0 {
        return Err(PyValueError::new_err("places is 0, not 1 or more"));
    }
    let ranges = FilterRanges::new(&given.ranges).ok_or_else(|| {
        PyValueError::new_err(format!("{} filter ranges, more than 4", given.ranges.len()))
    })?;
    let (offset, multiplier) = given.guest_tsc;
    Ok(Settings {
        time: TimeSettings {
            mtc_freq,
            tsc_ctc: given.tsc_ctc,
            max_nonturbo_ratio: given.max_nonturbo_ratio,
            start_time: given.start_time,
            guest: GuestTsc { offset, multiplier },
        },
        no_tnt: given.no_tnt,
        no_retcomp: given.no_retcomp,
        cpu: given.cpu.map(|(family, model, stepping)| Cpu {
            family,
            model,
            stepping,
        }),
        ranges,
        start: given.start.map(|start| start.0),
        transitions: match given.walk {
            true => TransitionLimits::NONE,
            false => TransitionLimits::default(),
        },
        timing_samples: given.points,
        max_counters: given.places,
        ..Settings::default()
    })
}
