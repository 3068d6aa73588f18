//! Follows a thread to its next block in all cases: also a handler's entry, the first block, and requests of other
//! threads.

use std::sync::atomic::Ordering;

use crate::interface::signals;
use crate::process::fault_causes;
use crate::process::process_end::park_thread;
use crate::shared::shared_state::shared;
use crate::thread::thread_state::{Thread, ATTEND_EDGE, ATTEND_STOP, ATTEND_SWITCH};
use crate::thread::translation_block::{
    TranslationBlock, HANDLER_ENTRY, IN_VSYSCALL, SINGLE_INSTRUCTION, WINDOW_START, WINDOW_STOP,
};
use crate::thread_events::user_code_border::REFUSED_INSTRUCTION;

/// Follows the thread to `block`. The functions in `callbacks::block_execution` are shortcuts for common cases.
#[inline(always)]
pub(crate) fn follow_block(thread: &mut Thread, block: &'static TranslationBlock) {
    let marks = block.marks.load(Ordering::Relaxed) & !SINGLE_INSTRUCTION;
    if marks == 0 && thread.follow(block) {
        thread.block = block;
        // Checked after the transition: what was due at the end of the last block is due here.
        if thread.attention.load(Ordering::Relaxed) != 0 {
            handle_attention(thread, block, false);
        }
    } else {
        follow_unusual_block(thread, block);
    }
    thread.update_quiet_limit();
}

#[cold]
#[inline(never)]
fn follow_unusual_block(thread: &mut Thread, block: &'static TranslationBlock) {
    let start = block.start;
    let entered = || {
        let registers = thread.cpu.handler_registers();
        shared().with_locked(|locked| {
            let handlers = &locked.handlers;
            registers.and_then(|registers| {
                handlers.interruption_by_handler_at(start, registers, fault_causes::was_sent)
            })
        })
    };
    let signal = if block.has_mark(HANDLER_ENTRY) {
        entered()
    } else {
        None
    };
    if let Some(what) = signal {
        fault_causes::clear_signal_notes();
        signals::clear_undelivered();
        thread.leave_by_signal(what);
    }
    let begins = thread.is_outside();
    if !thread.follow(block) && !thread.enter_or_restart_at(start) {
        if thread.block.first_refused < thread.block.instructions {
            thread.lose_path(REFUSED_INSTRUCTION);
        } else {
            thread.lose_path(&format!(
                "control went to {start:#x}, where the last instruction cannot lead"
            ));
        }
        thread.enter_or_restart_at(start);
    }
    thread.block = block;
    if block.has_mark(IN_VSYSCALL) {
        thread.enter_vsyscall(start);
    }
    handle_attention(thread, block, begins);
}

/// Handles the requests of other threads and the edges of the recording window. `begins`: the thread has just entered
/// user code.
#[cold]
#[inline(never)]
fn handle_attention(thread: &mut Thread, block: &'static TranslationBlock, begins: bool) {
    let start = block.start;
    let attention = thread.attention.load(Ordering::Relaxed);
    if attention & ATTEND_STOP != 0 {
        park_thread(thread, start);
    }
    if attention & ATTEND_SWITCH != 0 && !begins {
        thread.attention.fetch_and(!ATTEND_SWITCH, Ordering::AcqRel);
        if !thread.is_outside() {
            thread.switch_context(start);
        }
    }
    if (attention & ATTEND_EDGE != 0 || block.has_mark(WINDOW_START | WINDOW_STOP))
        && !thread.is_outside()
    {
        thread.check_edges_at(block);
    }
}
