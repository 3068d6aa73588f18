//! The stacks of the threads of a process: frames, suspended stacks, and choices between stacks.

use std::collections::{BTreeMap, HashSet};

use rtit_flow::{AddressMap, AddressSet};

use crate::log::{CallEnd, CallLog, EndedCall};
use crate::tree::{CallKind, CallTree, NO_NODE};

mod records;
mod threads;

use records::{CallRecords, Moment, NO_CHOICE};
use threads::ThreadState;
pub use threads::{SwitchPermit, Wait};

/// Facts about code. Answers may change when code is mapped or unmapped.
pub trait CodeInfo {
    /// Identifies the function at an address; a part that the compiler moved away (`.cold`) is its function.
    fn function_at(&mut self, ip: u64) -> Option<u64>;
    /// Whether a function with a name starts here.
    fn starts_function(&mut self, ip: u64) -> bool;
    fn role_at(&mut self, ip: u64) -> FunctionRole;
    /// Returns the number of a call, for `Node::call`.
    fn call_number(&mut self, from: Option<u64>, to: u64, kind: CallKind) -> u32;
    /// Returns the number of a root of a thread, for `Node::call`. `entry`: where its first function started.
    fn root_number(&mut self, kind: RootKind, entry: u64, thread: u32) -> u32;
}

/// Functions that need a rule of their own, by name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum FunctionRole {
    #[default]
    Ordinary,
    /// Jumps to another stack: swapcontext, setcontext, jump_fcontext.
    SwitchesStack,
    /// Go's `gogo`: resumes a goroutine.
    ResumesGoroutine,
    /// Go's `runtime.mcall`: calls a function on the scheduler's stack, and does not return here.
    LeavesStack,
    /// Go's `runtime.schedule`: the goroutine below it does not run any more.
    Schedules,
    /// `_dl_runtime_resolve`: finds the function of a PLT stub, and jumps to it.
    ResolvesFunctions,
    /// `_Unwind_Resume`: continues to unwind, from the function that called it.
    ResumesUnwinding,
    /// The kernel's `begin_new_exec`: the system call returns to another program.
    ReplacesProgram,
    /// `__x86_return_thunk` and its variants: the return of the function that jumped there.
    ReturnsForJump,
    /// `__x86_indirect_thunk_rax` and so on: an indirect jump or call of the function that enters it.
    JumpsIndirectly,
}

impl FunctionRole {
    fn switches(self) -> bool {
        matches!(
            self,
            FunctionRole::SwitchesStack | FunctionRole::ResumesGoroutine
        )
    }

    /// Returns the role of the function with this name.
    pub fn of_name(name: &str) -> FunctionRole {
        match name {
            "swapcontext" | "__swapcontext" | "setcontext" | "__setcontext" | "__start_context"
            | "jump_fcontext" | "ontop_fcontext" => FunctionRole::SwitchesStack,
            "gogo" | "gogo.abi0" | "runtime.gogo" | "runtime.gogo.abi0" => {
                FunctionRole::ResumesGoroutine
            }
            "runtime.mcall" | "runtime.mcall.abi0" | "runtime.mcall.abiinternal" => {
                FunctionRole::LeavesStack
            }
            "runtime.schedule" => FunctionRole::Schedules,
            "begin_new_exec" => FunctionRole::ReplacesProgram,
            "__x86_return_thunk"
            | "its_return_thunk"
            | "srso_return_thunk"
            | "retbleed_return_thunk" => FunctionRole::ReturnsForJump,
            name if name.starts_with("__x86_indirect_") => FunctionRole::JumpsIndirectly,
            name if name.starts_with("_dl_runtime_resolve") => FunctionRole::ResolvesFunctions,
            name if name.starts_with("_Unwind_Resume") => FunctionRole::ResumesUnwinding,
            _ => FunctionRole::Ordinary,
        }
    }
}

/// Why a stack begins with a function that no known call entered.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum RootKind {
    /// Code that ran when the trace of the thread began.
    Start = 0,
    /// The first function of a new stack: a coroutine, a goroutine, the scheduler's stack.
    NewStack = 1,
    /// Code that a function returned to. The call of that function is not in the trace.
    Caller = 2,
    /// Code that follows lost packets.
    AfterLoss = 3,
    /// A transfer to a stack that is not known.
    Unknown = 4,
}

/// How often a rule applied.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StackCounts {
    /// Calls that returned to their return address.
    pub returned: u64,
    /// Transfers that left several frames at once.
    pub unwound: u64,
    /// Transfers to another stack.
    pub switched: u64,
    /// Transfers to a stack that is not known.
    pub unknown: u64,
    /// Transfers for which several stacks were possible, and those where a later return refuted the stack taken.
    pub choices: u64,
    pub corrected: u64,
    /// Calls deeper than the limit.
    pub too_deep: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum FrameKind {
    /// The first function of a stack. It has no return address.
    Root,
    Call,
    /// Entered by a jump; the function returns to the return address of the frame below.
    Tail,
    /// A signal handler. `return_address` is the interrupted instruction.
    Signal,
    /// A call that a signal handler put into the interrupted code.
    Injected,
    /// Called by code outside of the filters. `return_address` is where that code returns to traced code.
    Untraced,
    /// Entered by a return. The function that returned switches stacks if a later return of it leaves this frame.
    Detour,
}

/// A stack: nothing, its newest frame, or one of several stacks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Link {
    Empty,
    Frame(u32),
    Choice(u32),
    /// A candidate that a return has refuted.
    Refuted,
}

/// An entered function. Stacks share frames, and frames do not change, but for `Detour`.
#[derive(Clone, Copy, Debug)]
struct Frame {
    /// The frame below; its index is smaller.
    up: Link,
    return_address: u64,
    /// The call; of a `Detour`, the return.
    site: u64,
    /// The start of the function.
    entry: u64,
    node: u32,
    kind: FrameKind,
    /// Instructions executed before.
    entered: u64,
}

impl Frame {
    fn returns(&self) -> bool {
        matches!(
            self.kind,
            FrameKind::Call | FrameKind::Injected | FrameKind::Untraced
        )
    }

    fn call_kind(&self) -> CallKind {
        match self.kind {
            FrameKind::Root => CallKind::Root,
            FrameKind::Call => CallKind::Call,
            FrameKind::Detour if self.up == Link::Empty => CallKind::Root,
            FrameKind::Tail | FrameKind::Detour => CallKind::Tail,
            FrameKind::Signal => CallKind::Signal,
            FrameKind::Injected => CallKind::Injected,
            FrameKind::Untraced => CallKind::Untraced,
        }
    }
}

/// A stack that is one of several, the one taken, and how far returns have come in each.
#[derive(Clone, Debug)]
struct Choice {
    /// Instructions executed before.
    began: u64,
    candidates: Vec<Candidate>,
    taken: usize,
    positions: Vec<Link>,
    /// The depths that were reached.
    levels: Vec<ChoiceLevel>,
    is_open: bool,
    /// The stack before the transfer, and the end of its calls that the stack taken does not have, if that is a part
    /// of it.
    before: Link,
    end: CallEnd,
    /// Calls that ended, each with its level in `levels`, which has its caller.
    pending_calls: Vec<(usize, EndedCall)>,
}

/// A choice after some returns.
#[derive(Clone, Debug)]
struct ChoiceLevel {
    /// The floating node for what runs at this depth.
    node: u32,
    positions: Vec<Link>,
    /// The return to this depth, or the transfer.
    reached: Moment,
    /// Instructions executed at this depth.
    own: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Candidate {
    result: Link,
    /// The newest frame of the suspended stack that this resumes.
    origin: Option<u32>,
}

/// The first address of the kernel's half.
pub const KERNEL_START: u64 = 1 << 63;
/// Bounds of memory; programs stay far below.
const MAX_FRAMES: usize = 1 << 22;
const MAX_SUSPENDED: usize = 4096;
const MAX_CHOICES: usize = 1 << 16;
const MAX_LEVELS: usize = 4096;
/// Entries and return addresses that are known; programs that generate code have no end of them.
const MAX_KNOWN_TARGETS: usize = 1 << 22;
/// Frames and choices are removed first at these numbers.
const MIN_COLLECTED_FRAMES: usize = 1 << 16;
const MIN_COLLECTED_CHOICES: usize = 1 << 12;
const MAX_CANDIDATES: usize = 64;
/// Frames of the current stack, and of each suspended one, that are searched for a target.
const SEARCHED_FRAMES: usize = 4096;
const SEARCHED_SUSPENDED_FRAMES: usize = 24;
/// Tail calls in a row that have a frame each.
const MAX_TAIL_FRAMES: usize = 64;
/// Instructions that a PLT stub executes before it jumps to its function.
const MAX_STUB_INSTRUCTIONS: u64 = 8;
/// Calls and jumps that are remembered with their properties.
const CACHE_SIZE: usize = 1 << 13;

/// Properties of a call: from, to, its number, and its effect.
type CachedCall = (u64, u64, u32, CallEffect);
const NO_CACHED_CALL: CachedCall = (0, 0, 0, CallEffect::None);
/// A jump, and where it leads.
type CachedJump = (u64, u64, JumpRange);

/// What a call does besides pushing a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum CallEffect {
    None,
    LeavesStack,
    ReplacesProgram,
}

