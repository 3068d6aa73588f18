//! The execution counts of a process, for `rtit stat`. They are in a memory file that the recorder has open too, so
//! that they survive the process.
//!
//! | offset | contents |
//! |---|---|
//! | 0 | words: `MAGIC`; number of blocks, mappings and tables; `EndedTotals` |
//! | `TIDS_AT` | one word for each table: its thread. Table 0 has the counts of the threads that have ended |
//! | `BLOCKS_AT` | for each block: start (8 bytes), mapping or `NOWHERE` (4), instructions (2), exit (1), zero (1) |
//! | `MAPPINGS_AT` | for each mapping: start, end, file offset, length of the path (8 bytes each), path |
//! | `CELLS_AT` | for each table: a `Counter` for each block (`thread::thread_counters`) |
//!
//! Only the tables are written without the lock. A forked process starts a file of its own with the same blocks.

use rtit_events::code::Mapping;
use rtit_events::{flag, EventKind, MessageKind};
use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::atomic::Ordering;

use libc::c_int;

use crate::fatal_error::exit_with_error;
use crate::shared::recorder_link::{new_message, RecorderLink};
use crate::thread::thread_counters::Counter;
use crate::thread::translation_block::{BlockExit, TranslationBlock};

const MAGIC: u64 = u64::from_le_bytes(*b"rtitcnt1");
/// Blocks with counters of their own, and the last of them, which all further blocks share by size and exit.
const MAX_BLOCKS: usize = 1 << 20;
const MAX_OVERFLOW_IDS: usize = 1 << 13;
const MAX_MAPPINGS: usize = 1 << 12;
/// Threads that can run at a time with counts that survive a killed process.
const MAX_TABLES: usize = 1 << 10;

const TIDS_AT: usize = 1 << 12;
const BLOCKS_AT: usize = 1 << 16;
const MAPPINGS_AT: usize = 1 << 25;
const CELLS_AT: usize = 1 << 26;
const BLOCK_SIZE: usize = 16;
const MAPPING_SIZE: usize = 1 << 13;
const PATH_AT: usize = 32;
const ENDED_AT: usize = 32;
const EXIT_COUNT: usize = BlockExit::Unsupported as usize + 1;
const TABLE_SIZE: usize = MAX_BLOCKS * std::mem::size_of::<Counter>();

/// The table of the process's first thread, which is the first to ask.
const FIRST_THREAD_TABLE: usize = 1;

/// The mapping of a block that is in no file.
const NOWHERE: u32 = u32::MAX;

/// The totals of the threads that have ended.
#[derive(Clone, Default)]
struct EndedTotals {
    instructions: u64,
    /// Those made by code in files.
    system_calls: u64,
    /// For each kind of exit, how often blocks were left the first way and the second way.
    exits: [[u64; 2]; EXIT_COUNT],
}

/// The counts of one process.
pub(crate) struct BlockCounters {
    base: *mut u8,
    /// The number of tables that fit.
    tables: usize,
    blocks: usize,
    mappings: Vec<Mapping>,
    parts: HashMap<(u32, u32), u32>,
    ended: EndedTotals,
    /// The addresses at which an interrupted block can be resumed.
    inner: HashSet<u64>,
    /// Ids of the blocks beyond the limit, which share one counter for each size and exit.
    others: HashMap<(u32, BlockExit), u32>,
}

impl BlockCounters {
    /// Creates an empty file and sends its descriptor to the recorder.
    pub(crate) fn create_counters_file(link: &RecorderLink, pid: u32) -> BlockCounters {
        let (base, tables) = create_file(link, pid, std::ptr::null_mut(), MAX_TABLES);
        let new = BlockCounters {
            base,
            tables,
            // Id 0 means no block.
            blocks: 1,
            mappings: Vec::new(),
            parts: HashMap::new(),
            ended: EndedTotals::default(),
            inner: HashSet::new(),
            others: HashMap::new(),
        };
        new.write_head();
        new
    }

    /// Gives a forked child a file of its own, with the parent's blocks and no counts.
    pub(crate) fn recreate_after_fork(&mut self, link: &RecorderLink, pid: u32) {
        self.ended = EndedTotals::default();
        let blocks = self
            .file_bytes_at(BLOCKS_AT, self.blocks * BLOCK_SIZE)
            .to_vec();
        (self.base, self.tables) = create_file(link, pid, self.base, self.tables);
        self.file_bytes_at(BLOCKS_AT, blocks.len())
            .copy_from_slice(&blocks);
        for (index, mapped) in self.mappings.iter().enumerate() {
            self.write_mapping(index, mapped);
        }
        self.write_head();
    }

    /// Returns the id of a mapping.
    pub(super) fn mapping_id(&mut self, mapped: Option<&Mapping>) -> u32 {
        let Some(mapped) = mapped else {
            return NOWHERE;
        };
        if let Some(known) = self.mappings.iter().position(|known| known == mapped) {
            return known as u32;
        }
        let index = self.mappings.len();
        if index == MAX_MAPPINGS || PATH_AT + mapped.path.len() > MAPPING_SIZE {
            return NOWHERE;
        }
        self.write_mapping(index, mapped);
        self.mappings.push(mapped.clone());
        self.write_head();
        index as u32
    }

