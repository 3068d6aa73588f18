//! Calls between functions, with the instructions that ran until each returned.
//!
//! [`CallSink`] keeps a call stack. A jump to another function counts as a call that returns where the caller returns.
//! A return to an address that is not on the stack is ignored; one to an outer frame ends all calls above it.

use std::collections::HashMap;

use rtit_flow::{AddressMap, Event, EventKind, RunEnd, RunFragment, Sink, SinkNeeds};

use crate::names::NameCursor;

/// Depth of the call stack; deeper calls are not followed.
const MAX_DEPTH: usize = 1 << 20;
/// Frames that are searched for a return address.
const MAX_SEARCH: usize = 1 << 12;
/// Jumps from function to function in a row that have a frame each.
const MAX_JUMP_FRAMES: usize = 64;
/// Contexts, and the sum of their depths, as each is printed with all its callers. Calls beyond belong to the context
/// of their caller.
const MAX_CONTEXTS: usize = 1 << 20;
const MAX_TOTAL_DEPTH: usize = 1 << 25;
/// Entries of the caches of recursive calls and of jumps.
const MAX_CACHED_CALLS: usize = 1 << 19;
const MAX_CACHED_JUMPS: usize = 1 << 17;
/// No region, or no row.
pub const NONE: u32 = u32::MAX;

/// An address: a region, and an offset in its file; without a region, the address itself.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct CallSiteAddress {
    pub region: u32,
    pub offset: u64,
}

const NO_SITE: CallSiteAddress = CallSiteAddress {
    region: NONE,
    offset: 0,
};

/// All calls from one site to another. `from` is `NO_SITE` for the code that ran first.
#[derive(Clone, Copy, Debug)]
pub struct CallTotal {
    pub from: CallSiteAddress,
    pub to: CallSiteAddress,
    pub calls: u64,
    /// Instructions that ran until the call returned; those of recursive calls count once.
    pub inclusive: u64,
    active: u64,
    since: u64,
}

/// A call with its callers. A recursive call has the context of the first.
#[derive(Clone, Copy, Debug)]
pub struct CallContext {
    /// Index of the context of the caller; `NONE` at the bottom of the stack.
    pub parent: u32,
    /// Index of the `CallTotal`.
    pub call: u32,
    /// Instructions of the called function itself.
    pub own: u64,
}

struct CallFrame {
    call: u32,
    context: u32,
    return_address: u64,
    /// The function was entered by a jump.
    is_jump: bool,
}

/// The sink that follows calls.
pub struct CallSink {
    names: NameCursor,
    /// Pairs of sites that have a total each.
    max_totals: usize,
    /// Instructions so far.
    now: u64,
    /// How the last run ended, the IP of its last instruction and of the following one in memory.
    pending: Option<(RunEnd, u64, u64)>,
    last: (u64, u64),
    stack: Vec<CallFrame>,
    calls: Vec<CallTotal>,
    by_ends: HashMap<(CallSiteAddress, CallSiteAddress), u32>,
    contexts: Vec<CallContext>,
    /// The number of callers of each context, and the sum of them.
    depths: Vec<u32>,
    total_depth: usize,
    /// The context of each call in a caller's context.
    by_call: HashMap<(u32, u32), u32>,
    /// Calls beyond the limits of depth and contexts.
    beyond: u64,
    /// Calls beyond `max_totals`.
    between: u64,
    /// Jumps from and to, and whether to another function.
    jumps: AddressMap<(u64, u64, bool)>,
}

impl CallSink {
    /// Only the first `max_totals` pairs of sites have a total each.
    pub fn new(names: NameCursor, max_totals: usize) -> CallSink {
        CallSink {
            names,
            max_totals,
            now: 0,
            pending: None,
            last: (0, 0),
            stack: Vec::new(),
            calls: Vec::new(),
            by_ends: HashMap::new(),
            contexts: Vec::new(),
            depths: Vec::new(),
            total_depth: 0,
            by_call: HashMap::new(),
            beyond: 0,
            between: 0,
            jumps: AddressMap::default(),
        }
    }

    /// Returns the number of calls beyond the limits of depth and contexts, whose instructions count for a caller.
    pub fn calls_beyond_limits(&self) -> u64 {
        self.beyond
    }

