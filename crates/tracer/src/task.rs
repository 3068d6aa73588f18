//! The state of a traced thread between two of its stops.
//!
//! Two fields decide what a stop means: the thread's [`TaskPosition`], and whether its user code is in context
//! ([`TracedTask::reentry`]). A system call, a fault or a signal takes the thread out of context. The event that brings
//! it back is written only when an instruction has really run, since more signals may come before.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use libc::pid_t;
use rtit_events::ResumeReason;
use rtit_x86::Instruction;

use crate::address_space::AddressSpace;
use crate::truth_output::OpenRun;

/// The instruction that the thread executes next.
#[derive(Clone, Debug, Default)]
pub(crate) struct NextInstruction {
    pub(crate) ip: u64,
    /// None: there is no known instruction.
    pub(crate) instruction: Option<Instruction>,
    /// The vector of a software interrupt.
    pub(crate) vector: u8,
    /// 32-bit code.
    pub(crate) narrow: bool,
    /// Iterations of a REP instruction.
    pub(crate) count: u64,
    /// The previous instruction was PUSHF.
    pub(crate) pushed_flags: bool,
    /// The previous instruction was POPF or IRET.
    pub(crate) popped_flags: bool,
    /// `ip` is in the vsyscall page: the kernel carries out the call and continues at `follow`.
    pub(crate) emulated: bool,
    /// The instruction that runs after it without a stop in between: in the shadow of MOV SS or POP SS, or where a
    /// vsyscall returns to.
    pub(crate) follow: Option<Box<NextInstruction>>,
}

/// A system call, from its instruction to its end.
#[derive(Clone, Debug, Default)]
pub(crate) struct SystemCall {
    pub(crate) next: NextInstruction,
    pub(crate) number: u64,
    pub(crate) arguments: [u64; 6],
    /// Made by INT 80H, with other numbers.
    pub(crate) compat: bool,
    /// An exec that has succeeded.
    pub(crate) exec: bool,
}

#[derive(Clone, Debug)]
pub(crate) enum TaskPosition {
    /// The thread has not run yet.
    New,
    /// The thread ran untraced and has not stopped yet.
    Attaching,
    User(NextInstruction),
    Kernel(SystemCall),
    /// The call was interrupted and will be repeated, unless a handler runs first.
    Restart(SystemCall),
    Exiting,
}

/// A signal that was delivered to the thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InjectedSignal {
    pub(crate) signal: i32,
    /// The process has a handler for it.
    pub(crate) caught: bool,
}

/// A signal that arrived before the thread could make progress.
#[derive(Clone, Copy)]
pub(crate) struct DeferredSignal {
    pub(crate) info: libc::siginfo_t,
    /// It is delivered when the thread has retired so many instructions.
    pub(crate) until: u64,
    /// It was sent into a system call; the thread's next stop for this signal is for this one.
    pub(crate) sent: bool,
}

/// A SIGTRAP that is pending until the thread unblocks it.
#[derive(Clone, Copy)]
pub(crate) struct PendingTrap {
    pub(crate) info: libc::siginfo_t,
    /// As in [`DeferredSignal`].
    pub(crate) sent: bool,
}

pub(crate) struct TracedTask {
    pub(crate) tid: pid_t,
    pub(crate) pid: pid_t,
    pub(crate) space: Rc<RefCell<AddressSpace>>,
    pub(crate) position: TaskPosition,
    /// Out of context, and why user code will continue; None: in context.
    pub(crate) reentry: Option<ResumeReason>,
    /// Code or mappings have changed: a Switch event must precede the next instruction.
    pub(crate) code_changed: bool,
    /// The signal delivered at the last stop.
    pub(crate) delivered: Option<InjectedSignal>,
    /// The last call was rt_sigreturn: the kernel's SIGSEGV is then about its frame, not about an instruction.
    pub(crate) after_sigreturn: bool,
    /// In a call that starts a thread that has not been reported yet.
    pub(crate) starting_thread: bool,
    /// A hardware breakpoint is set.
    pub(crate) breakpoint_set: bool,
    /// The program blocks SIGTRAP, which is hidden from the kernel while the thread is stepped.
    pub(crate) trap_blocked: bool,
    /// The process ignores SIGTRAP; its threads share this.
    pub(crate) trap_ignored: Rc<Cell<bool>>,
    /// For this step, the kernel knows that SIGTRAP is blocked.
    pub(crate) trap_exposed: bool,
    /// The current call, or the one that the signal interrupted, does not block SIGTRAP while it waits.
    pub(crate) call_unblocks_trap: bool,
    /// The last POPF or IRET set TF.
    pub(crate) popped_tf: bool,
    /// The program has set TF: each instruction has a trap of the program's own.
    pub(crate) program_steps: bool,
    /// The signal that the tracer delays.
    pub(crate) deferred: Option<DeferredSignal>,
    /// The SIGTRAP that the tracer delays.
    pub(crate) trap: Option<PendingTrap>,
    /// Instructions that the thread has retired.
    pub(crate) retired: u64,
    /// `retired` at the start of its last handler.
    pub(crate) handler_start: u64,
    /// `retired` at which the thread has executed as many instructions after its last handler as in it.
    pub(crate) caught_up_at: u64,
    /// The tracer has detached from it.
    pub(crate) detached: bool,
    /// False: it runs without stops, such as a 32-bit program.
    pub(crate) traced: bool,
    /// The program has set its CPUs itself.
    pub(crate) chose_affinity: bool,
    /// The recording window lets it be traced.
    pub(crate) tracing: bool,
    pub(crate) run: OpenRun,
}

impl TracedTask {
    pub(crate) fn new(tid: pid_t, pid: pid_t, space: Rc<RefCell<AddressSpace>>) -> TracedTask {
        TracedTask {
            tid,
            pid,
            space,
            position: TaskPosition::New,
            reentry: Some(ResumeReason::Thread),
            code_changed: false,
            delivered: None,
            after_sigreturn: false,
            starting_thread: false,
            breakpoint_set: false,
            trap_blocked: false,
            trap_ignored: Rc::default(),
            trap_exposed: false,
            call_unblocks_trap: false,
            popped_tf: false,
            program_steps: false,
            deferred: None,
            trap: None,
            retired: 0,
            handler_start: 0,
            caught_up_at: 0,
            detached: false,
            traced: true,
            chose_affinity: false,
            tracing: true,
            run: OpenRun::default(),
        }
    }

    /// Creates the task of a thread that this one starts.
    pub(crate) fn new_child_task(&self, tid: pid_t, pid: pid_t, shares_memory: bool) -> TracedTask {
        let space = if shares_memory {
            self.space.clone()
        } else {
            Rc::new(RefCell::new(self.space.borrow().copy_for_fork()))
        };
        TracedTask {
            traced: self.traced,
            trap_blocked: self.trap_blocked,
            trap_ignored: if pid == self.pid {
                self.trap_ignored.clone()
            } else {
                Rc::new(Cell::new(self.trap_ignored.get()))
            },
            chose_affinity: self.chose_affinity,
            ..TracedTask::new(tid, pid, space)
        }
    }

    pub(crate) fn tid_as_u32(&self) -> u32 {
        self.tid as u32
    }

    /// Returns the next instruction, if the thread is in user code.
    pub(crate) fn next_instruction(&self) -> Option<&NextInstruction> {
        match &self.position {
            TaskPosition::User(next) => Some(next),
            _ => None,
        }
    }
}
