//! Follows the blocks of a processor, and reports to the trace unit how each led to the next.
//!
//! A transition has up to three parts, in this order: the end of the last block (or the part of it that retired),
//! writes of CR3, and interrupts and exceptions. The log has the latter two. The rules, each checked over whole boots:
//!
//! * An interrupt from a device comes between two blocks, or between two iterations of a REP instruction. Its IP is the
//!   address that the last block led to.
//! * An exception at an address inside the last block ends that block before this instruction. Any other exception is
//!   of the instruction that the last block led to, which could not be fetched.
//! * Without an event, a block that continues in itself is left where it wrote its own code, or after an instruction
//!   that accessed a device, which QEMU runs without callbacks: the instructions before that address retired. If the
//!   end of the block could go there too, a callback at its last instruction decides. An interrupt may follow the
//!   access.
//! * A REP instruction ends a block, may start it again for each iteration, and retires when the address after it is
//!   reached.
//!
//! From 10.2 on, QEMU also reports interrupts and exceptions to the plugin, with their addresses. If the log lacks one,
//! the transition is unknown.
//!
//! The time is the number of retired instructions, as in user mode. Before changed code runs, tracing is disabled and
//! enabled again at a later time. The change has a time in between, so that a decoder separates old from new code
//! (`processors`).
//!
//! The first processor is traced from the kernel's 32-bit entry on. The others start in real mode, where QEMU logs no
//! interrupts; they are traced from their first 32-bit code on. Reset and INIT end the trace until then.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

use rtit_events::{flag, EventKind, MessageKind};
use rtit_unit::{
    settings::ctl, CodeWidth, EventReport, MwaitOperands, ProcessorState, Settings, TraceUnit,
};

use super::address_filters::AddressFilters;
use super::block::{FlagChange, Halt, SystemBlock, KERNEL_START};
use super::code_spaces::CodeReport;
use super::cpu_state::{read_guest_memory, SystemCpuState};
use super::kernel_modules::{read_module, read_string};
use super::processors::{CodeSpaces, SharedByProcessors};
use super::program_mappings::ProgramReader;
use super::qemu_log::{LogEvent, LoggedInterrupt, ProcessorLog};
use super::trace_window::TraceWindow;
use crate::fatal_error::exit_with_error;
use crate::shared::config::{KernelLayout, ModuleLayout, ProgramLayout, RecordingConfig};
use crate::shared::recorder_link::{new_message, Message};
use crate::thread::executed_path::ExecutedPath;
use crate::thread::translation_block::BlockExit;

/// The 32-bit entry of a Linux kernel, to which the boot protocol loads it.
const KERNEL_ENTRY: u64 = 0x10_0000;
const NO_KERNEL: &str =
    "nothing was recorded: the machine did not reach the 32-bit entry of a Linux kernel";
/// Instructions between two looks at what should be sent.
const CHECK_INTERVAL: u64 = 1 << 14;
const PACKETS_TO_SEND: usize = 1 << 16;
/// A clock that is raised by more than this gets no packets in between.
const LONGEST_TRACED_WAIT: u64 = 1 << 12;
/// The clock is raised by this before and after a switch of page tables.
const SWITCH_MARGIN: u64 = 1024;
/// The name of the kernel's address space. Others have the page number of their page table.
const KERNEL_SPACE: u64 = u32::MAX as u64;
/// Warnings of unknown transitions that are sent; the end has their number.
const MOST_WARNINGS: u32 = 10;
const PAGE_BITS: u32 = 12;
/// The kernel moves itself by a multiple of this.
const KERNEL_ALIGNMENT: u64 = 1 << 21;
/// C-states as MWAIT encodes them.
const C0: u8 = 15;
const C1: u8 = 0;
/// The reason of a wake (Table 33-44).
const WOKEN_BY_INTERRUPT: u8 = 1;
/// Bytes of a thread's name.
const COMM: usize = 16;

/// Functions of the kernel at whose start the recorder reads something, as `SystemBlock::kernel_function`.
mod kernel_function {
    pub(super) const NONE: u8 = 0;
    pub(super) const SWITCH: u8 = 1;
    pub(super) const MODULE_INIT: u8 = 2;
    pub(super) const MAP: u8 = 3;
    pub(super) const WAKE_NEW_TASK: u8 = 4;
    pub(super) const SET_NAME: u8 = 5;
}

/// The part of execution that filters let through, by the state of the processor.
#[derive(Clone, Copy)]
struct TracedContext {
    os: bool,
    user: bool,
    cr3_match: Option<u64>,
}

impl TracedContext {
    #[inline(always)]
    fn contains(&self, user: bool, cpu: SystemCpuState) -> bool {
        let allowed = if user { self.user } else { self.os };
        let differs = |wanted: u64| (wanted ^ cpu.cr3()) >> PAGE_BITS != 0;
        allowed && !self.cr3_match.is_some_and(differs)
    }
}

/// How often a value of the log was compared with the state of the processor, and how often they differed.
#[derive(Default)]
struct Comparisons {
    count: u64,
    differences: u64,
}

impl Comparisons {
    fn add(&mut self, is_equal: bool) {
        self.count += 1;
        self.differences += u64::from(!is_equal);
    }
}

/// What the recorder reports at its end.
#[derive(Default)]
struct Totals {
    branches: u64,
    traced_branches: u64,
    traced_instructions: u64,
    unknown_transitions: u32,
    cpl: Comparisons,
    cr3: Comparisons,
    interrupt_flag: Comparisons,
}

