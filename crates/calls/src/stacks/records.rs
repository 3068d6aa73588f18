//! What a `CallLog` needs to know about each frame.

use crate::log::{CallEnd, CallLog, EndedCall, NO_CALL};
use crate::tree::CallKind;

use super::{CallStacks, CodeInfo, Link};

/// Calls of each choice that wait for their caller; calls beyond get the one of the stack taken.
const MAX_PENDING_CALLS: usize = 1 << 12;
/// How deeply the settling of one choice may settle others.
const MAX_SETTLING: u32 = 64;
/// No choice below a frame.
pub(super) const NO_CHOICE: u32 = u32::MAX;

/// The log, and the state of the calls that have not ended.
#[derive(Debug)]
pub(super) struct CallRecords<L> {
    pub(super) log: L,
    /// One for each frame, if the log is enabled.
    pub(super) of_frames: Vec<CallRecord>,
    next_id: u64,
    /// The running thread, and its instructions so far.
    pub(super) now: Moment,
    /// The stack before the last loss, if it may go on, and the moment of the loss.
    pub(super) lost_stack: Link,
    pub(super) lost_at: Moment,
    /// The nesting of `settle_left_choices`.
    settling: u32,
}

/// The call of a frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct CallRecord {
    id: u64,
    stack: u64,
    depth: u32,
    call: u32,
    begin: Moment,
    /// Instructions of the function itself, and of the callees that have ended.
    own: u64,
    in_callees: u64,
    /// The open choice that is next below this frame.
    pub(super) choice: u32,
    has_ended: bool,
}

/// A point of the execution of a thread.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Moment {
    pub(super) thread: u32,
    pub(super) executed: u64,
    pub(super) time: u64,
}

impl<L> CallRecords<L> {
    pub(super) fn new(log: L) -> CallRecords<L> {
        CallRecords {
            log,
            of_frames: Vec::new(),
            next_id: 0,
            now: Moment::default(),
            lost_stack: Link::Empty,
            lost_at: Moment::default(),
            settling: 0,
        }
    }
}

impl<C: CodeInfo, L: CallLog> CallStacks<C, L> {
    /// The transfers and instructions that follow occur at `time`.
    #[inline]
    pub fn set_time(&mut self, time: u64) {
        self.records.now.time = time;
    }

    pub fn time(&self) -> u64 {
        self.records.now.time
    }

    pub fn log(&self) -> &L {
        &self.records.log
    }

    pub fn log_mut(&mut self) -> &mut L {
        &mut self.records.log
    }

    pub(super) fn moment(&self) -> Moment {
        self.records.now
    }

    /// Where the thread is that began the call of a frame.
    fn last_moment_of_call(&self, at: u32) -> Moment {
        let thread = self
            .record(at)
            .map_or(self.thread, |record| record.begin.thread);
        match self.threads.get(thread as usize) {
            Some(state) if thread != self.thread => state.moment,
            _ => self.moment(),
        }
    }

    fn record(&self, at: u32) -> Option<&CallRecord> {
        self.records.of_frames.get(at as usize)
    }

    fn record_mut(&mut self, at: u32) -> Option<&mut CallRecord> {
        self.records.of_frames.get_mut(at as usize)
    }

    /// Records the call of a new frame, which is not in `frames` yet.
    #[inline]
    pub(super) fn begin_call(&mut self, call: u32) {
        if !L::IS_ENABLED {
            return;
        }
        let parent = self.frame_index(self.current);
        let parent = parent.and_then(|at| self.record(at));
        let choice = match self.current {
            Link::Choice(index) => index,
            _ => parent.map_or(NO_CHOICE, |parent| parent.choice),
        };
        let depth = parent.map_or(0, |parent| parent.depth.saturating_add(1));
        let stack = parent.map_or(self.records.next_id, |parent| parent.stack);
        self.records.of_frames.push(CallRecord {
            id: self.records.next_id,
            stack,
            depth,
            call,
            begin: self.moment(),
            own: 0,
            in_callees: 0,
            choice,
            has_ended: false,
        });
        self.records.next_id += 1;
    }

    /// Adds instructions of the newest function of the current stack.
    #[inline]
    pub(super) fn log_instructions(&mut self, instructions: u64) {
        if L::IS_ENABLED {
            self.add_own_instructions(self.current, instructions);
        }
    }

