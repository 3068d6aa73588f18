//! The interpreter: follows the code from node to node, as branch results and targets decide.
//!
//! It holds the position in the code, the return stack, and TNT bits that no branch has used yet. It is the reference
//! for the transition tables, which only repeat what the interpreter does for a (node, packet) pair, and the only place
//! that finds errors. It handles everything that the tables do not: packets that bind to an instruction (`paths`),
//! address spaces and scheduling intervals (`address_spaces`), and deferred TIPs, for which TNT bits wait (section
//! 33.4.2.3).
//!
//! # Invariants
//!
//! * Nothing is reported to the sink before it is certain that the current packet fits the code. A packet that
//!   contradicts the code adds no instruction that it did not confirm.
//! * `node` is the node whose first instruction runs next, or `NO_NODE`, and then `ip` has the address. A node may die
//!   when code changes; `resolve_next_node` looks its address up again.
//! * Node indices and call sites belong to one code cache. Whoever empties or exchanges the cache first calls
//!   `drop_node_indices`, or replaces them by addresses.

mod address_spaces;
mod paths;
mod reuse;

use self::address_spaces::InactiveSpaces;
pub(crate) use self::reuse::InterpreterSnapshot;
use crate::address_spaces::{AddressSpaces, SpaceSelector};
use crate::cancellation::CancellationPoll;
use crate::code_cache::{CodeCache, CodeCachePool, NodeEnd, NodePosition, NO_NODE};
use crate::error::ErrorCause;
use crate::return_stack::{ReturnStack, StackEntry};
use crate::settings::{FilterRanges, Settings};
use crate::sink::{RunEnd, Sink};
use crate::totals::StreamCounts;
use crate::transitions::TransitionStore;
use rtit_image::{ChangedCode, Space, SpaceView};
use rtit_x86::CodeMode;

/// Offset and time of the current packet.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PacketStamp {
    pub offset: u64,
    /// The time that rows get (`EstimatedClock::row_time`).
    pub time: u64,
    /// The estimate of the TSC, a lower bound.
    pub now: u64,
}

/// TNT bits that wait for a deferred TIP are those of one long TNT at most.
const MAX_PENDING_RESULTS: u8 = 64;

pub(crate) struct Interpreter {
    pub code: CodeCache,
    pub view: SpaceView,
    pub selector: SpaceSelector,
    pub stack: ReturnStack,
    pub counts: StreamCounts,
    /// The current packet.
    pub packet: PacketStamp,
    /// The transition tables. Here because they refer to nodes by index.
    pub transitions: TransitionStore,
    inactive: InactiveSpaces,
    /// The code is that of this time.
    code_time: u64,
    pub mode: CodeMode,
    /// The node whose first instruction runs next, or `NO_NODE`: then `ip` is to be looked up.
    node: u32,
    ip: u64,
    /// Lower bound of the time at which the program was here.
    time: u64,
    /// TNT bits not yet used; the oldest is the highest.
    pending_results: u64,
    pending_count: u8,
    /// The stream was recorded without TNT (DisTNT).
    pub has_no_tnt: bool,
    /// A TIP came after TNT bits of later branches (section 33.4.2.3).
    has_deferred_tips: bool,
    /// Without TNT, compressed RETs are not in the trace either (section 33.3.9).
    hides_returns: bool,
    ranges: FilterRanges,
    /// RETs may be compressed, so that calls go onto the return stack.
    has_compressed_returns: bool,
    /// The current thread is not decoded.
    is_elsewhere: bool,
    /// Time at which execution entered from elsewhere, until `enter_space`.
    switched_at: Option<u64>,
    pub cancellation: CancellationPoll,
    /// The pool for the code cache of the next streams; only with a single space.
    cache_pool: Option<CodeCachePool>,
}

impl Interpreter {
    pub fn new(spaces: AddressSpaces, settings: &Settings) -> Interpreter {
        let cancellation = CancellationPoll::new(spaces.cancellation.clone());
        let is_single_space = spaces.is_single_space();
        let cache_pool = spaces.cache_pool.clone().filter(|_| is_single_space);
        let selector = SpaceSelector::new(&spaces);
        let (inactive, view) = InactiveSpaces::new(spaces, settings);
        Interpreter {
            code: CodeCache::new(settings.cache_limit, 0),
            view: view.unwrap_or_else(|| Space::new().view_at_start()),
            selector,
            inactive,
            code_time: 0,
            stack: ReturnStack::default(),
            counts: StreamCounts::default(),
            packet: PacketStamp::default(),
            transitions: TransitionStore::new(settings, is_single_space),
            mode: CodeMode::Bits64,
            node: NO_NODE,
            ip: 0,
            time: 0,
            pending_results: 0,
            pending_count: 0,
            has_no_tnt: settings.no_tnt,
            has_deferred_tips: false,
            ranges: settings.ranges,
            hides_returns: settings.no_tnt && !settings.no_retcomp,
            has_compressed_returns: !settings.no_retcomp,
            is_elsewhere: false,
            switched_at: None,
            cancellation,
            cache_pool,
        }
    }

