//! Switching the interpreter between address spaces.
//!
//! Each space has its own code cache and transition tables, since the same addresses hold other code. Those of the
//! current space are in the interpreter; [`InactiveSpaces`] keeps the others until execution returns. They are created
//! when execution first enters a space, as most of many spaces are never entered, and dropped together when they exceed
//! their share of the memory limit; counts are kept. Nodes and call sites do not survive a switch: return-stack entries
//! become addresses.

use super::Interpreter;
use crate::address_spaces::AddressSpaces;
use crate::code_cache::{CodeCache, NO_NODE};
use crate::settings::Settings;
use crate::sink::{Sink, SinkNeeds};
use crate::totals::{StreamCounts, Totals};
use crate::transitions::TransitionStore;
use rtit_image::SpaceView;
use std::mem::{replace, size_of};

/// Divides the limit of one code cache: the share of all inactive spaces.
const INACTIVE_SHARE: usize = 2;

/// Code cache and transition tables of a space.
pub(super) struct SpaceCache {
    pub code: CodeCache,
    pub transitions: TransitionStore,
}

pub(super) struct InactiveSpace {
    pub view: SpaceView,
    /// Created when execution first enters the space.
    pub cache: Option<Box<SpaceCache>>,
    /// Size of the cache when the space was left.
    bytes: usize,
}

/// All spaces of a stream; the entry of the current one is empty.
pub(super) struct InactiveSpaces {
    pub current: usize,
    pub parked: Vec<Option<InactiveSpace>>,
    /// Spaces that were left since `for_each_inactive_cache`, each once; and, by space, whether it is among them.
    left: Vec<usize>,
    is_in_left: Vec<bool>,
    settings: Settings,
    /// Of all inactive spaces.
    bytes: usize,
}