/// Records one processor.
pub(super) struct ProcessorRecorder {
    number: u32,
    shared: &'static SharedByProcessors,
    log: &'static ProcessorLog,
    settings: Settings,
    unit: TraceUnit,
    path: ExecutedPath,
    writes_truth: bool,
    /// Whether the recorder keeps the last packets only, and can ask for them.
    snapshot: bool,
    answered_requests: u64,
    /// PSBs at which the executed path has been cut: a decoder of a snapshot can start at each PSB.
    psbs: u64,
    context: TracedContext,
    filters: AddressFilters,
    window: TraceWindow,
    event_trace: bool,
    cpu: SystemCpuState,
    /// The block that has started, None while the processor is not traced.
    block: Option<&'static SystemBlock>,
    /// Whether window and filters by CPL and CR3 let that block through, and whether address filters do so too.
    is_in_context: bool,
    /// RFLAGS.IF when that block started.
    interrupt_flag: bool,
    is_traced: bool,
    /// Whether the trace unit evaluates its address filters at the next block, whatever leads there.
    evaluates_filters: bool,
    /// Whether the last instruction of that block has started, if the block needs the callback.
    pub(super) has_started_last: bool,
    /// Addresses of interrupts and exceptions since the block has started, if QEMU reports them to plugins.
    discontinuities: Vec<u64>,
    /// Whether the processor was in real mode since the kernel's entry.
    has_been_reset: bool,
    /// Whether the processor is in system management mode, which is not traced.
    is_in_smm: bool,
    has_ended: bool,
    clock: u64,
    next_check: u64,
    /// `SharedByProcessors::change_time` that the trace has followed.
    seen_change: u64,
    /// CR3 by the log.
    cr3: u64,
    retired: u64,
    /// The page table of the last switch that was reported.
    switched_to: u64,
    layout: Option<KernelLayout>,
    modules: Option<ModuleLayout>,
    programs: Option<ProgramLayout>,
    kernel_version: Arc<AtomicU32>,
    /// Name and version of the current space of the lower half.
    low_space: (u64, Arc<AtomicU32>),
    totals: Totals,
}

impl ProcessorRecorder {
    pub(super) fn new(
        config: &RecordingConfig,
        number: u32,
        shared: &'static SharedByProcessors,
        log: &'static ProcessorLog,
    ) -> Result<ProcessorRecorder, String> {
        let settings = &config.settings;
        let has = |bit| settings.ctl & bit != 0;
        Ok(ProcessorRecorder {
            number,
            shared,
            log,
            settings: settings.clone(),
            unit: TraceUnit::new(settings).map_err(|error| error.to_string())?,
            path: ExecutedPath::new(config.min_run),
            writes_truth: config.truth.is_truth_written(),
            snapshot: config.snapshot,
            answered_requests: shared.shared_clock.flush_requests(),
            psbs: 0,
            context: TracedContext {
                os: has(ctl::OS),
                user: has(ctl::USER),
                cr3_match: has(ctl::CR3_FILTER).then_some(settings.cr3_match),
            },
            filters: AddressFilters::new(&config.system_filters),
            window: TraceWindow::new(config.system_edges),
            event_trace: has(ctl::EVENT_EN),
            cpu: SystemCpuState::NONE,
            block: None,
            is_in_context: false,
            interrupt_flag: false,
            is_traced: false,
            evaluates_filters: false,
            has_started_last: false,
            discontinuities: Vec::new(),
            has_been_reset: false,
            is_in_smm: false,
            has_ended: false,
            clock: 0,
            next_check: 0,
            seen_change: 0,
            cr3: 0,
            retired: 0,
            switched_to: 0,
            layout: config.kernel,
            modules: config.modules,
            programs: config.programs.filter(|_| has(ctl::USER)),
            kernel_version: shared.version_of_space(KERNEL_SPACE),
            low_space: (KERNEL_SPACE, Arc::default()),
            totals: Totals::default(),
        })
    }

    /// Announces the recording, before QEMU runs anything.
    pub(super) fn announce(&mut self) {
        let mut message = self.new_message(EventKind::Thread);
        // SAFETY: asks for a number.
        message.ip = unsafe { libc::getpid() } as u64;
        self.shared.link.send_message(message, &[]);
        if self.writes_truth {
            let record = ExecutedPath::thread_record(self.number, 0);
            self.send_message(MessageKind::Truth, 0, 0, &record);
        }
    }

    pub(super) fn cpu(&self) -> SystemCpuState {
        self.cpu
    }

    /// Goes on to `next`, which starts now.
    #[inline(always)]
    pub(super) fn follow_to_block(&mut self, next: &'static SystemBlock, cpu: SystemCpuState) {
        let Some(block) = self.block else {
            return self.follow_untraced_block(next, cpu);
        };
        match block.quiet_branch_to(next) {
            Some(taken) if block.has_quiet_end && !self.log.has_text() => {
                self.retire_quietly(block, next.start, taken);
            }
            _ => self.follow_any_transition(block, next),
        }
        if self.block.is_none() {
            return;
        }
        if block.orders_processors && self.shared.has_several_processors() {
            self.catch_up();
        }
        self.enter_block(next);
    }

    #[cold]
    fn follow_untraced_block(&mut self, next: &'static SystemBlock, cpu: SystemCpuState) {
        if self.is_in_smm {
            self.leave_smm_if_done(next);
        } else {
            self.start_if_known(next, cpu);
        }
    }

