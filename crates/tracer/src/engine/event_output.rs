//! Writes events. Everything in the stream passes here.

use rtit_events::code::CodeChange;
use rtit_events::{flag, EventKind, Record, ResumeReason};

use crate::engine::engine_state::Engine;
use crate::task::{NextInstruction, Position, Task};

impl Engine<'_> {
    pub(super) fn emit_record(&mut self, record: Record) {
        self.emit_with_blob(record, None);
    }

    pub(super) fn emit_with_blob(&mut self, mut record: Record, blob: Option<Vec<u8>>) {
        record.clock = self.clock;
        if !self.shared.stream.push_record(record, blob) {
            self.shared.kill_all();
        }
    }

    pub(super) fn warn(&mut self, tid: libc::pid_t, text: &str) {
        let record = Record::new(EventKind::Warning, tid as u32);
        self.emit_with_blob(record, Some(text.as_bytes().to_vec()));
    }

    /// Ends the thread's run in the truth file.
    pub(super) fn end_run(&mut self, task: &mut Task) {
        if let Some(text) = self.truth.end_run(task.id(), &mut task.run) {
            self.warn(task.tid, &text);
        }
    }

    /// Brings user code into context at `next`, unless it is.
    pub(super) fn enter_context(&mut self, task: &mut Task, next: &NextInstruction) {
        let Some(reason) = task.reentry.take() else {
            return;
        };
        if std::mem::take(&mut task.code_changed) {
            self.emit_record(Record {
                ip: next.ip,
                extra: task.retired,
                ..Record::new(EventKind::Switch, task.id())
            });
        }
        self.emit_record(Record {
            flags: reason as u8 | if next.narrow { flag::RESUME_32_BIT } else { 0 },
            target: next.ip,
            extra: task.retired,
            ..Record::new(EventKind::Resume, task.id())
        });
    }

    /// Takes the thread out of context before its next instruction, for a signal.
    pub(super) fn leave_context(&mut self, task: &mut Task, signal: i32) {
        let Some(ip) = task.next().map(|next| next.ip) else {
            return;
        };
        if task.reentry.is_some() {
            return;
        }
        self.end_run(task);
        self.emit_record(Record {
            ip,
            extra: signal as u64,
            ..Record::new(EventKind::Interrupt, task.id())
        });
        task.reentry = Some(ResumeReason::Other);
    }

    /// Switches the thread out and in if code has changed since its last instruction.
    pub(super) fn refresh_context(&mut self, task: &mut Task) {
        if task.reentry.is_some() || !task.code_changed {
            return;
        }
        let Position::User(next) = &task.position else {
            return;
        };
        let ip = next.ip;
        task.code_changed = false;
        // Address filters check this IP, as they check the target of a branch.
        self.end_run(task);
        self.emit_record(Record {
            ip,
            flags: flag::SWITCH_IN_USER,
            extra: task.retired,
            ..Record::new(EventKind::Switch, task.id())
        });
    }

    /// Writes changes of code in the thread's address space, and marks all threads in it.
    pub(super) fn report_changes(&mut self, task: &mut Task, changes: Vec<CodeChange>) {
        if changes.is_empty() {
            return;
        }
        for change in changes {
            match change {
                CodeChange::Mapped(mapping, contents) => {
                    let mut blob = mapping.to_blob();
                    let mut record = Record {
                        ip: mapping.start,
                        target: mapping.end - mapping.start,
                        ..Record::new(EventKind::Mmap, task.id())
                    };
                    let Some(contents) = contents else {
                        self.emit_with_blob(record, Some(blob));
                        continue;
                    };
                    record.flags = flag::MMAP_WITH_CONTENTS;
                    blob.extend_from_slice(&contents.head);
                    self.emit_with_blob(record, Some(blob));
                    let record = Record {
                        ip: mapping.start,
                        flags: flag::CODE_OF_MAPPING,
                        ..Record::new(EventKind::Code, task.id())
                    };
                    self.emit_with_blob(record, Some(contents.code));
                }
                CodeChange::Code(address, bytes) => self.emit_with_blob(
                    Record {
                        ip: address,
                        ..Record::new(EventKind::Code, task.id())
                    },
                    Some(bytes),
                ),
            }
        }
        task.code_changed = true;
        for other in self.tasks.values_mut() {
            if std::rc::Rc::ptr_eq(&other.space, &task.space) {
                other.code_changed = true;
            }
        }
    }
}
