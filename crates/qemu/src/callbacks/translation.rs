//! A block is translated: what it is, and what QEMU shall call when it runs.

use crate::callbacks::ahead::rtit_qemu_keep;
use crate::callbacks::counting::{rtit_qemu_count, rtit_qemu_count_of_many};
use crate::callbacks::execution::{rtit_qemu_block, step_started};
use crate::interface::api::{Instruction, PluginId, Translated};
use crate::shared::ring;
use crate::shared::state::shared;
use crate::shared::threads::{current, many};
use crate::thread::block::{Block, VSYSCALL};
use crate::thread::path::Truth;

/// A block was translated and will run.
pub(crate) extern "C" fn translated(_id: PluginId, tb: *mut Translated) {
    let shared = shared();
    // SAFETY: QEMU's block, during its callback.
    unsafe {
        let (start, count) = shared.api.block(tb);
        let block = if start >= VSYSCALL {
            // Its bytes cannot be read.
            shared.translated(Block::vsyscall(start))
        } else {
            let mut sizes = Vec::with_capacity(count);
            let mut code = Vec::with_capacity(8 * count);
            let mut instructions: Vec<*mut Instruction> = Vec::with_capacity(count);
            for index in 0..count {
                let instruction = shared.api.instruction(tb, index);
                sizes.push(shared.api.place(instruction).1);
                shared.api.bytes(instruction, &mut code);
                instructions.push(instruction);
            }
            let steps = shared.config.truth == Truth::Instructions;
            let block = Block::new(start, &sizes, &code, steps);
            if ring::is_open() && !shared.knows(&block) {
                ring::close(current());
            }
            let block = shared.translated(block);
            for (step, instruction) in block.steps.iter().zip(instructions) {
                let with = std::ptr::from_ref(step).cast_mut().cast();
                shared
                    .api
                    .call_at_instruction(instruction, step_started, with);
            }
            block
        };
        let with = std::ptr::from_ref(block).cast_mut().cast();
        let call = match (shared.config.counts(), many()) {
            (false, false) if shared.config.ahead > 0 => rtit_qemu_keep,
            (false, _) => rtit_qemu_block,
            (true, false) => rtit_qemu_count,
            (true, true) => rtit_qemu_count_of_many,
        };
        shared.api.call_at_block(tb, call, with);
    }
}
