//! What the tracing thread knows between two stops.

use std::collections::HashMap;
use std::time::Instant;

use libc::pid_t;

use crate::engine::window::Window;
use crate::shared::Shared;
use crate::sys::Status;
use crate::task::Task;
use crate::truth::Truth;

pub(super) struct Engine<'a> {
    pub(super) shared: &'a Shared,
    pub(super) truth: Truth,
    /// All threads that have not ended. The one whose stop is being handled is taken out.
    pub(super) tasks: HashMap<pid_t, Task>,
    /// Stops of threads whose parent has not yet said that it started them.
    pub(super) early: HashMap<pid_t, Vec<Status>>,
    /// Threads that were just started.
    pub(super) newborn: Vec<pid_t>,
    /// A SIGTRAP that waits for a thread of its process that may have it.
    pub(super) traps: Vec<(pid_t, libc::siginfo_t)>,
    /// Instructions retired by all threads.
    pub(super) clock: u64,
    pub(super) window: Window,
    pub(super) root: pid_t,
    /// Wait status of the first process.
    pub(super) status: i32,
    /// The CPUs that the program would run on without us, if we chose one for it.
    pub(super) affinity: Option<Vec<u8>>,
    pub(super) breakpoints: bool,
    /// Everything has been told to die.
    pub(super) killing: bool,
    /// For programs that ran before: the child whose end asks us to let go of them.
    pub(super) bell: Option<pid_t>,
    /// Since when everything has been told to stop for the last time.
    pub(super) detaching: Option<Instant>,
    /// Warnings that are given once.
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
        shared: &'a Shared,
        truth: Truth,
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
            window: Window::new(None, None),
            root,
            status: 0,
            affinity: None,
            breakpoints,
            killing: false,
            bell: None,
            detaching: None,
            warned: Warned::default(),
        }
    }
}