    /// Starts the trace, if the processor is at the kernel's entry, or at its first 32-bit code after a start in real
    /// mode.
    fn start_if_known(&mut self, next: &'static SystemBlock, cpu: SystemCpuState) {
        self.cpu = cpu;
        self.log.assign_current_cpu(cpu);
        let has_kernel_started = &self.shared.has_kernel_started;
        let is_kernel_started = has_kernel_started.load(Ordering::Acquire);
        self.has_been_reset |= is_kernel_started && cpu.is_in_real_mode();
        let may_start = match self.number {
            0 => next.start == KERNEL_ENTRY,
            _ => self.has_been_reset,
        };
        if !may_start || next.width != CodeWidth::Bits32 || !cpu.is_in_protected_mode() {
            return;
        }
        has_kernel_started.store(true, Ordering::Release);
        self.has_been_reset = false;
        self.log.take_text();
        self.cr3 = cpu.cr3();
        let spaces = self.shared.lock_spaces();
        self.seen_change = self.shared.change_time();
        drop(spaces);
        let latest = self.shared.latest_clock().max(self.seen_change);
        self.set_clock(latest.max(self.clock));
        self.unit
            .start_in_state(next.start, cpu.processor_state(), self.cr3);
        self.set_address_ranges();
        self.enable_tracing();
        self.enter_block(next);
    }

    /// Ends the trace where the processor was reset: it is unknown which instructions of the last block retired.
    #[cold]
    fn stop_at_reset(&mut self) {
        self.unit.disable_tracing();
        self.send_packets();
        // The first PSB+ of a new trace unit will have the mode and CR3.
        match TraceUnit::new(&self.settings) {
            Ok(unit) if !self.filters.has_trace_stopped() => self.unit = unit,
            _ => {}
        }
        self.path.cut_run();
        self.block = None;
        self.discontinuities.clear();
        self.has_been_reset = true;
        if self.number == 0 {
            let text =
                "the machine was reset: what it did until its next start of Linux is missing";
            self.send_message(EventKind::Warning, 0, 0, text.as_bytes());
        }
    }

    #[inline(always)]
    fn enter_block(&mut self, next: &'static SystemBlock) {
        self.block = Some(next);
        self.interrupt_flag = self.cpu.interrupt_flag();
        self.has_started_last = false;
        if self.snapshot && self.psbs != self.unit.psb_count() {
            self.psbs = self.unit.psb_count();
            self.path.cut_run();
        }
        self.check_code(next);
        // Read after the version of the code: see `SharedByProcessors::begin_change`.
        while self.shared.change_time() != self.seen_change {
            self.follow_change();
            self.check_code(next);
        }
        if self.window.is_used() {
            self.follow_window(next);
        }
        self.is_in_context = self.window.is_open() && self.context.contains(next.user, self.cpu);
        if self.evaluates_filters {
            self.arrive_at(next.start, next.user);
            self.evaluates_filters = false;
        }
        let traced = self.is_in_context && self.filters.let_through();
        if traced != self.is_traced {
            self.path.cut_run();
            self.is_traced = traced;
        }
        match next.kernel_function.load(Ordering::Relaxed) {
            kernel_function::NONE => {}
            kernel_function::SWITCH => self.switch_task(),
            kernel_function::MODULE_INIT => self.report_module(),
            function => self.report_program(function),
        }
        if self.clock >= self.next_check {
            self.send_pending();
        }
    }

    // The clock

    fn advance(&mut self, instructions: u64) {
        self.retired += instructions;
        self.set_clock(self.clock + instructions);
    }

    fn set_clock(&mut self, clock: u64) {
        self.clock = clock;
        self.shared.publish_clock(self.number, clock);
        if let Err(error) = self.unit.advance_clock(clock) {
            exit_with_error(&error.to_string());
        }
    }

    /// Raises the clock to the latest one of the other processors.
    #[inline(never)]
    fn catch_up(&mut self) {
        // In this order: the clock of a processor that has changed code is published after the time of the change.
        let latest = self.shared.latest_clock();
        if self.shared.change_time() != self.seen_change {
            self.follow_change();
        }
        if latest > self.clock + LONGEST_TRACED_WAIT {
            self.restart_trace(latest);
        } else if latest > self.clock {
            self.set_clock(latest);
        }
    }

    /// Goes on after the last change of code.
    #[cold]
    fn follow_change(&mut self) {
        let spaces = self.shared.lock_spaces();
        self.follow_locked_change(&spaces);
    }

    fn follow_locked_change(&mut self, _: &CodeSpaces) {
        let time = self.shared.change_time();
        if time != self.seen_change {
            self.seen_change = time;
            self.restart_trace(time);
        }
    }

    /// Disables the trace, and enables it at `clock` or later. The trace has the exact time.
    fn restart_trace(&mut self, clock: u64) {
        self.unit.disable_tracing();
        self.set_clock(clock.max(self.clock));
        self.enable_tracing();
        self.path.cut_run();
    }

    // The recording window and address filters

    /// Sets TraceEn, if the window is open.
    fn enable_tracing(&mut self) {
        if self.window.is_open() {
            self.unit.enable_tracing();
            self.evaluates_filters = true;
        }
    }

    /// Opens or closes the window before a block, for all processors if the block contains the edge.
    #[inline(never)]
    fn follow_window(&mut self, next: &SystemBlock) {
        let shared = self.shared;
        let clock = &shared.shared_clock;
        let was_open = self.window.is_open();
        self.window.enter_phase(clock.window_phase());
        if self.window.ends_phase(next, shared.kernel_move()) {
            clock.end_window_phase(self.window.phase(), 0);
            self.window.enter_phase(clock.window_phase());
        }
        if was_open != self.window.is_open() {
            self.path.cut_run();
            self.unit.disable_tracing();
            self.enable_tracing();
        }
    }

