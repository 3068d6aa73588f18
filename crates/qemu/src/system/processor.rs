//! Follows the blocks of a processor, and reports to the trace unit how each led to the next.
//!
//! `transitions` has the rules by which a block, the log and the next block are explained. `kernel_functions` reads
//! what the kernel does where some of its functions start.
//!
//! The time is the number of retired instructions, as in user mode. Before changed code runs, tracing is disabled and
//! enabled again at a later time. The change has a time in between, so that a decoder separates old from new code
//! (`processors`).
//!
//! The first processor is traced from the kernel's 32-bit entry on. The others start in real mode, where QEMU logs no
//! interrupts; they are traced from their first 32-bit code on. Reset and INIT end the trace until then.

mod kernel_functions;
mod transitions;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

use rtit_events::{EventKind, MessageKind};
use rtit_unit::{settings::ctl, CodeWidth, EventReport, ProcessorState, Settings, TraceUnit};

use self::kernel_functions::NO_KERNEL_FUNCTION;
use super::address_filters::AddressFilters;
use super::block::{FlagChange, SystemBlock};
use super::code_spaces::CodeReport;
use super::cpu_state::SystemCpuState;
use super::processors::{CodeSpaces, SharedByProcessors};
use super::qemu_log::{LogEvent, ProcessorLog};
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
        let function = next.kernel_function.load(Ordering::Relaxed);
        if function != NO_KERNEL_FUNCTION {
            self.follow_kernel_function(function);
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
                CodeReport::First(address, bytes) => {
                    self.send_code(name, space.beginning, address, &bytes);
                }
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

    /// Starts another program in a page table, and restarts the trace at a later time.
    fn begin_program(&mut self, page_table: u64) {
        let shared = self.shared;
        let mut spaces = shared.lock_spaces();
        self.follow_locked_change(&spaces);
        shared.begin_change();
        let time = shared.latest_clock().max(self.clock) + shared.margin();
        // With page table isolation, the program runs with the page table after that of the kernel.
        for name in [page_table, page_table | 1] {
            if let Some(space) = spaces.get_mut(&name).filter(|space| space.has_code()) {
                space.begin_at(time);
                space.version.fetch_add(1, Ordering::Release);
            }
        }
        self.seen_change = time + shared.margin();
        shared.end_change(self.seen_change);
        self.restart_trace(self.seen_change);
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