/// How far a jump leads, by the names of functions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum JumpRange {
    SameFunction,
    OtherFunction,
    /// From code without a name to code without a name.
    Unnamed,
}

fn cache_slot(from: u64, to: u64) -> usize {
    let mixed = (from ^ to.rotate_left(32)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed >> 51) as usize % CACHE_SIZE
}

/// Follows the stacks of the threads of a process. Report transfers with the methods `call`, `return_to` and so on,
/// each followed by `execute` for the instructions that run next. They are those of one thread until `switch_thread`.
#[derive(Debug)]
pub struct CallStacks<C, L = ()> {
    pub code: C,
    tree: CallTree,
    counts: StackCounts,
    /// Instructions of all threads.
    executed: u64,
    frames: Vec<Frame>,
    /// Frames from here on belong to the current stack alone.
    first_unshared: usize,
    /// Numbers of frames and choices at which unused ones are removed.
    collect_at: usize,
    collect_choices_at: usize,
    /// The running thread, and the state of all others.
    thread: u32,
    threads: Vec<ThreadState>,
    /// The stack of the running thread, and its node.
    current: Link,
    node: u32,
    first_root: RootKind,
    next_root: RootKind,
    /// Calls beyond `MAX_FRAMES` that have not returned.
    excess_calls: u64,
    /// Whether switches must be reported in the order of time.
    orders_switches: bool,
    /// What the running thread may do with its next transfer.
    permit: Option<SwitchPermit>,
    /// Why the last transfer was not followed.
    wait: Option<Wait>,
    /// Suspended stacks by age, as their newest frames.
    suspended: BTreeMap<i64, u32>,
    age_of_suspended: AddressMap<i64>,
    suspended_by_return: AddressMap<Vec<u32>>,
    choices: Vec<Choice>,
    /// The choice that took a suspended stack.
    taken_by: AddressMap<u32>,
    /// Instructions that have proved to switch stacks.
    learned_switches: AddressSet,
    /// Detours by the function that returned.
    detours: AddressMap<Vec<u32>>,
    called_entries: AddressSet,
    return_addresses: AddressSet,
    handlers: AddressSet,
    /// A signal handler has returned: the next system call is sigreturn.
    is_in_restorer: bool,
    /// The kernel has begun exec: it returns to another program.
    replaces_program: bool,
    /// Frames of the stack before a loss, by return addresses that occur once there.
    before_loss: AddressMap<u32>,
    cached_calls: Vec<CachedCall>,
    cached_jumps: Vec<CachedJump>,
    records: CallRecords<L>,
}

impl<C: CodeInfo> CallStacks<C> {
    /// `first_root`: `Start` if the trace begins with the thread.
    pub fn new(code: C, first_root: RootKind) -> CallStacks<C> {
        CallStacks::with_log(code, first_root, ())
    }
}

impl<C: CodeInfo, L: CallLog> CallStacks<C, L> {
    /// As `new`, and `log` gets each call.
    pub fn with_log(code: C, first_root: RootKind, log: L) -> CallStacks<C, L> {
        CallStacks {
            code,
            tree: CallTree::default(),
            counts: StackCounts::default(),
            executed: 0,
            frames: Vec::new(),
            first_unshared: 0,
            collect_at: MIN_COLLECTED_FRAMES,
            collect_choices_at: MIN_COLLECTED_CHOICES,
            thread: 0,
            threads: Vec::new(),
            current: Link::Empty,
            node: NO_NODE,
            first_root,
            next_root: first_root,
            excess_calls: 0,
            orders_switches: false,
            permit: None,
            wait: None,
            suspended: BTreeMap::new(),
            age_of_suspended: AddressMap::default(),
            suspended_by_return: AddressMap::default(),
            choices: Vec::new(),
            taken_by: AddressMap::default(),
            learned_switches: AddressSet::default(),
            detours: AddressMap::default(),
            called_entries: AddressSet::default(),
            return_addresses: AddressSet::default(),
            handlers: AddressSet::default(),
            is_in_restorer: false,
            replaces_program: false,
            before_loss: AddressMap::default(),
            cached_calls: vec![NO_CACHED_CALL; CACHE_SIZE],
            cached_jumps: vec![(0, 0, JumpRange::SameFunction); CACHE_SIZE],
            records: CallRecords::new(log),
        }
    }

    pub fn counts(&self) -> StackCounts {
        self.counts
    }

    /// The node of the running function.
    #[inline]
    pub fn current_node(&self) -> u32 {
        self.node
    }

    /// Settles open choices and ends all calls. Returns the tree, and the number in it of each node that
    /// `current_node` returned.
    pub fn finish(&mut self) -> (CallTree, Vec<u32>) {
        for index in 0..self.choices.len() as u32 {
            self.settle(index);
        }
        self.end_all_calls();
        let unknown = self.code.root_number(RootKind::Unknown, 0, self.thread);
        std::mem::take(&mut self.tree).finish(unknown)
    }

    /// The answers of `code` have changed.
    pub fn forget_code(&mut self) {
        self.cached_calls.fill(NO_CACHED_CALL);
        self.cached_jumps.fill((0, 0, JumpRange::SameFunction));
    }

    /// Adds instructions that ran one after the other from `ip`, in the current function.
    #[inline]
    pub fn execute(&mut self, ip: u64, instructions: u64) {
        if self.node == NO_NODE {
            self.push_root(ip);
        }
        self.executed += instructions;
        self.records.now.executed += instructions;
        self.tree.add_instructions(self.node, instructions);
        self.log_instructions(instructions);
    }

    /// The program of the thread is replaced: all its stacks end.
    pub fn replace_program(&mut self) {
        if self.must_wait() {
            return;
        }
        self.leave_to(Link::Empty, CallEnd::Replaced);
        self.end_suspended_calls(CallEnd::Replaced);
        self.end_stacks(RootKind::Start);
        self.suspended.clear();
        self.age_of_suspended.clear();
        self.suspended_by_return.clear();
        self.learned_switches.clear();
        self.detours.clear();
        self.called_entries.clear();
        self.return_addresses.clear();
        self.handlers.clear();
        self.forget_code();
    }

    /// Packets are lost: the thread may be on any stack. A return to an address that occurs once on the stack before
    /// the loss joins that stack.
    pub fn lose_path(&mut self) {
        let mut before = AddressMap::default();
        let mut repeated = Vec::new();
        for (at, frame) in self.frames_below(self.current) {
            if frame.returns() && before.insert(frame.return_address, at).is_some() {
                repeated.push(frame.return_address);
            }
        }
        for address in repeated {
            before.remove(&address);
        }
        let lost = self.current;
        self.end_stacks(RootKind::AfterLoss);
        self.keep_lost_stack(lost);
        self.before_loss = before;
    }

    fn end_stacks(&mut self, next_root: RootKind) {
        self.share_frames();
        self.end_lost_calls(Link::Empty);
        self.set_current(Link::Empty);
        self.next_root = next_root;
        self.excess_calls = 0;
        self.is_in_restorer = false;
        self.replaces_program = false;
        self.before_loss.clear();
    }

    // Transfers

    /// A call at `from` entered `to`.
    #[inline]
    pub fn call(&mut self, from: u64, return_address: u64, to: u64) {
        if to == return_address {
            return; // reads its own address
        }
        let slot = cache_slot(from, to);
        let (number, effect) = match self.cached_calls.get(slot) {
            Some(&(a, b, number, effect)) if (a, b) == (from, to) => (number, effect),
            _ => self.look_up_call(slot, from, return_address, to),
        };
        if self.node == NO_NODE {
            self.push_root(from);
        }
        match effect {
            CallEffect::None => {}
            CallEffect::ReplacesProgram => self.replaces_program = true,
            CallEffect::LeavesStack => {
                if self.must_wait() {
                    return;
                }
                self.suspend();
                self.start_stack(RootKind::NewStack);
                self.push_root(from);
            }
        }
        let node = self.tree.enter_call(self.node, number, CallKind::Call);
        self.push(FrameKind::Call, return_address, from, to, number, node);
    }