    /// Notes that a branch or event leads to `ip`, for the executed path.
    #[inline(always)]
    fn arrive_at(&mut self, ip: u64, user: bool) {
        let is_traced = self.window.is_open() && self.context.contains(user, self.cpu);
        if self.filters.are_used() && is_traced {
            self.filters.arrive_at(ip);
        }
    }

    /// Sets the address ranges that apply from the next enable on.
    fn set_address_ranges(&mut self) {
        self.filters.set_ranges(self.shared.kernel_move());
        if let Err(error) = self.unit.set_ranges(self.filters.ranges()) {
            exit_with_error(&error.to_string());
        }
    }

    // The end of a block

    /// Adds a whole block to the executed path.
    #[inline(always)]
    fn add_to_path(&mut self, block: &SystemBlock, to: u64) {
        if self.is_traced {
            self.totals.traced_instructions += u64::from(block.instructions);
            self.path
                .add_block(block, 0, block.always_transfers() || to != block.next);
        }
        if self.filters.are_used() && self.is_in_context && block.branches_to(to) {
            self.filters.arrive_at(to);
        }
    }

    #[inline(always)]
    fn count_branch(&mut self) {
        self.totals.branches += 1;
        self.totals.traced_branches += u64::from(self.is_traced);
    }

    /// Retires a block that ends without event, by its end or a direct branch.
    #[inline(always)]
    fn retire_quietly(&mut self, block: &SystemBlock, to: u64, taken: bool) {
        if self.event_trace && !block.flag_changes.is_empty() {
            return self.retire_block(block, to, None);
        }
        self.add_to_path(block, to);
        self.advance(block.instructions.into());
        if block.exit == BlockExit::Conditional {
            self.count_branch();
            self.unit.conditional(block.next, block.target, taken);
        } else if block.exit == BlockExit::Jump {
            self.unit.jump(to);
        } else {
            self.unit.set_ip(to);
        }
    }

    /// Retires a whole block that continues at `to`. `state`: the state there after a far transfer; None: that of the
    /// processor now.
    fn retire_block(&mut self, block: &SystemBlock, to: u64, state: Option<ProcessorState>) {
        self.add_to_path(block, to);
        let before = self.clock;
        let state = state.unwrap_or_else(|| self.cpu.processor_state());
        self.apply_flag_changes(block, block.instructions, state.interrupt_flag);
        let done = self.clock - before;
        self.advance(u64::from(block.instructions) - done);
        let unit = &mut self.unit;
        match block.exit {
            BlockExit::Conditional => unit.conditional(block.next, block.target, to != block.next),
            BlockExit::Jump => unit.jump(to),
            BlockExit::Call => unit.call(block.next, to),
            BlockExit::IndirectJump => unit.indirect_jump(to),
            BlockExit::IndirectCall => unit.indirect_call(block.next, to),
            BlockExit::Return => unit.ret(to),
            BlockExit::Far | BlockExit::Syscall => {
                let report = block
                    .is_iret
                    .then_some(EventReport::Iret { ip: block.last });
                unit.transfer(to, state, None, report);
                self.arrive_at(to, state.user);
            }
            _ => unit.set_ip(to),
        }
        if !matches!(
            block.exit,
            BlockExit::Fall | BlockExit::Jump | BlockExit::Call | BlockExit::Repeat
        ) {
            self.count_branch();
        }
    }

    /// Retires the first `count` instructions of a block.
    fn retire_part(&mut self, block: &SystemBlock, count: u32) {
        if self.is_traced {
            self.totals.traced_instructions += u64::from(count);
            self.path.add_part(block, 0..count);
        }
        let before = self.clock;
        self.apply_flag_changes(block, count, false);
        let done = self.clock - before;
        self.advance(u64::from(count) - done);
        self.unit
            .set_ip(block.start + block.instruction_offset(count));
    }

    /// Reports the instructions that set RFLAGS.IF among the first `count`, if event trace needs it. `at_end`: IF after
    /// the block.
    fn apply_flag_changes(&mut self, block: &SystemBlock, count: u32, at_end: bool) {
        if !self.event_trace {
            return;
        }
        let mut done = 0;
        for &(index, change) in block
            .flag_changes
            .iter()
            .filter(|(index, _)| *index < count)
        {
            self.advance(u64::from(index + 1 - done));
            done = index + 1;
            let flag = match change {
                FlagChange::Clear => false,
                FlagChange::Set => true,
                FlagChange::Load => at_end,
            };
            let address = |index| match index {
                index if index == block.instructions => block.next,
                index => block.start + block.instruction_offset(index),
            };
            self.unit
                .set_interrupt_flag(address(index), address(index + 1), flag);
        }
    }

    // Any transition

    #[cold]
    #[inline(never)]
    fn follow_any_transition(&mut self, block: &'static SystemBlock, next: &'static SystemBlock) {
        if next.width == CodeWidth::Bits16 && self.cpu.is_in_real_mode() {
            return self.stop_at_reset();
        }
        let mut last = Some(block);
        let events = self.log.take_events();
        if !self.has_logged_discontinuities(&events) {
            return self.lose_transition(block, next);
        }
        if !self.take_events(&mut last, &events, next) {
            return self.lose_transition(block, next);
        }
        if self.is_in_smm {
            return;
        }
        if let Some(block) = last {
            if !self.leave_block_without_event(block, next) {
                return self.lose_transition(block, next);
            }
        }
        self.totals.cr3.add(self.cr3 == self.cpu.cr3());
    }

    /// Notes an interrupt or exception of the instruction at this address.
    pub(super) fn note_discontinuity(&mut self, from: u64) {
        if self.block.is_some() {
            self.discontinuities.push(from);
        }
    }

