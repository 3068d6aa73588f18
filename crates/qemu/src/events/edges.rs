//! Where the recording begins and ends: a thread passes an edge, or follows those that others have passed.
//!
//! All recorded processes share the phase (before the start, traced, after the stop) and the number of retired
//! instructions. A thread that passes an edge moves the phase on and follows at that very instruction; the others of its
//! process follow at their next block, those of other processes when they next look.

use std::sync::atomic::Ordering;

use crate::shared::state::{shared, Shared};
use crate::thread::block::Block;
use crate::thread::path::Truth;
use crate::thread::state::{Thread, EDGE};

/// A record of a truth file.
const TRACING: u32 = 7;

impl Thread {
    /// What the truth says first.
    pub(crate) fn watch(&mut self) {
        self.note_tracing(self.watch.tracing());
    }

    fn note_tracing(&mut self, on: bool) {
        if self.truth.is_told() && shared().config.window.used() {
            let record = [TRACING, 8, self.tid, on.into()].map(u32::to_le_bytes);
            self.path.note(&record.concat(), self.tid);
        }
    }

    /// Tells the others of what has retired here, and learns when the next edge comes.
    pub(crate) fn count(&mut self, shared: &Shared) {
        let window = &shared.config.window;
        if !window.used() {
            return;
        }
        let own = self.retired();
        let total = shared.clock.count(own - self.watch.counted);
        self.watch.counted = own;
        let limit = window.limit(&shared.clock, self.watch.phase);
        self.watch.due = limit.map_or(u64::MAX, |limit| own + limit.saturating_sub(total));
        if self.watch.due != u64::MAX {
            let ahead = self.watch.due - own;
            self.next_look = self.next_look.min(self.now() + ahead);
        }
    }

    /// Before `count` instructions of the block that runs are retired: acts at the edges among them. How many of them
    /// have been accounted for.
    pub(crate) fn pass_edges(&mut self, count: u32) -> u32 {
        let shared = shared();
        if !shared.config.window.used() {
            return 0;
        }
        let (block, clock, retired) = (self.block, self.now(), self.retired());
        let mut done = 0;
        while let Some(at) = self.watch.next(done, count, retired) {
            let now = clock + u64::from(at);
            self.clock.store(now, Ordering::Relaxed);
            if self.truth == Truth::Blocks {
                self.path.part(block, done..at);
            }
            done = at;
            self.pass_edge(shared, Some(block.start + block.offset(at)));
        }
        self.watch.inside = [None; 2];
        self.clock
            .store(clock + u64::from(count), Ordering::Relaxed);
        self.count(shared);
        self.clock.store(clock, Ordering::Relaxed);
        let phase = shared.config.window.phase(&shared.clock);
        if phase != self.watch.phase || self.watch.due <= retired + u64::from(count) {
            self.attention.fetch_or(EDGE, Ordering::AcqRel);
        }
        done
    }

    /// A block starts, whose start or inside is an edge, or something else asked for a look.
    pub(crate) fn look_for_edges(&mut self, block: &Block) {
        let shared = shared();
        if self.attention.load(Ordering::Relaxed) & EDGE != 0 {
            self.attention.fetch_and(!EDGE, Ordering::AcqRel);
            self.follow_phase(shared, Some(block.start));
            if self.watch.due <= self.retired() {
                return self.pass_edge(shared, Some(block.start));
            }
        }
        let inside = shared.with(|locked| locked.points.inside(block));
        if inside.get(self.watch.phase as usize) == Some(&Some(0)) {
            self.pass_edge(shared, Some(block.start));
        }
        if inside.iter().flatten().any(|&at| at > 0) {
            self.watch.inside = inside;
            self.next_look = 0;
        }
    }

    /// In the kernel, before user code goes on.
    pub(crate) fn follow_in_kernel(&mut self) {
        let shared = shared();
        if !shared.config.window.used() {
            return;
        }
        self.attention.fetch_and(!EDGE, Ordering::AcqRel);
        self.follow_phase(shared, None);
        self.count(shared);
        if self.watch.due <= self.retired() {
            self.pass_edge(shared, None);
        }
    }

    /// The phase ends here: in user code before the instruction at `ip`, or in the kernel.
    fn pass_edge(&mut self, shared: &Shared, ip: Option<u64>) {
        let own = self.retired() - self.watch.counted;
        if shared.clock.leave_phase(self.watch.phase, own) {
            shared.alert(EDGE);
        }
        self.follow_phase(shared, ip);
    }

    fn follow_phase(&mut self, shared: &Shared, ip: Option<u64>) {
        let phase = shared.config.window.phase(&shared.clock);
        let was = self.watch.tracing();
        if phase == self.watch.phase {
            return;
        }
        self.watch.phase = phase;
        self.count(shared);
        let on = self.watch.tracing();
        if on == was {
            return;
        }
        self.note_tracing(on);
        self.catch_up();
        if on {
            self.unit.switch(ip);
            return self.follow_packet_en();
        }
        if let Some(ip) = ip {
            self.unit.interrupt(ip);
        }
        self.unit.disable();
        if let Some(ip) = ip {
            self.unit.resume(ip);
        }
        self.follow_packet_en();
    }
}