    #[cold]
    fn look_up_call(
        &mut self,
        slot: usize,
        from: u64,
        return_address: u64,
        to: u64,
    ) -> (u32, CallEffect) {
        if self.return_addresses.len() < MAX_KNOWN_TARGETS {
            self.called_entries.insert(to);
            self.return_addresses.insert(return_address);
        }
        let number = self.code.call_number(Some(from), to, CallKind::Call);
        let effect = match (self.code.role_at(from), self.code.role_at(to)) {
            (FunctionRole::LeavesStack, _) => CallEffect::LeavesStack,
            (_, FunctionRole::ReplacesProgram) => CallEffect::ReplacesProgram,
            _ => CallEffect::None,
        };
        if let Some(cached) = self.cached_calls.get_mut(slot) {
            *cached = (from, to, number, effect);
        }
        (number, effect)
    }

    /// A return at `from` went to `to`.
    #[inline]
    pub fn return_to(&mut self, from: u64, to: u64) {
        if let Link::Frame(at) = self.current {
            if let Some(&frame) = self.frames.get(at as usize) {
                if frame.return_address == to
                    && frame.kind == FrameKind::Call
                    && self.excess_calls == 0
                {
                    self.counts.returned += 1;
                    self.end_newest_call(at);
                    self.remove_unshared_frame(at);
                    self.set_current(frame.up);
                    return;
                }
            }
        }
        self.return_elsewhere(from, to);
    }

    /// A direct jump or a conditional branch, taken at `from`. Code without a name is part of the function that jumps
    /// there, unless it was called before.
    #[inline]
    pub fn direct_jump(&mut self, from: u64, to: u64) {
        if self.jump_range(from, to) != JumpRange::SameFunction {
            self.leave_function(from, to);
        }
    }

    #[cold]
    fn leave_function(&mut self, from: u64, to: u64) {
        if self.code.role_at(to) == FunctionRole::ReturnsForJump {
            return;
        }
        if self.called_entries.contains(&to) || self.code.function_at(to).is_some() {
            self.tail_call(from, to);
        }
    }

    /// An indirect jump.
    #[inline]
    pub fn indirect_jump(&mut self, from: u64, to: u64) {
        let range = self.jump_range(from, to);
        if range != JumpRange::SameFunction || !self.learned_switches.is_empty() {
            self.jump_anywhere(from, to, range);
        }
    }

    fn jump_anywhere(&mut self, from: u64, to: u64, range: JumpRange) {
        if self.switches_stack(from) {
            return self.resolve_nonlocal(from, to, false);
        }
        match range {
            JumpRange::SameFunction => {}
            _ if self.is_entry(to) || self.was_entered_last(to) => self.tail_call(from, to),
            JumpRange::Unnamed if !self.return_addresses.contains(&to) => {}
            _ => self.resolve_nonlocal(from, to, false),
        }
    }

    /// An event stopped the thread before the instruction at `interrupted`; it continued in a handler at `to`.
    pub fn enter_handler(&mut self, interrupted: u64, to: u64) {
        if self.node == NO_NODE {
            self.push_root(interrupted);
        }
        self.is_in_restorer = false;
        self.handlers.insert(to);
        self.called_entries.insert(to);
        let number = self
            .code
            .call_number(Some(interrupted), to, CallKind::Signal);
        let node = self.tree.enter_call(self.node, number, CallKind::Signal);
        self.push(
            FrameKind::Signal,
            interrupted,
            interrupted,
            to,
            number,
            node,
        );
    }

    /// The system call at `from`, followed by `next` in memory, continued at `to`: sigreturn, or a signal.
    pub fn system_call_to(&mut self, from: u64, next: u64, to: u64) {
        let is_sigreturn = std::mem::take(&mut self.is_in_restorer);
        let signal = self
            .frames_below(self.current)
            .map(|(_, frame)| frame)
            .find(|frame| frame.kind == FrameKind::Signal);
        match signal {
            Some(frame) if is_sigreturn || frame.return_address == to => {
                self.return_from_signal(from, frame, to);
            }
            _ => self.enter_handler(next, to),
        }
    }

    /// The kernel's IRET, SYSRET or far return at `from`, followed by `next` in memory, continued at `to`: after the
    /// system call, at the interrupted instruction, in a program or signal handler that the kernel starts, or where an
    /// exception continues.
    pub fn return_from_kernel(&mut self, from: u64, next: u64, to: u64) {
        if to == next {
            return; // serializes the processor
        }
        let is_interrupted = |frame: &Frame| frame.returns() || frame.kind == FrameKind::Signal;
        if to < KERNEL_START && std::mem::take(&mut self.replaces_program) {
            self.leave_to(Link::Empty, CallEnd::Replaced);
            return self.start_stack(RootKind::Start);
        }
        let returned = self
            .frames_below(self.current)
            .map(|(_, frame)| frame)
            .find(|frame| is_interrupted(frame) && frame.return_address == to);
        if let Some(frame) = returned {
            return self.leave_to(frame.up, CallEnd::Returned);
        }
        if to >= KERNEL_START {
            let interrupt = self
                .frames_below(self.current)
                .map(|(_, frame)| frame)
                .find(|frame| frame.kind == FrameKind::Signal);
            return match interrupt {
                Some(frame) => self.return_from_signal(from, frame, to),
                None => self.indirect_jump(from, to),
            };
        }
        let entry = self
            .frames_below(self.current)
            .map(|(_, frame)| frame)
            .find(|frame| {
                is_interrupted(frame)
                    && frame.entry >= KERNEL_START
                    && frame.return_address < KERNEL_START
            });
        match entry {
            Some(frame) => {
                self.leave_to(frame.up, CallEnd::Returned);
                self.system_call_to(frame.site, frame.return_address, to);
            }
            None => {
                self.leave_to(Link::Empty, CallEnd::Returned);
                self.start_stack(RootKind::Caller);
            }
        }
    }

    /// The kernel returned to code that is not traced; traced code continues at an entry of the kernel.
    pub fn reenter_kernel(&mut self) {
        self.leave_to(Link::Empty, CallEnd::Returned);
        self.start_stack(RootKind::Start);
    }

    /// The instruction before `next` left the filters, as a return or otherwise, and traced code continues at `to`.
    pub fn reenter_filter(&mut self, is_return: bool, next: u64, to: u64) {
        if is_return {
            self.return_to_untraced(to);
        } else if next == to {
            return;
        }
        let caller = self
            .frames_below(self.current)
            .find(|(_, frame)| frame.returns() && frame.return_address == to);
        if let Some((_, frame)) = caller {
            self.leave_to(frame.up, CallEnd::Returned);
        } else if self.node != NO_NODE && self.is_entry(to) {
            let number = self.code.call_number(None, to, CallKind::Untraced);
            let node = self.tree.enter_call(self.node, number, CallKind::Untraced);
            self.push(FrameKind::Untraced, next, next, to, number, node);
        }
    }

    /// The current function returned to code outside of the filters, and traced code continues at `to`.
    fn return_to_untraced(&mut self, to: u64) {
        let Link::Frame(at) = self.below_tail_calls(self.current) else {
            return;
        };
        match self.frame(at) {
            Some(frame) if frame.kind == FrameKind::Untraced && frame.return_address != to => {
                self.leave_to(frame.up, CallEnd::Returned);
            }
            Some(frame) if frame.kind == FrameKind::Root => {
                let is_called = self.is_entry(to);
                self.leave_to(Link::Empty, CallEnd::Returned);
                self.start_stack(if is_called {
                    RootKind::Start
                } else {
                    RootKind::Caller
                });
            }
            _ => {}
        }
    }

    // Code

    fn is_entry(&mut self, ip: u64) -> bool {
        self.called_entries.contains(&ip) || self.code.starts_function(ip)
    }

    fn switches_stack(&mut self, from: u64) -> bool {
        self.learned_switches.contains(&from) || self.code.role_at(from).switches()
    }

    #[inline]
    fn jump_range(&mut self, from: u64, to: u64) -> JumpRange {
        let slot = cache_slot(from, to);
        match self.cached_jumps.get(slot) {
            Some(&(a, b, range)) if (a, b) == (from, to) => range,
            _ => self.look_up_jump(slot, from, to),
        }
    }

    /// Whether a direct jump goes to its own function, so that it changes no stack.
    pub fn stays_in_function(&mut self, from: u64, to: u64) -> bool {
        self.jump_range(from, to) == JumpRange::SameFunction
    }

