//! The program goes from one address space into another.

use super::parked::Known;
use super::walker::Walker;
use crate::code::NO_NODE;
use crate::counts::Counts;
use crate::sink::{Sink, Wants};
use crate::totals::Totals;

impl Walker {
    /// A PIP: holds from the next arrival on.
    pub fn next_paging(&mut self, cr3: u64, nr: bool) {
        self.others.whereabouts.next_paging = Some((cr3, nr));
    }

    /// A VMCS packet: holds from the next VM entry on.
    pub fn next_vmcs(&mut self, pointer: u64) {
        self.others.whereabouts.next_vmcs = Some(pointer);
    }

    /// The number of turns that have begun.
    pub fn turns(&self) -> usize {
        self.others.whereabouts.turns()
    }

    /// Whether threads take turns on the logical processor.
    pub fn has_turns(&self) -> bool {
        self.turns() != 0 || self.next_turn() != u64::MAX
    }

    /// The turns in which anything ran.
    pub fn visited(&self) -> &[usize] {
        self.others.whereabouts.visited()
    }

    /// When the next turn begins.
    pub fn next_turn(&self) -> u64 {
        self.others.whereabouts.next_turn()
    }

    /// How often the program has come from somewhere else; 0 without turns.
    pub fn arrivals(&self) -> u64 {
        self.others.whereabouts.arrivals()
    }

    /// The turn is nobody's.
    pub fn is_idle(&self) -> bool {
        self.others.whereabouts.is_idle()
    }

    /// How many turns of threads are to begin up to `time`.
    pub fn due(&self, time: u64) -> usize {
        self.others.whereabouts.due(time)
    }

    /// The program comes from somewhere else at `now`: whether what runs is followed. `arrive` is next if it is.
    pub fn take_turns(&mut self, now: u64) -> bool {
        let followed = self.others.whereabouts.take_turns(now);
        self.elsewhere = !followed;
        self.came = followed.then_some(now);
        followed
    }

    /// The last of `take_turns` said that it is not.
    pub fn is_elsewhere(&self) -> bool {
        self.elsewhere
    }

    /// The program is where the last PIP holds (with `entry` the last VMCS packet, too); it goes on in the space of its
    /// new CR3; whether that is another.
    pub fn arrive(&mut self, entry: bool) -> bool {
        let here = self.here();
        let now = self.came.take();
        let index = self.others.whereabouts.arrive(here, entry, now);
        if index == self.others.current || !self.move_into(index) {
            return false;
        }
        self.advance_view();
        true
    }

    /// Of the last `arrive`: a CR3 that should be of another process than the one whose turn it is.
    pub fn take_contradiction(&mut self) -> Option<u64> {
        self.others.whereabouts.take_contradiction()
    }

    /// Whether the program is in the kernel, and its code is to change yet. It changes while it runs: then every packet is
    /// walked, for steps know no time.
    #[inline]
    pub fn awaits_change(&self) -> bool {
        Some(self.others.current) == self.others.whereabouts.kernel()
            && self.view.next_change().is_some()
    }

    /// It is `now`, and kernel code is what it is by now.
    #[inline]
    pub fn catch_up<S: Sink>(&mut self, now: u64, sink: &mut S) {
        if self.awaits_change() && self.view.next_change().is_some_and(|time| time <= now) {
            self.advance(now, sink);
        }
    }

    /// Brings the code of another space in; false if there is none.
    pub(super) fn move_into(&mut self, index: usize) -> bool {
        let Some((mut view, mut known)) = self.others.take(index) else {
            return false;
        };
        // numbers of nodes and call sites are those of a code
        self.ip = self.here();
        self.node = NO_NODE;
        self.stack.forget_sites(&self.code);
        known.steps.discards_results = self.steps.discards_results;
        std::mem::swap(&mut self.code, &mut known.code);
        std::mem::swap(&mut self.view, &mut view);
        std::mem::swap(&mut self.steps, &mut known.steps);
        // of all spaces there is one sum
        self.steps.move_addresses_from(&mut known.steps);
        self.others.leave(view, known, index, &mut self.steps);
        true
    }

    /// Whether steps are taken without being counted, in whatever space.
    pub fn idle(&mut self, idle: bool) {
        self.steps.discards_results = idle;
    }

    /// Adds what steps counted, in whatever space.
    pub fn add_counts(&self, counts: &mut Counts) {
        self.steps.add_counts(counts);
        for known in self.others.known() {
            known.steps.add_counts(counts);
        }
    }

    /// Hands the hits of steps to a sink that wants them, in whatever space.
    pub fn give_hits<S: Sink>(&mut self, sink: &mut S) {
        if S::WANTS != Wants::Hits {
            return;
        }
        self.steps.hand_over_hits(&self.code, sink);
        let give = |known: &mut Known| known.steps.hand_over_hits(&known.code, sink);
        self.others.take_left(give);
    }

    /// How many places steps have added up, in whatever space.
    pub fn places(&self) -> usize {
        self.steps.counters_in_use()
    }

    /// Takes what steps added up, in whatever space.
    pub fn take_totals(&mut self, totals: &mut Totals) {
        self.steps.move_totals(&self.code, totals);
        for known in self.others.known_mut() {
            known.steps.move_totals(&known.code, totals);
        }
    }
}
