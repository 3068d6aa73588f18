//! Reads what the kernel does where some of its functions start: switches of tasks, programs, and modules.

use std::sync::atomic::Ordering;

use rtit_events::{flag, EventKind, MessageKind};

use super::{page_table, ProcessorRecorder, SWITCH_MARGIN};
use crate::system::cpu_state::read_guest_memory;
use crate::system::kernel_modules::{read_module, read_string};
use crate::system::program_mappings::ProgramReader;

/// The kernel moves itself by a multiple of this.
const KERNEL_ALIGNMENT: u64 = 1 << 21;
/// Bytes of a thread's name.
const COMM: usize = 16;

// `SystemBlock::kernel_function`: which of these functions starts at the block.
pub(super) const NO_KERNEL_FUNCTION: u8 = 0;
const SWITCH: u8 = 1;
const MODULE_INIT: u8 = 2;
const MAP: u8 = 3;
const WAKE_NEW_TASK: u8 = 4;
const SET_NAME: u8 = 5;

impl ProcessorRecorder {
    /// Finds out by how much the kernel has moved itself, at its first code in the upper half, and reports its address.
    pub(super) fn locate_kernel(&mut self, first: u64) {
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

    /// Returns which function of the kernel starts at an address.
    pub(super) fn kernel_function_at(&self, address: u64) -> u8 {
        let (text, Some(layout)) = (self.shared.kernel_text.load(Ordering::Relaxed), self.layout)
        else {
            return NO_KERNEL_FUNCTION;
        };
        let linked = address.wrapping_sub(text).wrapping_add(layout.text);
        let programs = self.programs;
        let functions = [
            (SWITCH, Some(layout.switch_to)),
            (MODULE_INIT, self.modules.map(|all| all.init)),
            (MAP, programs.map(|all| all.map)),
            (WAKE_NEW_TASK, programs.map(|all| all.wake_new_task)),
            (SET_NAME, programs.map(|all| all.set_name)),
        ];
        let found = functions
            .into_iter()
            .find(|(_, start)| *start == Some(linked));
        found.map_or(NO_KERNEL_FUNCTION, |(function, _)| function)
    }

    /// Reports what the function does that starts.
    #[cold]
    #[inline(never)]
    pub(super) fn follow_kernel_function(&mut self, function: u8) {
        match function {
            SWITCH => self.switch_task(),
            MODULE_INIT => self.report_module(),
            _ => self.report_program(function),
        }
    }

    /// Reports the thread that the kernel switches to: the second argument of `__switch_to`, a task_struct.
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
        let later = self.clock + SWITCH_MARGIN;
        match function {
            MAP => {
                if self.report_mapping(&reader).is_some() {
                    self.restart_trace(later);
                }
            }
            WAKE_NEW_TASK => match self.report_new_process(&reader) {
                // The child has the memory of its parent (vfork).
                Some(child) if child == page_table(self.cpu.cr3()) => self.restart_trace(later),
                Some(child) => self.begin_program(child),
                None => {}
            },
            _ => {
                if let Some(page_table) = self.report_name() {
                    self.begin_program(page_table);
                }
            }
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

    /// Reports the process of a thread that has memory: the argument of `wake_up_new_task`, a task_struct. Returns its
    /// page table.
    fn report_new_process(&self, reader: &ProgramReader<'_>) -> Option<u64> {
        let task = self.cpu.rdi();
        let (pid, _) = self.read_ids(task).filter(|(pid, tid)| pid == tid)?;
        let mut message = self.new_message(MessageKind::NewProcess);
        let found = page_table(reader.page_table_of_task(task)?);
        message.ip = found;
        message.target = pid;
        self.shared.link.send_message(message, &[]);
        Some(found)
    }

    /// Reports the name of a thread: the arguments of `__set_task_comm`, a task_struct, the name, and whether it is by
    /// exec. Returns the page table of the program that exec begins.
    fn report_name(&self) -> Option<u64> {
        let (pid, tid) = self.read_ids(self.cpu.rdi())?;
        let mut name = read_string(self.cpu.rsi(), &read_guest_memory)?;
        name.truncate(COMM - 1);
        let is_exec = self.cpu.rdx() & 1 != 0;
        let mut message = self.new_message(MessageKind::ThreadName);
        message.flags = if is_exec { flag::COMM_BY_EXEC } else { 0 };
        let own = page_table(self.cpu.cr3());
        message.ip = own;
        message.target = pid;
        message.extra = tid;
        self.shared.link.send_message(message, &name);
        is_exec.then_some(own)
    }

    /// Reports the module that the kernel initializes: the argument of `do_init_module`, a struct module.
    fn report_module(&mut self) {
        let Some(layout) = self.modules else {
            return;
        };
        if let Some(lines) = read_module(&layout, self.cpu.rdi(), &read_guest_memory) {
            self.send_message(MessageKind::Module, 0, 0, &lines);
        }
    }
}
