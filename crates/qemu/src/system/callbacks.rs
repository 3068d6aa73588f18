//! The functions that QEMU calls for a whole system, all in the thread of its one processor.

use std::arch::global_asm;
use std::ffi::c_void;
use std::ptr;

use super::block::SystemBlock;
use super::cpu_state::SystemCpuState;
use super::processor::ProcessorRecorder;
use super::qemu_log;
use crate::interface::plugin_api::{PluginApi, PluginId, PluginTb};
use crate::shared::config::RecordingConfig;

/// Set once, when the plugin is installed.
static mut RECORDER: *mut SystemRecorder = ptr::null_mut();

struct SystemRecorder {
    api: PluginApi,
    processor: ProcessorRecorder,
}

/// Connects to the recorder, and registers the callbacks; fails with a sentence for the user.
///
/// # Safety
/// Call it once, while QEMU installs the plugin with this id.
pub(crate) unsafe fn install_system_plugin(
    api: PluginApi,
    id: PluginId,
    processors: i32,
) -> Result<(), String> {
    let config = RecordingConfig::load_settings()?;
    if processors != 1 {
        return Err(format!(
            "rtit records systems with one processor, and this one has {processors}"
        ));
    }
    if !qemu_log::is_log_open() {
        return Err("QEMU did not open its log: do not use its options -d and -D".to_string());
    }
    let mut processor = ProcessorRecorder::new(&config)?;
    processor.announce();
    RECORDER = Box::into_raw(Box::new(SystemRecorder { api, processor }));
    (*RECORDER).api.register_system_callbacks(
        id,
        on_translation as *const c_void,
        on_exit as *const c_void,
    );
    Ok(())
}

extern "C" {
    /// The block callback of generated code.
    fn rtit_qemu_system_block(vcpu: u32, block: *mut c_void);
}

global_asm!(
    ".globl rtit_qemu_system_block",
    ".hidden rtit_qemu_system_block",
    ".type rtit_qemu_system_block, @function",
    "rtit_qemu_system_block:",
    "mov rdx, rbp",
    "jmp {}",
    sym on_block,
);

extern "C" fn on_block(_vcpu: u32, block: *const SystemBlock, state: *const u8) {
    // SAFETY: the processor's thread calls, with a leaked block.
    unsafe {
        (*RECORDER)
            .processor
            .follow_to_block(&*block, SystemCpuState::new(state));
    }
}

unsafe extern "C" fn on_last_instruction(_vcpu: u32, _: *mut c_void) {
    (*RECORDER).processor.has_started_last = true;
}

extern "C" fn on_translation(_id: PluginId, tb: *mut PluginTb) {
    // SAFETY: QEMU translates in the thread of the processor.
    unsafe {
        let SystemRecorder { api, processor } = &*RECORDER;
        let (start, count) = api.block_start_and_count(tb);
        let mut sizes = Vec::with_capacity(count);
        let mut code = Vec::with_capacity(8 * count);
        for index in 0..count {
            let instruction = api.instruction_at(tb, index);
            sizes.push(api.instruction_size(instruction));
            api.append_instruction_bytes(instruction, &mut code);
        }
        let cpu = processor.cpu();
        let state = cpu.is_known().then(|| cpu.processor_state());
        let Some(state) = state.filter(|_| count > 0) else {
            // The first block of the firmware.
            let block = SystemBlock::new(start, &sizes, &code, false, rtit_unit::CodeWidth::Bits16);
            return register_block(api, tb, block);
        };
        register_block(
            api,
            tb,
            SystemBlock::new(start, &sizes, &code, state.user, state.code),
        );
    }
}

unsafe fn register_block(api: &PluginApi, tb: *mut PluginTb, block: SystemBlock) {
    let block: &'static SystemBlock = Box::leak(Box::new(block));
    let data = ptr::from_ref(block).cast_mut().cast();
    api.call_when_block_starts(tb, rtit_qemu_system_block, data);
    if block.needs_last_callback && block.instructions > 0 {
        let last = api.instruction_at(tb, block.instructions as usize - 1);
        api.call_before_instruction(last, on_last_instruction, ptr::null_mut());
    }
}

extern "C" fn on_exit(_id: PluginId, _: *mut c_void) {
    // SAFETY: QEMU has stopped the processor.
    unsafe { (*RECORDER).processor.end_recording() }
}
