//! A thread's next block, whatever it is: also a handler's entry, a beginning, what others want of the thread.

use std::sync::atomic::Ordering;

use crate::events::leaving::REFUSED;
use crate::interface::taken;
use crate::process::ending::park;
use crate::process::faults;
use crate::shared::state::shared;
use crate::thread::block::{Block, ALONE, HANDLER, IN_VSYSCALL, START, STOP as STOP_EDGE};
use crate::thread::state::{Thread, EDGE, STOP, SWITCH};

/// The thread goes on to `block`: the whole of what a block means to it. The ways before it in `callbacks::execution`
/// are short cuts.
#[inline(always)]
pub(crate) fn follow_block(thread: &mut Thread, block: &'static Block) {
    let marks = block.marks.load(Ordering::Relaxed) & !ALONE;
    if marks == 0 && thread.follow(block) {
        thread.block = block;
        // Looked at only now: what was due at the end of the last block is due here.
        if thread.attention.load(Ordering::Relaxed) != 0 {
            attend(thread, block, false);
        }
    } else {
        unusual_block(thread, block);
    }
    thread.settle();
}

#[cold]
#[inline(never)]
fn unusual_block(thread: &mut Thread, block: &'static Block) {
    let start = block.start;
    let entered = || {
        let registers = thread.cpu.registers();
        shared().with(|locked| {
            let handlers = &locked.handlers;
            registers.and_then(|registers| handlers.entered(start, registers, faults::was_sent))
        })
    };
    let signal = if block.marked(HANDLER) {
        entered()
    } else {
        None
    };
    if let Some(what) = signal {
        faults::forget();
        taken::handed_over();
        thread.interrupt(what);
    }
    let begins = thread.is_out();
    if !thread.follow(block) && !thread.follow_strangely(start) {
        if thread.block.refused < thread.block.count {
            thread.lose(REFUSED);
        } else {
            thread.lose(&format!(
                "control went to {start:#x}, where the last instruction cannot lead"
            ));
        }
        thread.follow_strangely(start);
    }
    thread.block = block;
    if block.marked(IN_VSYSCALL) {
        thread.enter_vsyscall(start);
    }
    attend(thread, block, begins);
}

/// What others, or the recording's edges, want of the thread; `begins`: it was not in user code before.
#[cold]
#[inline(never)]
fn attend(thread: &mut Thread, block: &'static Block, begins: bool) {
    let start = block.start;
    let attention = thread.attention.load(Ordering::Relaxed);
    if attention & STOP != 0 {
        park(thread, start);
    }
    if attention & SWITCH != 0 && !begins {
        thread.attention.fetch_and(!SWITCH, Ordering::AcqRel);
        if !thread.is_out() {
            thread.switch(start);
        }
    }
    if (attention & EDGE != 0 || block.marked(START | STOP_EDGE)) && !thread.is_out() {
        thread.look_for_edges(block);
    }
}
