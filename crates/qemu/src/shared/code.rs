//! What the process executes: its blocks, and what the recorder must know of its code and when.

use std::sync::atomic::{fence, Ordering};

use crate::shared::link::{Kind, Message, LARGEST, OF_MAPPING, WITH_CONTENTS};
use crate::shared::maps::Mapped;
use crate::shared::space::{Change, Contents};
use crate::shared::state::{ids, Locked, Shared};
use crate::shared::threads::current;
use crate::thread::arena;
use crate::thread::block::{Block, ALONE, HANDLER};
use crate::thread::state::SWITCH;

/// How far another thread may come between a look at its clock and its next block.
const AHEAD: u64 = 4096;

impl Shared {
    /// `translated` will have nothing to tell of this block.
    pub(crate) fn knows(&self, block: &Block) -> bool {
        self.with(|locked| locked.space.knows(block.start, &block.code))
    }

    /// A block was translated: it is told to the recorder as far as needed, and kept.
    pub(crate) fn translated(&self, mut block: Block) -> &'static Block {
        self.with(|locked| {
            let changes = locked.space.translated(block.start, &block.code);
            if let Some(tallies) = &mut locked.tallies {
                block.mapping = tallies.mapping(locked.space.mapped_at(block.start));
            } else if !changes.is_empty() {
                self.tell(locked, changes);
            }
            let same = |known: &&&Block| {
                known.code == block.code
                    && (known.count, known.mapping) == (block.count, block.mapping)
            };
            let handler = locked.handlers.start_at(block.start);
            let known = locked.blocks.entry(block.start).or_default();
            if let Some(known) = known.iter().find(same) {
                return *known;
            }
            if let Some(tallies) = &mut locked.tallies {
                let number = tallies.enlist(&block);
                block.count_as(number, tallies.first_cell(number));
                if tallies.stands_alone(&block) {
                    block.stand_alone();
                }
            }
            let block = arena::keep(block);
            // Of two blocks that start there the shorter one may be where the longer was broken off.
            match block.count {
                1 if known.iter().any(|other| other.count > 1) => block.step_aside(),
                1 => {}
                _ => known
                    .iter()
                    .filter(|other| other.count == 1)
                    .for_each(|other| other.step_aside()),
            }
            if handler {
                block.mark(HANDLER);
            }
            locked.points.mark(block);
            known.push(block);
            if locked.tallies.is_some() {
                // Where it may be broken off by one that has stood alone so far.
                for start in block.inner() {
                    let there = locked.blocks.get(&start).into_iter().flatten();
                    there
                        .filter(|other| other.count == 1)
                        .for_each(|other| other.mark(ALONE));
                }
            }
            block
        })
    }

    fn tell(&self, locked: &mut Locked, changes: Vec<Change>) {
        // Whatever a thread executes before its next switch is older than the change; what comes after is not.
        let me = current();
        let mut time = self.clock.latest();
        for &thread in &locked.live {
            // SAFETY: threads are never freed, and these two fields are atomic.
            let (attention, clock) = unsafe { (&(*thread).attention, &(*thread).clock) };
            attention.fetch_or(SWITCH, Ordering::AcqRel);
            fence(Ordering::SeqCst);
            let ahead = if thread == me { 600 } else { AHEAD };
            time = time.max(clock.load(Ordering::Relaxed) + ahead);
        }
        time += self.clock.tick;
        self.clock.publish(time);
        let tid = if me.is_null() {
            ids().1
        } else {
            // SAFETY: our own thread, which is in a callback.
            unsafe { (*me).tid }
        };
        for change in changes {
            match change {
                Change::Mapped(mapped, contents) => {
                    locked.ranges.mapped(&self.config.filters, &mapped);
                    locked.points.mapped(&self.config.window, &mapped);
                    self.tell_mapped(tid, time, &mapped, contents.as_ref());
                }
                Change::Code(address, bytes) => {
                    self.tell_code(tid, time, address, 0, &bytes);
                }
            }
        }
    }

    fn tell_code(&self, tid: u32, time: u64, address: u64, flags: u8, bytes: &[u8]) {
        let mut message = Message::new(Kind::Code, tid, time);
        message.flags = flags;
        message.ip = address;
        message.extra = self.pid().into();
        self.send(message, bytes);
    }

    fn tell_mapped(&self, tid: u32, time: u64, mapped: &Mapped, contents: Option<&Contents>) {
        let mut message = Message::new(Kind::Mmap, tid, time);
        message.ip = mapped.start;
        message.target = mapped.end - mapped.start;
        message.extra = self.pid().into();
        let rights = (libc::PROT_READ | libc::PROT_EXEC) as u32;
        let mut blob = mapped.offset.to_le_bytes().to_vec();
        for word in [rights, libc::MAP_PRIVATE as u32, mapped.major, mapped.minor] {
            blob.extend(word.to_le_bytes());
        }
        blob.extend(mapped.inode.to_le_bytes());
        blob.extend([0; 8]);
        blob.extend(&mapped.path);
        blob.push(0);
        let Some(contents) = contents else {
            return self.send(message, &blob);
        };
        message.flags = WITH_CONTENTS;
        blob.extend(&contents.head);
        self.send(message, &blob);
        for (part, at) in contents
            .code
            .chunks(LARGEST)
            .zip((mapped.start..).step_by(LARGEST))
        {
            self.tell_code(tid, time, at, OF_MAPPING, part);
        }
    }

    /// Mappings from `start` on are gone or others.
    pub(crate) fn unmapped(&self, start: u64, size: u64) {
        self.with(|locked| locked.space.forget(start, size));
    }

    /// rt_sigaction is about to install the action at `action`.
    pub(crate) fn install_handler(&self, signal: u64, action: u64) {
        self.with(|locked| {
            if let Some(handler) = locked.handlers.install(signal, action) {
                for block in locked.blocks.get(&handler.address).into_iter().flatten() {
                    block.mark(HANDLER);
                }
            }
        });
    }
}