    /// Returns whether the log has all interrupts and exceptions that QEMU has reported to the plugin.
    fn has_logged_discontinuities(&mut self, events: &[LogEvent]) -> bool {
        let is_logged = |&from: &u64| {
            events.iter().any(
                |event| matches!(event, LogEvent::Interrupt(found) | LogEvent::SmmEntry(found) if found.ip == from),
            )
        };
        let all = self.discontinuities.iter().all(is_logged);
        self.discontinuities.clear();
        all
    }

    /// Takes the events of the log between the last block and the next one. Returns false if one has no explanation.
    fn take_events(
        &mut self,
        last: &mut Option<&'static SystemBlock>,
        events: &[LogEvent],
        next: &'static SystemBlock,
    ) -> bool {
        for (index, event) in events.iter().enumerate() {
            let is_explained = match event {
                LogEvent::Cr3(value) => self.write_cr3(last, *value),
                LogEvent::SmmEntry(before) => {
                    self.enter_smm(last.take(), before);
                    let rest = events.get(index + 1..).unwrap_or_default();
                    return self.leave_smm(rest, next);
                }
                LogEvent::SmmExit(_) => false,
                LogEvent::Interrupt(interrupt) => {
                    let later = events[index + 1..].iter().find_map(|event| match event {
                        LogEvent::Interrupt(later) | LogEvent::SmmEntry(later) => Some(later),
                        _ => None,
                    });
                    self.take_interrupt(last, interrupt, later, next)
                }
            };
            if !is_explained {
                return false;
            }
        }
        true
    }

    // System management mode

    /// Enters system management mode before an instruction, after the last block.
    fn enter_smm(&mut self, last: Option<&'static SystemBlock>, before: &LoggedInterrupt) {
        let state = before.state_before();
        if let Some(block) = last {
            if block.exit == BlockExit::Repeat && before.ip == block.last {
                self.retire_part(block, block.instructions - 1);
            } else if self.may_have_led_to(block, before.ip) {
                self.retire_block(block, before.ip, Some(state));
                if let Some(c_state) = self.sleep_after(block) {
                    self.unit.wake(c_state, c_state, WOKEN_BY_INTERRUPT);
                }
            } else if let Some(count) = block.instruction_index_at(before.ip) {
                self.retire_part(block, count);
            } else {
                self.lose_packets_until(block, before.ip, state);
            }
        }
        self.path.cut_run();
        self.unit.enter_smm(before.ip);
        self.is_in_smm = true;
        self.block = None;
    }

    /// Follows events in system management mode: only the exit counts, and what comes after it.
    fn leave_smm(&mut self, events: &[LogEvent], next: &'static SystemBlock) -> bool {
        let exit = (0..).zip(events).find_map(|(index, event)| match event {
            LogEvent::SmmExit(after) => Some((index, after)),
            _ => None,
        });
        let Some((index, after)) = exit else {
            return true;
        };
        self.is_in_smm = false;
        self.cr3 = after.cr3.unwrap_or(self.cr3);
        let state = after.state_before();
        if self.window.is_open() {
            self.unit.leave_smm(after.ip, state, self.cr3);
            self.evaluates_filters = true;
        } else {
            self.unit.start_in_state(after.ip, state, self.cr3);
        }
        let rest = events.get(index + 1..).unwrap_or_default();
        self.take_events(&mut None, rest, next)
    }

    fn leave_smm_if_done(&mut self, next: &'static SystemBlock) {
        let events = self.log.take_events();
        if !self.leave_smm(&events, next) {
            self.lose_transition(next, next);
        }
        if !self.is_in_smm {
            self.enter_block(next);
        }
    }

    fn leave_block_without_event(
        &mut self,
        block: &'static SystemBlock,
        next: &SystemBlock,
    ) -> bool {
        let to = next.start;
        if block.writes_cr3 && to == block.next {
            // The log lacks writes while paging is off.
            return self.write_cr3(&mut Some(block), self.cpu.cr3());
        }
        if block.exit == BlockExit::Repeat && to == block.last {
            self.retire_part(block, block.instructions - 1);
        } else if self.may_have_led_to(block, to) {
            self.retire_block(block, to, None);
        } else if let Some(count) = block.instruction_index_at(to) {
            self.retire_part(block, count);
        } else {
            return false;
        }
        true
    }

    /// Returns whether the end of the last block was reached and can lead to an address.
    fn may_have_led_to(&self, block: &SystemBlock, to: u64) -> bool {
        (self.has_started_last || !block.needs_last_callback) && can_lead_to(block, to)
    }

    /// Writes CR3, by the MOV at the end of the last block.
    fn write_cr3(&mut self, last: &mut Option<&'static SystemBlock>, value: u64) -> bool {
        let Some(block) = last.take().filter(|block| block.writes_cr3) else {
            return false;
        };
        self.add_to_path(block, block.next);
        self.advance(block.instructions.into());
        self.cr3 = value;
        self.unit.mov_cr3(block.next, value);
        if !self.is_in_context {
            self.arrive_at(block.next, block.user);
        }
        if self.context.user && !self.context.os {
            self.switch_process(value);
        }
        // The context may change with CR3; the next block decides.
        self.path.cut_run();
        true
    }

    /// Reports that programs run with other page tables from now on, where no PIP shows it. The trace has the exact
    /// time.
    fn switch_process(&mut self, cr3: u64) {
        let name = page_table(cr3);
        if name == self.switched_to {
            return;
        }
        self.unit.disable_tracing();
        self.set_clock(self.clock + SWITCH_MARGIN);
        self.send_message(EventKind::Switch, name, 0, &[]);
        self.switched_to = name;
        self.set_clock(self.clock + SWITCH_MARGIN);
        self.enable_tracing();
    }