    /// Returns the number of calls beyond `max_totals`, whose instructions count for a caller.
    pub fn calls_beyond_max_totals(&self) -> u64 {
        self.between
    }

    /// Ends all calls and returns the totals.
    pub fn finish_calls(&mut self) -> (Vec<CallTotal>, Vec<CallContext>) {
        self.end_calls_from_depth(0);
        (
            std::mem::take(&mut self.calls),
            std::mem::take(&mut self.contexts),
        )
    }

    fn site_of_address(&self, ip: u64) -> CallSiteAddress {
        let region = self
            .names
            .find_name_of_address(ip)
            .map(|found| found.region);
        let known = region
            .and_then(|index| Some((index, self.names.process_names().region_at_index(index)?)));
        match known {
            None => CallSiteAddress {
                region: NONE,
                offset: ip,
            },
            Some((index, region)) => CallSiteAddress {
                region: index,
                offset: (ip - region.start).wrapping_add(region.offset),
            },
        }
    }

    fn enter_call(&mut self, from: CallSiteAddress, to: u64, return_address: u64, is_jump: bool) {
        if self.stack.len() >= MAX_DEPTH {
            self.beyond += 1;
            return;
        }
        let mut ends = (from, self.site_of_address(to));
        if self.by_ends.len() >= self.max_totals && !self.by_ends.contains_key(&ends) {
            self.between += 1;
            if !self.stack.is_empty() {
                return;
            }
            // the stack is never empty while code runs
            ends = (NO_SITE, NO_SITE);
        }
        let call = self.total_index_of_call(ends);
        let mut is_recursive = false;
        if let Some(total) = self.calls.get_mut(call as usize) {
            is_recursive = total.active > 0;
            total.calls += 1;
            total.active += 1;
            if total.active == 1 {
                total.since = self.now;
            }
        }
        let parent = self.stack.last().map_or(NONE, |frame| frame.context);
        let context = self.context_of_call(parent, call, is_recursive);
        self.stack.push(CallFrame {
            call,
            context,
            return_address,
            is_jump,
        });
    }

    /// Returns the index of the total of calls from one site to another.
    fn total_index_of_call(&mut self, (from, to): (CallSiteAddress, CallSiteAddress)) -> u32 {
        let calls = &mut self.calls;
        *self.by_ends.entry((from, to)).or_insert_with(|| {
            calls.push(CallTotal {
                from,
                to,
                calls: 0,
                inclusive: 0,
                active: 0,
                since: 0,
            });
            calls.len() as u32 - 1
        })
    }

    /// Returns the context of a call in that of its caller. `is_recursive`: the same call has not returned yet.
    fn context_of_call(&mut self, parent: u32, call: u32, is_recursive: bool) -> u32 {
        if let Some(&known) = self.by_call.get(&(parent, call)) {
            return known;
        }
        // a call that is active again is among the callers
        let known = if is_recursive {
            find_recursive(&self.contexts, parent, call)
        } else {
            NONE
        };
        if known != NONE {
            if self.by_call.len() < MAX_CACHED_CALLS {
                self.by_call.insert((parent, call), known);
            }
            return known;
        }
        let above = self.depths.get(parent as usize);
        let depth = above.map_or(0, |above| above + 1);
        let total_depth = self.total_depth + depth as usize;
        let too_many = self.contexts.len() >= MAX_CONTEXTS || total_depth > MAX_TOTAL_DEPTH;
        if too_many && parent != NONE {
            self.beyond += 1;
            return parent;
        }
        self.total_depth = total_depth;
        self.depths.push(depth);
        self.contexts.push(CallContext {
            parent,
            call,
            own: 0,
        });
        let context = self.contexts.len() as u32 - 1;
        // without a limit: another call would make the context again
        self.by_call.insert((parent, call), context);
        context
    }

    /// Ends all calls from this depth on.
    fn end_calls_from_depth(&mut self, depth: usize) {
        for frame in self.stack.drain(depth..) {
            if let Some(total) = self.calls.get_mut(frame.call as usize) {
                total.active = total.active.saturating_sub(1);
                if total.active == 0 {
                    total.inclusive += self.now - total.since;
                }
            }
        }
    }

