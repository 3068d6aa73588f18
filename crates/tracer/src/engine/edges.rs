//! Edges of the recording: each thread's TraceEn follows at its next instruction.

use crate::engine::state::Engine;
use crate::engine::window::TRACED;
use crate::event::{Kind, Record, IN_CONTEXT, TURNS_OFF, TURNS_ON};
use crate::options::Edge;
use crate::task::Task;

impl Engine<'_> {
    /// The instruction at `ip` is the next that the thread retires.
    pub(super) fn pass_edges(&mut self, task: &mut Task, ip: u64) {
        if !self.window.used() {
            return;
        }
        let due = match self.window.edges.get(self.window.phase) {
            Some(Some(Edge::Code { path, offset, .. })) => {
                task.space.borrow().address_of(path, *offset) == Some(ip)
            }
            Some(Some(Edge::After(count))) => self.clock >= *count,
            Some(Some(Edge::AfterStart(count))) => self.clock - self.window.started >= *count,
            _ => false,
        };
        if due {
            self.window.phase += 1;
            if self.window.phase == TRACED {
                self.window.started = self.clock;
            }
        }
        let on = self.window.phase == TRACED;
        if on == task.tracing {
            return;
        }
        task.tracing = on;
        self.cut(task);
        if let Some(text) = self.truth.tracing(task.id(), on) {
            self.warn(task.tid, &text);
        }
        self.emit(Record {
            ip,
            flags: IN_CONTEXT | if on { TURNS_ON } else { TURNS_OFF },
            extra: task.retired,
            ..Record::new(Kind::Switch, task.id())
        });
    }
}
