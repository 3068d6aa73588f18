//! What is known about a traced thread between two of its stops.
//!
//! Two questions decide what a stop means: where the thread is ([`Position`]) and whether user code is in context
//! ([`Task::outside`]). A system call, a fault or a signal takes the thread out of context; the event that brings it back
//! is written only when an instruction really ran, since more signals may come before that.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use libc::pid_t;
use rtit_x86::Instruction;

use crate::event::Resume;
use crate::space::Space;
use crate::truth::OpenRun;

/// The instruction that the thread executes when it goes on.
#[derive(Clone, Debug, Default)]
pub(crate) struct Next {
    pub(crate) ip: u64,
    /// None: no instruction is there, or none that we know.
    pub(crate) instruction: Option<Instruction>,
    /// The vector of a software interrupt.
    pub(crate) vector: u8,
    /// It is 32-bit code.
    pub(crate) narrow: bool,
    /// Iterations of a REP instruction.
    pub(crate) count: u64,
    /// The instruction before it was PUSHF.
    pub(crate) pushed_flags: bool,
    /// The instruction before it was POPF or IRET.
    pub(crate) popped_flags: bool,
    /// `ip` is in the vsyscall page: the kernel does the call and goes on at the instruction that follows.
    pub(crate) emulated: bool,
    /// What runs after it without a stop between: the instruction in the shadow of MOV SS or POP SS, and the one that a
    /// vsyscall returns to.
    pub(crate) follow: Option<Box<Next>>,
}

/// A system call, from its instruction to its end.
#[derive(Clone, Debug, Default)]
pub(crate) struct Call {
    pub(crate) next: Next,
    pub(crate) number: u64,
    pub(crate) arguments: [u64; 6],
    /// By INT 80H: other numbers.
    pub(crate) compat: bool,
    /// It was an exec that succeeded.
    pub(crate) exec: bool,
}

#[derive(Clone, Debug)]
pub(crate) enum Position {
    /// It has not run yet.
    New,
    /// It ran before it was traced, and has not stopped yet.
    Attaching,
    User(Next),
    Kernel(Call),
    /// The call was interrupted: it will be made again unless a handler comes between.
    Restart(Call),
    Exiting,
}

/// A signal that was handed to the thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Injected {
    pub(crate) signal: i32,
    /// The process has a handler for it.
    pub(crate) caught: bool,
}

/// A signal that came too early for the thread to get on.
#[derive(Clone, Copy)]
pub(crate) struct Held {
    pub(crate) info: libc::siginfo_t,
    /// It is handed over when the thread has retired so many instructions.
    pub(crate) until: u64,
    /// It was sent into a system call, and the thread's next stop for such a signal is for this one.
    pub(crate) sent: bool,
}

/// A SIGTRAP that waits until the thread does not block it any more.
#[derive(Clone, Copy)]
pub(crate) struct WaitingTrap {
    pub(crate) info: libc::siginfo_t,
    /// As that of [`Held`].
    pub(crate) sent: bool,
}

pub(crate) struct Task {
    pub(crate) tid: pid_t,
    pub(crate) pid: pid_t,
    pub(crate) space: Rc<RefCell<Space>>,
    pub(crate) position: Position,
    /// Out of context, and why user code will go on.
    pub(crate) outside: Option<Resume>,
    /// Code or mappings changed: a SWITCH is due before the next instruction.
    pub(crate) stale: bool,
    /// The signal handed over at the last stop.
    pub(crate) injected: Option<Injected>,
    /// The last call was rt_sigreturn: a SIGSEGV by the kernel then is about its frame, not about an instruction.
    pub(crate) returned: bool,
    /// It is in a call that starts a thread, which it has not yet told us of.
    pub(crate) starting: bool,
    /// A hardware breakpoint is set.
    pub(crate) armed: bool,
    /// The program blocks SIGTRAP, which the kernel must not know while it is stepped.
    pub(crate) trap_blocked: bool,
    /// The process ignores SIGTRAP; its threads share this.
    pub(crate) trap_ignored: Rc<Cell<bool>>,
    /// For one step the kernel knows that SIGTRAP is blocked.
    pub(crate) trap_exposed: bool,
    /// The call it is in, or was in when the signal came that it stops for, does not block SIGTRAP while it waits.
    pub(crate) lets_trap: bool,
    /// The last POPF or IRET set TF.
    pub(crate) popped_tf: bool,
    /// The program has set TF: each instruction has a trap of its own.
    pub(crate) own_steps: bool,
    /// The signal that waits with us.
    pub(crate) held: Option<Held>,
    /// The SIGTRAP that waits with us.
    pub(crate) trap: Option<WaitingTrap>,
    /// Instructions that it retired.
    pub(crate) retired: u64,
    /// When its last handler began.
    pub(crate) handler_began: u64,
    /// When it has got as far after its last handler as the handler was long.
    pub(crate) even: u64,
    /// It is not ours any more.
    pub(crate) detached: bool,
    /// False: a 32-bit program, which runs without stops.
    pub(crate) traced: bool,
    /// The program chose its CPUs itself.
    pub(crate) own_affinity: bool,
    /// Its unit is on, as far as the window decides.
    pub(crate) tracing: bool,
    pub(crate) run: OpenRun,
}

impl Task {
    pub(crate) fn new(tid: pid_t, pid: pid_t, space: Rc<RefCell<Space>>) -> Task {
        Task {
            tid,
            pid,
            space,
            position: Position::New,
            outside: Some(Resume::Thread),
            stale: false,
            injected: None,
            returned: false,
            starting: false,
            armed: false,
            trap_blocked: false,
            trap_ignored: Rc::default(),
            trap_exposed: false,
            lets_trap: false,
            popped_tf: false,
            own_steps: false,
            held: None,
            trap: None,
            retired: 0,
            handler_began: 0,
            even: 0,
            detached: false,
            traced: true,
            own_affinity: false,
            tracing: true,
            run: OpenRun::default(),
        }
    }

    /// The thread that this one starts.
    pub(crate) fn child(&self, tid: pid_t, pid: pid_t, shares_memory: bool) -> Task {
        let space = if shares_memory {
            self.space.clone()
        } else {
            Rc::new(RefCell::new(self.space.borrow().fork()))
        };
        Task {
            traced: self.traced,
            trap_blocked: self.trap_blocked,
            trap_ignored: if pid == self.pid {
                self.trap_ignored.clone()
            } else {
                Rc::new(Cell::new(self.trap_ignored.get()))
            },
            own_affinity: self.own_affinity,
            ..Task::new(tid, pid, space)
        }
    }

    pub(crate) fn id(&self) -> u32 {
        self.tid as u32
    }

    /// The instruction that comes next, if the thread is in user code.
    pub(crate) fn next(&self) -> Option<&Next> {
        match &self.position {
            Position::User(next) => Some(next),
            _ => None,
        }
    }
}
