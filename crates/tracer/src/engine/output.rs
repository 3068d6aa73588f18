//! Writing events. Everything that goes into the stream passes here.

use crate::engine::state::Engine;
use crate::event::{Kind, Record, Resume, IN_CONTEXT, NARROW, OF_MAPPING, WITH_CONTENTS};
use crate::space::Change;
use crate::task::{Next, Position, Task};

impl Engine<'_> {
    pub(super) fn emit(&mut self, record: Record) {
        self.emit_blob(record, None);
    }

    pub(super) fn emit_blob(&mut self, mut record: Record, blob: Option<Vec<u8>>) {
        record.clock = self.clock;
        if !self.shared.stream.push(record, blob) {
            self.shared.kill();
        }
    }

    pub(super) fn warn(&mut self, tid: libc::pid_t, text: &str) {
        let record = Record::new(Kind::Warning, tid as u32);
        self.emit_blob(record, Some(text.as_bytes().to_vec()));
    }

    /// Ends the thread's run in the truth.
    pub(super) fn cut(&mut self, task: &mut Task) {
        if let Some(text) = self.truth.cut(task.id(), &mut task.run) {
            self.warn(task.tid, &text);
        }
    }

    /// User code goes on at `next`, unless it is in context already.
    pub(super) fn enter(&mut self, task: &mut Task, next: &Next) {
        let Some(reason) = task.outside.take() else {
            return;
        };
        if std::mem::take(&mut task.stale) {
            self.emit(Record {
                ip: next.ip,
                extra: task.retired,
                ..Record::new(Kind::Switch, task.id())
            });
        }
        self.emit(Record {
            flags: reason as u8 | if next.narrow { NARROW } else { 0 },
            target: next.ip,
            extra: task.retired,
            ..Record::new(Kind::Resume, task.id())
        });
    }

    /// A signal takes the thread out of context before the instruction that it would execute next.
    pub(super) fn leave(&mut self, task: &mut Task, signal: i32) {
        let Some(ip) = task.next().map(|next| next.ip) else {
            return;
        };
        if task.outside.is_some() {
            return;
        }
        self.cut(task);
        self.emit(Record {
            ip,
            extra: signal as u64,
            ..Record::new(Kind::Interrupt, task.id())
        });
        task.outside = Some(Resume::Other);
    }

    /// If code changed since the thread's last instruction: switches it out and in.
    pub(super) fn refresh_context(&mut self, task: &mut Task) {
        if task.outside.is_some() || !task.stale {
            return;
        }
        let Position::User(next) = &task.position else {
            return;
        };
        let ip = next.ip;
        task.stale = false;
        // The address filters see this IP anew, as they see the target of a branch.
        self.cut(task);
        self.emit(Record {
            ip,
            flags: IN_CONTEXT,
            extra: task.retired,
            ..Record::new(Kind::Switch, task.id())
        });
    }

    /// Writes changes of the code in the thread's address space; all threads in it must take notice.
    pub(super) fn change(&mut self, task: &mut Task, changes: Vec<Change>) {
        if changes.is_empty() {
            return;
        }
        for change in changes {
            match change {
                Change::Mapped(mapping, contents) => {
                    let mut blob = mapping.to_blob();
                    let mut record = Record {
                        ip: mapping.start,
                        target: mapping.end - mapping.start,
                        ..Record::new(Kind::Mmap, task.id())
                    };
                    let Some(contents) = contents else {
                        self.emit_blob(record, Some(blob));
                        continue;
                    };
                    record.flags = WITH_CONTENTS;
                    blob.extend_from_slice(&contents.head);
                    self.emit_blob(record, Some(blob));
                    let record = Record {
                        ip: mapping.start,
                        flags: OF_MAPPING,
                        ..Record::new(Kind::Code, task.id())
                    };
                    self.emit_blob(record, Some(contents.code));
                }
                Change::Code(address, bytes) => self.emit_blob(
                    Record {
                        ip: address,
                        ..Record::new(Kind::Code, task.id())
                    },
                    Some(bytes),
                ),
            }
        }
        task.stale = true;
        for other in self.tasks.values_mut() {
            if std::rc::Rc::ptr_eq(&other.space, &task.space) {
                other.stale = true;
            }
        }
    }
}