    /// Assigns an id to a new block.
    pub(super) fn assign_id(&mut self, block: &TranslationBlock) -> u32 {
        self.new_block_id(block.start, block.mapping, block.instructions, block.exit)
    }

    /// Returns the address of a block's counter in the table of the process's first thread.
    pub(super) fn block_counter_in_first_thread(&self, number: u32) -> usize {
        // SAFETY: the id of a block.
        unsafe {
            self.counters_of_table(FIRST_THREAD_TABLE)
                .add(number as usize) as usize
        }
    }

    /// Returns whether no other block contains this one, so that it is never the rest of an interrupted block.
    pub(super) fn is_in_no_other_block(&mut self, block: &TranslationBlock) -> bool {
        self.inner.extend(block.inner_starts());
        block.instructions == 1 && !self.inner.contains(&block.start)
    }

    /// Returns the id of the first `count` instructions of a block.
    pub(crate) fn partial_block_id(&mut self, block: &TranslationBlock, count: u32) -> u32 {
        let key = (block.counter_id, count);
        if let Some(&known) = self.parts.get(&key) {
            return known;
        }
        let number = self.new_block_id(block.start, block.mapping, count, BlockExit::Fall);
        self.parts.insert(key, number);
        number
    }

    fn new_block_id(&mut self, start: u64, mapping: u32, count: u32, exit: BlockExit) -> u32 {
        let full = self.blocks >= MAX_BLOCKS - MAX_OVERFLOW_IDS;
        if let (true, Some(&known)) = (full, self.others.get(&(count, exit))) {
            return known;
        }
        let number = self.blocks;
        let (start, mapping) = if full {
            self.others.insert((count, exit), number as u32);
            (0, NOWHERE)
        } else {
            (start, mapping)
        };
        let record = self.file_bytes_at(BLOCKS_AT + number * BLOCK_SIZE, BLOCK_SIZE);
        record[..8].copy_from_slice(&start.to_le_bytes());
        record[8..12].copy_from_slice(&mapping.to_le_bytes());
        record[12..14].copy_from_slice(&(count as u16).to_le_bytes());
        record[14] = exit as u8;
        // There are 13 exits and at most 512 instructions in a block of QEMU: fewer combinations than
        // `MAX_OVERFLOW_IDS`.
        self.blocks = (number + 1).min(MAX_BLOCKS - 1);
        self.write_head();
        number as u32
    }

    /// Returns a table of counters for a thread.
    pub(crate) fn new_counter_table(&mut self, tid: u32) -> *const Counter {
        for index in FIRST_THREAD_TABLE..self.tables {
            if self.file_words_at(TIDS_AT, self.tables)[index] == 0 {
                self.file_words_at(TIDS_AT, self.tables)[index] = tid.into();
                return self.counters_of_table(index);
            }
        }
        // With so many threads at once, the counts of the last ones are lost if the process is killed.
        map_anonymous(std::ptr::null_mut(), TABLE_SIZE).cast()
    }

    /// Adds the counts of a thread that has ended to table 0 and returns the number of its instructions.
    pub(crate) fn add_ended_thread(&mut self, tid: u32, cells: *const Counter) -> u64 {
        let before = self.ended.instructions;
        for number in 0..self.blocks {
            // SAFETY: both tables have a cell for each number, and their threads write no more.
            let (own, all) =
                unsafe { (&*cells.add(number), &*self.counters_of_table(0).add(number)) };
            let [first, other] = [0, 1].map(|way| own[way].load(Ordering::Relaxed));
            if first | other == 0 {
                continue;
            }
            let record = self.file_bytes_at(BLOCKS_AT + number * BLOCK_SIZE, BLOCK_SIZE);
            let count = u64::from(u16::from_le_bytes([record[12], record[13]]));
            let unfinished = u64::from(record[14] == BlockExit::Repeat as u8);
            let (exit, in_file) = (usize::from(record[14]), record[8..12] != [0xff; 4]);
            self.ended.instructions += first * count + other * (count - unfinished);
            for (sum, count) in self.ended.exits[exit].iter_mut().zip([first, other]) {
                *sum += count;
            }
            if in_file && exit == BlockExit::Syscall as usize {
                self.ended.system_calls += first;
            }
            for (way, count) in [first, other].into_iter().enumerate() {
                all[way].fetch_add(count, Ordering::Relaxed);
                own[way].store(0, Ordering::Relaxed);
            }
        }
        let sums = self.file_words_at(ENDED_AT, 2 + 2 * EXIT_COUNT);
        sums[..2].copy_from_slice(&[self.ended.instructions, self.ended.system_calls]);
        for (word, sum) in sums[2..].iter_mut().zip(self.ended.exits.iter().flatten()) {
            *word = *sum;
        }
        let tids = self.file_words_at(TIDS_AT, self.tables);
        match tids.iter_mut().find(|word| **word == u64::from(tid)) {
            Some(word) => *word = 0,
            // SAFETY: `new_counter_table` mapped it for this thread.
            None => unsafe {
                libc::munmap(cells.cast_mut().cast(), TABLE_SIZE);
            },
        }
        self.ended.instructions - before
    }