    /// Takes an interrupt or exception. `later`: the next one, before any block.
    fn take_interrupt(
        &mut self,
        last: &mut Option<&'static SystemBlock>,
        interrupt: &LoggedInterrupt,
        later: Option<&LoggedInterrupt>,
        next: &SystemBlock,
    ) -> bool {
        let ip = interrupt.ip;
        let before = interrupt.state_before();
        let mut c_state = None;
        if let Some(block) = last.take() {
            let index = block.instruction_index_at(ip);
            let may_have_ended = self.may_have_led_to(block, ip);
            let is_trap = interrupt.is_hardware || interrupt.vector == 1;
            let is_between_iterations = block.exit == BlockExit::Repeat && ip == block.last;
            let retired = if is_between_iterations {
                block.instructions - 1
            } else if may_have_ended && (is_trap || index.is_none()) {
                block.instructions
            } else if let Some(count) = index {
                count
            } else {
                return false;
            };
            if retired == block.instructions {
                self.retire_block(block, ip, Some(before));
                c_state = self.sleep_after(block);
            } else {
                self.retire_part(block, retired);
            }
            self.compare_with_state(block, retired, before);
        }
        if let Some(cr3) = interrupt.cr3 {
            self.totals.cr3.add(cr3 == self.cr3);
        }
        if interrupt.is_hardware && self.shared.has_several_processors() {
            self.catch_up();
        }
        if let Some(state) = c_state {
            self.unit.wake(state, state, WOKEN_BY_INTERRUPT);
        }
        let (target, state) = match later {
            Some(later) => (later.ip, later.state_before()),
            None => (next.start, self.cpu.processor_state()),
        };
        let report = EventReport::Interrupt {
            vector: interrupt.vector,
            page_fault: interrupt.cr2.filter(|_| interrupt.vector == 14),
        };
        self.path.cut_run();
        self.unit.transfer(target, state, Some(ip), Some(report));
        self.arrive_at(target, state.user);
        self.count_branch();
        true
    }

    /// Reports that the processor sleeps, if the block ends with HLT or MWAIT. Returns the C-state.
    fn sleep_after(&mut self, block: &SystemBlock) -> Option<u8> {
        let mwait = match block.halt? {
            Halt::Hlt => None,
            // QEMU does not wait then.
            Halt::Mwait if self.shared.has_several_processors() => return None,
            // No instruction has changed the registers since.
            Halt::Mwait => Some(MwaitOperands {
                hints: self.cpu.rax() as u8,
                extensions: self.cpu.rcx() as u8 & 3,
            }),
        };
        let (state, sub_state) =
            mwait.map_or((C1, 0), |mwait| (mwait.hints >> 4, mwait.hints & 15));
        if state == C0 {
            return None;
        }
        self.unit.sleep(block.last, state, sub_state, mwait);
        Some(state)
    }

    /// Compares the state that the log has, `logged`, with that of the processor after the first `retired` instructions
    /// of a block. After a far transfer only the log has CPL and RFLAGS.IF, and after POPF only the log has RFLAGS.IF.
    fn compare_with_state(&mut self, block: &SystemBlock, retired: u32, logged: ProcessorState) {
        let is_whole = retired == block.instructions;
        if is_whole && matches!(block.exit, BlockExit::Far | BlockExit::Syscall) {
            return;
        }
        let totals = &mut self.totals;
        totals.cpl.add(logged.user == block.user);
        if let Some(flag) = block.interrupt_flag_after(retired, self.interrupt_flag) {
            totals.interrupt_flag.add(logged.interrupt_flag == flag);
        }
    }

    /// Gives up a transition that neither the code nor the log explains.
    fn lose_transition(&mut self, block: &SystemBlock, next: &SystemBlock) {
        self.cr3 = self.cpu.cr3();
        self.lose_packets_until(block, next.start, self.cpu.processor_state());
    }

    fn lose_packets_until(&mut self, block: &SystemBlock, ip: u64, state: ProcessorState) {
        self.totals.unknown_transitions += 1;
        if self.totals.unknown_transitions <= MOST_WARNINGS {
            let text = format!(
                "it is unknown how the processor got from the block at {:#x} to {ip:#x}",
                block.start
            );
            self.send_message(EventKind::Warning, 0, 0, text.as_bytes());
        }
        self.path.cut_run();
        self.unit.lose_packets_until(ip, state, self.cr3);
        self.evaluates_filters = true;
    }

    // Code

    /// Reports the code of a block that the reader lacks.
    #[inline(always)]
    fn check_code(&mut self, next: &SystemBlock) {
        if next.is_kernel_half() {
            let version = self.kernel_version.load(Ordering::Acquire);
            if next.checked.load(Ordering::Acquire) != u64::from(version) {
                self.report_code(next, KERNEL_SPACE, 0);
            }
        } else {
            self.check_low_code(next);
        }
    }

    #[inline(never)]
    fn check_low_code(&mut self, next: &SystemBlock) {
        let name = page_table(self.cpu.cr3());
        if name != self.low_space.0 {
            self.low_space = (name, self.shared.version_of_space(name));
        }
        let (stamp, version) = (name << 32, self.low_space.1.load(Ordering::Acquire));
        if next.checked.load(Ordering::Acquire) != stamp | u64::from(version) {
            self.report_code(next, name, stamp);
        }
    }

