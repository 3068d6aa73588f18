//! Address filters of a system, and the part of the executed path that they let through.
//!
//! A filter of a kernel function has its address as linked. The kernel moves itself at the start, so that such a filter
//! has an address only after the first code of the kernel in the upper half. Until then it is the range 0 to 0, where
//! no code is.
//!
//! The truth file has only the path that the filters let through. `AddressFilters` selects it without the trace unit,
//! by the addresses to which branches, interrupts and returns lead (section 33.2.5.3).

use rtit_truth::{FilterRange, PathRun, TracedPathSelector};
use rtit_unit::{AddressRange, RangeKind};

use crate::shared::config::SystemFilter;

#[derive(Debug)]
pub(super) struct AddressFilters {
    filters: Vec<SystemFilter>,
    ranges: Vec<AddressRange>,
    selector: TracedPathSelector,
    lets_through: bool,
}

impl AddressFilters {
    /// Creates the filters, before the kernel has moved itself.
    pub(super) fn new(filters: &[SystemFilter]) -> AddressFilters {
        let mut created = AddressFilters {
            filters: filters.to_vec(),
            ranges: Vec::new(),
            selector: TracedPathSelector::default(),
            lets_through: true,
        };
        created.set_ranges(None);
        created
    }

    #[inline(always)]
    pub(super) fn are_used(&self) -> bool {
        !self.filters.is_empty()
    }

    /// Sets the ranges. `moved`: by how much the kernel has moved itself, if that is known.
    pub(super) fn set_ranges(&mut self, moved: Option<u64>) {
        let address = |filter: &SystemFilter, linked: u64| match (filter.is_linked, moved) {
            (true, Some(moved)) => linked.wrapping_add(moved),
            (true, None) => 0,
            (false, _) => linked,
        };
        let ranges = self.filters.iter().map(|filter| AddressRange {
            kind: filter.kind,
            first: address(filter, filter.first),
            last: address(filter, filter.last),
        });
        self.ranges = ranges.collect();
        for (number, range) in (0..).zip(&self.ranges) {
            self.selector.set_range(FilterRange {
                number,
                stop: range.kind == RangeKind::TraceStop,
                first: range.first,
                last: range.last,
            });
        }
    }

    /// Returns the ranges for the trace unit.
    pub(super) fn ranges(&self) -> &[AddressRange] {
        &self.ranges
    }

    /// Notes that a branch or event leads to `ip`, in a context that is traced.
    pub(super) fn arrive_at(&mut self, ip: u64) {
        self.lets_through = self.selector.is_run_traced(&PathRun {
            start: ip,
            instructions: 0,
            hash: 0,
        });
    }

    /// Returns whether the filters let the code through that runs now.
    #[inline(always)]
    pub(super) fn let_through(&self) -> bool {
        self.lets_through
    }

    /// Returns whether a TraceStop range has ended the trace.
    pub(super) fn has_trace_stopped(&self) -> bool {
        self.selector.has_trace_stopped()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FUNCTION: SystemFilter = SystemFilter {
        kind: RangeKind::FilterEn,
        first: 0xffff_ffff_8100_0010,
        last: 0xffff_ffff_8100_001f,
        is_linked: true,
    };

    #[test]
    fn function_of_the_kernel_is_where_the_kernel_has_moved_itself() {
        let mut filters = AddressFilters::new(&[FUNCTION]);
        filters.arrive_at(FUNCTION.first);
        assert!(!filters.let_through());
        filters.set_ranges(Some(0x20_0000));
        assert_eq!(filters.ranges()[0].first, 0xffff_ffff_8120_0010);
        filters.arrive_at(FUNCTION.first);
        assert!(!filters.let_through());
        filters.arrive_at(0xffff_ffff_8120_001f);
        assert!(filters.let_through());
    }

    #[test]
    fn address_stays_where_it_is() {
        let stop = SystemFilter {
            kind: RangeKind::TraceStop,
            first: 0x10_0000,
            last: 0x10_0000,
            is_linked: false,
        };
        let mut filters = AddressFilters::new(&[FUNCTION, stop]);
        assert_eq!(filters.ranges()[1].first, 0x10_0000);
        filters.set_ranges(Some(0x20_0000));
        assert_eq!(filters.ranges()[1].first, 0x10_0000);
        filters.arrive_at(0x10_0000);
        assert!(filters.has_trace_stopped());
        filters.arrive_at(0xffff_ffff_8120_0010);
        assert!(!filters.let_through());
    }
}