    #[cold]
    fn look_up_jump(&mut self, slot: usize, from: u64, to: u64) -> JumpRange {
        let range = match (self.code.function_at(from), self.code.function_at(to)) {
            (None, None) => JumpRange::Unnamed,
            (from, to) if from == to => JumpRange::SameFunction,
            _ => JumpRange::OtherFunction,
        };
        if let Some(cached) = self.cached_jumps.get_mut(slot) {
            *cached = (from, to, range);
        }
        range
    }

    /// Whether the function at `to` is the one that the newest call entered: it comes back from a part elsewhere.
    fn was_entered_last(&mut self, to: u64) -> bool {
        let target = self.code.function_at(to);
        let mut link = self.current;
        while let (Link::Frame(at), true) = (link, target.is_some()) {
            let Some(frame) = self.frame(at) else { break };
            if self.code.function_at(frame.entry) == target {
                return true;
            }
            if frame.kind != FrameKind::Tail {
                break;
            }
            link = frame.up;
        }
        false
    }

    fn learn_switch(&mut self, site: u64) {
        if !self.learned_switches.insert(site) {
            return;
        }
        // The functions that this one entered by returns began stacks.
        let Some(function) = self.code.function_at(site) else {
            return;
        };
        for at in self.detours.remove(&function).unwrap_or_default() {
            if let Some(frame) = self.frames.get_mut(at as usize) {
                frame.up = Link::Empty;
                let number = self
                    .code
                    .root_number(RootKind::NewStack, frame.entry, self.thread);
                let root = self.tree.enter_call(NO_NODE, number, CallKind::Root);
                self.tree.relink_call(frame.node, root);
                self.make_root_call(at, number);
            }
        }
    }

    // Frames

    fn frame(&self, at: u32) -> Option<Frame> {
        self.frames.get(at as usize).copied()
    }

    fn node_of(&self, link: Link) -> u32 {
        match link {
            Link::Frame(at) => self.frame(at).map_or(NO_NODE, |frame| frame.node),
            Link::Choice(index) => {
                let choice = self.choices.get(index as usize);
                choice
                    .and_then(|choice| choice.levels.last())
                    .map_or(NO_NODE, |level| level.node)
            }
            Link::Empty | Link::Refuted => NO_NODE,
        }
    }

    #[inline]
    fn set_current(&mut self, link: Link) {
        self.current = link;
        self.node = self.node_of(link);
    }

    /// The current stack is a new one.
    fn start_stack(&mut self, kind: RootKind) {
        self.set_current(Link::Empty);
        self.next_root = kind;
    }

    #[cold]
    fn push_root(&mut self, ip: u64) {
        let kind = std::mem::replace(&mut self.next_root, RootKind::Unknown);
        let number = self.code.root_number(kind, ip, self.thread);
        let node = self.tree.enter_call(NO_NODE, number, CallKind::Root);
        self.set_current(Link::Empty);
        self.push(FrameKind::Root, 0, 0, ip, number, node);
    }

    #[inline]
    fn push(
        &mut self,
        kind: FrameKind,
        return_address: u64,
        site: u64,
        entry: u64,
        call: u32,
        node: u32,
    ) {
        if self.frames.len() >= self.collect_at || self.choices.len() >= self.collect_choices_at {
            self.remove_unused_frames();
        }
        if self.frames.len() >= MAX_FRAMES {
            self.counts.too_deep += 1;
            self.excess_calls += 1;
            return;
        }
        self.begin_call(call);
        self.frames.push(Frame {
            up: self.current,
            return_address,
            site,
            entry,
            node,
            kind,
            entered: self.executed,
        });
        self.current = Link::Frame(self.frames.len() as u32 - 1);
        self.node = node;
    }

    /// Removes a frame that has left the current stack, if no other stack has it.
    #[inline]
    fn remove_unshared_frame(&mut self, at: u32) {
        if at as usize >= self.first_unshared {
            self.frames.truncate(at as usize);
            self.records.of_frames.truncate(at as usize);
        }
    }

    /// All frames may be part of several stacks from here on.
    fn share_frames(&mut self) {
        self.first_unshared = self.frames.len();
    }

    /// Returns the stack without the frames of tail calls, which return for the frame below.
    fn below_tail_calls(&self, mut link: Link) -> Link {
        while let Link::Frame(at) = link {
            match self.frame(at) {
                Some(frame) if frame.kind == FrameKind::Tail => link = frame.up,
                _ => break,
            }
        }
        link
    }