    /// Returns the address of the next instruction.
    pub fn next_instruction_address(&self) -> u64 {
        match self.node {
            NO_NODE => self.ip,
            node => self.code.node_at(node).start,
        }
    }

    /// Sets the position to `ip`.
    pub fn set_next_address(&mut self, ip: u64, time: u64) {
        self.node = NO_NODE;
        self.ip = ip;
        self.time = time;
    }

    /// Drops return stack and TNT bits: at a PSB, an overflow, or when tracing was off.
    pub fn reset_return_stack_and_tnt(&mut self) {
        self.stack.clear();
        self.pending_results = 0;
        self.pending_count = 0;
    }

    /// Moves the code forward to `time` and invalidates what has changed.
    pub fn advance_code_to<S: Sink>(&mut self, time: u64, sink: &mut S) {
        if let Some(totals) = sink.totals_before(time) {
            self.take_totals(totals);
        }
        sink.set_code_time(time);
        self.code_time = time;
        self.update_code();
    }

    /// Moves the code of the current space to `code_time`.
    fn update_code(&mut self) {
        let changed = self.view.advance_to_time(self.code_time);
        self.invalidate_changed(&changed);
        self.take_cache_from_pool();
    }

    /// Invalidates nodes and transitions of changed code.
    fn invalidate_changed(&mut self, changed: &ChangedCode) {
        if *changed == ChangedCode::All {
            self.drop_node_indices();
        }
        self.code.invalidate_changed_nodes(changed);
        let dead = self.code.take_dead_nodes();
        self.transitions.remove_transitions_of_nodes(&dead);
    }

    /// Replaces node indices and call sites by addresses: they are about to become invalid.
    fn drop_node_indices(&mut self) {
        self.ip = self.next_instruction_address();
        self.node = NO_NODE;
        self.stack.replace_sites_by_addresses(&self.code);
        self.transitions.invalidate_all(&self.code);
    }

    /// Empties the code cache if it is above its limit.
    pub fn keep_cache_within_limit(&mut self) {
        if self.code.is_over_limit() {
            self.drop_node_indices();
            self.code.clear();
        }
    }

    /// Whether the stream has deferred TIPs: then TNT bits before a TIP may belong to branches after it.
    pub fn defers_tips(&self) -> bool {
        self.has_deferred_tips
    }

    /// Whether transitions may decode the next packet: no TNT bits wait, the stream has TNT, and the code does not
    /// change.
    pub fn can_use_transitions(&self) -> bool {
        self.pending_count == 0 && !self.has_no_tnt && !self.is_in_changing_kernel()
    }

    /// Sets the position to the start of a node.
    pub fn set_position_to_node(&mut self, node: u32) {
        self.node = node;
    }

    /// The time that the next instructions have.
    pub fn instruction_time(&self) -> u64 {
        self.time
    }

    pub fn set_instruction_time(&mut self, time: u64) {
        self.time = time;
    }

    /// Gives every entry of the return stack a call site.
    pub fn assign_call_sites(&mut self) {
        self.stack.assign_call_sites(&mut self.code);
    }

    /// Returns an error if TNT bits are left.
    pub fn expect_no_pending_results(&mut self) -> Result<(), ErrorCause> {
        match self.pending_count {
            0 => Ok(()),
            count => Err(ErrorCause::ResultsLeft {
                count: count.into(),
            }),
        }
    }

    /// Applies a TNT: follows the code as far as its bits reach.
    #[inline]
    pub fn apply_tnt<S: Sink>(
        &mut self,
        sink: &mut S,
        (bits, count): (u64, u8),
    ) -> Result<(), ErrorCause> {
        if self.pending_count + count > MAX_PENDING_RESULTS {
            return Err(ErrorCause::ResultsLeft {
                count: self.pending_count.into(),
            });
        }
        self.pending_results = self.pending_results << count | bits;
        self.pending_count += count;
        self.use_pending_results(sink)
    }