    fn add_own_instructions(&mut self, link: Link, instructions: u64) {
        if let Link::Choice(index) = link {
            let choice = self.choices.get_mut(index as usize);
            let level = choice
                .filter(|choice| choice.is_open)
                .and_then(|choice| choice.levels.last_mut());
            if let Some(level) = level {
                level.own += instructions;
                return;
            }
        }
        let newest = self.frame_index(link);
        if let Some(record) = newest.and_then(|at| self.record_mut(at)) {
            record.own += instructions;
            // A function may return twice, as getcontext does.
            record.has_ended = false;
        }
    }

    /// The index of the newest frame of a stack.
    pub(super) fn frame_index(&self, mut link: Link) -> Option<u32> {
        loop {
            match link {
                Link::Frame(at) => return Some(at),
                Link::Choice(index) => link = self.position_taken(index),
                Link::Empty | Link::Refuted => return None,
            }
        }
    }

    /// The calls of the current stack that `link` does not have end. `link` is the current stack from now on.
    pub(super) fn leave_to(&mut self, link: Link, end: CallEnd) {
        self.end_calls(self.current, link, end, self.moment());
        self.set_current(link);
    }

    /// The newest call of the current stack has returned.
    #[inline]
    pub(super) fn end_newest_call(&mut self, at: u32) {
        if L::IS_ENABLED {
            self.end_call(at, CallEnd::Returned, self.moment());
        }
    }

    /// Ends the calls of the stack `from` that `to` does not have.
    pub(super) fn end_calls(&mut self, from: Link, to: Link, end: CallEnd, moment: Moment) {
        if !L::IS_ENABLED {
            return;
        }
        self.settle_left_choices(from, to);
        let (mut from, mut to) = (self.frame_index(from), self.frame_index(to));
        // Frames have larger indices than those below them.
        while let Some(at) = from.filter(|_| from != to) {
            let Some(frame) = self.frame(at) else { break };
            if to.is_some_and(|to| to > at) {
                let above = to.and_then(|to| self.frame(to));
                to = above.and_then(|frame| self.frame_index(frame.up));
                continue;
            }
            self.end_call(at, end, moment);
            from = self.frame_index(frame.up);
        }
    }

    /// Settles the open choices of the stack `from` that are above `to`: no later return corrects them.
    fn settle_left_choices(&mut self, from: Link, to: Link) {
        if self.records.settling >= MAX_SETTLING {
            return;
        }
        self.records.settling += 1;
        let to = self.frame_index(to);
        let mut link = from;
        loop {
            link = match link {
                Link::Frame(at) if Some(at) > to => {
                    self.frame(at).map_or(Link::Empty, |frame| frame.up)
                }
                Link::Choice(index) => {
                    let taken = self.position_taken(index);
                    if self.frame_index(taken) > to {
                        self.settle(index);
                    }
                    taken
                }
                _ => break,
            };
        }
        self.records.settling -= 1;
    }

    /// Reports the call of a frame, unless it has ended before.
    fn end_call(&mut self, at: u32, end: CallEnd, moment: Moment) {
        let Some(frame) = self.frame(at) else { return };
        let Some(record) = self.record_mut(at) else {
            return;
        };
        if std::mem::replace(&mut record.has_ended, true) {
            return;
        }
        let own = std::mem::take(&mut record.own);
        let call = EndedCall {
            id: record.id,
            parent: NO_CALL,
            stack: record.stack,
            begin_thread: record.begin.thread,
            end_thread: moment.thread,
            depth: record.depth,
            call: record.call,
            kind: frame.call_kind(),
            end,
            is_ambiguous: false,
            first: record.begin.executed,
            next: moment.executed,
            own,
            total: own + std::mem::take(&mut record.in_callees),
            begin_time: record.begin.time,
            end_time: moment.time,
        };
        let choice = record.choice;
        if let Link::Choice(index) = frame.up {
            let choice = self.choices.get_mut(index as usize);
            let open = choice.filter(|choice| choice.is_open);
            if let Some(choice) = open.filter(|each| each.pending_calls.len() < MAX_PENDING_CALLS) {
                let level = choice.levels.len() - 1;
                choice.pending_calls.push((level, call));
                return;
            }
        }
        self.report_call(call, frame.up, choice);
    }

    /// Reports a call. The newest frame of the stack `caller` is the caller.
    fn report_call(&mut self, mut call: EndedCall, caller: Link, choice: u32) {
        let caller = self.frame_index(caller);
        if let Some(caller) = caller.and_then(|at| self.record_mut(at)) {
            call.parent = caller.id;
            if call.kind != CallKind::Signal {
                caller.in_callees += call.total;
            }
        }
        let choice = self.choices.get(choice as usize);
        call.is_ambiguous = choice.is_some_and(|choice| choice.is_open);
        self.records.log.add_call(call);
    }

