//! The single calls of a process, reported when they end.

use crate::tree::CallKind;

/// How a call ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum CallEnd {
    /// It returned to its caller. A tail call ends with the function that made it.
    Returned = 0,
    /// An exception or longjmp left it.
    Unwound = 1,
    /// Its stack was suspended and did not run again.
    Suspended = 2,
    /// It was running when packets were lost.
    Lost = 3,
    /// The program was replaced (exec).
    Replaced = 4,
    /// It was running when the trace of the thread ended.
    Running = 5,
}

/// `EndedCall::parent` of a root.
pub const NO_CALL: u64 = u64::MAX;

/// One call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EndedCall {
    /// Counts the calls of the process in the order in which their beginnings were reported. A function that returns
    /// twice, as getcontext does, is reported for each return.
    pub id: u64,
    /// The caller; `NO_CALL` for roots.
    pub parent: u64,
    /// `id` of the first call of its stack.
    pub stack: u64,
    /// The number of callers on the stack.
    pub depth: u32,
    /// The number of the call site and function, as `Node::call`.
    pub call: u32,
    pub kind: CallKind,
    pub end: CallEnd,
    /// Several stacks were possible below this call when it ended: `parent` and `depth` are those of the likeliest.
    pub is_ambiguous: bool,
    /// The threads that ran the beginning and the end: another one may have resumed the stack.
    pub begin_thread: u32,
    pub end_thread: u32,
    /// The number of instructions of these threads before the call, and at its end.
    pub first: u64,
    pub next: u64,
    /// Instructions of the function itself.
    pub own: u64,
    /// Instructions executed on the stack of the call until it ended. Those of signal handlers and, while the stack was
    /// suspended, of other stacks do not count.
    pub total: u64,
    /// The times of `CallStacks::set_time` at the beginning and the end.
    pub begin_time: u64,
    pub end_time: u64,
}

/// Takes the calls of a process in the order of their ends. If several stacks were possible, calls may come later.
pub trait CallLog {
    /// Whether calls are logged. Costs memory and time for each frame.
    const IS_ENABLED: bool;

    fn add_call(&mut self, call: EndedCall);

    /// Whether calls should be taken out before more are added.
    fn is_full(&self) -> bool {
        false
    }
}

/// Logs no calls.
impl CallLog for () {
    const IS_ENABLED: bool = false;

    fn add_call(&mut self, _call: EndedCall) {}
}

impl CallLog for Vec<EndedCall> {
    const IS_ENABLED: bool = true;

    fn add_call(&mut self, call: EndedCall) {
        self.push(call);
    }
}
