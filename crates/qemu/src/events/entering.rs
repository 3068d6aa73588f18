//! User code begins or goes on: the clock follows the others, and what has changed meanwhile counts.

use std::sync::atomic::Ordering;

use crate::failure::die;
use crate::shared::ranges::Ranges;
use crate::shared::state::shared;
use crate::thread::state::{Thread, SWITCH};

impl Thread {
    /// A block starts at `start` that does not simply follow: begin, resumption, restart, far transfer. False if
    /// nobody can tell how that came.
    pub(crate) fn follow_strangely(&mut self, start: u64) -> bool {
        if self.is_out() {
            self.resume(start);
            return true;
        }
        self.follow_from_inside(start)
    }

    /// User code goes on, or begins.
    fn resume(&mut self, start: u64) {
        self.raise(shared().clock.latest());
        if self.attention.load(Ordering::Acquire) & SWITCH != 0 {
            self.attention.fetch_and(!SWITCH, Ordering::AcqRel);
            self.take_ranges();
            if self.watch.tracing() {
                self.unit.switch(None);
            }
        }
        self.follow_in_kernel();
        self.path.enter();
        if self.watch.tracing() {
            self.unit.run(start);
        } else {
            self.unit.resume(start);
        }
        self.follow_packet_en();
    }

    /// Before the instruction at `ip`, in user code.
    pub(crate) fn switch(&mut self, ip: u64) {
        self.catch_up();
        self.steps.interrupt(ip, false, &mut self.path);
        self.path.cut();
        self.unit.interrupt(ip);
        self.raise(shared().clock.latest());
        self.take_ranges();
        if self.watch.tracing() {
            self.unit.switch(None);
        }
        self.unit.resume(ip);
        self.path.enter();
    }

    fn take_ranges(&mut self) {
        let shared = shared();
        if !shared.config.filters.is_empty() {
            shared.with(|locked| self.aim(&locked.ranges));
        }
    }

    /// The address ranges that count from the next enable on.
    pub(crate) fn aim(&mut self, ranges: &Ranges) {
        if ranges.as_slice().is_empty() {
            return;
        }
        if let Err(error) = self.unit.set_ranges(ranges.as_slice()) {
            die(&error.to_string());
        }
        if self.truth.is_told() {
            self.path.note(&ranges.records(self.tid), self.tid);
        }
    }
}