impl InactiveSpaces {
    /// Returns all spaces but the first, and the view of the first, which is the current one.
    pub fn new(spaces: AddressSpaces, settings: &Settings) -> (InactiveSpaces, Option<SpaceView>) {
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
            current: 0,
            left: Vec::new(),
            is_in_left: vec![false; parked.len()],
            parked,
            settings: *settings,
            bytes: 0,
        };
        (inactive, first)
    }

    /// Removes and returns the view and cache of a space, which becomes the current one; `None` if there is none.
    pub fn activate_space(&mut self, index: usize) -> Option<(SpaceView, Box<SpaceCache>)> {
        let taken = self.parked.get_mut(index)?.take()?;
        self.bytes -= taken.bytes;
        let cache = taken.cache.unwrap_or_else(|| {
            Box::new(SpaceCache {
                code: CodeCache::new(self.settings.cache_limit, index as u32),
                transitions: TransitionStore::new(&self.settings, false),
            })
        });
        Some((taken.view, cache))
    }

    /// Leaves the current space for `next`. If all caches together exceed their limit, they are dropped, and their
    /// counts are added to `sum`.
    pub fn leave_current_space(
        &mut self,
        view: SpaceView,
        cache: Box<SpaceCache>,
        next: usize,
        sum: &mut TransitionStore,
    ) {
        let bytes = size_of::<SpaceCache>()
            + cache.code.size_in_bytes()
            + cache.transitions.size_in_bytes();
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
                    let SpaceCache { code, transitions } = *cache;
                    sum.add_counts_from_store(transitions, &code);
                }
                *bytes = 0;
            }
            self.bytes = 0;
        }
    }

    /// The caches of all spaces that execution has entered, except the current one.
    pub fn inactive_caches(&self) -> impl Iterator<Item = &SpaceCache> + '_ {
        let all = self.parked.iter().flatten();
        all.filter_map(|parked| parked.cache.as_deref())
    }

    pub fn caches_mut(&mut self) -> impl Iterator<Item = &mut SpaceCache> + '_ {
        let all = self.parked.iter_mut().flatten();
        all.filter_map(|parked| parked.cache.as_deref_mut())
    }

    /// Calls `each` for the spaces that were left since the last call, except the current one.
    pub fn for_each_inactive_cache(&mut self, mut each: impl FnMut(&mut SpaceCache)) {
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
    /// Execution enters from elsewhere at `now`. Returns whether the thread is decoded; then `enter_space` must follow.
    pub fn enter_due_intervals(&mut self, now: u64) -> bool {
        let followed = self.selector.enter_due_intervals(now);
        self.is_elsewhere = !followed;
        self.switched_at = followed.then_some(now);
        followed
    }

    /// Whether the current thread is not decoded.
    pub fn is_running_undecoded_thread(&self) -> bool {
        self.is_elsewhere
    }

    /// Puts the last PIP into effect, with `entry` the last VMCS packet, too, and enters its address space. Returns
    /// whether that is another space.
    pub fn enter_space(&mut self, entry: bool) -> bool {
        let here = self.next_instruction_address();
        let now = self.switched_at.take();
        let index = self.selector.enter_space(here, entry, now);
        if index == self.inactive.current || !self.switch_current_space(index) {
            return false;
        }
        self.update_code();
        true
    }

    /// Whether `ip` is in the other half of the addresses than the current code, and the kernel's half has a view.
    /// A near branch leads there while the kernel starts.
    #[inline]
    pub fn enters_or_leaves_kernel_half(&self, ip: u64) -> bool {
        let kernel = self.selector.kernel_view_index();
        kernel.is_some() && (ip >> 63 != 0) != (Some(self.inactive.current) == kernel)
    }

    /// Whether execution is in kernel code that changes later in the recording. The interpreter then decodes every
    /// packet, because transitions have no time.
    #[inline]
    pub fn is_in_changing_kernel(&self) -> bool {
        Some(self.inactive.current) == self.selector.kernel_view_index()
            && self.view.next_change().is_some()
    }

    /// Moves the kernel's code forward to `now`.
    #[inline]
    pub fn update_kernel_code<S: Sink>(&mut self, now: u64, sink: &mut S) {
        if self.is_in_changing_kernel() && self.view.next_change().is_some_and(|time| time <= now) {
            self.advance_code_to(now, sink);
        }
    }

    /// Makes another space the current one. Returns false if there is none.
    pub(super) fn switch_current_space(&mut self, index: usize) -> bool {
        let Some((mut view, mut cache)) = self.inactive.activate_space(index) else {
            return false;
        };
        // node indices and call sites belong to one code cache
        self.ip = self.next_instruction_address();
        self.node = NO_NODE;
        self.stack.replace_sites_by_addresses(&self.code);
        cache.transitions.discards_results = self.transitions.discards_results;
        std::mem::swap(&mut self.code, &mut cache.code);
        std::mem::swap(&mut self.view, &mut view);
        std::mem::swap(&mut self.transitions, &mut cache.transitions);
        // all spaces share one sum by address
        self.transitions
            .move_address_totals_from(&mut cache.transitions);
        self.inactive
            .leave_current_space(view, cache, index, &mut self.transitions);
        true
    }

    /// Sets whether transitions are taken without being counted, in all spaces.
    pub fn discard_results(&mut self, discard: bool) {
        self.transitions.discards_results = discard;
    }

    /// Adds the counts of the transition tables of all spaces.
    pub fn add_counts(&self, counts: &mut StreamCounts) {
        self.transitions.add_counts(counts);
        for cache in self.inactive.inactive_caches() {
            cache.transitions.add_counts(counts);
        }
    }

    /// Hands transition counts of all spaces to a sink that needs them.
    pub fn report_transition_counts<S: Sink>(&mut self, sink: &mut S) {
        if S::NEEDS != SinkNeeds::TransitionCounts {
            return;
        }
        self.transitions.report_transition_counts(&self.code, sink);
        let give = |cache: &mut SpaceCache| {
            cache
                .transitions
                .report_transition_counts(&cache.code, sink)
        };
        self.inactive.for_each_inactive_cache(give);
    }

    /// Number of counters in the transition tables of all spaces.
    pub fn counters_in_use(&self) -> usize {
        self.transitions.counters_in_use()
    }

    /// Moves the sums of the transition tables of all spaces to `totals`.
    pub fn take_totals(&mut self, totals: &mut Totals) {
        self.transitions.move_totals(&self.code, totals);
        for cache in self.inactive.caches_mut() {
            cache.transitions.move_totals(&cache.code, totals);
        }
    }
}
