//! Who called whom from where, and how many instructions ran until each call returned.
//!
//! Calls and returns are followed on a stack of our own. A jump to another function counts as a call that returns where
//! the caller's does. A return to no known place changes nothing; one to a place further up ends all calls above it.

use std::collections::HashMap;

use rtit_flow::{AddressMap, Event, EventKind, RunEnd, RunFragment, Sink, SinkNeeds};

use crate::names::Cursor;

/// No deeper: calls beyond are not followed.
const DEEPEST: usize = 1 << 20;
/// So many frames are searched for the place of a return.
const SEARCHED: usize = 1 << 12;
/// So many jumps from function to function in a row are kept apart.
const JUMPS: usize = 64;
/// Contexts beyond belong to the one that they were called from.
const MOST_CONTEXTS: usize = 1 << 20;
/// So do those beyond so many calls of all contexts together: each is told with all that it is within.
const MOST_WITHIN: usize = 1 << 25;
/// What is known of more pairs (a caller's context and a call) is looked for anew.
const MOST_PAIRS: usize = 1 << 19;
/// So is what is known of more jumps.
const MOST_JUMPS: usize = 1 << 17;
/// Stands for a region or a row that there is not.
pub const NONE: u32 = u32::MAX;

/// A place in the code: a region, and an offset in its file; without a region an address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Site {
    pub region: u32,
    pub offset: u64,
}

const NOWHERE: Site = Site {
    region: NONE,
    offset: 0,
};

/// All calls from one place to another. `from` is nowhere for what ran first.
#[derive(Clone, Copy, Debug)]
pub struct CallTotal {
    pub from: Site,
    pub to: Site,
    pub calls: u64,
    /// Instructions that ran until it returned; where it was called again meanwhile they count once.
    pub inclusive: u64,
    active: u64,
    since: u64,
}

/// A call within others. One that is made again before it returns belongs to the first.
#[derive(Clone, Copy, Debug)]
pub struct Context {
    /// Index of the context of the caller, `NONE` at the bottom.
    pub parent: u32,
    /// Index of the calls.
    pub call: u32,
    /// Instructions of the called function itself.
    pub own: u64,
}

struct Frame {
    call: u32,
    context: u32,
    /// Where it returns to.
    back: u64,
    jumped: bool,
}

/// The sink that follows calls.
pub struct Calls {
    names: Cursor,
    /// Pairs of places of which calls are told apart.
    most: usize,
    now: u64,
    /// How the last run ended, and the last and the next IP in memory.
    pending: Option<(RunEnd, u64, u64)>,
    last: (u64, u64),
    stack: Vec<Frame>,
    calls: Vec<CallTotal>,
    by_ends: HashMap<(Site, Site), u32>,
    contexts: Vec<Context>,
    /// Within how many others each context is, and of all together.
    depths: Vec<u32>,
    within: usize,
    by_call: HashMap<(u32, u32), u32>,
    /// Calls too deep to follow, and those that would have been contexts more than there may be.
    beyond: u64,
    /// Those between places beyond `most`.
    between: u64,
    /// Whether a jump leads to another function.
    jumps: AddressMap<(u64, u64, bool)>,
}

impl Calls {
    /// Calls between more pairs of places than `most` are not told apart.
    pub fn new(names: Cursor, most: usize) -> Calls {
        Calls {
            names,
            most,
            now: 0,
            pending: None,
            last: (0, 0),
            stack: Vec::new(),
            calls: Vec::new(),
            by_ends: HashMap::new(),
            contexts: Vec::new(),
            depths: Vec::new(),
            within: 0,
            by_call: HashMap::new(),
            beyond: 0,
            between: 0,
            jumps: AddressMap::default(),
        }
    }

    /// How many calls have no place of their own, as they are deeper than 2^20 others, or in contexts beyond
    /// `MOST_CONTEXTS` and `MOST_WITHIN`: what ran in them counts for a caller.
    pub fn beyond(&self) -> u64 {
        self.beyond
    }

    /// Likewise, as they are between other places than the first `most`.
    pub fn between(&self) -> u64 {
        self.between
    }

    /// All calls return now; what there was.
    pub fn finish(&mut self) -> (Vec<CallTotal>, Vec<Context>) {
        self.unwind(0);
        (
            std::mem::take(&mut self.calls),
            std::mem::take(&mut self.contexts),
        )
    }

    fn site(&self, ip: u64) -> Site {
        let region = self.names.find(ip).map(|found| found.region);
        let known = region.and_then(|index| Some((index, self.names.names().region(index)?)));
        match known {
            None => Site {
                region: NONE,
                offset: ip,
            },
            Some((index, region)) => Site {
                region: index,
                offset: (ip - region.start).wrapping_add(region.offset),
            },
        }
    }

    fn enter(&mut self, from: Site, to: u64, back: u64, jumped: bool) {
        if self.stack.len() >= DEEPEST {
            self.beyond += 1;
            return;
        }
        let mut ends = (from, self.site(to));
        if self.by_ends.len() >= self.most && !self.by_ends.contains_key(&ends) {
            self.between += 1;
            if !self.stack.is_empty() {
                return;
            }
            // what runs counts for somebody
            ends = (NOWHERE, NOWHERE);
        }
        let call = self.call(ends);
        let mut again = false;
        if let Some(total) = self.calls.get_mut(call as usize) {
            again = total.active > 0;
            total.calls += 1;
            total.active += 1;
            if total.active == 1 {
                total.since = self.now;
            }
        }
        let parent = self.stack.last().map_or(NONE, |frame| frame.context);
        let context = self.context(parent, call, again);
        self.stack.push(Frame {
            call,
            context,
            back,
            jumped,
        });
    }

