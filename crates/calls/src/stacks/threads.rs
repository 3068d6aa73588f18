//! Several threads with the stacks of one process.
//!
//! Each thread has a current stack; suspended stacks belong to the process. The caller chooses which thread is reported
//! until when. [`CallStacks::wait`] shows where that matters: before a thread suspends or resumes a stack, the other
//! threads must have come as far.
//!
//! A trace of the kernel has the tasks of a processor one after the other. A task is a thread here; the kernel's
//! `__switch_to` switches from one to the other ([`CallStacks::switch_thread`]).

use rtit_flow::AddressMap;

use crate::log::{CallEnd, CallLog};
use crate::tree::NO_NODE;

use super::records::Moment;
use super::{CallStacks, CodeInfo, Link, RootKind};

/// Permission of a thread to suspend or resume a stack: the other threads have come as far.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SwitchPermit {
    /// If the thread resumes an unknown stack, it waits longer: another thread with a late clock may suspend it.
    KnownStack,
    /// If the thread resumes an unknown stack, that stays unknown.
    AnyStack,
}

/// What a thread waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    ForTime,
    /// That another thread suspends the stack that this one resumes.
    ForStack,
}

/// The state of a thread while another one is reported.
#[derive(Debug)]
pub(super) struct ThreadState {
    pub(super) current: Link,
    node: u32,
    next_root: RootKind,
    excess_calls: u64,
    is_in_restorer: bool,
    replaces_program: bool,
    pub(super) before_loss: AddressMap<u32>,
    pub(super) lost_stack: Link,
    lost_at: Moment,
    /// Where the thread stopped.
    pub(super) moment: Moment,
}

impl ThreadState {
    fn new(first_root: RootKind, thread: u32) -> ThreadState {
        ThreadState {
            current: Link::Empty,
            node: NO_NODE,
            next_root: first_root,
            excess_calls: 0,
            is_in_restorer: false,
            replaces_program: false,
            before_loss: AddressMap::default(),
            lost_stack: Link::Empty,
            lost_at: Moment::default(),
            moment: Moment {
                thread,
                ..Moment::default()
            },
        }
    }

    pub(super) fn links_mut(&mut self) -> impl Iterator<Item = &mut Link> {
        [&mut self.current, &mut self.lost_stack].into_iter()
    }
}

impl<C: CodeInfo, L: CallLog> CallStacks<C, L> {
    /// What follows is reported for a thread, which began before or begins here.
    pub fn switch_thread(&mut self, thread: u32) {
        if thread == self.thread {
            return;
        }
        self.share_frames();
        self.exchange_state();
        self.thread = thread;
        self.exchange_state();
    }

    /// Whether a processor must wait before its kernel switches to another task: another processor may still run it.
    pub fn must_wait_before_switch(&mut self) -> bool {
        self.must_wait()
    }

    /// `__switch_to` returned: to where the task called the scheduler, or to where a new task starts.
    pub fn return_from_switch(&mut self, to: u64) {
        let caller = self
            .frames_below(self.current)
            .find(|(_, frame)| frame.returns() && frame.return_address == to);
        if let Some((_, frame)) = caller {
            self.counts.returned += 1;
            return self.leave_to(frame.up, CallEnd::Returned);
        }
        self.leave_to(Link::Empty, CallEnd::Returned);
        let is_new = self.is_entry(to);
        self.start_stack(if is_new {
            RootKind::NewStack
        } else {
            RootKind::Caller
        });
    }

    /// Moves the state of the running thread to `threads`, and at the second call back.
    pub(super) fn exchange_state(&mut self) {
        while self.threads.len() <= self.thread as usize {
            let next = self.threads.len() as u32;
            self.threads.push(ThreadState::new(self.first_root, next));
        }
        let Some(state) = self.threads.get_mut(self.thread as usize) else {
            return;
        };
        std::mem::swap(&mut self.current, &mut state.current);
        std::mem::swap(&mut self.node, &mut state.node);
        std::mem::swap(&mut self.next_root, &mut state.next_root);
        std::mem::swap(&mut self.excess_calls, &mut state.excess_calls);
        std::mem::swap(&mut self.is_in_restorer, &mut state.is_in_restorer);
        std::mem::swap(&mut self.replaces_program, &mut state.replaces_program);
        std::mem::swap(&mut self.before_loss, &mut state.before_loss);
        std::mem::swap(&mut self.records.lost_stack, &mut state.lost_stack);
        std::mem::swap(&mut self.records.lost_at, &mut state.lost_at);
        std::mem::swap(&mut self.records.now, &mut state.moment);
    }

    /// Switches of the threads must be reported in the order of time: a thread waits before each.
    pub fn order_switches(&mut self) {
        self.orders_switches = true;
    }

    /// Why the last transfer was not followed: it must be reported again after `permit_switch`.
    #[inline]
    pub fn wait(&self) -> Option<Wait> {
        self.wait
    }

    /// The running thread may switch stacks, until `end_permit`.
    pub fn permit_switch(&mut self, permit: SwitchPermit) {
        self.permit = Some(permit);
        self.wait = None;
    }

    pub fn end_permit(&mut self) {
        self.permit = None;
    }

    #[inline]
    pub(super) fn must_wait(&mut self) -> bool {
        let must_wait = self.orders_switches && self.permit.is_none();
        if must_wait {
            self.wait = Some(Wait::ForTime);
        }
        must_wait
    }

    /// Whether another thread may still suspend the stack that returns to `to`.
    pub(super) fn must_wait_for_stack(&mut self, to: u64) -> bool {
        let must_wait = self.permit == Some(SwitchPermit::KnownStack)
            && !self.suspended_by_return.contains_key(&to)
            && self.frames_returning_to(to).is_empty()
            && self.taken_returning_to(to).is_empty()
            && self.suspended_with_return_to(to).next().is_none();
        if must_wait {
            self.wait = Some(Wait::ForStack);
        }
        must_wait
    }
}