    /// Uses TNT bits until none is left or a TIP is needed first.
    fn use_pending_results<S: Sink>(&mut self, sink: &mut S) -> Result<(), ErrorCause> {
        while self.pending_count > 0 {
            let index = self.resolve_next_node()?;
            let node = self.code.node_at(index);
            let taken = self.pending_results >> (self.pending_count - 1) & 1 != 0;
            match node.end {
                NodeEnd::Conditional => {
                    let (link, ip) = node.linked_successor(taken);
                    self.report_node(index, sink);
                    if taken {
                        sink.end_run(RunEnd::Conditional, self.packet.offset);
                    }
                    if S::NEEDS_EDGES {
                        let kind = if taken {
                            RunEnd::Conditional
                        } else {
                            RunEnd::Cut
                        };
                        sink.add_edge(self.last_ip(index), ip, kind);
                    }
                    self.counts.conditional += 1;
                    self.pending_count -= 1;
                    self.time = self.packet.time;
                    self.node = link;
                    if link == NO_NODE {
                        self.link_conditional(index, ip, taken);
                    }
                }
                NodeEnd::Return | NodeEnd::NarrowReturn => {
                    self.apply_compressed_return(index, taken, sink)?;
                }
                // their TIP may have been deferred until after this TNT
                NodeEnd::IndirectJump | NodeEnd::IndirectCall => {
                    self.has_deferred_tips = true;
                    return Ok(());
                }
                end if end.continues_without_packet() => {
                    let path = self.find_binding_node(sink, |_| false)?;
                    self.report_path_before_last_node(&path, sink);
                    self.node = path.last;
                }
                _ => {
                    return Err(ErrorCause::UnexpectedResult {
                        ip: self.last_ip(index),
                    })
                }
            }
        }
        Ok(())
    }

    #[inline]
    fn apply_compressed_return<S: Sink>(
        &mut self,
        index: u32,
        taken: bool,
        sink: &mut S,
    ) -> Result<(), ErrorCause> {
        if !taken {
            return Err(ErrorCause::NotTakenReturn {
                ip: self.last_ip(index),
            });
        }
        let node = self.code.node_at(index);
        if !self.has_compressed_returns
            || self.stack.is_empty() && self.code.calls_of_node(node).1.is_empty()
        {
            return Err(ErrorCause::EmptyStack {
                ip: self.last_ip(index),
            });
        }
        self.report_node(index, sink);
        sink.end_run(RunEnd::Return, self.packet.offset);
        self.counts.returns += 1;
        self.counts.compressed_returns += 1;
        self.pending_count -= 1;
        self.time = self.packet.time;
        let (site, ip) = match self.stack.pop() {
            Some(StackEntry::Site(site)) => (
                site,
                self.code
                    .call_at_site(site)
                    .map_or(0, |call| call.return_ip),
            ),
            Some(StackEntry::Ip(ip)) => (NO_NODE, ip),
            None => (NO_NODE, 0),
        };
        if self.code.node_at(index).end == NodeEnd::NarrowReturn {
            self.set_next_address(ip & 0xffff, self.packet.time);
            if S::NEEDS_EDGES {
                sink.add_edge(self.last_ip(index), ip & 0xffff, RunEnd::Return);
            }
            return Ok(());
        }
        self.node = self
            .code
            .call_at_site(site)
            .map_or(NO_NODE, |call| call.node);
        // a call site caches a node of 64-bit code or of its own mode; a RET in another mode looks it up
        if self.node == NO_NODE || self.code.node_at(self.node).mode != self.mode {
            self.ip = self.mode.truncate_ip(ip);
            self.node = self
                .code
                .find_or_decode_node(&self.view, self.ip, self.mode)
                .unwrap_or(NO_NODE);
            if let Some(call) = self.code.call_at_site_mut(site) {
                call.node = self.node;
            }
        }
        if S::NEEDS_EDGES {
            sink.add_edge(
                self.last_ip(index),
                self.next_instruction_address(),
                RunEnd::Return,
            );
        }
        Ok(())
    }

