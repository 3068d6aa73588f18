//! The recording window: tracing is on between a start and a stop edge. Each thread's TraceEn follows at its next
//! instruction.

use rtit_events::{flag, EventKind, Record};

use crate::engine::engine_state::{Engine, PHASE_TRACED};
use crate::options::WindowEdge;
use crate::task::Task;

impl Engine<'_> {
    /// Acts at edges before the thread retires the instruction at `ip`.
    pub(super) fn check_window_edges(&mut self, task: &mut Task, ip: u64) {
        if !self.window.is_used() {
            return;
        }
        let due = match self.window.edges.get(self.window.phase) {
            Some(Some(WindowEdge::Code { path, offset, .. })) => {
                task.space.borrow().address_of(path, *offset) == Some(ip)
            }
            Some(Some(WindowEdge::After(count))) => self.clock >= *count,
            Some(Some(WindowEdge::AfterStart(count))) => self.clock - self.window.started >= *count,
            _ => false,
        };
        if due {
            self.window.phase += 1;
            if self.window.phase == PHASE_TRACED {
                self.window.started = self.clock;
            }
        }
        let on = self.window.phase == PHASE_TRACED;
        if on == task.tracing {
            return;
        }
        task.tracing = on;
        self.end_run(task);
        if let Some(text) = self.truth.write_tracing(task.id(), on) {
            self.warn(task.tid, &text);
        }
        self.emit_record(Record {
            ip,
            flags: flag::SWITCH_IN_USER
                | if on {
                    flag::SWITCH_TURNS_ON
                } else {
                    flag::SWITCH_TURNS_OFF
                },
            extra: task.retired,
            ..Record::new(EventKind::Switch, task.id())
        });
    }
}