    /// The newest call turned out to be part of its caller. If it made calls itself, it is reported nevertheless.
    pub(super) fn drop_newest_call(&mut self, at: u32) {
        if !L::IS_ENABLED {
            return;
        }
        let next_id = self.records.next_id;
        let caller = self.frame(at).map_or(Link::Empty, |frame| frame.up);
        match self.record_mut(at) {
            Some(record) if record.id + 1 == next_id => {
                record.has_ended = true;
                let own = std::mem::take(&mut record.own);
                self.records.next_id -= 1;
                self.add_own_instructions(caller, own);
            }
            _ => self.end_newest_call(at),
        }
    }

    /// The frame begins a stack of its own.
    pub(super) fn make_root_call(&mut self, at: u32, call: u32) {
        if let Some(record) = self.record_mut(at) {
            (record.call, record.depth, record.stack) = (call, 0, record.id);
        }
    }

    /// Ends the calls that the transfer and the returns of a choice left, now that its stack is known.
    pub(super) fn log_settled_choice(&mut self, index: u32) {
        if !L::IS_ENABLED {
            return;
        }
        let Some(choice) = self.choices.get_mut(index as usize) else {
            return;
        };
        let (pending, taken) = (std::mem::take(&mut choice.pending_calls), choice.taken);
        let origin = choice.candidates.get(taken).and_then(|each| each.origin);
        let (mut from, mut end) = (choice.before, choice.end);
        if let Some(origin) = origin {
            (from, end) = (Link::Frame(origin), CallEnd::Returned);
        }
        let position = |positions: &[Link]| positions.get(taken).copied().unwrap_or(Link::Empty);
        let levels: Vec<(Link, Moment, u64)> = choice
            .levels
            .iter()
            .map(|level| (position(&level.positions), level.reached, level.own))
            .collect();
        for &(link, _, own) in &levels {
            self.add_own_instructions(link, own);
        }
        for (level, mut call) in pending {
            let link = levels.get(level).map_or(Link::Empty, |level| level.0);
            let caller = self.frame_index(link);
            let caller = caller.and_then(|at| self.record(at));
            let choice_below = caller.map_or(NO_CHOICE, |caller| caller.choice);
            call.depth = caller.map_or(0, |caller| caller.depth + 1);
            self.report_call(call, link, choice_below);
        }
        for (link, reached, _) in levels {
            self.end_calls(from, link, end, reached);
            (from, end) = (link, CallEnd::Returned);
        }
    }

    /// Packets are lost: `lost`, which was the current stack, may go on later.
    pub(super) fn keep_lost_stack(&mut self, lost: Link) {
        if L::IS_ENABLED {
            self.records.lost_at = self.moment();
            self.records.lost_stack = lost;
        }
    }

    /// The stack before the loss goes on, at `link`.
    pub(super) fn rejoin_lost_stack(&mut self, link: Link) {
        self.end_lost_calls(link);
        self.set_current(link);
    }

    /// Ends the calls of the stack before the loss that `rest` does not have.
    pub(super) fn end_lost_calls(&mut self, rest: Link) {
        let lost = std::mem::replace(&mut self.records.lost_stack, Link::Empty);
        self.end_calls(lost, rest, CallEnd::Lost, self.records.lost_at);
    }

    /// Ends the calls of all suspended stacks.
    pub(super) fn end_suspended_calls(&mut self, end: CallEnd) {
        if L::IS_ENABLED {
            let tops: Vec<u32> = self.suspended.values().copied().collect();
            for at in tops {
                let moment = self.last_moment_of_call(at);
                self.end_calls(Link::Frame(at), Link::Empty, end, moment);
            }
        }
    }

    /// Ends the calls of the frames that no stack has: all but those with `keep`.
    pub(super) fn end_abandoned_calls(&mut self, keep: &[bool]) {
        for at in (0..self.records.of_frames.len()).rev() {
            if keep.get(at) != Some(&true) {
                let moment = self.last_moment_of_call(at as u32);
                self.end_call(at as u32, CallEnd::Suspended, moment);
            }
        }
    }

    /// Ends the calls of the current stack, and of the stack before a loss: the trace of the running thread ends.
    pub fn end_thread(&mut self) {
        self.leave_to(Link::Empty, CallEnd::Running);
        self.end_lost_calls(Link::Empty);
    }

    /// Ends all calls that have not ended.
    pub(super) fn end_all_calls(&mut self) {
        for thread in 0..self.threads.len() as u32 {
            self.switch_thread(thread);
            self.end_thread();
        }
        self.end_thread();
        self.end_suspended_calls(CallEnd::Suspended);
        self.end_abandoned_calls(&[]);
    }
}