    /// Applies a TIP: the next instruction that needs a target goes to `ip`, in `mode`.
    pub fn apply_tip<S: Sink>(
        &mut self,
        sink: &mut S,
        ip: u64,
        mode: CodeMode,
    ) -> Result<(), ErrorCause> {
        let path = self.find_binding_node(sink, |end| end == NodeEnd::VmEntry)?;
        let end = self.code.node_at(path.last).end;
        match end {
            NodeEnd::IndirectJump
            | NodeEnd::IndirectCall
            | NodeEnd::Return
            | NodeEnd::NarrowReturn
            | NodeEnd::Far
            | NodeEnd::Syscall
            | NodeEnd::VmEntry => {}
            NodeEnd::Conditional if self.has_no_tnt => {
                return Err(ErrorCause::NoResults {
                    ip: self.last_ip(path.last),
                });
            }
            _ => {
                return Err(ErrorCause::UnexpectedTarget {
                    ip: self.last_ip(path.last),
                })
            }
        }
        if self.hides_returns && end.run_end_kind() == RunEnd::Return && self.has_open_call(&path) {
            // The TIP may be that of a later branch.
            return Err(ErrorCause::NoResults {
                ip: self.last_ip(path.last),
            });
        }
        self.report_path_before_last_node(&path, sink);
        self.report_node(path.last, sink);
        sink.end_run(end.run_end_kind(), self.packet.offset);
        if S::NEEDS_EDGES {
            sink.add_edge(self.last_ip(path.last), ip, end.run_end_kind());
        }
        self.count_transfer(end);
        self.time = self.packet.time;
        self.mode = mode;
        let is_far = matches!(end, NodeEnd::Far | NodeEnd::Syscall | NodeEnd::VmEntry);
        if is_far || self.enters_or_leaves_kernel_half(ip) {
            self.set_next_address(ip, self.packet.time);
            if !self.enter_due_intervals(self.packet.now) {
                return Ok(());
            }
            self.enter_space(end == NodeEnd::VmEntry);
            if S::NEEDS_EDGES {
                sink.note_entered_space(self.code.address_space_index());
            }
            self.update_kernel_code(self.packet.now, sink);
            return self.use_pending_results(sink);
        }
        self.ip = ip;
        self.node = self
            .code
            .find_or_decode_target(&self.view, path.last, ip, mode)
            .unwrap_or(NO_NODE);
        self.use_pending_results(sink)
    }

    fn count_transfer(&mut self, end: NodeEnd) {
        match end {
            NodeEnd::Return | NodeEnd::NarrowReturn => {
                // section 33.4.2.2: every near RET pops, compressed or not
                self.stack.pop();
                self.counts.returns += 1;
            }
            NodeEnd::Conditional => self.counts.conditional += 1,
            _ => self.counts.indirect += 1,
        }
    }

    /// Returns the node that runs next, looked up if it is not known or dead.
    #[inline]
    pub fn resolve_next_node(&mut self) -> Result<u32, ErrorCause> {
        if self.node != NO_NODE {
            let node = self.code.node_at(self.node);
            if node.end != NodeEnd::Dead {
                return Ok(self.node);
            }
            self.ip = node.start;
        }
        self.node = NO_NODE;
        self.node = self
            .code
            .find_or_decode_node(&self.view, self.ip, self.mode)?;
        Ok(self.node)
    }

    /// Fills the link of a conditional branch. Missing code is an error only when it is needed.
    #[cold]
    fn link_conditional(&mut self, index: u32, ip: u64, taken: bool) {
        self.ip = ip;
        self.node = self
            .code
            .find_or_decode_node(&self.view, ip, self.mode)
            .unwrap_or(NO_NODE);
        self.code
            .node_at_mut(index)
            .set_successor_link(taken, self.node);
    }

    fn last_ip(&self, index: u32) -> u64 {
        self.code.last_ip(self.code.node_at(index))
    }

    /// Reports a whole node and counts it.
    #[inline]
    fn report_node<S: Sink>(&mut self, index: u32, sink: &mut S) {
        self.code
            .report_node(index, self.time, self.packet.offset, sink);
        self.count_executed_node(index);
    }

    /// Counts a node and pushes its calls.
    #[inline]
    fn count_executed_node(&mut self, index: u32) {
        let node = self.code.node_at(index);
        self.counts.instructions += u64::from(node.instructions);
        if self.has_compressed_returns {
            let (first, calls) = self.code.calls_of_node(node);
            (first..)
                .take(calls.len())
                .for_each(|site| self.stack.push_call_site(site));
        }
    }

    /// Reports the beginning of a node and counts it.
    fn report_node_prefix<S: Sink>(&mut self, index: u32, position: NodePosition, sink: &mut S) {
        self.code
            .report_node_prefix(index, position, self.time, self.packet.offset, sink);
        let node = self.code.node_at(index);
        let whole = self
            .code
            .code_ranges(node)
            .iter()
            .take(position.code_ranges);
        let count = whole.map(|code_range| u64::from(code_range.count));
        self.counts.instructions += count.sum::<u64>() + position.instructions as u64;
        let (first, calls) = self.code.calls_of_node(node);
        for (call, site) in calls.iter().zip(first..) {
            if self.has_compressed_returns && usize::from(call.code_range) < position.code_ranges {
                self.stack.push_call_site(site);
            }
        }
    }
}
