//! Instructions: what comes next, and what the one that was stepped over did.

use std::io;

use rtit_x86::{Class, Mode};

use crate::engine::conditional;
use crate::engine::state::Engine;
use crate::event::{Kind, Record, Resume, TAKEN, TO_NARROW};
use crate::maps::VSYSCALL;
use crate::memory;
use crate::sys::{self, Registers, TRAP_FLAG};
use crate::task::{Next, Position, Task};

/// Of the instructions in a shadow only the first is certain to run without a stop; more than this never do.
const LONGEST_SHADOW: u32 = 2;

impl Engine<'_> {
    /// The instruction at RIP is what the thread executes next.
    pub(super) fn arrive(&mut self, task: &mut Task, registers: &Registers) {
        let next = self.next_at(task, registers.rip, registers, LONGEST_SHADOW);
        // Right behind POPF and IRET the flag is what they loaded. After that the kernel may show the one that steps need.
        let visible = registers.eflags & TRAP_FLAG != 0;
        if task.next().is_some_and(|last| last.popped_flags) {
            task.popped_tf = visible;
        }
        task.own_steps = task.popped_tf && visible;
        if task.traced {
            task.position = Position::User(next);
            self.refresh_context(task);
        }
    }

    pub(super) fn next_at(
        &mut self,
        task: &mut Task,
        ip: u64,
        registers: &Registers,
        depth: u32,
    ) -> Next {
        let mut next = Next {
            ip,
            ..Next::default()
        };
        let mode = if sys::is_64_bit(registers) {
            Mode::Bits64
        } else {
            if sys::is_own_segment(registers) {
                self.warn_of_segment(task);
            }
            next.narrow = true;
            Mode::Bits32
        };
        if mode == Mode::Bits64 && ip & !0xfff == VSYSCALL {
            next.emulated = true;
            if let (Some(back), 1..) = (memory::read_u64(task.tid, registers.rsp), depth) {
                next.follow = Some(Box::new(self.next_at(task, back, registers, depth - 1)));
            }
            return next;
        }
        let mut changes = Vec::new();
        let fetched = task
            .space
            .borrow_mut()
            .fetch(task.tid, ip, mode, &mut changes);
        self.change(task, changes);
        if fetched.hidden {
            self.give_up(
                task,
                "its memory may not be read (so is its file, or it made itself undumpable)",
            );
            return next;
        }
        next.instruction = fetched.instruction;
        next.vector = fetched.vector;
        if let Some(instruction) = fetched.instruction {
            if instruction.repeats {
                next.count = registers.rcx;
            }
            if instruction.shadows && depth > 0 {
                let follow = self.next_at(task, instruction.next(), registers, depth - 1);
                next.follow = Some(Box::new(follow));
            }
        }
        next
    }

    /// A step ended at RIP.
    pub(super) fn stepped(&mut self, task: &mut Task, registers: &Registers) -> io::Result<()> {
        if self.pass_to(task, registers.rip) {
            self.mend_flags(task, registers);
            self.arrive(task, registers);
        }
        Ok(())
    }

    /// Accounts for the instructions between the thread's position and `to`. False if the one there has not ended.
    pub(super) fn pass_to(&mut self, task: &mut Task, to: u64) -> bool {
        let Position::User(mut next) = std::mem::replace(&mut task.position, Position::Exiting)
        else {
            return true;
        };
        task.returned = false;
        self.enter(task, &next);
        if next.ip == to && next.instruction.is_some_and(|i| i.repeats) {
            // An iteration of a REP instruction that goes on.
            task.position = Position::User(next);
            return false;
        }
        while let Some(follow) = next.follow.take() {
            if to == follow.ip {
                break;
            }
            self.pass(task, &next, follow.ip);
            self.enter(task, &follow);
            next = *follow;
        }
        self.pass(task, &next, to);
        // The caller fetches what comes next; until then an end of the thread finds it at `to`.
        task.position = Position::User(Next {
            ip: to,
            pushed_flags: next.instruction.is_some_and(|i| i.pushes_flags),
            popped_flags: next.instruction.is_some_and(|i| i.pops_flags),
            ..Next::default()
        });
        true
    }

    /// The thread went from `next` to `to`.
    fn pass(&mut self, task: &mut Task, next: &Next, to: u64) {
        if !next.emulated {
            self.retire(task, next, to);
            return;
        }
        self.cut(task);
        self.emit(Record {
            ip: next.ip,
            extra: libc::SIGSEGV as u64,
            ..Record::new(Kind::Fault, task.id())
        });
        task.outside = Some(Resume::Other);
    }

    /// The instruction retired and `to` comes next.
    fn retire(&mut self, task: &mut Task, next: &Next, to: u64) {
        self.pass_edges(task, next.ip);
        self.clock += 1;
        task.retired += 1;
        task.lets_trap = false;
        if let Some(text) = self.truth.retire(task.id(), &mut task.run, next.ip) {
            self.warn(task.tid, &text);
        }
        let Some(instruction) = next.instruction else {
            self.retire_unknown(task, next.ip, to);
            return;
        };
        let after = instruction.next();
        let mut record = Record {
            length: u16::from(instruction.length),
            ip: next.ip,
            target: to,
            extra: task.retired,
            ..Record::new(Kind::Jump, task.id())
        };
        match instruction.class {
            Class::Conditional => {
                let taken = to != after
                    || instruction.target == after && conditional::is_taken(task.tid, &instruction);
                let known = !taken || to == instruction.target;
                record.kind = Kind::Conditional;
                record.target = instruction.target;
                record.flags = if taken && known { TAKEN } else { 0 };
                self.emit(record);
                if !known {
                    // What goes on behind it is told, or it would have no packet.
                    self.jumped(task, after, to);
                    return;
                }
                if taken || self.truth.cut_at_branches {
                    self.cut(task);
                }
                return;
            }
            Class::Jump | Class::Call if to != instruction.target => {
                self.jumped(task, instruction.target, to);
                return;
            }
            Class::Jump => {}
            Class::Call => record.kind = Kind::Call,
            Class::IndirectJump => record.kind = Kind::IndirectJump,
            Class::IndirectCall => record.kind = Kind::IndirectCall,
            Class::Return => record.kind = Kind::Return,
            Class::FarTransfer => {
                record.kind = Kind::Far;
                // It has ended: the registers have the mode that it led to.
                let narrow = sys::registers(task.tid).is_ok_and(|now| !sys::is_64_bit(&now));
                record.flags = if narrow { TO_NARROW } else { 0 };
            }
            Class::Syscall => {
                record.kind = Kind::Syscall;
                record.target = 0;
                task.outside = Some(Resume::SystemCall);
            }
            _ => {
                if to != after {
                    self.jumped(task, after, to);
                }
                return;
            }
        }
        self.emit(record);
        self.cut(task);
    }

    /// The bytes are no instruction that we know, and yet it ran.
    fn retire_unknown(&mut self, task: &mut Task, ip: u64, to: u64) {
        if !std::mem::replace(&mut self.warned.unknown, true) {
            self.warn(
                task.tid,
                &format!(
                    "an unknown instruction at {ip:#x} was executed; the path there has a gap"
                ),
            );
        }
        self.interrupted(task, ip, to);
    }

    /// Control went to `to` where only `expected` could be: an aborted transaction, or something that the kernel did.
    fn jumped(&mut self, task: &mut Task, expected: u64, to: u64) {
        if !std::mem::replace(&mut self.warned.jumps, true) {
            self.warn(
                task.tid,
                &format!("control went from {expected:#x} to {to:#x} without a branch"),
            );
        }
        self.interrupted(task, expected, to);
    }

    fn interrupted(&mut self, task: &mut Task, ip: u64, to: u64) {
        self.cut(task);
        self.emit(Record {
            ip,
            ..Record::new(Kind::Interrupt, task.id())
        });
        task.outside = Some(Resume::Other);
        self.enter(
            task,
            &Next {
                ip: to,
                ..Next::default()
            },
        );
    }

    /// PUSHF under a single step stores the trap flag: the program must not see it.
    fn mend_flags(&mut self, task: &Task, registers: &Registers) {
        if task.own_steps || !task.next().is_some_and(|next| next.pushed_flags) {
            return;
        }
        // The operand size does not matter: the flag is in the second byte of all images.
        let mut byte = [0u8];
        let address = registers.rsp.wrapping_add(1);
        let mask = (TRAP_FLAG >> 8) as u8;
        if memory::read(task.tid, address, &mut byte) == 1 && byte[0] & mask != 0 {
            // The page was written a moment ago; if it is gone, there is nothing to mend.
            let _ = memory::write(task.tid, address, &[byte[0] & !mask]);
        }
    }

    fn warn_of_segment(&mut self, task: &Task) {
        if !std::mem::replace(&mut self.warned.segment, true) {
            self.warn(
                task.tid,
                "the program entered a code segment of its own: the path in it cannot be decoded",
            );
        }
    }
}
