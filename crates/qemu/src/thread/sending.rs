//! What a thread sends to the recorder.

use crate::config::{Legacy, Truth};
use crate::link::{Kind, Message};
use crate::process::{process, Process};
use crate::thread::Thread;

/// Bytes from which on a system call sends them.
const HELD_IN_KERNEL: usize = 4096;

impl Thread {
    /// The thread, which is not in user code, ends.
    pub(crate) fn end(&mut self, status: u32) {
        let process = process();
        self.unit.disable();
        self.flush(process);
        if self.truth != Truth::None {
            let records = self.path.end(self.tid, status);
            process.send(self.message(Kind::Truth), &records);
        }
        let mut message = self.message(Kind::Exit);
        message.ip = status.into();
        process.send(message, &[]);
        process.clock.publish(self.now());
        if self.tid == process.pid() {
            process.keep_leaders(self.legacy());
        }
    }

    /// The thread, which is not in user code, goes on in another program.
    pub(crate) fn leave_for_exec(&mut self) -> Legacy {
        let process = process();
        self.unit.disable();
        self.flush(process);
        process.clock.publish(self.now());
        self.legacy()
    }

    /// Sends what is held back.
    pub(crate) fn flush(&mut self, process: &Process) {
        if self.truth != Truth::None {
            let records = self.path.take(self.tid);
            if !records.is_empty() {
                process.send(self.message(Kind::Truth), &records);
            }
        }
        if !self.unit.output().is_empty() {
            if !process.clock.full() {
                process.send(self.message(Kind::Packets), self.unit.output());
            }
            self.unit.discard();
        }
    }

    pub(crate) fn flush_in_kernel(&mut self, process: &Process) {
        // A snapshot of a thread that waits shows why.
        if self.snapshot || self.unit.output().len() >= HELD_IN_KERNEL {
            self.flush(process);
        }
    }

    /// With the process's pid in `ip`, the number of retired instructions in `target`, and that of branches in `extra`.
    pub(crate) fn message(&self, kind: Kind) -> Message {
        let mut message = Message::new(kind, self.tid, self.now());
        message.ip = u64::from(process().pid());
        message.target = self.retired();
        message.extra = self.branches;
        message
    }
}