    #[cold]
    #[inline(never)]
    fn report_code(&mut self, next: &SystemBlock, name: u64, stamp: u64) {
        let shared = self.shared;
        let mut spaces = shared.lock_spaces();
        self.follow_locked_change(&spaces);
        if name == KERNEL_SPACE {
            if shared.kernel_text.load(Ordering::Relaxed) == 0 {
                self.locate_kernel(next.start);
            }
            let function = self.kernel_function_at(next.start);
            next.kernel_function.store(function, Ordering::Relaxed);
        }
        let space = spaces.entry(name).or_default();
        for report in space.check_code(next.start, &next.code) {
            match report {
                CodeReport::First(address, bytes) => self.send_code(name, 0, address, &bytes),
                CodeReport::Changed(address, bytes) => {
                    shared.begin_change();
                    space.version.fetch_add(1, Ordering::Release);
                    let time = shared.latest_clock().max(self.clock) + shared.margin();
                    self.send_code(name, time, address, &bytes);
                    self.seen_change = time + shared.margin();
                    shared.end_change(self.seen_change);
                    self.restart_trace(self.seen_change);
                }
            }
        }
        let version = space.version.load(Ordering::Relaxed);
        next.checked
            .store(stamp | u64::from(version), Ordering::Release);
    }

    /// Finds out by how much the kernel has moved itself, at its first code in the upper half, and reports its address.
    fn locate_kernel(&mut self, first: u64) {
        let Some(layout) = self.layout else {
            return;
        };
        let moved = first.wrapping_sub(layout.text) & !(KERNEL_ALIGNMENT - 1);
        let text = layout.text.wrapping_add(moved);
        self.shared.kernel_text.store(text, Ordering::Relaxed);
        self.shared.set_kernel_move(moved);
        if self.filters.are_used() {
            self.set_address_ranges();
            self.restart_trace(self.clock);
        }
        let mut message = self.new_message(EventKind::Mmap);
        message.clock = 0;
        message.ip = text;
        self.shared.link.send_message(message, &[]);
    }

    /// Returns which function of `kernel_function` starts at an address.
    fn kernel_function_at(&self, address: u64) -> u8 {
        let (text, Some(layout)) = (self.shared.kernel_text.load(Ordering::Relaxed), self.layout)
        else {
            return kernel_function::NONE;
        };
        let linked = address.wrapping_sub(text).wrapping_add(layout.text);
        let programs = self.programs;
        let functions = [
            (kernel_function::SWITCH, Some(layout.switch_to)),
            (
                kernel_function::MODULE_INIT,
                self.modules.map(|all| all.init),
            ),
            (kernel_function::MAP, programs.map(|all| all.map)),
            (
                kernel_function::WAKE_NEW_TASK,
                programs.map(|all| all.wake_new_task),
            ),
            (kernel_function::SET_NAME, programs.map(|all| all.set_name)),
        ];
        let found = functions
            .into_iter()
            .find(|(_, start)| *start == Some(linked));
        found.map_or(kernel_function::NONE, |(function, _)| function)
    }

    /// Reports the thread that the kernel switches to: the second argument of `__switch_to`, a task_struct.
    #[cold]
    fn switch_task(&mut self) {
        let Some(layout) = self.layout.filter(|_| self.context.os) else {
            return;
        };
        let task = self.cpu.rsi();
        let mut name = [0; COMM];
        let Some((pid, tid)) = self.read_ids(task) else {
            return;
        };
        if read_guest_memory(task.wrapping_add(layout.task_comm), &mut name) {
            let end = name.iter().position(|&byte| byte == 0).unwrap_or(COMM);
            self.send_message(EventKind::Comm, pid, tid, &name[..end]);
        }
    }

    /// Returns the ids of the process and of the thread of a task_struct.
    fn read_ids(&self, task: u64) -> Option<(u64, u64)> {
        let layout = self.layout?;
        let read_id = |offset| {
            let mut bytes = [0; 4];
            read_guest_memory(task.wrapping_add(offset), &mut bytes)
                .then(|| u64::from(u32::from_le_bytes(bytes)))
        };
        Some((read_id(layout.task_tgid)?, read_id(layout.task_pid)?))
    }

    /// Reports what a function of the kernel does with a program. Rows of the trace after it have a later time.
    #[cold]
    #[inline(never)]
    fn report_program(&mut self, function: u8) {
        let Some(layout) = self.programs else {
            return;
        };
        let reader = ProgramReader {
            layout: &layout,
            direct_map: &self.shared.direct_map,
            cr3: self.cpu.cr3(),
            read: &read_guest_memory,
        };
        let changes_names = match function {
            kernel_function::MAP => self.report_mapping(&reader),
            kernel_function::WAKE_NEW_TASK => self.report_new_process(&reader),
            _ => self.report_name(),
        };
        if changes_names.is_some() {
            self.restart_trace(self.clock + SWITCH_MARGIN);
        }
    }

    /// Reports a mapping: the argument of `perf_event_mmap`, a vm_area_struct.
    fn report_mapping(&self, reader: &ProgramReader<'_>) -> Option<()> {
        let mapping = reader.read_mapping(self.cpu.rdi())?;
        let mut message = self.new_message(MessageKind::Mapping);
        message.ip = mapping.start;
        message.target = page_table(mapping.page_table);
        message.extra = mapping.end;
        let blob = mapping.file.map_or_else(Vec::new, |file| {
            let numbers = format!("{} {} ", file.offset, u8::from(file.is_initial));
            [numbers.into_bytes(), file.path].concat()
        });
        self.shared.link.send_message(message, &blob);
        Some(())
    }

