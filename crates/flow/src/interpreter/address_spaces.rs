//! Switching the interpreter between address spaces.
//!
//! Each space has its own code cache and transition tables, since the same addresses hold other code. Those of the
//! current space are in the interpreter; [`InactiveSpaces`] keeps the others until execution returns. They are created
//! when execution first enters a space, as most of many spaces are never entered, and dropped together when they exceed
//! their share of the memory limit; counts are kept. Nodes and call sites do not survive a switch: return-stack entries
//! become addresses.

use super::Interpreter;
use crate::address_spaces::{SpaceSelector, Spaces};
use crate::code_cache::{CodeCache, NO_NODE};
use crate::counts::Counts;
use crate::settings::Settings;
use crate::sink::{Sink, SinkNeeds};
use crate::totals::Totals;
use crate::transitions::Transitions;
use rtit_image::View;
use std::mem::{replace, size_of};

/// Divides the limit of one code cache: the share of all inactive spaces.
const INACTIVE_SHARE: usize = 2;

/// Code cache and transition tables of a space.
pub(super) struct SpaceCache {
    pub code: CodeCache,
    pub steps: Transitions,
}

pub(super) struct InactiveSpace {
    pub view: View,
    /// Created when execution first enters the space.
    pub cache: Option<Box<SpaceCache>>,
    /// As counted when it was left.
    bytes: usize,
}

/// All spaces of a stream; the entry of the current one is empty.
pub(super) struct InactiveSpaces {
    pub selector: SpaceSelector,
    pub current: usize,
    pub parked: Vec<Option<InactiveSpace>>,
    /// Those that were left since `for_each_left_cache`, each once, and whether each of all is one of them.
    left: Vec<usize>,
    is_in_left: Vec<bool>,
    settings: Settings,
    /// Of all that are parked.
    bytes: usize,
}

impl InactiveSpaces {
    /// The first space is in use; its view is handed back.
    pub fn new(spaces: Spaces, settings: &Settings) -> (InactiveSpaces, Option<View>) {
        let selector = SpaceSelector::new(&spaces);
        let mut views = spaces.views.into_iter();
        let first = views.next();
        let park = |view| {
            Some(InactiveSpace {
                view,
                cache: None,
                bytes: 0,
            })
        };
        let parked: Vec<_> = std::iter::once(None).chain(views.map(park)).collect();
        let inactive = InactiveSpaces {
            selector,
            current: 0,
            left: Vec::new(),
            is_in_left: vec![false; parked.len()],
            parked,
            settings: *settings,
            bytes: 0,
        };
        (inactive, first)
    }

    /// What is kept of a space, which becomes the current one; None: there is none.
    pub fn take(&mut self, index: usize) -> Option<(View, Box<SpaceCache>)> {
        let taken = self.parked.get_mut(index)?.take()?;
        self.bytes -= taken.bytes;
        let cache = taken.cache.unwrap_or_else(|| {
            Box::new(SpaceCache {
                code: CodeCache::new(self.settings.cache_limit, index as u32),
                steps: Transitions::new(&self.settings, false),
            })
        });
        Some((taken.view, cache))
    }

    /// Leaves the current space for `next`. When all together are too large nothing is kept of any, but what was
    /// counted, which `sum` takes.
    pub fn leave(
        &mut self,
        view: View,
        cache: Box<SpaceCache>,
        next: usize,
        sum: &mut Transitions,
    ) {
        let bytes = size_of::<SpaceCache>() + cache.code.size() + cache.steps.size();
        self.bytes += bytes;
        if let Some(position) = self.parked.get_mut(self.current) {
            *position = Some(InactiveSpace {
                view,
                cache: Some(cache),
                bytes,
            });
        }
        if let Some(is_in_left) = self.is_in_left.get_mut(self.current) {
            if !replace(is_in_left, true) {
                self.left.push(self.current);
            }
        }
        self.current = next;
        if self.bytes > self.settings.cache_limit / INACTIVE_SHARE {
            for InactiveSpace { cache, bytes, .. } in self.parked.iter_mut().flatten() {
                if let Some(cache) = cache.take() {
                    let SpaceCache { code, steps } = *cache;
                    sum.add_counts_of(steps, &code);
                }
                *bytes = 0;
            }
            self.bytes = 0;
        }
    }

    /// What is known of each space that the program has been in, but the current one.
    pub fn caches(&self) -> impl Iterator<Item = &SpaceCache> + '_ {
        let all = self.parked.iter().flatten();
        all.filter_map(|parked| parked.cache.as_deref())
    }

    pub fn caches_mut(&mut self) -> impl Iterator<Item = &mut SpaceCache> + '_ {
        let all = self.parked.iter_mut().flatten();
        all.filter_map(|parked| parked.cache.as_deref_mut())
    }

    /// Tells `each` of those that were left since this was asked for last, and are not the current one.
    pub fn for_each_left_cache(&mut self, mut each: impl FnMut(&mut SpaceCache)) {
        for index in self.left.drain(..) {
            if let Some(is_in_left) = self.is_in_left.get_mut(index) {
                *is_in_left = false;
            }
            let parked = self.parked.get_mut(index).and_then(Option::as_mut);
            if let Some(cache) = parked.and_then(|parked| parked.cache.as_deref_mut()) {
                each(cache);
            }
        }
    }
}