    /// Returns the frames of a stack but those of tail calls, the newest first.
    fn frames_below(&self, link: Link) -> impl Iterator<Item = (u32, Frame)> + '_ {
        let mut link = link;
        std::iter::from_fn(move || loop {
            match link {
                Link::Frame(at) => {
                    let frame = self.frame(at)?;
                    link = frame.up;
                    if frame.kind != FrameKind::Tail {
                        return Some((at, frame));
                    }
                }
                Link::Choice(index) => link = self.position_taken(index),
                Link::Empty | Link::Refuted => return None,
            }
        })
        .take(SEARCHED_FRAMES)
    }

    /// Returns the return address of a stack, and the stack after that return.
    fn next_return(&self, link: Link) -> Option<(u64, Link)> {
        match self.below_tail_calls(link) {
            Link::Frame(at) => self
                .frame(at)
                .filter(Frame::returns)
                .map(|frame| (frame.return_address, frame.up)),
            _ => None,
        }
    }

    /// Whether the next return says nothing about the other candidates: the stack has no frame left, or is a choice
    /// itself.
    fn ends_comparison(&self, link: Link) -> bool {
        match self.below_tail_calls(link) {
            Link::Frame(at) => self
                .frame(at)
                .is_none_or(|frame| frame.kind == FrameKind::Root),
            Link::Choice(_) | Link::Empty | Link::Refuted => true,
        }
    }

    fn tail_call(&mut self, from: u64, to: u64) {
        let target = self.code.function_at(to);
        let (mut link, mut tails) = (self.current, 0);
        while let Link::Frame(at) = link {
            let Some(frame) = self.frame(at) else { break };
            if target.is_some() && self.code.function_at(frame.entry) == target {
                return self.leave_to(link, CallEnd::Returned);
            }
            if frame.kind != FrameKind::Tail {
                break;
            }
            tails += 1;
            if tails >= MAX_TAIL_FRAMES {
                self.leave_to(self.below_tail_calls(link), CallEnd::Returned);
                break;
            }
            link = frame.up;
        }
        if let Link::Frame(at) = self.current {
            let is_call = |frame: &Frame| matches!(frame.kind, FrameKind::Call | FrameKind::Tail);
            if let Some(frame) = self.frame(at).filter(is_call) {
                // An interrupted thunk is not short.
                let is_stub = self.executed - frame.entered <= MAX_STUB_INSTRUCTIONS
                    || self.code.role_at(frame.entry) == FunctionRole::JumpsIndirectly;
                if is_stub && !self.code.starts_function(frame.entry) {
                    let instructions = self.executed - frame.entered;
                    let caller = self.node_of(frame.up);
                    self.tree.undo_call(frame.node, caller, instructions);
                    self.drop_newest_call(at);
                    return self.call_in_place_of(at, frame, to);
                }
                if self.code.role_at(frame.entry) == FunctionRole::ResolvesFunctions {
                    self.end_newest_call(at);
                    return self.call_in_place_of(at, frame, to);
                }
            }
        }
        let return_address = self.next_return(self.current).map_or(0, |next| next.0);
        let number = self.code.call_number(Some(from), to, CallKind::Tail);
        let node = self.tree.enter_call(self.node, number, CallKind::Tail);
        self.push(FrameKind::Tail, return_address, from, to, number, node);
    }

    /// The function that a PLT stub or the dynamic linker jumped to takes the place of that frame.
    fn call_in_place_of(&mut self, at: u32, stub: Frame, to: u64) {
        self.remove_unshared_frame(at);
        self.set_current(stub.up);
        self.called_entries.insert(to);
        let kind = stub.call_kind();
        let number = self.code.call_number(Some(stub.site), to, kind);
        let node = self.tree.enter_call(self.node, number, kind);
        self.push(stub.kind, stub.return_address, stub.site, to, number, node);
    }

    // Returns that are not to the newest return address

    #[cold]
    fn return_elsewhere(&mut self, from: u64, to: u64) {
        if self.excess_calls > 0 {
            self.excess_calls -= 1;
            return;
        }
        let link = self.below_tail_calls(self.current);
        let frame = match link {
            Link::Choice(index) => return self.return_in_choice(index, from, to),
            Link::Frame(at) => self.frame(at),
            Link::Empty | Link::Refuted => None,
        };
        match frame {
            Some(frame) if frame.returns() && frame.return_address == to => {
                self.counts.returned += 1;
                self.leave_to(frame.up, CallEnd::Returned);
            }
            Some(frame) if frame.kind == FrameKind::Signal => {
                self.is_in_restorer = frame.entry < KERNEL_START;
            }
            Some(frame) if frame.kind == FrameKind::Detour && frame.up != Link::Empty => {
                match self.next_return(frame.up) {
                    Some((address, up)) if address == to => {
                        self.counts.returned += 1;
                        self.leave_to(up, CallEnd::Returned);
                    }
                    _ => self.resolve_nonlocal(from, to, true),
                }
            }
            Some(frame) if frame.returns() => self.resolve_nonlocal(from, to, true),
            // The caller of the first function
            _ => {
                if let Some(&at) = self.before_loss.get(&to) {
                    self.before_loss.clear();
                    let up = self.frame(at).map_or(Link::Empty, |frame| frame.up);
                    self.leave_to(Link::Empty, CallEnd::Returned);
                    self.rejoin_lost_stack(up);
                } else if self.must_wait() {
                    // another thread may suspend a stack that returns there
                } else if self.suspended_by_return.contains_key(&to) {
                    self.resolve_nonlocal(from, to, true);
                } else {
                    self.leave_to(Link::Empty, CallEnd::Returned);
                    self.start_stack(RootKind::Caller);
                }
            }
        }
    }

    fn return_from_signal(&mut self, from: u64, signal: Frame, to: u64) {
        self.leave_to(signal.up, CallEnd::Returned);
        let interrupted = signal.return_address;
        if to == interrupted {
            return;
        }
        if self.handlers.contains(&to) {
            self.enter_handler(interrupted, to);
        } else if self.is_entry(to) {
            let number = self
                .code
                .call_number(Some(interrupted), to, CallKind::Injected);
            let node = self.tree.enter_call(self.node, number, CallKind::Injected);
            self.return_addresses.insert(interrupted);
            self.push(
                FrameKind::Injected,
                interrupted,
                interrupted,
                to,
                number,
                node,
            );
        } else if to.abs_diff(interrupted) > 16 {
            let target = self.code.function_at(to);
            if target.is_none() || target != self.code.function_at(interrupted) {
                // The handler has ended: the system call cannot be reported again.
                self.permit = Some(SwitchPermit::AnyStack);
                self.resolve_nonlocal(from, to, false);
                self.permit = None;
            }
        }
    }

    /// Finds the stack on which `to` runs, for a return or indirect jump that leaves the current function otherwise
    /// than by a return to its caller. The first rule that applies decides:
    ///
    /// 1. *Address*: frames of this stack have `to` as return address (unwinding), or suspended stacks have it on top
    ///    or near it (a switch). If both apply, this stack is preferred. If the instruction is known to switch stacks,
    ///    the other stacks are not even candidates: it resumes a context that this stack saved.
    /// 2. *Entry*: `to` starts a function: a thunk, a new stack, or a jump in the form of a return.
    /// 3. *Function*: `to` is in a function that a frame of this stack returns to (a landing pad, a setjmp), or, for
    ///    returns and switches, one that a suspended stack returns to.
    /// 4. Otherwise a return leads to an unknown stack, and a jump stays on this one.
    fn resolve_nonlocal(&mut self, from: u64, to: u64, is_return: bool) {
        if from >= KERNEL_START {
            return self.resolve_in_kernel(from, to, is_return);
        }
        let role = self.code.role_at(from);
        let switches = role.switches() || self.learned_switches.contains(&from);
        let is_entry = self.is_entry(to);
        let target = self.code.function_at(to);
        let may_leave = is_return || switches;
        let is_known = is_entry || target.is_some() || self.return_addresses.contains(&to);
        if !may_leave && !is_known {
            return;
        }
        let may_switch = |stacks: &Self| {
            let is_unknown_return = is_return && !is_entry;
            switches
                || !stacks.suspended.is_empty()
                || is_unknown_return && stacks.frames_returning_to(to).is_empty()
        };
        if self.orders_switches && may_switch(self) && self.must_wait() {
            return;
        }
        if may_leave && !is_entry && self.must_wait_for_stack(to) {
            return;
        }
        if role == FunctionRole::ResumesGoroutine && self.is_scheduler_running() {
            self.suspend();
            self.start_stack(RootKind::Unknown);
        }
        let here = self.frames_returning_to(to);
        if let (Some(first), Some(detour)) = (here.first(), self.crossed_detour(from)) {
            let below = self.frame(detour).map_or(Link::Empty, |frame| frame.up);
            self.learn_switch(from);
            self.suspend();
            self.counts.switched += 1;
            if self.frame_index(first.result) < Some(detour) {
                self.set_current(below);
            }
            return self.resume(&here, CallEnd::Returned);
        }
        let elsewhere = if may_leave || self.return_addresses.contains(&to) {
            self.suspended_returning_to(to, here.is_empty())
        } else {
            Vec::new()
        };
        if here.is_empty() && elsewhere.is_empty() && is_entry {
            return self.enter_by_return(from, to, is_return, switches);
        }
        if !here.is_empty() && (switches || elsewhere.is_empty()) {
            self.counts.unwound += 1;
            return self.resume(&here, CallEnd::Unwound);
        }
        if !here.is_empty() {
            self.counts.unwound += 1;
            return self.resume(&[here, elsewhere].concat(), CallEnd::Unwound);
        }
        if !elsewhere.is_empty() {
            self.learn_switch(from);
            self.suspend();
            self.counts.switched += 1;
            return self.resume(&elsewhere, CallEnd::Returned);
        }
        if let Some(target) = target {
            let here = self.frames_returning_into(target, role);
            if !here.is_empty() {
                self.counts.unwound += 1;
                return self.resume(&here, CallEnd::Unwound);
            }
            let elsewhere = if may_leave {
                self.suspended_returning_into(target)
            } else {
                Vec::new()
            };
            if !elsewhere.is_empty() {
                self.learn_switch(from);
                self.suspend();
                self.counts.switched += 1;
                return self.resume(&elsewhere, CallEnd::Returned);
            }
        }
        if may_leave {
            self.counts.unknown += 1;
            self.suspend();
            self.start_stack(RootKind::Unknown);
        } else {
            self.tail_call(from, to);
        }
    }

    /// Does as `resolve_nonlocal` in the kernel, where only `__switch_to` switches stacks.
    fn resolve_in_kernel(&mut self, from: u64, to: u64, is_return: bool) {
        if let Some(caller) = self.frames_returning_to(to).first() {
            self.counts.unwound += 1;
            return self.leave_to(caller.result, CallEnd::Unwound);
        }
        // The handler of a breakpoint has emulated the call instruction that the breakpoint replaced.
        let emulated = self.frames_below(self.current).find(|(_, frame)| {
            frame.kind == FrameKind::Injected && to.abs_diff(frame.return_address) <= 16
        });
        if let (true, Some((_, frame))) = (is_return, emulated) {
            return self.leave_to(frame.up, CallEnd::Returned);
        }
        let top = match self.current {
            Link::Frame(at) => self.frame(at).map(|frame| (at, frame)),
            _ => None,
        };
        if let (true, Some((at, frame))) = (is_return, top) {
            let is_inner_call = frame.kind == FrameKind::Call
                && !self.code.starts_function(frame.entry)
                && self.code.function_at(frame.entry) == self.code.function_at(frame.site);
            if is_inner_call {
                return self.jump_by_retpoline(at, frame, from, to);
            }
            if !self.is_entry(to) {
                self.counts.unknown += 1;
                self.leave_to(Link::Empty, CallEnd::Unwound);
                return self.start_stack(RootKind::Unknown);
            }
        }
        self.tail_call(from, to);
    }

    /// Rule 2 of `resolve_nonlocal`.
    fn enter_by_return(&mut self, from: u64, to: u64, is_return: bool, switches: bool) {
        let top = match self.current {
            Link::Frame(at) => self.frame(at).map(|frame| (at, frame)),
            _ => None,
        };
        if let (true, Some((at, frame))) = (is_return, top) {
            let own = self.code.function_at(from);
            if frame.kind == FrameKind::Call
                && self.code.function_at(frame.entry) == own
                && !self.code.starts_function(frame.entry)
            {
                return self.jump_by_retpoline(at, frame, from, to);
            }
        }
        if switches {
            self.suspend();
            self.counts.switched += 1;
            return self.start_stack(RootKind::NewStack);
        }
        if is_return {
            let number = self.code.call_number(Some(from), to, CallKind::Tail);
            let node = self.tree.enter_call(self.node, number, CallKind::Tail);
            let floating = self.tree.add_floating();
            self.tree.link(floating, node);
            self.push(FrameKind::Detour, 0, from, to, number, floating);
            if let (Link::Frame(at), Some(function)) = (self.current, self.code.function_at(from)) {
                self.detours.entry(function).or_default().push(at);
            }
            return self.share_frames();
        }
        self.tail_call(from, to);
    }

    /// A retpoline undoes its own call, of the newest frame, and jumps.
    fn jump_by_retpoline(&mut self, at: u32, frame: Frame, from: u64, to: u64) {
        self.drop_newest_call(at);
        self.set_current(frame.up);
        self.tree
            .undo_call(frame.node, self.node, self.executed - frame.entered);
        self.tail_call(from, to);
    }

    fn is_scheduler_running(&mut self) -> bool {
        let sites: Vec<u64> = self
            .frames_below(self.current)
            .take(9)
            .filter(|(_, frame)| frame.kind == FrameKind::Call)
            .map(|(_, frame)| frame.site)
            .collect();
        sites
            .into_iter()
            .any(|site| self.code.role_at(site) == FunctionRole::Schedules)
    }

    /// Returns the oldest detour of the current stack that the function at `from` made.
    fn crossed_detour(&mut self, from: u64) -> Option<u32> {
        let own = self.code.function_at(from);
        let detours: Vec<(u32, u64)> = self
            .frames_below(self.current)
            .filter(|(_, frame)| frame.kind == FrameKind::Detour)
            .map(|(at, frame)| (at, frame.site))
            .collect();
        let mut oldest_first = detours.into_iter().rev();
        let found = oldest_first.find(|&(_, site)| self.code.function_at(site) == own);
        found.map(|(at, _)| at)
    }

    /// Returns the stacks after the frames of the current stack that return to `to`, the newest first.
    fn frames_returning_to(&self, to: u64) -> Vec<Candidate> {
        self.frames_below(self.current)
            .filter(|(_, frame)| frame.returns() && frame.return_address == to)
            .map(|(_, frame)| Candidate {
                result: frame.up,
                origin: None,
            })
            .collect()
    }

    /// Returns suspended stacks that return to `to`, the one suspended first at the head. `also_deep`: if none has `to`
    /// on top, those that have it near the top: what suspended them may have called other functions. Stacks that an
    /// open choice has taken are candidates, too, the last ones.
    fn suspended_returning_to(&mut self, to: u64, also_deep: bool) -> Vec<Candidate> {
        let taken = self.taken_returning_to(to);
        if self.suspended.is_empty() && taken.is_empty() {
            return Vec::new();
        }
        let own: HashSet<u32> = self.frames_below(self.current).map(|(at, _)| at).collect();
        let is_other = |at: u32| match self.below_tail_calls(Link::Frame(at)) {
            Link::Frame(at) => !own.contains(&at),
            _ => true,
        };
        let mut tops = self
            .suspended_by_return
            .get(&to)
            .cloned()
            .unwrap_or_default();
        tops.sort_by_key(|&at| self.age_of_suspended.get(&u64::from(at)).copied());
        let mut found: Vec<Candidate> = tops
            .into_iter()
            .filter(|&at| is_other(at))
            .filter_map(|at| {
                let (_, up) = self.next_return(Link::Frame(at))?;
                Some(Candidate {
                    result: up,
                    origin: Some(at),
                })
            })
            .collect();
        if found.is_empty() {
            let free = taken.iter().find(|each| self.free_from_choice(**each));
            found.extend(free);
        } else {
            found.extend(taken);
        }
        if found.is_empty() && also_deep {
            let near = self.suspended_with_return_to(to);
            let others = near.filter(|(_, near, _)| !own.contains(near));
            found.extend(others.map(|(top, _, frame)| Candidate {
                result: frame.up,
                origin: Some(top),
            }));
        }
        found
    }

    /// Returns the newest frame of each suspended stack that has `to` near it as a return address, and that frame.
    fn suspended_with_return_to(&self, to: u64) -> impl Iterator<Item = (u32, u32, Frame)> + '_ {
        self.suspended.values().filter_map(move |&top| {
            let mut near = self
                .frames_below(Link::Frame(top))
                .take(SEARCHED_SUSPENDED_FRAMES);
            let found = near.find(|(_, frame)| frame.returns() && frame.return_address == to);
            found.map(|(at, frame)| (top, at, frame))
        })
    }

    /// Returns the stacks after the frames of the current stack that return into a function, the newest first.
    fn frames_returning_into(&mut self, target: u64, role: FunctionRole) -> Vec<Candidate> {
        let frames: Vec<Frame> = self
            .frames_below(self.current)
            .map(|(_, frame)| frame)
            .filter(|frame| frame.returns() || frame.kind == FrameKind::Signal)
            .collect();
        // `_Unwind_Resume` does not continue in the frame that called it.
        let caller = match self.below_tail_calls(self.current) {
            Link::Frame(at) => self.frame(at).map(|frame| frame.up),
            _ => None,
        };
        let mut found = Vec::new();
        for frame in frames {
            if self.code.function_at(frame.site) == Some(target) {
                found.push(Candidate {
                    result: frame.up,
                    origin: None,
                });
            }
        }
        if role == FunctionRole::ResumesUnwinding
            && found.iter().any(|each| Some(each.result) != caller)
        {
            found.retain(|each| Some(each.result) != caller);
        }
        found
    }

    /// Returns suspended stacks that return into a function, the one suspended last at the head.
    fn suspended_returning_into(&mut self, target: u64) -> Vec<Candidate> {
        let tops: Vec<u32> = self.suspended.values().rev().copied().collect();
        let mut found = Vec::new();
        for at in tops {
            let frames: Vec<Frame> = self
                .frames_below(Link::Frame(at))
                .map(|(_, frame)| frame)
                .filter(|frame| frame.kind == FrameKind::Call)
                .collect();
            for frame in frames {
                if self.code.function_at(frame.site) == Some(target) {
                    found.push(Candidate {
                        result: frame.up,
                        origin: Some(at),
                    });
                    break;
                }
            }
            if found.len() >= MAX_CANDIDATES {
                break;
            }
        }
        found
    }

    // Suspended stacks and choices

    /// Keeps the current stack, so that a later return can resume it.
    fn suspend(&mut self) {
        self.share_frames();
        let Link::Frame(at) = self.current else {
            return;
        };
        let Some((address, _)) = self.next_return(self.current) else {
            return;
        };
        self.remove_suspended(at);
        let age = self
            .suspended
            .last_key_value()
            .map_or(0, |(age, _)| age + 1);
        self.insert_suspended(at, age, address);
        if self.suspended.len() > MAX_SUSPENDED {
            if let Some((_, &oldest)) = self.suspended.first_key_value() {
                self.remove_suspended(oldest);
            }
        }
    }

    fn insert_suspended(&mut self, at: u32, age: i64, return_address: u64) {
        self.suspended.insert(age, at);
        self.age_of_suspended.insert(at.into(), age);
        self.suspended_by_return
            .entry(return_address)
            .or_default()
            .push(at);
    }

    fn remove_suspended(&mut self, at: u32) {
        let Some(age) = self.age_of_suspended.remove(&u64::from(at)) else {
            return;
        };
        self.suspended.remove(&age);
        let Some((address, _)) = self.next_return(Link::Frame(at)) else {
            return;
        };
        if let Some(tops) = self.suspended_by_return.get_mut(&address) {
            tops.retain(|&each| each != at);
            if tops.is_empty() {
                self.suspended_by_return.remove(&address);
            }
        }
    }

    fn is_suspended(&self, at: u32) -> bool {
        self.age_of_suspended.contains_key(&u64::from(at))
    }

    /// Continues on the first of the stacks. If they differ, later returns may correct this. `end`: how
    /// calls of the current stack end that a candidate without an origin does not have.
    fn resume(&mut self, candidates: &[Candidate], end: CallEnd) {
        self.share_frames();
        if let &[only] = candidates {
            if let Some(origin) = only.origin {
                self.remove_suspended(origin);
            }
            return self.continue_on(only, end);
        }
        let mut distinct: Vec<Candidate> = Vec::new();
        for candidate in candidates {
            for each in self.expand_candidate(*candidate) {
                if distinct.len() < MAX_CANDIDATES
                    && !distinct.iter().any(|other| other.result == each.result)
                {
                    distinct.push(each);
                }
            }
        }
        let Some(&first) = distinct.first() else {
            return;
        };
        if let Some(origin) = first.origin {
            self.remove_suspended(origin);
        }
        let node = self.node_of(first.result);
        let is_same_path = distinct
            .iter()
            .all(|each| self.node_of(each.result) == node);
        if is_same_path || self.choices.len() >= MAX_CHOICES || self.tree.is_full() {
            return self.continue_on(first, end);
        }
        self.counts.choices += 1;
        let positions: Vec<Link> = distinct.iter().map(|each| each.result).collect();
        let floating = self.tree.add_floating();
        let index = self.choices.len() as u32;
        if let Some(origin) = first.origin {
            self.taken_by.insert(origin.into(), index);
        }
        self.choices.push(Choice {
            began: self.executed,
            candidates: distinct,
            taken: 0,
            levels: vec![ChoiceLevel {
                node: floating,
                positions: positions.clone(),
                reached: self.moment(),
                own: 0,
            }],
            positions,
            is_open: true,
            before: self.current,
            end,
            pending_calls: Vec::new(),
        });
        self.set_current(Link::Choice(index));
    }

    /// Continues on the stack of a candidate.
    fn continue_on(&mut self, candidate: Candidate, end: CallEnd) {
        match candidate.origin {
            Some(origin) => {
                let (from, to) = (Link::Frame(origin), candidate.result);
                self.end_calls(from, to, CallEnd::Returned, self.moment());
                self.set_current(to);
            }
            None => self.leave_to(candidate.result, end),
        }
    }

    /// Replaces a candidate that is itself a choice: by the stack taken there and, if that was about how far to unwind
    /// one stack, by the others too.
    fn expand_candidate(&mut self, candidate: Candidate) -> Vec<Candidate> {
        let Link::Choice(index) = candidate.result else {
            return vec![candidate];
        };
        let Some(choice) = self.choices.get(index as usize) else {
            return Vec::new();
        };
        let taken = choice.taken;
        let is_one_stack = choice.candidates.iter().all(|each| each.origin.is_none());
        let mut links: Vec<Link> = choice.positions.get(taken).copied().into_iter().collect();
        if is_one_stack && candidate.origin.is_none() && choice.is_open {
            let others = choice.positions.iter().enumerate();
            links.extend(others.filter(|&(at, _)| at != taken).map(|(_, &link)| link));
        }
        self.settle(index);
        links
            .into_iter()
            .filter(|&link| link != Link::Refuted)
            .map(|result| Candidate {
                result,
                origin: candidate.origin,
            })
            .collect()
    }

    fn position_taken(&self, index: u32) -> Link {
        self.choices
            .get(index as usize)
            .and_then(|choice| choice.positions.get(choice.taken).copied())
            .unwrap_or(Link::Empty)
    }

    /// Ends a choice: what ran meanwhile belongs to the stack taken.
    fn settle(&mut self, index: u32) {
        let Some(choice) = self.choices.get_mut(index as usize) else {
            return;
        };
        if !std::mem::take(&mut choice.is_open) {
            return;
        }
        self.log_settled_choice(index);
        let Some(choice) = self.choices.get_mut(index as usize) else {
            return;
        };
        choice.before = Link::Empty;
        let (levels, taken) = (std::mem::take(&mut choice.levels), choice.taken);
        let candidates = std::mem::take(&mut choice.candidates);
        if let Some(origin) = candidates.get(taken).and_then(|each| each.origin) {
            self.taken_by.remove(&u64::from(origin));
        }
        for level in &levels {
            let link = level.positions.get(taken).copied();
            let node = self.node_of(link.unwrap_or(Link::Refuted));
            if node != NO_NODE {
                self.tree.link(level.node, node);
            }
        }
        if let (Some(choice), Some(last)) = (
            self.choices.get_mut(index as usize),
            levels.into_iter().last(),
        ) {
            choice.levels = vec![ChoiceLevel {
                positions: Vec::new(),
                ..last
            }];
        }
    }

    /// A return on a stack that is one of several.
    fn return_in_choice(&mut self, index: u32, from: u64, to: u64) {
        let choice = match self.choices.get(index as usize) {
            Some(choice) if choice.is_open => choice,
            _ => {
                self.set_current(self.position_taken(index));
                return self.return_to(from, to);
            }
        };
        let returns_there = |link: Link| self.next_return(link).is_some_and(|next| next.0 == to);
        let position = self.position_taken(index);
        if !returns_there(position) {
            let others = choice.positions.iter().enumerate();
            let fitting: Vec<usize> = others
                .filter(|&(at, &link)| at != choice.taken && returns_there(link))
                .map(|(at, _)| at)
                .collect();
            let origin = |at: usize| choice.candidates.get(at).and_then(|each| each.origin);
            let is_free = |&at: &usize| origin(at).is_none_or(|origin| self.is_suspended(origin));
            let free = fitting.iter().copied().find(is_free);
            let refuted = choice.candidates.get(choice.taken).copied();
            let exchange = fitting.into_iter().find(|&at| {
                let taken_by = origin(at).and_then(|at| self.taken_by.get(&u64::from(at)));
                let other = taken_by.zip(refuted);
                other.is_some_and(|(&other, refuted)| self.path_in_choice(other, refuted).is_some())
            });
            match free.or(exchange) {
                Some(at) => self.exchange_candidate(index, at),
                None => {
                    self.settle(index);
                    self.set_current(position);
                    return self.return_to(from, to);
                }
            }
        }
        self.advance_choice(index, to);
    }

    /// Removes the candidates that do not return to `to`, and continues after that return.
    fn advance_choice(&mut self, index: u32, to: u64) {
        let Some(choice) = self.choices.get(index as usize) else {
            return;
        };
        let positions: Vec<Link> = choice
            .positions
            .iter()
            .map(|&link| match self.next_return(link) {
                Some((address, up)) if address == to => up,
                _ => Link::Refuted,
            })
            .collect();
        let taken = positions.get(choice.taken).copied().unwrap_or(Link::Empty);
        let mut rest = positions.iter().filter(|&&link| link != Link::Refuted);
        let is_decided = rest.all(|&link| link == taken)
            || self.ends_comparison(taken)
            || choice.levels.len() >= MAX_LEVELS
            || self.tree.is_full();
        self.counts.returned += 1;
        if is_decided {
            let position = self.position_taken(index);
            self.settle(index);
            self.set_current(position);
            return self.leave_to(taken, CallEnd::Returned);
        }
        let node = self.tree.add_floating();
        let reached = self.moment();
        if let Some(choice) = self.choices.get_mut(index as usize) {
            choice.levels.push(ChoiceLevel {
                node,
                positions: positions.clone(),
                reached,
                own: 0,
            });
            choice.positions = positions;
        }
        self.set_current(Link::Choice(index));
    }

    /// Takes another candidate. Its stack is still suspended, or another choice has taken it and gets the one taken
    /// here.
    fn exchange_candidate(&mut self, index: u32, other: usize) {
        let Some(choice) = self.choices.get_mut(index as usize) else {
            return;
        };
        let (Some(&refuted), Some(&fitting)) = (
            choice.candidates.get(choice.taken),
            choice.candidates.get(other),
        ) else {
            return;
        };
        choice.taken = other;
        self.counts.corrected += 1;
        let mut given_back = refuted.origin;
        if let Some(origin) = refuted.origin {
            self.taken_by.remove(&u64::from(origin));
        }
        if let Some(origin) = fitting.origin {
            if self.is_suspended(origin) {
                self.remove_suspended(origin);
            } else if let Some(&loser) = self.taken_by.get(&u64::from(origin)) {
                self.give_candidate(loser, refuted);
                if let Some(origin) = given_back.take() {
                    self.taken_by.insert(origin.into(), loser);
                }
            }
            self.taken_by.insert(origin.into(), index);
        }
        if let Some(origin) = given_back {
            if let Some((address, _)) = self.next_return(Link::Frame(origin)) {
                let age = self
                    .suspended
                    .first_key_value()
                    .map_or(0, |(age, _)| age - 1);
                self.insert_suspended(origin, age, address);
            }
        }
    }

    /// Makes a choice take this candidate.
    fn give_candidate(&mut self, index: u32, candidate: Candidate) {
        let path = self.path_in_choice(index, candidate).unwrap_or_default();
        let Some(choice) = self.choices.get_mut(index as usize) else {
            return;
        };
        let known = choice
            .candidates
            .iter()
            .position(|each| each.origin.is_some() && each.origin == candidate.origin);
        choice.taken = known.unwrap_or_else(|| {
            choice.candidates.push(candidate);
            choice
                .positions
                .push(path.last().copied().unwrap_or(Link::Refuted));
            for (level, position) in choice.levels.iter_mut().zip(path) {
                level.positions.push(position);
            }
            choice.candidates.len() - 1
        });
    }

    /// Returns the positions of a candidate at the levels of an open choice; `None` if it does not return where the
    /// stack taken there has returned, or if it was not suspended yet.
    fn path_in_choice(&self, index: u32, candidate: Candidate) -> Option<Vec<Link>> {
        let choice = self.choices.get(index as usize)?;
        if self.frame(candidate.origin?)?.entered >= choice.began {
            return None;
        }
        let mut path = vec![candidate.result];
        for level in choice.levels.split_last()?.1 {
            let (returned_to, _) = self.next_return(*level.positions.get(choice.taken)?)?;
            let (address, up) = self.next_return(*path.last()?)?;
            (address == returned_to).then(|| path.push(up))?;
        }
        choice.is_open.then_some(path)
    }

    /// Returns the stacks that return to `to` and that open choices have taken.
    fn taken_returning_to(&self, to: u64) -> Vec<Candidate> {
        let mut taken: Vec<u32> = self.taken_by.values().copied().collect();
        taken.sort_unstable();
        let choices = taken.iter().filter_map(|&at| self.choices.get(at as usize));
        let found = choices.filter_map(|choice| {
            let origin = choice.candidates.get(choice.taken)?.origin?;
            let (address, up) = self.next_return(Link::Frame(origin))?;
            (address == to).then_some(Candidate {
                result: up,
                origin: Some(origin),
            })
        });
        found.take(MAX_CANDIDATES).collect()
    }

    /// Lets the choice that took a stack take a suspended one instead. Returns whether it could.
    fn free_from_choice(&mut self, candidate: Candidate) -> bool {
        let origin = candidate.origin.map_or(u64::MAX, u64::from);
        let Some(&index) = self.taken_by.get(&origin) else {
            return false;
        };
        let other = self.choices.get(index as usize).and_then(|choice| {
            let candidates = choice.candidates.iter().zip(&choice.positions);
            let mut is_free = candidates.map(|(each, &position)| {
                position != Link::Refuted && each.origin.is_some_and(|at| self.is_suspended(at))
            });
            is_free.position(|is_free| is_free)
        });
        if let Some(other) = other {
            self.exchange_candidate(index, other);
        }
        other.is_some()
    }

    /// Removes the frames that no stack has, and settled choices.
    #[cold]
    fn remove_unused_frames(&mut self) {
        self.remove_settled_choices();
        let mut keep = vec![false; self.frames.len()];
        let mut keep_link = |link: Link| {
            if let Link::Frame(at) = link {
                if let Some(keep) = keep.get_mut(at as usize) {
                    *keep = true;
                }
            }
        };
        self.exchange_state();
        for thread in &mut self.threads {
            thread.links_mut().for_each(|link| keep_link(*link));
            let before_loss = thread.before_loss.values();
            before_loss.for_each(|&at| keep_link(Link::Frame(at)));
        }
        let heads = self.suspended.values().copied();
        let taken = self.taken_by.keys().map(|&at| at as u32);
        for at in heads.chain(taken) {
            keep_link(Link::Frame(at));
        }
        for choice in &self.choices {
            choice.positions.iter().for_each(|&link| keep_link(link));
            for each in &choice.candidates {
                keep_link(each.result);
                keep_link(each.origin.map_or(Link::Empty, Link::Frame));
            }
            for level in &choice.levels {
                level.positions.iter().for_each(|&link| keep_link(link));
            }
            keep_link(choice.before);
        }
        for at in (0..self.frames.len()).rev() {
            if keep.get(at) == Some(&true) {
                if let Some(Link::Frame(up)) = self.frames.get(at).map(|frame| frame.up) {
                    if let Some(keep) = keep.get_mut(up as usize) {
                        *keep = true;
                    }
                }
            }
        }
        self.end_abandoned_calls(&keep);
        let mut moved = vec![0u32; self.frames.len()];
        let mut kept = 0;
        for (place, &keep) in moved.iter_mut().zip(&keep) {
            *place = kept;
            kept += u32::from(keep);
        }
        let new_index = |at: u32| moved.get(at as usize).copied().unwrap_or(0);
        let new_link = |link: Link| match link {
            Link::Frame(at) => Link::Frame(new_index(at)),
            link => link,
        };
        let mut at = 0;
        self.frames.retain_mut(|frame| {
            frame.up = new_link(frame.up);
            at += 1;
            keep.get(at - 1) == Some(&true)
        });
        let mut kept = keep.iter();
        self.records
            .of_frames
            .retain(|_| kept.next() == Some(&true));
        for thread in &mut self.threads {
            thread.links_mut().for_each(|link| *link = new_link(*link));
            let before_loss = thread.before_loss.values_mut();
            before_loss.for_each(|at| *at = new_index(*at));
        }
        self.exchange_state();
        self.suspended
            .values_mut()
            .for_each(|at| *at = new_index(*at));
        self.age_of_suspended = self
            .suspended
            .iter()
            .map(|(&age, &at)| (at.into(), age))
            .collect();
        for tops in self.suspended_by_return.values_mut() {
            tops.iter_mut().for_each(|at| *at = new_index(*at));
        }
        let taken_by = std::mem::take(&mut self.taken_by).into_iter();
        self.taken_by = taken_by
            .map(|(at, index)| (new_index(at as u32).into(), index))
            .collect();
        for detours in self.detours.values_mut() {
            detours.retain(|&at| keep.get(at as usize) == Some(&true));
            detours.iter_mut().for_each(|at| *at = new_index(*at));
        }
        for choice in &mut self.choices {
            choice
                .positions
                .iter_mut()
                .for_each(|link| *link = new_link(*link));
            for each in &mut choice.candidates {
                each.result = new_link(each.result);
                each.origin = each.origin.map(new_index);
            }
            for level in &mut choice.levels {
                level
                    .positions
                    .iter_mut()
                    .for_each(|link| *link = new_link(*link));
            }
            choice.before = new_link(choice.before);
        }
        self.share_frames();
        self.collect_at = (2 * self.frames.len()).max(MIN_COLLECTED_FRAMES);
    }

    /// Replaces settled choices by the stacks taken.
    fn remove_settled_choices(&mut self) {
        let is_settled =
            |at: u32| (self.choices.get(at as usize)).is_some_and(|choice| !choice.is_open);
        let mut kept = 0;
        let mut new_indices = Vec::with_capacity(self.choices.len());
        for choice in &self.choices {
            new_indices.push(kept);
            kept += u32::from(choice.is_open);
        }
        let new_links: Vec<Link> = (0..self.choices.len() as u32)
            .map(|index| {
                let mut link = Link::Choice(index);
                while let Link::Choice(at) = link {
                    if !is_settled(at) {
                        return Link::Choice(new_indices.get(at as usize).copied().unwrap_or(0));
                    }
                    link = self.position_taken(at);
                }
                link
            })
            .collect();
        let new_link = |link: Link| match link {
            Link::Choice(index) => new_links
                .get(index as usize)
                .copied()
                .unwrap_or(Link::Empty),
            link => link,
        };
        self.exchange_state();
        for thread in &mut self.threads {
            thread.links_mut().for_each(|link| *link = new_link(*link));
        }
        self.exchange_state();
        for frame in &mut self.frames {
            frame.up = new_link(frame.up);
        }
        for record in &mut self.records.of_frames {
            record.choice = match new_link(Link::Choice(record.choice)) {
                Link::Choice(index) => index,
                _ => NO_CHOICE,
            };
        }
        for index in self.taken_by.values_mut() {
            if let Link::Choice(new) = new_link(Link::Choice(*index)) {
                *index = new;
            }
        }
        self.choices.retain(|choice| choice.is_open);
        for choice in &mut self.choices {
            choice
                .positions
                .iter_mut()
                .for_each(|link| *link = new_link(*link));
            for each in &mut choice.candidates {
                each.result = new_link(each.result);
            }
            for level in &mut choice.levels {
                level
                    .positions
                    .iter_mut()
                    .for_each(|link| *link = new_link(*link));
            }
            choice.before = new_link(choice.before);
        }
        self.collect_choices_at = (2 * self.choices.len()).max(MIN_COLLECTED_CHOICES);
    }
}
