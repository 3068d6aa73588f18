//! Where the program is, and what TNT and TIP do to it.

use rtit_image::{Changed, Space, View};
use rtit_x86::Mode;

use super::parked::Others;
use super::stamp::Stamp;
use crate::code::{Code, Learned, Place, Stop, NO_NODE};
use crate::counts::Counts;
use crate::error::Cause;
use crate::settings::{FilterRanges, Settings};
use crate::sink::{End, Sink};
use crate::spaces::Spaces;
use crate::stack::{Entry, ReturnStack};
use crate::transitions::Transitions;
use crate::watch::Watched;

/// Results waiting for a deferred TIP never exceed those of one long TNT.
const MAX_RESULTS: u8 = 64;

pub(crate) struct Walker {
    pub code: Code,
    pub view: View,
    pub stack: ReturnStack,
    /// What stands in for this walker; kept here because it knows the code by number.
    pub steps: Transitions,
    pub(super) others: Others,
    /// The time to which the code has been moved on.
    pub(super) seen: u64,
    pub mode: Mode,
    /// The node whose first instruction runs next, or `NO_NODE`: then `ip` is to be looked up.
    pub(super) node: u32,
    pub(super) ip: u64,
    /// Lower bound of the time at which the program was here.
    pub(super) time: u64,
    /// Branch results not yet used, the oldest on top.
    pub(super) results: u64,
    pub(super) waiting: u8,
    /// The stream was made without TNT.
    pub no_results: bool,
    /// Results have come before the target of a branch before them (section 33.4.2.3).
    pub(super) deferred: bool,
    /// Nor of RETs that may have been compressed (section 33.3.9).
    lost_returns: bool,
    pub(super) ranges: FilterRanges,
    /// RETs may be compressed: calls are remembered.
    returns: bool,
    /// The turn is nobody's whose code is followed.
    pub(super) elsewhere: bool,
    /// When the program came from somewhere else, until `arrive`.
    pub(super) came: Option<u64>,
    pub watched: Watched,
    /// Where code is left for others; of one space alone.
    pub(super) learned: Option<Learned>,
}

impl Walker {
    pub fn new(spaces: Spaces, settings: &Settings) -> Walker {
        let watched = Watched::new(spaces.watch.clone());
        let alone = spaces.are_one();
        let learned = spaces.learned.clone().filter(|_| alone);
        let (others, view) = Others::new(spaces, settings);
        Walker {
            code: Code::new(settings.cache_limit, 0),
            view: view.unwrap_or_else(|| Space::new().view()),
            others,
            seen: 0,
            stack: ReturnStack::default(),
            steps: Transitions::new(settings, alone),
            mode: Mode::Bits64,
            node: NO_NODE,
            ip: 0,
            time: 0,
            results: 0,
            waiting: 0,
            no_results: settings.no_tnt,
            deferred: false,
            ranges: settings.ranges,
            lost_returns: settings.no_tnt && !settings.no_retcomp,
            returns: !settings.no_retcomp,
            elsewhere: false,
            came: None,
            watched,
            learned,
        }
    }

    /// The address of the next instruction.
    pub fn here(&self) -> u64 {
        match self.node {
            NO_NODE => self.ip,
            node => self.code.node(node).start,
        }
    }

    /// The program is at `ip` now.
    pub fn go_to(&mut self, ip: u64, time: u64) {
        self.node = NO_NODE;
        self.ip = ip;
        self.time = time;
    }

    /// What was learned before does not help any more: a PSB, an overflow, tracing off and on.
    pub fn reset(&mut self) {
        self.stack.clear();
        self.results = 0;
        self.waiting = 0;
    }

    /// Moves the image on to `time` and forgets what changed.
    pub fn advance<S: Sink>(&mut self, time: u64, sink: &mut S) {
        sink.advance(time);
        self.seen = time;
        self.advance_view();
    }

    /// Moves the code of the current space on.
    pub(super) fn advance_view(&mut self) {
        let changed = self.view.advance(self.seen);
        self.forget_changed(&changed);
        self.take_up();
    }

    /// What was learned of code that changed does not hold any more.
    pub(super) fn forget_changed(&mut self, changed: &Changed) {
        if *changed == Changed::All {
            self.forget_code();
        }
        self.code.forget(changed);
        let dead = self.code.take_dead();
        self.steps.invalidate(&dead);
    }

    /// Numbers of nodes and call sites are about to become invalid.
    fn forget_code(&mut self) {
        self.ip = self.here();
        self.node = NO_NODE;
        self.stack.forget_sites(&self.code);
        self.steps.invalidate_all(&self.code);
    }

    /// Empties a cache that has outgrown its limit.
    pub fn keep_within_limit(&mut self) {
        if self.code.is_over_limit() {
            self.forget_code();
            self.code.clear();
        }
    }

    /// Whether the stream defers TIPs: then results before a TIP may be of branches after it.
    pub fn has_deferred(&self) -> bool {
        self.deferred
    }

    /// Whether the next packet could be a step: nothing waits, the stream has results, and the code stays what it is.
    pub fn may_step(&self) -> bool {
        self.waiting == 0 && !self.no_results && !self.awaits_change()
    }

