//! How user code is left: for the kernel, for a signal, for good, or nobody knows how.

use crate::shared::handlers::Interrupted;
use crate::shared::link::{Kind, Message};
use crate::shared::state::shared;
use crate::thread::block::{Exit, OUT};
use crate::thread::state::Thread;

/// Said of a block whose `refused` has run.
pub(crate) const REFUSED: &str =
    "QEMU ran an instruction that processors refuse, and that a decoder does not know";

impl Thread {
    /// The block's last instruction called the kernel. The thread is out of user code afterwards.
    pub(crate) fn enter_kernel(&mut self) {
        match self.block.exit {
            Exit::Syscall => {
                self.finish(0);
                self.steps.leave(&mut self.path);
                self.catch_up();
                self.branches += 1;
                self.unit.syscall();
            }
            Exit::SoftInt => self.soft_interrupt(),
            Exit::Out => {}
            _ => self.lose("a system call came from an instruction that is none"),
        }
        self.block = &OUT;
    }

    fn soft_interrupt(&mut self) {
        let block = self.block;
        self.finish_part(block.count - 1);
        self.steps.leave(&mut self.path);
        self.catch_up();
        self.unit.software_interrupt(block.last);
    }

    /// User code is left for a signal or for good, without an instruction for it.
    pub(crate) fn interrupt(&mut self, what: Interrupted) {
        let Interrupted { ip, faulted } = what;
        let block = self.block;
        if block.exit == Exit::Out {
            return;
        }
        if block.exit == Exit::SoftInt && ip == block.next {
            self.soft_interrupt();
            self.block = &OUT;
            return;
        }
        let inside = block.index_of(ip);
        let reached = block.may_reach(ip);
        match inside {
            // Signals that come from outside arrive between blocks: then a block that leads to itself is through.
            Some(index) if index > block.refused => {
                self.lose(REFUSED);
                return;
            }
            Some(index) if faulted || !reached => self.finish_part(index),
            _ if reached => self.complete(ip),
            _ if block.refused < block.count => {
                self.lose(REFUSED);
                return;
            }
            _ => {
                self.lose("a signal arrived where the interrupted instruction is not known");
                return;
            }
        }
        self.steps.interrupt(ip, faulted, &mut self.path);
        // How often a loop without packets went round is found by this boundary.
        self.path.cut();
        self.catch_up();
        self.unit.interrupt(ip);
        self.block = &OUT;
    }

    /// A call into the vsyscall page, which the kernel carries out.
    pub(crate) fn enter_vsyscall(&mut self, start: u64) {
        self.steps.leave(&mut self.path);
        self.catch_up();
        self.unit.exception(start);
        self.block = &OUT;
    }

    /// User code is left for good before the instruction at `ip`.
    pub(crate) fn stop_at(&mut self, ip: u64) {
        if !self.is_out() {
            self.steps.interrupt(ip, false, &mut self.path);
            self.path.cut();
            self.catch_up();
            self.unit.interrupt(ip);
            self.block = &OUT;
        }
    }

    /// The thread has left generated code, so that QEMU's state of it tells where it is.
    pub(crate) fn interrupt_where_it_is(&mut self, faulted: bool) {
        if self.is_out() {
            return;
        }
        match self.cpu.rip() {
            Some(ip) => self.interrupt(Interrupted { ip, faulted }),
            None => self.lose("the thread ended where its last instruction is not known"),
        }
    }

    /// What happened is not known: an overflow, out of user code. The truth is not told either.
    pub(crate) fn lose(&mut self, why: &str) {
        let shared = shared();
        self.steps.forget();
        let now = self.now();
        let place = format!("{why} (after the block at {:#x})", self.block.start);
        shared.send(Message::new(Kind::Warning, self.tid, now), place.as_bytes());
        self.catch_up();
        if self.watch.tracing() {
            self.unit.overflow(None);
        }
        self.block = &OUT;
    }
}
