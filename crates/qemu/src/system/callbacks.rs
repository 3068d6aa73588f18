//! The functions that QEMU calls for a whole system, in the threads that run its processors.

use std::arch::global_asm;
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use super::block::{SystemBlock, Translation};
use super::cpu_state::{
    current_cpu_index, find_layout, SystemCpuState, STATE_AFTER_RESET, UNKNOWN_LAYOUT,
};
use super::processor::ProcessorRecorder;
use super::processors::SharedByProcessors;
use super::qemu_log;
use crate::fatal_error::exit_with_error;
use crate::interface::plugin_api::{
    OnExecution, PluginApi, PluginId, PluginTb, SystemPluginCallbacks,
};
use crate::shared::config::RecordingConfig;
use crate::shared::recorder_link::RecorderLink;
use crate::shared::shared_state::SharedClock;

/// Set once, when the plugin is installed.
static mut RECORDER: *mut SystemRecorder = ptr::null_mut();

struct SystemRecorder {
    api: PluginApi,
    /// By index of QEMU's vCPU.
    processors: Vec<RecordedProcessor>,
}

struct RecordedProcessor {
    /// The address of the processor's state; null before its first block.
    state: AtomicPtr<u8>,
    /// One thread at a time runs a processor, and only that thread uses its recorder.
    recorder: UnsafeCell<ProcessorRecorder>,
}

impl SystemRecorder {
    /// # Safety
    /// The calling thread runs this processor, or QEMU has stopped all of them.
    #[inline(always)]
    #[allow(clippy::mut_from_ref)] // see `recorder`
    unsafe fn processor(&self, vcpu: u32) -> &mut ProcessorRecorder {
        match self.processors.get(vcpu as usize) {
            Some(processor) => &mut *processor.recorder.get(),
            None => exit_with_error("a processor was added, and rtit cannot record it"),
        }
    }

    /// Returns the recorder of the processor with this state. `vcpu` may be another one: if one thread runs all
    /// processors, later versions of QEMU pass the processor that has translated the code.
    ///
    /// # Safety
    /// As for `processor`.
    #[inline(always)]
    #[allow(clippy::mut_from_ref)] // see `recorder`
    unsafe fn processor_in_state(&self, vcpu: u32, state: *const u8) -> &mut ProcessorRecorder {
        let has_state =
            |processor: &RecordedProcessor| ptr::eq(processor.state.load(Ordering::Relaxed), state);
        match self.processors.get(vcpu as usize) {
            Some(processor) if has_state(processor) => &mut *processor.recorder.get(),
            _ => {
                let known = self.processors.iter().position(has_state);
                self.processor(known.map_or_else(|| self.assign_state(vcpu, state), |at| at as u32))
            }
        }
    }

    /// Assigns a state to the processor that this thread runs, and returns its index.
    #[cold]
    fn assign_state(&self, vcpu: u32, state: *const u8) -> u32 {
        let index = current_cpu_index(self.processors.len() as u32).unwrap_or(vcpu);
        if let Some(processor) = self.processors.get(index as usize) {
            processor.state.store(state.cast_mut(), Ordering::Relaxed);
        }
        index
    }
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
    if !qemu_log::is_log_open() {
        return Err("QEMU did not open its log: do not use its options -d and -D".to_string());
    }
    let link = RecorderLink::connect_to_recorder(&config.folder)
        .map_err(|error| format!("no recorder answers: {error}"))?;
    let clock = config.folder.join("clock");
    let shared_clock = SharedClock::open_shared_clock(&clock, config.tsc_tick())
        .map_err(|error| format!("{}: {error}", clock.display()))?;
    let count = usize::try_from(processors).unwrap_or(1);
    let shared = Box::leak(Box::new(SharedByProcessors::new(link, shared_clock, count)));
    let processors: Result<Vec<_>, String> = (0..)
        .zip(qemu_log::create_logs(count))
        .map(|(number, log)| {
            let mut processor = ProcessorRecorder::new(&config, number, shared, log)?;
            processor.announce();
            Ok(RecordedProcessor {
                state: AtomicPtr::default(),
                recorder: UnsafeCell::new(processor),
            })
        })
        .collect();
    let processors = processors?;
    RECORDER = Box::into_raw(Box::new(SystemRecorder { api, processors }));
    let plain = SystemPluginCallbacks {
        translation: on_translation as *const c_void,
        discontinuity: on_discontinuity as *const c_void,
        exit: on_exit as *const c_void,
    };
    let with_data = SystemPluginCallbacks {
        translation: with_data::on_translation as *const c_void,
        discontinuity: with_data::on_discontinuity as *const c_void,
        exit: on_exit as *const c_void,
    };
    (*RECORDER)
        .api
        .register_system_callbacks(id, &plain, &with_data);
    Ok(())
}

