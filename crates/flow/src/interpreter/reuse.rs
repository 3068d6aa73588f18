//! Reuse of an interpreter: for the next stream, after code has changed, and from a snapshot.
//!
//! A decoder of many short streams keeps the code cache and the transition tables, and nothing else: results are those
//! of a new decoder, byte for byte. A view of the code only moves forward in time, so that a space with changes starts
//! again from its first view. Changes made from outside are not visible here; the caller reports them
//! (`drop_changed_code`), and such a cache is not given to other streams, as more may have changed than was reported.

use super::Interpreter;
use crate::address_spaces::{AddressSpaces, SpaceSelector};
use crate::cancellation::CancellationPoll;
use crate::code_cache::CodeCache;
use crate::return_stack::ReturnStack;
use crate::totals::StreamCounts;
use crate::transitions::TransitionStore;
use rtit_image::{ChangedCode, SpaceView};
use rtit_x86::CodeMode;

impl Interpreter {
    /// Prepares for a stream with a known initial position.
    pub fn begin_stream(&mut self) {
        self.update_code();
    }

    /// Takes a code cache from the pool if this one is empty.
    pub(super) fn take_cache_from_pool(&mut self) {
        if !self.code.is_empty() {
            return;
        }
        let cache_pool = self.cache_pool.as_ref();
        if let Some(code) =
            cache_pool.and_then(|all| all.take_matching_cache(&self.view, &self.code))
        {
            self.code = code;
        }
    }

    /// Resets everything but code caches and transitions. `spaces`: the code at the beginning of a stream.
    pub fn reset_for_next_stream(&mut self, spaces: &AddressSpaces) {
        self.reset_return_stack_and_tnt();
        self.set_next_address(0, 0);
        if self.inactive.current != 0 {
            self.switch_current_space(0);
        }
        self.selector.reset_for_next_stream();
        self.counts = StreamCounts::default();
        self.code_time = 0;
        self.mode = CodeMode::Bits64;
        self.has_deferred_tips = false;
        self.is_elsewhere = false;
        self.switched_at = None;
        self.cancellation.reset();
        self.for_each_space(spaces, |cache, _, _| {
            if let Some((_, transitions)) = cache {
                transitions.reset_counts();
            }
        });
        self.rewind_views(spaces);
    }

    /// Moves every space back to the beginning of time.
    fn rewind_views(&mut self, spaces: &AddressSpaces) {
        self.for_each_space(spaces, |cache, view, first| {
            // a view only moves forward in time
            if view.next_change() == first.next_change() {
                return;
            }
            *view = first.clone();
            if let Some((code, transitions)) = cache {
                transitions.invalidate_all(code);
                code.clear();
            }
        });
    }

    /// Drops changed code. `spaces`: the current code; `before`: that of the last stream.
    pub fn drop_changed_code(
        &mut self,
        before: &AddressSpaces,
        spaces: &AddressSpaces,
        changed: &ChangedCode,
    ) {
        self.cancellation = CancellationPoll::new(spaces.cancellation.clone());
        // more may have changed than was reported, so other streams must not get this cache
        self.cache_pool = None;
        // no node index is kept
        self.set_next_address(0, 0);
        // nodes of the last stream may be those of a later time
        self.rewind_views(before);
        self.for_each_space(spaces, |cache, view, first| {
            *view = first.clone();
            let Some((code, transitions)) = cache else {
                return;
            };
            if *changed == ChangedCode::All {
                transitions.invalidate_all(code);
            }
            code.invalidate_changed_nodes(changed);
            let dead = code.take_dead_nodes();
            transitions.remove_transitions_of_nodes(&dead);
        });
    }

    /// Calls `each` for every space: its cache, if execution has entered it, its view, and its view at the beginning of
    /// a stream.
    fn for_each_space(
        &mut self,
        spaces: &AddressSpaces,
        mut each: impl FnMut(Option<(&mut CodeCache, &mut TransitionStore)>, &mut SpaceView, &SpaceView),
    ) {
        let current = self.inactive.current;
        for (index, first) in spaces.views.iter().enumerate() {
            if index == current {
                let cache = (&mut self.code, &mut self.transitions);
                each(Some(cache), &mut self.view, first);
            } else if let Some(Some(parked)) = self.inactive.parked.get_mut(index) {
                let cache = parked.cache.as_deref_mut();
                let cache = cache.map(|cache| (&mut cache.code, &mut cache.transitions));
                each(cache, &mut parked.view, first);
            }
        }
    }
}

