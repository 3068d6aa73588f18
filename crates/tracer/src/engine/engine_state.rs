//! The state of the tracing thread between two stops, and the recording window.

use std::collections::HashMap;
use std::time::Instant;

use libc::pid_t;

use crate::event_stream::TracerState;
use crate::options::WindowEdge;
use crate::ptrace::StopStatus;
use crate::task::Task;
use crate::truth_output::TruthOutput;

pub(super) struct Engine<'a> {
    pub(super) shared: &'a TracerState,
    pub(super) truth: TruthOutput,
    /// All threads that have not ended, except the one with the stop that is being handled.
    pub(super) tasks: HashMap<pid_t, Task>,
    /// Stops of threads that their parent has not reported yet.
    pub(super) early: HashMap<pid_t, Vec<StopStatus>>,
    /// Threads that have just been reported.
    pub(super) newborn: Vec<pid_t>,
    /// SIGTRAPs sent to a process, until one of its threads may take them.
    pub(super) traps: Vec<(pid_t, libc::siginfo_t)>,
    /// Instructions retired by all threads.
    pub(super) clock: u64,
    pub(super) window: RecordingWindow,
    pub(super) root: pid_t,
    /// Wait status of the first process.
    pub(super) status: i32,
    /// The CPUs that the program would use without a tracer, if the tracer has pinned it.
    pub(super) affinity: Option<Vec<u8>>,
    pub(super) breakpoints: bool,
    /// Everything has been killed.
    pub(super) killing: bool,
    /// For attached programs: the child that exits when the tracer must detach.
    pub(super) control_watcher: Option<pid_t>,
    /// When everything was told to stop for the last time.
    pub(super) detaching: Option<Instant>,
    /// Warnings that have been given.
    pub(super) warned: Warned,
}

#[derive(Default)]
pub(super) struct Warned {
    pub(super) unknown: bool,
    pub(super) jumps: bool,
    pub(super) segment: bool,
}

impl<'a> Engine<'a> {
    pub(super) fn new(
        shared: &'a TracerState,
        truth: TruthOutput,
        root: pid_t,
        breakpoints: bool,
    ) -> Engine<'a> {
        Engine {
            shared,
            truth,
            tasks: HashMap::new(),
            early: HashMap::new(),
            newborn: Vec::new(),
            traps: Vec::new(),
            clock: 0,
            window: RecordingWindow::new(None, None),
            root,
            status: 0,
            affinity: None,
            breakpoints,
            killing: false,
            control_watcher: None,
            detaching: None,
            warned: Warned::default(),
        }
    }
}

/// The phase between the edges.
pub(super) const PHASE_TRACED: usize = 1;

/// The edges, and the number of edges passed.
#[derive(Clone, Debug)]
pub(super) struct RecordingWindow {
    pub(super) edges: [Option<WindowEdge>; 2],
    pub(super) phase: usize,
    /// Retired instructions at the start edge.
    pub(super) started: u64,
}

impl RecordingWindow {
    pub(super) fn new(start: Option<WindowEdge>, stop: Option<WindowEdge>) -> RecordingWindow {
        RecordingWindow {
            phase: usize::from(start.is_none()),
            edges: [start, stop],
            started: 0,
        }
    }

    /// Returns whether threads start untraced.
    pub(super) fn starts_untraced(&self) -> bool {
        self.edges[0].is_some()
    }

    pub(super) fn is_used(&self) -> bool {
        self.edges != [None, None]
    }
}
