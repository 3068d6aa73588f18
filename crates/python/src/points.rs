//! Points in time as columns.

use rtit_flow::Point;
use rtit_memory::gathered;

use crate::column::Column;

/// Stream offset, TSC estimate, core cycles so far (u64), core cycles in a TSC tick (f64, NaN: not known), whether the
/// packet said what time it is (u8), and the number of the span (u64).
pub fn columns(points: &[Point]) -> [Column; 6] {
    let words = |number: fn(&Point) -> u64| gathered(points.iter().map(number));
    let frequency = gathered(points.iter().map(|point| point.frequency));
    let known = gathered(points.iter().map(|point| u8::from(point.known)));
    [
        words(|point| point.offset).into(),
        words(|point| point.time).into(),
        words(|point| point.cycles).into(),
        frequency.into(),
        known.into(),
        words(|point| point.span).into(),
    ]
}