impl Drop for Interpreter {
    fn drop(&mut self) {
        let Some(cache_pool) = self.cache_pool.take() else {
            return;
        };
        if !self.cancellation.is_cancelled() && !self.code.is_over_limit() {
            let none = CodeCache::new(0, 0);
            let code = std::mem::replace(&mut self.code, none);
            cache_pool.add_cache(self.view.clone(), code);
        }
    }
}

/// The state of an interpreter. Interpreters with equal snapshots behave equally from there on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct InterpreterSnapshot {
    ip: u64,
    mode: CodeMode,
    time: u64,
    code_time: u64,
    /// Addresses after calls, the oldest first.
    stack: Vec<u64>,
    pending_results: u64,
    pending_count: u8,
    has_deferred_tips: bool,
    is_elsewhere: bool,
    selector: SpaceSelector,
    /// Index of the current space.
    current: usize,
    /// How many changes of each space are in effect.
    changes: Vec<usize>,
}

impl InterpreterSnapshot {
    /// Drops the time of the next instructions, which counting transitions do not keep.
    pub fn forget_time(&mut self) {
        self.time = 0;
    }

    /// Returns what is known at a PSB later in the stream: everything but the position.
    pub fn known_at_later_psb(&self) -> InterpreterSnapshot {
        let mut later = InterpreterSnapshot {
            ip: 0,
            time: 0,
            stack: Vec::new(),
            pending_results: 0,
            pending_count: 0,
            ..self.clone()
        };
        later.selector.next_paging = None;
        later.selector.next_vmcs = None;
        later
    }
}

impl Interpreter {
    pub fn take_snapshot(&self) -> InterpreterSnapshot {
        let used = 1u64.checked_shl(self.pending_count.into());
        let mask = used.map_or(u64::MAX, |bit| bit - 1);
        let parked = self.inactive.parked.iter();
        let changes = parked.map(|parked| {
            let view = parked.as_ref().map_or(&self.view, |parked| &parked.view);
            view.applied_change_count()
        });
        InterpreterSnapshot {
            ip: self.next_instruction_address(),
            mode: self.mode,
            time: self.time,
            code_time: self.code_time,
            stack: self.stack.return_addresses(&self.code),
            pending_results: self.pending_results & mask,
            pending_count: self.pending_count,
            has_deferred_tips: self.has_deferred_tips,
            is_elsewhere: self.is_elsewhere,
            selector: self.selector.clone(),
            current: self.inactive.current,
            changes: changes.collect(),
        }
    }

    /// Continues from a snapshot. `spaces`: the code at the beginning of the stream.
    pub fn restore_snapshot(&mut self, snapshot: &InterpreterSnapshot, spaces: &AddressSpaces) {
        self.stack.clear();
        for (index, (&changes, view)) in snapshot.changes.iter().zip(&spaces.views).enumerate() {
            self.switch_to_space(index);
            if self.view.applied_change_count() > changes {
                self.view = view.clone();
                self.invalidate_changed(&ChangedCode::All);
            }
            let changed = self.view.advance_to_change_count(changes);
            self.invalidate_changed(&changed);
        }
        self.switch_to_space(snapshot.current);
        self.selector = snapshot.selector.clone();
        self.stack = ReturnStack::from_return_addresses(&snapshot.stack);
        self.set_next_address(snapshot.ip, snapshot.time);
        self.mode = snapshot.mode;
        self.code_time = snapshot.code_time;
        self.pending_results = snapshot.pending_results;
        self.pending_count = snapshot.pending_count;
        self.has_deferred_tips = snapshot.has_deferred_tips;
        self.is_elsewhere = snapshot.is_elsewhere;
    }

    fn switch_to_space(&mut self, space: usize) {
        if space != self.inactive.current {
            self.switch_current_space(space);
        }
    }
}