    /// Reports the process of a thread that has memory: the argument of `wake_up_new_task`, a task_struct.
    fn report_new_process(&self, reader: &ProgramReader<'_>) -> Option<()> {
        let task = self.cpu.rdi();
        let (pid, _) = self.read_ids(task).filter(|(pid, tid)| pid == tid)?;
        let mut message = self.new_message(MessageKind::NewProcess);
        message.ip = page_table(reader.page_table_of_task(task)?);
        message.target = pid;
        self.shared.link.send_message(message, &[]);
        Some(())
    }

    /// Reports the name of a thread: the arguments of `__set_task_comm`, a task_struct, the name, and whether it is by
    /// exec. None if it is not.
    fn report_name(&self) -> Option<()> {
        let (pid, tid) = self.read_ids(self.cpu.rdi())?;
        let mut name = read_string(self.cpu.rsi(), &read_guest_memory)?;
        name.truncate(COMM - 1);
        let is_exec = self.cpu.rdx() & 1 != 0;
        let mut message = self.new_message(MessageKind::ThreadName);
        message.flags = if is_exec { flag::COMM_BY_EXEC } else { 0 };
        message.ip = page_table(self.cpu.cr3());
        message.target = pid;
        message.extra = tid;
        self.shared.link.send_message(message, &name);
        is_exec.then_some(())
    }

    /// Reports the module that the kernel initializes: the argument of `do_init_module`, a struct module.
    #[cold]
    fn report_module(&mut self) {
        let Some(layout) = self.modules else {
            return;
        };
        if let Some(lines) = read_module(&layout, self.cpu.rdi(), &read_guest_memory) {
            self.send_message(MessageKind::Module, 0, 0, &lines);
        }
    }

    fn send_code(&mut self, space: u64, time: u64, address: u64, bytes: &[u8]) {
        let mut message = self.new_message(EventKind::Code);
        message.clock = time;
        message.ip = address;
        message.extra = space;
        self.shared.link.send_message(message, bytes);
    }

    // Messages

    /// Returns a message from this processor. The thread field of the message holds the number of the processor.
    fn new_message(&self, kind: impl Into<u8>) -> Message {
        new_message(kind, self.number, self.clock)
    }

    fn send_message(&mut self, kind: impl Into<u8>, target: u64, extra: u64, blob: &[u8]) {
        let mut message = self.new_message(kind);
        message.target = target;
        message.extra = extra;
        self.shared.link.send_message(message, blob);
    }

    #[cold]
    #[inline(never)]
    fn send_pending(&mut self) {
        self.next_check = self.clock + CHECK_INTERVAL;
        let requests = self.shared.shared_clock.flush_requests();
        if self.unit.untaken_output().len() >= PACKETS_TO_SEND || requests != self.answered_requests
        {
            self.answered_requests = requests;
            self.send_packets();
        }
        if self.writes_truth && self.path.should_send_records() {
            let records = self.path.take_records(self.number);
            self.send_message(MessageKind::Truth, 0, 0, &records);
        }
    }

    fn send_packets(&mut self) {
        let bytes = self.unit.take_output();
        self.send_message(
            MessageKind::Packets,
            self.retired,
            self.totals.branches,
            &bytes,
        );
    }

    /// Ends the recording before the block that has started last, as it is unknown whether that block has retired; or,
    /// if an exception in the block led to a triple fault, before the faulting instruction.
    pub(super) fn end_recording(&mut self) {
        if std::mem::replace(&mut self.has_ended, true) {
            return;
        }
        if !self.shared.has_kernel_started.load(Ordering::Acquire) {
            if self.number == 0 {
                self.send_message(EventKind::Warning, 0, 0, NO_KERNEL.as_bytes());
            }
            return self.send_message(EventKind::Exit, 0, 0, &[]);
        }
        if let (Some(block), Some(LogEvent::Interrupt(first))) =
            (self.block.take(), self.log.take_events().first())
        {
            let index = block.instruction_index_at(first.ip);
            if let Some(count) = index.filter(|_| !first.is_hardware) {
                self.retire_part(block, count);
            }
        }
        self.unit.disable_tracing();
        self.send_packets();
        if self.writes_truth {
            let records = self.path.end_records(self.number, 0);
            self.send_message(MessageKind::Truth, 0, 0, &records);
        }
        let totals = std::mem::take(&mut self.totals);
        if totals.unknown_transitions > MOST_WARNINGS {
            let text = format!("{} transitions are unknown", totals.unknown_transitions);
            self.send_message(EventKind::Warning, 0, 0, text.as_bytes());
        }
        for (name, compared) in [
            ("CPL", totals.cpl),
            ("CR3", totals.cr3),
            ("RFLAGS.IF", totals.interrupt_flag),
        ] {
            let (count, differences) = (compared.count, compared.differences);
            self.send_message(MessageKind::Compared, count, differences, name.as_bytes());
        }
        self.send_message(
            MessageKind::Traced,
            totals.traced_instructions,
            totals.traced_branches,
            &[],
        );
        self.send_message(EventKind::Exit, self.retired, totals.branches, &[]);
    }
}

/// Returns the physical page number of the page table of a CR3 value, as the name of an address space.
fn page_table(cr3: u64) -> u64 {
    cr3 >> PAGE_BITS & (KERNEL_SPACE >> 1)
}

/// Returns whether the end of a block can lead to an address.
fn can_lead_to(block: &SystemBlock, to: u64) -> bool {
    match block.exit {
        // SYSCALL can lead anywhere, unlike in user mode.
        BlockExit::Syscall => to >= KERNEL_START,
        BlockExit::Unsupported => to == block.next,
        _ => block.may_continue_at(to),
    }
}
