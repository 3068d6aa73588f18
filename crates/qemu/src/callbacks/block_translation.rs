//! QEMU has translated a block: describes it and registers the callback for its execution.

use crate::callbacks::block_execution::rtit_qemu_append_to_ring;
use crate::callbacks::block_execution::{on_instruction, rtit_qemu_block};
use crate::callbacks::block_execution::{rtit_qemu_count, rtit_qemu_count_multithreaded};
use crate::interface::plugin_api::{PluginId, PluginInsn, PluginTb};
use crate::shared::block_ring;
use crate::shared::shared_state::shared;
use crate::shared::thread_table::{current_thread, is_multithreaded};
use crate::thread::executed_path::TruthSource;
use crate::thread::translation_block::{TranslationBlock, VSYSCALL};

/// Describes the block `tb` and registers its callback.
pub(crate) extern "C" fn on_translation(_id: PluginId, tb: *mut PluginTb) {
    let shared = shared();
    // SAFETY: QEMU's block, during its callback.
    unsafe {
        let (start, count) = shared.api.block_start_and_count(tb);
        let block = if start >= VSYSCALL {
            // The vsyscall page cannot be read.
            shared.register_block(TranslationBlock::vsyscall(start))
        } else {
            let mut sizes = Vec::with_capacity(count);
            let mut code = Vec::with_capacity(8 * count);
            let mut instructions: Vec<*mut PluginInsn> = Vec::with_capacity(count);
            for index in 0..count {
                let instruction = shared.api.instruction_at(tb, index);
                sizes.push(shared.api.instruction_size(instruction));
                shared.api.append_instruction_bytes(instruction, &mut code);
                instructions.push(instruction);
            }
            let steps = shared.config.truth == TruthSource::Instructions;
            let block = TranslationBlock::new(start, &sizes, &code, steps);
            if block_ring::is_open() && !shared.knows_block(&block) {
                block_ring::close(current_thread());
            }
            let block = shared.register_block(block);
            for (step, instruction) in block.steps.iter().zip(instructions) {
                let with = std::ptr::from_ref(step).cast_mut().cast();
                shared
                    .api
                    .call_before_instruction(instruction, on_instruction, with);
            }
            block
        };
        let with = std::ptr::from_ref(block).cast_mut().cast();
        let call = match (shared.config.only_counts(), is_multithreaded()) {
            (false, false) if shared.config.ring_blocks > 0 => rtit_qemu_append_to_ring,
            (false, _) => rtit_qemu_block,
            (true, false) => rtit_qemu_count,
            (true, true) => rtit_qemu_count_multithreaded,
        };
        shared.api.call_when_block_starts(tb, call, with);
    }
}