    /// Steps brought the program to a node.
    pub fn go_on_at(&mut self, node: u32) {
        self.node = node;
    }

    /// The time that the next instructions have.
    pub fn time(&self) -> u64 {
        self.time
    }

    pub fn set_time(&mut self, time: u64) {
        self.time = time;
    }

    /// Gives every entry of the return stack a call site.
    pub fn give_sites(&mut self) {
        self.stack.give_sites(&mut self.code);
    }

    /// An error if branch results are left over.
    pub fn expect_none_waiting(&mut self) -> Result<(), Cause> {
        match self.waiting {
            0 => Ok(()),
            count => Err(Cause::ResultsLeft {
                count: count.into(),
            }),
        }
    }

    /// Takes the results of a TNT and follows the code as far as they reach.
    #[inline]
    pub fn tnt<S: Sink>(
        &mut self,
        sink: &mut S,
        counts: &mut Counts,
        (bits, count): (u64, u8),
        stamp: Stamp,
    ) -> Result<(), Cause> {
        if self.waiting + count > MAX_RESULTS {
            return Err(Cause::ResultsLeft {
                count: self.waiting.into(),
            });
        }
        self.results = self.results << count | bits;
        self.waiting += count;
        self.drain(sink, counts, stamp)
    }

    /// Uses waiting results until none is left or a target is needed first.
    pub(super) fn drain<S: Sink>(
        &mut self,
        sink: &mut S,
        counts: &mut Counts,
        stamp: Stamp,
    ) -> Result<(), Cause> {
        while self.waiting > 0 {
            let index = self.resolve()?;
            let node = self.code.node(index);
            let taken = self.results >> (self.waiting - 1) & 1 != 0;
            match node.stop {
                Stop::Conditional => {
                    let (link, ip) = if taken {
                        (node.taken, node.target)
                    } else {
                        (node.fall, node.next)
                    };
                    self.emit(index, sink, counts, stamp);
                    if taken {
                        sink.close(End::Conditional, stamp.offset);
                    }
                    if S::EDGES {
                        let kind = if taken { End::Conditional } else { End::Cut };
                        sink.edge(self.last_ip(index), ip, kind);
                    }
                    counts.conditional += 1;
                    self.waiting -= 1;
                    self.time = stamp.time;
                    self.node = link;
                    if link == NO_NODE {
                        self.link(index, ip, taken);
                    }
                }
                Stop::Return | Stop::NarrowReturn => {
                    self.compressed_return(index, taken, sink, counts, stamp)?;
                }
                // their TIP may have been deferred until after this TNT
                Stop::IndirectJump | Stop::IndirectCall => {
                    self.deferred = true;
                    return Ok(());
                }
                stop if stop.passes() => {
                    let way = self.reach(sink, counts, stamp, |_| false)?;
                    self.run_through(&way, sink, counts, stamp);
                    self.node = way.last;
                }
                _ => {
                    return Err(Cause::UnexpectedResult {
                        ip: self.last_ip(index),
                    })
                }
            }
        }
        Ok(())
    }

    #[inline]
    fn compressed_return<S: Sink>(
        &mut self,
        index: u32,
        taken: bool,
        sink: &mut S,
        counts: &mut Counts,
        stamp: Stamp,
    ) -> Result<(), Cause> {
        if !taken {
            return Err(Cause::NotTakenReturn {
                ip: self.last_ip(index),
            });
        }
        let node = self.code.node(index);
        if !self.returns || self.stack.is_empty() && self.code.calls(node).1.is_empty() {
            return Err(Cause::EmptyStack {
                ip: self.last_ip(index),
            });
        }
        self.emit(index, sink, counts, stamp);
        sink.close(End::Return, stamp.offset);
        counts.returns += 1;
        counts.compressed_returns += 1;
        self.waiting -= 1;
        self.time = stamp.time;
        let (site, ip) = match self.stack.pop() {
            Some(Entry::Site(site)) => {
                (site, self.code.call(site).map_or(0, |call| call.return_ip))
            }
            Some(Entry::Ip(ip)) => (NO_NODE, ip),
            None => (NO_NODE, 0),
        };
        if self.code.node(index).stop == Stop::NarrowReturn {
            self.go_to(ip & 0xffff, stamp.time);
            if S::EDGES {
                sink.edge(self.last_ip(index), ip & 0xffff, End::Return);
            }
            return Ok(());
        }
        self.node = self.code.call(site).map_or(NO_NODE, |call| call.node);
        // a call site caches a node of 64-bit code or of its own mode; a RET in another mode looks it up
        if self.node == NO_NODE || self.code.node(self.node).mode != self.mode {
            self.ip = self.mode.truncate(ip);
            self.node = self
                .code
                .lookup(&self.view, self.ip, self.mode)
                .unwrap_or(NO_NODE);
            if let Some(call) = self.code.call_mut(site) {
                call.node = self.node;
            }
        }
        if S::EDGES {
            sink.edge(self.last_ip(index), self.here(), End::Return);
        }
        Ok(())
    }