    /// The number of the calls from one place to another.
    fn call(&mut self, (from, to): (Site, Site)) -> u32 {
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

    /// The context of a call within that of its caller; `again`: it has been made and has not returned.
    fn context(&mut self, parent: u32, call: u32, again: bool) -> u32 {
        if let Some(&known) = self.by_call.get(&(parent, call)) {
            return known;
        }
        // the calls of a caller's contexts have not returned: no other is among them
        let known = if again {
            folded(&self.contexts, parent, call)
        } else {
            NONE
        };
        if known != NONE {
            if self.by_call.len() < MOST_PAIRS {
                self.by_call.insert((parent, call), known);
            }
            return known;
        }
        let above = self.depths.get(parent as usize);
        let depth = above.map_or(0, |above| above + 1);
        let within = self.within + depth as usize;
        let too_many = self.contexts.len() >= MOST_CONTEXTS || within > MOST_WITHIN;
        if too_many && parent != NONE {
            self.beyond += 1;
            return parent;
        }
        self.within = within;
        self.depths.push(depth);
        self.contexts.push(Context {
            parent,
            call,
            own: 0,
        });
        let context = self.contexts.len() as u32 - 1;
        // however many there are: it would be made again
        self.by_call.insert((parent, call), context);
        context
    }

    /// Ends all calls from the `depth`th on.
    fn unwind(&mut self, depth: usize) {
        for frame in self.stack.drain(depth..) {
            if let Some(total) = self.calls.get_mut(frame.call as usize) {
                total.active = total.active.saturating_sub(1);
                if total.active == 0 {
                    total.inclusive += self.now - total.since;
                }
            }
        }
    }

    fn leave(&mut self, to: u64) {
        let searched = self.stack.iter().rev().take(SEARCHED);
        let Some(above) = searched
            .enumerate()
            .find_map(|(above, frame)| (frame.back == to).then_some(above))
        else {
            return;
        };
        let mut depth = self.stack.len() - 1 - above;
        // a function that was jumped to returns for the one that jumped
        while depth > 0 && self.stack.get(depth).is_some_and(|frame| frame.jumped) {
            depth -= 1;
        }
        if depth > 0 {
            self.unwind(depth);
        }
    }

    fn jump(&mut self, from: u64, to: u64) {
        let key = from ^ to.rotate_left(32);
        let known = self.jumps.get(&key).copied();
        let elsewhere = match known {
            Some((a, b, elsewhere)) if (a, b) == (from, to) => elsewhere,
            _ => {
                let owner = |ip| {
                    let found = self.names.find(ip);
                    found.map(|found| (found.region, found.function.map(|(index, _)| index)))
                };
                let elsewhere = owner(from) != owner(to);
                if self.jumps.len() >= MOST_JUMPS {
                    self.jumps.clear();
                }
                self.jumps.insert(key, (from, to, elsewhere));
                elsewhere
            }
        };
        if !elsewhere {
            return;
        }
        let jumps = self.stack.iter().rev().take_while(|frame| frame.jumped);
        if jumps.take(JUMPS).count() == JUMPS {
            self.unwind(self.stack.len() - 1);
        }
        let back = self.stack.last().map_or(0, |frame| frame.back);
        // at the bottom there is nothing that it could return for
        let jumped = self.stack.len() > 1;
        let from = self.site(from);
        self.enter(from, to, back, jumped);
    }

    /// The next instruction is at `ip`.
    fn arrive(&mut self, ip: u64) {
        match self.pending.take() {
            Some((RunEnd::Call | RunEnd::IndirectCall, from, back)) => {
                let from = self.site(from);
                self.enter(from, ip, back, false);
            }
            Some((RunEnd::Return, ..)) => self.leave(ip),
            Some((RunEnd::Jump | RunEnd::IndirectJump | RunEnd::Conditional, from, _)) => {
                self.jump(from, ip);
            }
            _ => {}
        }
        if self.stack.is_empty() {
            self.enter(NOWHERE, ip, 0, false);
        }
    }
}

/// The context of the same call further down, `NONE` if there is none: recursion makes no new contexts.
fn folded(contexts: &[Context], parent: u32, call: u32) -> u32 {
    let mut at = parent;
    while let Some(context) = contexts.get(at as usize) {
        if context.call == call {
            return at;
        }
        at = context.parent;
    }
    NONE
}

impl Sink for Calls {
    const NEEDS: SinkNeeds = SinkNeeds::Order;

    #[inline]
    fn extend_run(&mut self, fragment: &RunFragment<'_>, _time: u64) {
        if self.pending.is_some() || self.stack.is_empty() {
            self.arrive(fragment.start);
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
                self.unwind(0);
            }
            _ => self.pending = Some((end, self.last.0, self.last.1)),
        }
    }

    fn event(&mut self, event: &Event) {
        match event.kind {
            EventKind::Async | EventKind::AsyncDisabled if self.pending.is_some() => {
                self.arrive(event.ip);
            }
            EventKind::Disabled | EventKind::Enabled => self.pending = None,
            _ => {}
        }
    }

    fn set_code_time(&mut self, time: u64) {
        if self.names.changes_by(time) && self.names.advance(time) {
            self.jumps.clear();
        }
    }
}