extern "C" {
    // The callbacks of generated code, which keeps the state of the processor at the address in rbp.
    fn rtit_qemu_system_block(vcpu: u32, translation: *mut c_void);
    fn rtit_qemu_first_block(vcpu: u32, translation: *mut c_void);
    fn rtit_qemu_last_instruction(vcpu: u32, unused: *mut c_void);
}

global_asm!(
    ".globl rtit_qemu_system_block",
    ".hidden rtit_qemu_system_block",
    ".type rtit_qemu_system_block, @function",
    "rtit_qemu_system_block:",
    "mov rdx, rbp",
    "jmp {}",
    ".globl rtit_qemu_first_block",
    ".hidden rtit_qemu_first_block",
    ".type rtit_qemu_first_block, @function",
    "rtit_qemu_first_block:",
    "mov rdx, rbp",
    "jmp {}",
    ".globl rtit_qemu_last_instruction",
    ".hidden rtit_qemu_last_instruction",
    ".type rtit_qemu_last_instruction, @function",
    "rtit_qemu_last_instruction:",
    "mov rdx, rbp",
    "jmp {}",
    sym on_block,
    sym on_first_block,
    sym on_last_instruction,
);

/// Runs where code starts that a processor has translated before its first block.
extern "C" fn on_first_block(vcpu: u32, translation: *const Translation, state: *const u8) {
    // SAFETY: a leaked translation.
    let start = unsafe { (*translation).latest_block().start };
    if !find_layout(SystemCpuState::new(state), start) {
        exit_with_error(UNKNOWN_LAYOUT);
    }
    on_block(vcpu, translation, state);
}

extern "C" fn on_block(vcpu: u32, translation: *const Translation, state: *const u8) {
    // SAFETY: the processor's thread calls, with a leaked translation.
    unsafe {
        let cpu = SystemCpuState::new(state);
        let block = (*translation).block_at_state(cpu);
        (*RECORDER)
            .processor_in_state(vcpu, state)
            .follow_to_block(block, cpu);
    }
}

unsafe extern "C" fn on_last_instruction(vcpu: u32, _: *mut c_void, state: *const u8) {
    (*RECORDER).processor_in_state(vcpu, state).has_started_last = true;
}

extern "C" fn on_translation(_id: PluginId, tb: *mut PluginTb) {
    // SAFETY: QEMU translates in the thread of the processor.
    unsafe {
        let recorder = &*RECORDER;
        let api = &recorder.api;
        let (start, count) = api.block_start_and_count(tb);
        let mut sizes = Vec::with_capacity(count);
        let mut code = Vec::with_capacity(8 * count);
        for index in 0..count {
            let instruction = api.instruction_at(tb, index);
            sizes.push(api.instruction_size(instruction));
            api.append_instruction_bytes(instruction, &mut code);
        }
        let cpu =
            qemu_log::current_processor().map(|number| recorder.processor(number as u32).cpu());
        let state = cpu
            .filter(|cpu| cpu.is_known())
            .map(SystemCpuState::processor_state);
        let (state, callback) = match state {
            Some(state) => (state, rtit_qemu_system_block as OnExecution),
            None => (STATE_AFTER_RESET, rtit_qemu_first_block as _),
        };
        let block = SystemBlock::new(start, &sizes, &code, state.user, state.code);
        if block.needs_last_callback && block.instructions > 0 {
            let last = api.instruction_at(tb, block.instructions as usize - 1);
            api.call_before_instruction(last, rtit_qemu_last_instruction, ptr::null_mut());
        }
        let translation = Box::into_raw(Box::new(Translation::new(block)));
        api.call_when_block_starts(tb, callback, translation.cast());
    }
}

unsafe extern "C" fn on_discontinuity(_id: PluginId, vcpu: u32, _type: c_int, from: u64, to: u64) {
    // QEMU also reports exceptions that only it handles, which change no address.
    if from != to {
        (*RECORDER).processor(vcpu).note_discontinuity(from);
    }
}

extern "C" fn on_exit() {
    // SAFETY: outside of the threads of processors, QEMU has stopped all of them.
    unsafe {
        let recorder = &*RECORDER;
        match qemu_log::current_processor() {
            // A device ended QEMU in the thread of this processor, while others may run.
            Some(number) => recorder.processor(number as u32).end_recording(),
            None => {
                for number in 0..recorder.processors.len() as u32 {
                    recorder.processor(number).end_recording();
                }
            }
        }
    }
}

/// The same callbacks with the signatures of version 7 of the plugin interface: data in place of the plugin's id.
mod with_data {
    use super::{c_int, c_void, PluginTb};

    pub(super) extern "C" fn on_translation(tb: *mut PluginTb, _: *mut c_void) {
        super::on_translation(0, tb);
    }

    pub(super) unsafe extern "C" fn on_discontinuity(
        vcpu: u32,
        kind: c_int,
        from: u64,
        to: u64,
        _: *mut c_void,
    ) {
        super::on_discontinuity(0, vcpu, kind, from, to);
    }
}