    /// A TIP: the next instruction that needs a target goes to `ip`, in mode `mode`.
    pub fn tip<S: Sink>(
        &mut self,
        sink: &mut S,
        counts: &mut Counts,
        ip: u64,
        mode: Mode,
        stamp: Stamp,
    ) -> Result<(), Cause> {
        let way = self.reach(sink, counts, stamp, |stop| stop == Stop::VmEntry)?;
        let stop = self.code.node(way.last).stop;
        match stop {
            Stop::IndirectJump
            | Stop::IndirectCall
            | Stop::Return
            | Stop::NarrowReturn
            | Stop::Far
            | Stop::Syscall
            | Stop::VmEntry => {}
            Stop::Conditional if self.no_results => {
                return Err(Cause::NoResults {
                    ip: self.last_ip(way.last),
                });
            }
            _ => {
                return Err(Cause::UnexpectedTarget {
                    ip: self.last_ip(way.last),
                })
            }
        }
        if self.lost_returns && stop.end() == End::Return && self.calls_before(&way) {
            // The TIP may be that of a later branch.
            return Err(Cause::NoResults {
                ip: self.last_ip(way.last),
            });
        }
        self.run_through(&way, sink, counts, stamp);
        self.emit(way.last, sink, counts, stamp);
        sink.close(stop.end(), stamp.offset);
        if S::EDGES {
            sink.edge(self.last_ip(way.last), ip, stop.end());
        }
        self.after_transfer(stop, counts);
        self.time = stamp.time;
        self.mode = mode;
        if matches!(stop, Stop::Far | Stop::Syscall | Stop::VmEntry) {
            self.go_to(ip, stamp.time);
            if !self.take_turns(stamp.now) {
                return Ok(());
            }
            self.arrive(stop == Stop::VmEntry);
            if S::EDGES {
                sink.landed(self.code.space());
            }
            self.catch_up(stamp.now, sink);
            return self.drain(sink, counts, stamp);
        }
        self.ip = ip;
        self.node = self
            .code
            .lookup_target(&self.view, way.last, ip, mode)
            .unwrap_or(NO_NODE);
        self.drain(sink, counts, stamp)
    }

    pub(super) fn after_transfer(&mut self, stop: Stop, counts: &mut Counts) {
        match stop {
            Stop::Return | Stop::NarrowReturn => {
                // section 33.4.2.2: every near RET pops, compressed or not
                self.stack.pop();
                counts.returns += 1;
            }
            Stop::Conditional => counts.conditional += 1,
            _ => counts.indirect += 1,
        }
    }

    /// The node that runs next, looked up if it is not known or dead.
    #[inline]
    pub fn resolve(&mut self) -> Result<u32, Cause> {
        if self.node != NO_NODE {
            let node = self.code.node(self.node);
            if node.stop != Stop::Dead {
                return Ok(self.node);
            }
            self.ip = node.start;
        }
        self.node = NO_NODE;
        self.node = self.code.lookup(&self.view, self.ip, self.mode)?;
        Ok(self.node)
    }

    /// Fills the link of a conditional branch. Code that is not there is an error only when it is needed.
    #[cold]
    fn link(&mut self, index: u32, ip: u64, taken: bool) {
        self.ip = ip;
        self.node = self
            .code
            .lookup(&self.view, ip, self.mode)
            .unwrap_or(NO_NODE);
        let node = self.code.node_mut(index);
        if taken {
            node.taken = self.node;
        } else {
            node.fall = self.node;
        }
    }

    pub(super) fn last_ip(&self, index: u32) -> u64 {
        self.code.last_ip(self.code.node(index))
    }

    /// Hands a whole node to the sink.
    #[inline]
    pub(super) fn emit<S: Sink>(
        &mut self,
        index: u32,
        sink: &mut S,
        counts: &mut Counts,
        stamp: Stamp,
    ) {
        self.code.tell(index, self.time, stamp.offset, sink);
        self.run_node(index, counts);
    }

    /// A whole node runs.
    #[inline]
    pub(super) fn run_node(&mut self, index: u32, counts: &mut Counts) {
        let node = self.code.node(index);
        counts.instructions += u64::from(node.instructions);
        if self.returns {
            let (first, calls) = self.code.calls(node);
            (first..)
                .take(calls.len())
                .for_each(|site| self.stack.push_site(site));
        }
    }

    /// Hands the beginning of a node to the sink.
    pub(super) fn emit_part<S: Sink>(
        &mut self,
        index: u32,
        place: Place,
        sink: &mut S,
        counts: &mut Counts,
        stamp: Stamp,
    ) {
        self.code
            .tell_part(index, place, self.time, stamp.offset, sink);
        let node = self.code.node(index);
        let whole = self.code.pieces(node).iter().take(place.pieces);
        counts.instructions += whole.map(|piece| u64::from(piece.count)).sum::<u64>();
        counts.instructions += place.instructions as u64;
        let (first, calls) = self.code.calls(node);
        for (call, site) in calls.iter().zip(first..) {
            if self.returns && usize::from(call.piece) < place.pieces {
                self.stack.push_site(site);
            }
        }
    }
}
