//! TimingSamples in time as columns.

use rtit_flow::TimingSample;

use crate::column::Column;

/// Stream offset, TSC estimate, core cycles so far (u64), core cycles in a TSC tick (f64, NaN: not known), whether the
/// packet said what time it is (u8), and the number of the span (u64).
pub fn columns(points: &[TimingSample]) -> [Column; 6] {
    let words = |number: fn(&TimingSample) -> u64| points.iter().map(number).collect::<Column>();
    let frequency = points.iter().map(|point| point.frequency).collect();
    let known = points.iter().map(|point| u8::from(point.known)).collect();
    [
        words(|point| point.offset),
        words(|point| point.time),
        words(|point| point.cycles),
        frequency,
        known,
        words(|point| point.span),
    ]
}
