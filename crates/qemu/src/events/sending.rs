//! What a thread sends to the recorder.

use crate::shared::link::{Kind, Message};
use crate::shared::state::{shared, Shared};
use crate::thread::state::Legacy;
use crate::thread::state::Thread;

/// Bytes from which on a system call sends them.
const HELD_IN_KERNEL: usize = 4096;

impl Thread {
    /// The thread, which is not in user code, ends; `flags` are those of an exit.
    pub(crate) fn end(&mut self, status: u32, flags: u8) {
        let shared = shared();
        self.unit.disable();
        self.flush(shared);
        if self.truth.is_told() {
            let records = self.path.end(self.tid, status);
            shared.send(self.message(Kind::Truth), &records);
        }
        let mut message = self.message(Kind::Exit);
        message.ip = status.into();
        message.target = self.end_tally(shared).unwrap_or(message.target);
        message.flags = flags;
        shared.send(message, &[]);
        shared.clock.publish(self.now());
        if self.tid == shared.pid() {
            let legacy = self.legacy();
            shared.with(|locked| locked.leaders = legacy);
        }
    }

    /// The thread, which is not in user code, goes on in another program.
    pub(crate) fn leave_for_exec(&mut self) -> Legacy {
        let shared = shared();
        self.unit.disable();
        self.flush(shared);
        shared.clock.publish(self.now());
        if let Some(instructions) = self.end_tally(shared) {
            let mut message = self.message(Kind::Counts);
            message.target = instructions;
            shared.send(message, &[]);
        }
        self.legacy()
    }

    /// Sends what is held back.
    pub(crate) fn flush(&mut self, shared: &Shared) {
        if self.truth.is_told() {
            let records = self.path.take(self.tid);
            if !records.is_empty() {
                shared.send(self.message(Kind::Truth), &records);
            }
        }
        if shared.config.partial() {
            let mut message = self.message(Kind::Traced);
            [message.target, message.extra] = self.traced();
            shared.send(message, &[]);
        }
        if !self.unit.output().is_empty() {
            if !shared.clock.full() {
                shared.send(self.message(Kind::Packets), self.unit.output());
            }
            self.unit.discard();
        }
    }

    pub(crate) fn flush_in_kernel(&mut self, shared: &Shared) {
        // A snapshot of a thread that waits shows why.
        if self.snapshot || self.unit.output().len() >= HELD_IN_KERNEL {
            self.flush(shared);
        }
    }

    /// With the process's pid in `ip`, the number of retired instructions in `target`, and that of branches in `extra`.
    pub(crate) fn message(&self, kind: Kind) -> Message {
        let mut message = Message::new(kind, self.tid, self.now());
        message.ip = u64::from(shared().pid());
        message.target = self.retired();
        message.extra = self.branches;
        message
    }
}