    fn write_head(&self) {
        let head = [MAGIC, self.blocks as u64, self.mappings.len() as u64];
        let words = self.file_words_at(0, 4);
        words[..3].copy_from_slice(&head);
        words[3] = self.tables as u64;
    }

    fn write_mapping(&self, index: usize, mapped: &Mapping) {
        let at = MAPPINGS_AT + index * MAPPING_SIZE;
        let length = mapped.path.len();
        let head = [mapped.start, mapped.end, mapped.offset, length as u64];
        self.file_words_at(at, head.len()).copy_from_slice(&head);
        self.file_bytes_at(at + PATH_AT, length)
            .copy_from_slice(&mapped.path);
    }

    fn counters_of_table(&self, table: usize) -> *const Counter {
        // SAFETY: within the mapping.
        unsafe { self.base.add(CELLS_AT + table * TABLE_SIZE).cast() }
    }

    #[allow(clippy::mut_from_ref)] // the holder of the lock has all of it
    fn file_bytes_at(&self, at: usize, size: usize) -> &mut [u8] {
        // SAFETY: all offsets are within the mapping, and the lock is held.
        unsafe { std::slice::from_raw_parts_mut(self.base.add(at), size) }
    }

    #[allow(clippy::mut_from_ref)] // as above
    fn file_words_at(&self, at: usize, count: usize) -> &mut [u64] {
        // SAFETY: as above; callers pass multiples of eight.
        unsafe { std::slice::from_raw_parts_mut(self.base.add(at).cast(), count) }
    }
}

/// Maps a new file, at the address of `old` if that is not null, and sends it to the recorder. Returns address and
/// number of tables, which is smaller than `tables` if memory is short.
fn create_file(link: &RecorderLink, pid: u32, old: *mut u8, tables: usize) -> (*mut u8, usize) {
    let mut tables = tables;
    loop {
        let size = CELLS_AT + tables * TABLE_SIZE;
        match map_new_file(link, pid, old, size) {
            Ok(base) => return (base, tables),
            Err(error) if tables <= 2 => {
                let mut message = new_message(EventKind::Warning, pid, 0);
                message.flags = flag::WARNING_UNCOUNTED;
                let text = format!("the counts of process {pid} are missing: {error}");
                link.send_message(message, text.as_bytes());
                return (map_anonymous(old, size), tables);
            }
            Err(_) => tables /= 2,
        }
    }
}

fn map_new_file(link: &RecorderLink, pid: u32, old: *mut u8, size: usize) -> io::Result<*mut u8> {
    // SAFETY: calls on a file of our own, and a mapping that is ours.
    unsafe {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        let file = libc::memfd_create(c"rtit-counts".as_ptr(), flags);
        if file < 0 {
            return Err(io::Error::last_os_error());
        }
        let mapped = resize_file(file, size).and_then(|()| map_file_at(old, size, file));
        if mapped.is_ok() {
            let mut message = new_message(MessageKind::Counts, pid, 0);
            message.ip = pid.into();
            link.send_file(message, file);
        }
        libc::close(file);
        mapped
    }
}

/// Exceeding RLIMIT_FSIZE would end the process by a signal.
unsafe fn resize_file(file: c_int, size: usize) -> io::Result<()> {
    let mut limit: libc::rlimit = std::mem::zeroed();
    libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit);
    let raised = libc::rlimit {
        rlim_cur: limit.rlim_max,
        ..limit
    };
    if raised.rlim_cur < size as u64 {
        return Err(io::Error::from_raw_os_error(libc::EFBIG));
    }
    libc::setrlimit(libc::RLIMIT_FSIZE, &raised);
    let result = libc::ftruncate(file, size as libc::off_t);
    let error = io::Error::last_os_error();
    libc::setrlimit(libc::RLIMIT_FSIZE, &limit);
    if result != 0 {
        return Err(error);
    }
    // The recorder has the file mapped: it must not shrink.
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    if libc::fcntl(file, libc::F_ADD_SEALS, seals) < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

unsafe fn map_file_at(old: *mut u8, size: usize, file: c_int) -> io::Result<*mut u8> {
    let fixed = if old.is_null() { 0 } else { libc::MAP_FIXED };
    let sharing = if file < 0 {
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS
    } else {
        libc::MAP_SHARED
    };
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    let flags = sharing | libc::MAP_NORESERVE | fixed;
    let at = libc::mmap(old.cast(), size, rights, flags, file, 0);
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(at.cast())
}

/// Maps private memory, at the address of `old` if that is not null: blocks know the addresses of their counters.
fn map_anonymous(old: *mut u8, size: usize) -> *mut u8 {
    // SAFETY: a new mapping, or one that is ours.
    match unsafe { map_file_at(old, size, -1) } {
        Ok(base) => base,
        Err(error) => exit_with_error(&format!("no memory to count in: {error}")),
    }
}