    fn return_to_caller_at(&mut self, to: u64) {
        let searched = self.stack.iter().rev().take(MAX_SEARCH);
        let Some(above) = searched
            .enumerate()
            .find_map(|(above, frame)| (frame.return_address == to).then_some(above))
        else {
            return;
        };
        let mut depth = self.stack.len() - 1 - above;
        // a function that was entered by a jump returns for the one that jumped
        while depth > 0 && self.stack.get(depth).is_some_and(|frame| frame.is_jump) {
            depth -= 1;
        }
        if depth > 0 {
            self.end_calls_from_depth(depth);
        }
    }

    fn follow_jump(&mut self, from: u64, to: u64) {
        let key = from ^ to.rotate_left(32);
        let known = self.jumps.get(&key).copied();
        let is_other_function = match known {
            Some((a, b, is_other)) if (a, b) == (from, to) => is_other,
            _ => {
                let owner = |ip| {
                    let found = self.names.find_name_of_address(ip);
                    found.map(|found| (found.region, found.function.map(|(index, _)| index)))
                };
                let is_other = owner(from) != owner(to);
                if self.jumps.len() >= MAX_CACHED_JUMPS {
                    self.jumps.clear();
                }
                self.jumps.insert(key, (from, to, is_other));
                is_other
            }
        };
        if !is_other_function {
            return;
        }
        let jumps = self.stack.iter().rev().take_while(|frame| frame.is_jump);
        if jumps.take(MAX_JUMP_FRAMES).count() == MAX_JUMP_FRAMES {
            self.end_calls_from_depth(self.stack.len() - 1);
        }
        let return_address = self.stack.last().map_or(0, |frame| frame.return_address);
        // the bottom frame has no caller to return to
        let is_jump = self.stack.len() > 1;
        let from = self.site_of_address(from);
        self.enter_call(from, to, return_address, is_jump);
    }

    /// The next instruction is at `ip`.
    fn arrive_at_instruction(&mut self, ip: u64) {
        match self.pending.take() {
            Some((RunEnd::Call | RunEnd::IndirectCall, from, return_address)) => {
                let from = self.site_of_address(from);
                self.enter_call(from, ip, return_address, false);
            }
            Some((RunEnd::Return, ..)) => self.return_to_caller_at(ip),
            Some((RunEnd::Jump | RunEnd::IndirectJump | RunEnd::Conditional, from, _)) => {
                self.follow_jump(from, ip);
            }
            _ => {}
        }
        if self.stack.is_empty() {
            self.enter_call(NO_SITE, ip, 0, false);
        }
    }
}

/// Returns the context of the same call among the callers; `NONE` if there is none.
fn find_recursive(contexts: &[CallContext], parent: u32, call: u32) -> u32 {
    let mut at = parent;
    while let Some(context) = contexts.get(at as usize) {
        if context.call == call {
            return at;
        }
        at = context.parent;
    }
    NONE
}

impl Sink for CallSink {
    const NEEDS: SinkNeeds = SinkNeeds::Order;

    #[inline]
    fn extend_run(&mut self, fragment: &RunFragment<'_>, _time: u64) {
        if self.pending.is_some() || self.stack.is_empty() {
            self.arrive_at_instruction(fragment.start);
        }
        let count = fragment.lengths.len() as u64;
        self.now += count;
        let context = self.stack.last().map_or(NONE, |frame| frame.context);
        if let Some(context) = self.contexts.get_mut(context as usize) {
            context.own += count;
        }
        let length = fragment.lengths.last().copied().unwrap_or(0);
        self.last = (fragment.last, fragment.last.wrapping_add(length.into()));
    }

    #[inline]
    fn end_run(&mut self, end: RunEnd, _offset: u64) {
        match end {
            RunEnd::Cut => {}
            RunEnd::Lost => {
                self.pending = None;
                self.end_calls_from_depth(0);
            }
            _ => self.pending = Some((end, self.last.0, self.last.1)),
        }
    }

    fn add_event(&mut self, event: &Event) {
        match event.kind {
            EventKind::Async | EventKind::AsyncDisabled if self.pending.is_some() => {
                self.arrive_at_instruction(event.ip);
            }
            EventKind::Disabled | EventKind::Enabled => self.pending = None,
            _ => {}
        }
    }

    fn set_code_time(&mut self, time: u64) {
        if self.names.may_names_change_by(time) && self.names.advance_to_time(time) {
            self.jumps.clear();
        }
    }
}
