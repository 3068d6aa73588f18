//! Begins and ends tracing at the edges of the recording window.
//!
//! All recorded processes share a phase (before the start, traced, after the stop) and the number of retired
//! instructions. The thread that reaches an edge advances the phase and follows it at that instruction. Other threads
//! of its process follow at their next block, threads of other processes at their next periodic check.

use std::sync::atomic::Ordering;

use rtit_truth::format::TRACING;

use crate::shared::shared_state::{shared, SharedState};
use crate::thread::executed_path::TruthSource;
use crate::thread::thread_state::{Thread, ATTEND_EDGE};
use crate::thread::translation_block::TranslationBlock;

impl Thread {
    /// Writes whether the thread starts traced.
    pub(crate) fn write_initial_tracing(&mut self) {
        self.write_tracing_record(self.window.is_traced());
    }

    fn write_tracing_record(&mut self, on: bool) {
        if self.truth.is_written() && shared().config.window.is_used() {
            let record = [TRACING, 8, self.tid, on.into()].map(u32::to_le_bytes);
            self.path.insert_record(&record.concat(), self.tid);
        }
    }

    /// Adds the thread's retired instructions to the total, and computes when the next edge is due.
    pub(crate) fn count_towards_window(&mut self, shared: &SharedState) {
        let window = &shared.config.window;
        if !window.is_used() {
            return;
        }
        let own = self.retired();
        let total = shared.clock.add_retired(own - self.window.reported);
        self.window.reported = own;
        let limit = window.instruction_limit(&shared.clock, self.window.phase);
        self.window.due = limit.map_or(u64::MAX, |limit| own + limit.saturating_sub(total));
        if self.window.due != u64::MAX {
            let ahead = self.window.due - own;
            self.next_check = self.next_check.min(self.now() + ahead);
        }
    }

    /// Acts at the edges among the next `count` instructions of the current block, before they retire. Returns how many
    /// of them have been added to the path.
    pub(crate) fn pass_edges_in_block(&mut self, count: u32) -> u32 {
        let shared = shared();
        if !shared.config.window.is_used() {
            return 0;
        }
        let (block, clock, retired) = (self.block, self.now(), self.retired());
        let mut done = 0;
        while let Some(at) = self.window.next_edge(done, count, retired) {
            let now = clock + u64::from(at);
            self.clock.store(now, Ordering::Relaxed);
            if self.truth == TruthSource::Blocks {
                self.path.add_part(block, done..at);
            }
            done = at;
            self.pass_edge_at(shared, Some(block.start + block.offset(at)));
        }
        self.window.edges_inside = [None; 2];
        self.clock
            .store(clock + u64::from(count), Ordering::Relaxed);
        self.count_towards_window(shared);
        self.clock.store(clock, Ordering::Relaxed);
        let phase = shared.config.window.phase(&shared.clock);
        if phase != self.window.phase || self.window.due <= retired + u64::from(count) {
            self.attention.fetch_or(ATTEND_EDGE, Ordering::AcqRel);
        }
        done
    }

    /// Acts at an edge at the start of `block`, and notes edges inside of it.
    pub(crate) fn check_edges_at(&mut self, block: &TranslationBlock) {
        let shared = shared();
        if self.attention.load(Ordering::Relaxed) & ATTEND_EDGE != 0 {
            self.attention.fetch_and(!ATTEND_EDGE, Ordering::AcqRel);
            self.follow_window_phase(shared, Some(block.start));
            if self.window.due <= self.retired() {
                return self.pass_edge_at(shared, Some(block.start));
            }
        }
        let inside = shared.with_locked(|locked| locked.edge_addresses.edges_inside(block));
        if inside.get(self.window.phase as usize) == Some(&Some(0)) {
            self.pass_edge_at(shared, Some(block.start));
        }
        if inside.iter().flatten().any(|&at| at > 0) {
            self.window.edges_inside = inside;
            self.next_check = 0;
        }
    }

    /// Follows the phase in the kernel, before user code continues.
    pub(crate) fn follow_window_in_kernel(&mut self) {
        let shared = shared();
        if !shared.config.window.is_used() {
            return;
        }
        self.attention.fetch_and(!ATTEND_EDGE, Ordering::AcqRel);
        self.follow_window_phase(shared, None);
        self.count_towards_window(shared);
        if self.window.due <= self.retired() {
            self.pass_edge_at(shared, None);
        }
    }

    /// Ends the phase here: before the instruction at `ip` in user code, or in the kernel.
    fn pass_edge_at(&mut self, shared: &SharedState, ip: Option<u64>) {
        let own = self.retired() - self.window.reported;
        if shared.clock.leave_phase(self.window.phase, own) {
            shared.request_attention(ATTEND_EDGE);
        }
        self.follow_window_phase(shared, ip);
    }

    fn follow_window_phase(&mut self, shared: &SharedState, ip: Option<u64>) {
        let phase = shared.config.window.phase(&shared.clock);
        let was = self.window.is_traced();
        if phase == self.window.phase {
            return;
        }
        self.window.phase = phase;
        self.count_towards_window(shared);
        let on = self.window.is_traced();
        if on == was {
            return;
        }
        self.write_tracing_record(on);
        self.sync_unit_clock();
        if on {
            self.unit.switch_out_and_in(ip);
            return self.track_packet_en();
        }
        if let Some(ip) = ip {
            self.unit.interrupt(ip);
        }
        self.unit.disable();
        if let Some(ip) = ip {
            self.unit.resume(ip);
        }
        self.track_packet_en();
    }
}
