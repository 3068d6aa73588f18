//! Call stacks and call trees, from control flow alone.
//!
//! A trace has no stack pointer. [`CallStacks`] keeps the stacks of a thread from its calls, returns, jumps and
//! signals, and adds up the executed instructions in a [`CallTree`].
//!
//! **Returns compare addresses, never functions.** A call pushes a frame with its return address, and nearly every
//! return goes to the return address of the newest frame. Any other return, and an indirect jump to a return address,
//! is *non-local*: an exception or longjmp that unwinds frames, or a switch to another stack (coroutines, goroutines,
//! fibers). `CallStacks::resolve_nonlocal` lists the rules in their order.
//!
//! **A switch keeps the stack that it leaves.** Frames are immutable and shared: a stack is the index of its newest
//! frame, and suspending it costs nothing. A later return to one of its addresses resumes it.
//!
//! **Commit, and correct later.** If several stacks could have been resumed, the most likely one is taken at once. The
//! other candidates are remembered (`Choice`). Their next return addresses differ somewhere, and the return that
//! refutes the candidate taken exchanges it for one that fits. Instructions executed meanwhile belong to a floating
//! node of the tree, which is linked to the right node when the choice is settled.
//!
//! **An unknown caller is a root that says so** ([`RootKind`]). The tree never contains a guessed parent.

#![forbid(unsafe_code)]

mod log;
mod stacks;
mod tree;

pub use log::{CallEnd, CallLog, EndedCall, NO_CALL};
pub use stacks::{
    CallStacks, CodeInfo, FunctionRole, RootKind, StackCounts, SwitchPermit, Wait, KERNEL_START,
};
pub use tree::{CallKind, CallTree, Node, NO_NODE};