impl Interpreter {
    /// Notes a PIP, which takes effect at the next entry.
    pub fn set_next_paging(&mut self, cr3: u64, nr: bool) {
        self.inactive.selector.next_paging = Some((cr3, nr));
    }

    /// Notes a VMCS packet, which takes effect at the next VM entry.
    pub fn set_next_vmcs(&mut self, pointer: u64) {
        self.inactive.selector.next_vmcs = Some(pointer);
    }

    /// Number of scheduling intervals that have begun.
    pub fn intervals_begun(&self) -> usize {
        self.inactive.selector.intervals_begun()
    }

    /// Whether threads share the logical processor.
    pub fn has_thread_schedule(&self) -> bool {
        self.intervals_begun() != 0 || self.next_interval_start() != u64::MAX
    }

    /// The intervals in which anything ran.
    pub fn visited_intervals(&self) -> &[usize] {
        self.inactive.selector.visited_intervals()
    }

    /// TSC at which the next interval starts.
    pub fn next_interval_start(&self) -> u64 {
        self.inactive.selector.next_interval_start()
    }

    /// How often execution has entered from elsewhere; 0 without a schedule.
    pub fn entries(&self) -> u64 {
        self.inactive.selector.entries()
    }

    /// Whether the current thread is idle.
    pub fn is_idle(&self) -> bool {
        self.inactive.selector.is_idle()
    }

    /// Number of intervals that are still to begin up to `time`.
    pub fn due_intervals(&self, time: u64) -> usize {
        self.inactive.selector.due_intervals(time)
    }

    /// Execution enters from elsewhere at `now`. Returns whether the thread is decoded; then `enter_space` must follow.
    pub fn enter_due_intervals(&mut self, now: u64) -> bool {
        let followed = self.inactive.selector.enter_due_intervals(now);
        self.is_elsewhere = !followed;
        self.switched_at = followed.then_some(now);
        followed
    }

    /// Whether the current thread is not decoded.
    pub fn is_elsewhere(&self) -> bool {
        self.is_elsewhere
    }

    /// The program is where the last PIP holds (with `entry` the last VMCS packet, too); it goes on in the space of its
    /// new CR3; whether that is another.
    pub fn enter_space(&mut self, entry: bool) -> bool {
        let here = self.here();
        let now = self.switched_at.take();
        let index = self.inactive.selector.enter_space(here, entry, now);
        if index == self.inactive.current || !self.swap_space(index) {
            return false;
        }
        self.update_code();
        true
    }

    /// Returns, once, the CR3 that contradicted the schedule at the last `enter_space`.
    pub fn take_cr3_contradiction(&mut self) -> Option<u64> {
        self.inactive.selector.take_cr3_contradiction()
    }

    /// Whether the program is in the kernel, and its code is to change yet. It changes while it runs: then every packet
    /// is walked, for steps know no time.
    #[inline]
    pub fn is_in_changing_kernel(&self) -> bool {
        Some(self.inactive.current) == self.inactive.selector.kernel_view()
            && self.view.next_change().is_some()
    }

    /// It is `now`, and kernel code is what it is by now.
    #[inline]
    pub fn update_kernel_code<S: Sink>(&mut self, now: u64, sink: &mut S) {
        if self.is_in_changing_kernel() && self.view.next_change().is_some_and(|time| time <= now) {
            self.advance(now, sink);
        }
    }

    /// Makes another space the current one. Returns false if there is none.
    pub(super) fn swap_space(&mut self, index: usize) -> bool {
        let Some((mut view, mut cache)) = self.inactive.take(index) else {
            return false;
        };
        // numbers of nodes and call sites are those of a code
        self.ip = self.here();
        self.node = NO_NODE;
        self.stack.forget_sites(&self.code);
        cache.steps.discards_results = self.steps.discards_results;
        std::mem::swap(&mut self.code, &mut cache.code);
        std::mem::swap(&mut self.view, &mut view);
        std::mem::swap(&mut self.steps, &mut cache.steps);
        // of all spaces there is one sum
        self.steps.move_addresses_from(&mut cache.steps);
        self.inactive.leave(view, cache, index, &mut self.steps);
        true
    }

    /// Sets whether transitions are taken without being counted, in all spaces.
    pub fn idle(&mut self, idle: bool) {
        self.steps.discards_results = idle;
    }

    /// Adds the counts of the transition tables of all spaces.
    pub fn add_counts(&self, counts: &mut Counts) {
        self.steps.add_counts(counts);
        for cache in self.inactive.caches() {
            cache.steps.add_counts(counts);
        }
    }

    /// Hands transition counts of all spaces to a sink that needs them.
    pub fn report_transition_counts<S: Sink>(&mut self, sink: &mut S) {
        if S::NEEDS != SinkNeeds::TransitionCounts {
            return;
        }
        self.steps.hand_over_hits(&self.code, sink);
        let give = |cache: &mut SpaceCache| cache.steps.hand_over_hits(&cache.code, sink);
        self.inactive.for_each_left_cache(give);
    }

    /// Number of counters in the transition tables of all spaces.
    pub fn places(&self) -> usize {
        self.steps.counters_in_use()
    }

    /// Moves the sums of the transition tables of all spaces to `totals`.
    pub fn take_totals(&mut self, totals: &mut Totals) {
        self.steps.move_totals(&self.code, totals);
        for cache in self.inactive.caches_mut() {
            cache.steps.move_totals(&cache.code, totals);
        }
    }
}
