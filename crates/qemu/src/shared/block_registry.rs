//! The blocks of the process, and the reports of its code. Before a new block runs, the recorder gets the code that it
//! lacks, with a time that separates the old code from the new.

use std::sync::atomic::{fence, Ordering};

use rtit_events::code::{CodeChange, Mapping, MappingContents};
use rtit_events::{flag, EventKind};

use crate::shared::recorder_link::{new_message, MAX_MESSAGE};
use crate::shared::shared_state::{
    current_thread, process_and_thread_id, LockedState, SharedState,
};
use crate::thread::block_arena;
use crate::thread::thread_state::ATTEND_SWITCH;
use crate::thread::translation_block::{TranslationBlock, HANDLER_ENTRY, SINGLE_INSTRUCTION};

/// Instructions that another thread may run between a look at its clock and its next block.
const CLOCK_MARGIN: u64 = 4096;

impl SharedState {
    /// Returns whether `register_block` would report nothing for this block.
    pub(crate) fn knows_block(&self, block: &TranslationBlock) -> bool {
        self.with_locked(|locked| locked.code.knows_code(block.start, &block.code))
    }

    /// Reports the code of a translated block to the recorder as far as necessary, and keeps the block.
    pub(crate) fn register_block(&self, mut block: TranslationBlock) -> &'static TranslationBlock {
        self.with_locked(|locked| {
            let changes = locked.code.check_code(block.start, &block.code);
            if let Some(counters) = &mut locked.counters {
                block.mapping = counters.mapping_id(locked.code.mapping_at(block.start));
            } else if !changes.is_empty() {
                self.report_changes(locked, changes);
            }
            let same = |known: &&&TranslationBlock| {
                known.code == block.code
                    && (known.instructions, known.mapping) == (block.instructions, block.mapping)
            };
            let handler = locked.handlers.has_handler_at(block.start);
            let known = locked.blocks.entry(block.start).or_default();
            if let Some(known) = known.iter().find(same) {
                return *known;
            }
            if let Some(counters) = &mut locked.counters {
                let number = counters.assign_id(&block);
                block.set_counter(number, counters.block_counter_in_first_thread(number));
                if counters.is_in_no_other_block(&block) {
                    block.allow_quiet_start();
                }
            }
            let block = block_arena::keep_block(block);
            // Of two blocks with one start, the shorter may be the rest of the longer, which was interrupted: follow
            // neither at once.
            match block.instructions {
                1 if known.iter().any(|other| other.instructions > 1) => block.leave_ring_path(),
                1 => {}
                _ => known
                    .iter()
                    .filter(|other| other.instructions == 1)
                    .for_each(|other| other.leave_ring_path()),
            }
            if handler {
                block.add_mark_bits(HANDLER_ENTRY);
            }
            locked.edge_addresses.mark_block(block);
            known.push(block);
            if locked.counters.is_some() {
                // An interrupted run of this block can continue at a block that has counted as a separate one so far.
                for start in block.inner_starts() {
                    let there = locked.blocks.get(&start).into_iter().flatten();
                    there
                        .filter(|other| other.instructions == 1)
                        .for_each(|other| other.add_mark_bits(SINGLE_INSTRUCTION));
                }
            }
            block
        })
    }

    fn report_changes(&self, locked: &mut LockedState, changes: Vec<CodeChange>) {
        // Code that a thread executes before its next switch is older than this change, code after that switch is
        // newer.
        let me = current_thread();
        let mut time = self.clock.latest_clock();
        for &thread in &locked.live_threads {
            // SAFETY: threads are never freed, and these two fields are atomic.
            let (attention, clock) = unsafe { (&(*thread).attention, &(*thread).clock) };
            attention.fetch_or(ATTEND_SWITCH, Ordering::AcqRel);
            fence(Ordering::SeqCst);
            let ahead = if thread == me { 600 } else { CLOCK_MARGIN };
            time = time.max(clock.load(Ordering::Relaxed) + ahead);
        }
        time += self.clock.tsc_tick;
        self.clock.publish_clock(time);
        let tid = if me.is_null() {
            process_and_thread_id().1
        } else {
            // SAFETY: our own thread, which is in a callback.
            unsafe { (*me).tid }
        };
        for change in changes {
            match change {
                CodeChange::Mapped(mapped, contents) => {
                    locked
                        .ranges
                        .update_ranges_for_mapping(&self.config.filters, &mapped);
                    locked
                        .edge_addresses
                        .update_edges_for_mapping(&self.config.window, &mapped);
                    self.send_mapping(tid, time, &mapped, contents.as_ref());
                }
                CodeChange::Code(address, bytes) => {
                    self.send_code(tid, time, address, 0, &bytes);
                }
            }
        }
    }

    fn send_code(&self, tid: u32, time: u64, address: u64, flags: u8, bytes: &[u8]) {
        let mut message = new_message(EventKind::Code, tid, time);
        message.flags = flags;
        message.ip = address;
        message.extra = self.pid().into();
        self.send_message(message, bytes);
    }

    fn send_mapping(
        &self,
        tid: u32,
        time: u64,
        mapped: &Mapping,
        contents: Option<&MappingContents>,
    ) {
        let mut message = new_message(EventKind::Mmap, tid, time);
        message.ip = mapped.start;
        message.target = mapped.end - mapped.start;
        message.extra = self.pid().into();
        let mut blob = mapped.to_blob();
        let Some(contents) = contents else {
            return self.send_message(message, &blob);
        };
        message.flags = flag::MMAP_WITH_CONTENTS;
        blob.extend(&contents.head);
        self.send_message(message, &blob);
        for (part, at) in contents
            .code
            .chunks(MAX_MESSAGE)
            .zip((mapped.start..).step_by(MAX_MESSAGE))
        {
            self.send_code(tid, time, at, flag::CODE_OF_MAPPING, part);
        }
    }

    /// Forgets the mappings in a range, which have been unmapped or replaced.
    pub(crate) fn forget_mappings(&self, start: u64, size: u64) {
        self.with_locked(|locked| locked.code.forget_range(start, size));
    }

    /// Notes the handler of the sigaction structure at `action`, which rt_sigaction is about to install.
    pub(crate) fn record_signal_action(&self, signal: u64, action: u64) {
        self.with_locked(|locked| {
            if let Some(handler) = locked.handlers.record_action(signal, action) {
                for block in locked.blocks.get(&handler.address).into_iter().flatten() {
                    block.add_mark_bits(HANDLER_ENTRY);
                }
            }
        });
    }
}
