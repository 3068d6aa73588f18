//! The counts of a process: in a file in memory that the recorder has open, too, so that they outlast the process.
//!
//! | at | |
//! |---|---|
//! | 0 | words: `MAGIC`; how many blocks, mappings and tables there are; `Ended` |
//! | `TIDS_AT` | a word a table: the thread that it is of. Table 0 has what the threads counted that have ended |
//! | `BLOCKS_AT` | a block: start (8 bytes), mapping or `NOWHERE` (4), instructions (2), exit (1), nothing (1) |
//! | `MAPPINGS_AT` | a mapping: start, end, file offset, length of its path (8 bytes each), path |
//! | `CELLS_AT` | a table a thread: a cell a block (`thread::tally`) |
//!
//! All but the tables is written under the lock. A forked process has a file of its own, which begins with the same blocks.

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::atomic::Ordering;

use libc::c_int;

use crate::failure::die;
use crate::shared::link::{Kind, Link, Message, UNCOUNTED};
use crate::shared::maps::Mapped;
use crate::thread::block::{Block, Exit};
use crate::thread::tally::Cell;

const MAGIC: u64 = u64::from_le_bytes(*b"rtitcnt1");
/// Blocks that have cells of their own, and all others together.
const BLOCKS: usize = 1 << 20;
const OTHERS: usize = 1 << 13;
const MAPPINGS: usize = 1 << 12;
/// Threads at a time whose counts outlast a process that is killed.
const TABLES: usize = 1 << 10;

const TIDS_AT: usize = 1 << 12;
const BLOCKS_AT: usize = 1 << 16;
const MAPPINGS_AT: usize = 1 << 25;
const CELLS_AT: usize = 1 << 26;
const BLOCK: usize = 16;
const MAPPING: usize = 1 << 13;
const PATH_AT: usize = 32;
const ENDED_AT: usize = 32;
const EXITS: usize = Exit::Strange as usize + 1;
const TABLE: usize = BLOCKS * std::mem::size_of::<Cell>();

/// The table of the thread that asks first.
const FIRST: usize = 1;

/// The mapping of a block that is in no file.
const NOWHERE: u32 = u32::MAX;

/// The sums of the threads that have ended.
#[derive(Clone, Default)]
struct Ended {
    instructions: u64,
    /// Of those that are in files.
    system_calls: u64,
    /// By how blocks are left, how often, by the first way and by the other.
    exits: [[u64; 2]; EXITS],
}

/// What is counted in one process.
pub(crate) struct Tallies {
    base: *mut u8,
    /// How many tables there is room for.
    tables: usize,
    blocks: usize,
    mappings: Vec<Mapped>,
    parts: HashMap<(u32, u32), u32>,
    ended: Ended,
    /// Where blocks can be broken off.
    inner: HashSet<u64>,
    /// Where there are too many blocks, those of as many instructions and the same exit are one.
    others: HashMap<(u32, Exit), u32>,
}

impl Tallies {
    /// An empty one, whose file the recorder gets.
    pub(crate) fn begin(link: &Link, pid: u32) -> Tallies {
        let (base, tables) = map(link, pid, std::ptr::null_mut(), TABLES);
        let new = Tallies {
            base,
            tables,
            // Nothing has the number 0.
            blocks: 1,
            mappings: Vec::new(),
            parts: HashMap::new(),
            ended: Ended::default(),
            inner: HashSet::new(),
            others: HashMap::new(),
        };
        new.write_head();
        new
    }

    /// The calling process is a copy of the one that had this: it goes on with a file of its own, and no counts.
    pub(crate) fn begin_anew(&mut self, link: &Link, pid: u32) {
        self.ended = Ended::default();
        let blocks = self.bytes(BLOCKS_AT, self.blocks * BLOCK).to_vec();
        (self.base, self.tables) = map(link, pid, self.base, self.tables);
        self.bytes(BLOCKS_AT, blocks.len()).copy_from_slice(&blocks);
        for (index, mapped) in self.mappings.iter().enumerate() {
            self.write_mapping(index, mapped);
        }
        self.write_head();
    }

    /// The number of a mapping.
    pub(super) fn mapping(&mut self, mapped: Option<&Mapped>) -> u32 {
        let Some(mapped) = mapped else {
            return NOWHERE;
        };
        if let Some(known) = self.mappings.iter().position(|known| known == mapped) {
            return known as u32;
        }
        let index = self.mappings.len();
        if index == MAPPINGS || PATH_AT + mapped.path.len() > MAPPING {
            return NOWHERE;
        }
        self.write_mapping(index, mapped);
        self.mappings.push(mapped.clone());
        self.write_head();
        index as u32
    }

    /// A number for a new block.
    pub(super) fn enlist(&mut self, block: &Block) -> u32 {
        self.number(block.start, block.mapping, block.count, block.exit)
    }

    /// The address of a block's cell in the table of the process's first thread.
    pub(super) fn first_cell(&self, number: u32) -> usize {
        // SAFETY: a number that a block has got.
        unsafe { self.cells(FIRST).add(number as usize) as usize }
    }

    /// Whether a new block is in no other, so that none can have been broken off there.
    pub(super) fn stands_alone(&mut self, block: &Block) -> bool {
        self.inner.extend(block.inner());
        block.count == 1 && !self.inner.contains(&block.start)
    }

    /// The number of what has only the first `count` instructions of a block.
    pub(crate) fn part(&mut self, block: &Block, count: u32) -> u32 {
        let key = (block.number, count);
        if let Some(&known) = self.parts.get(&key) {
            return known;
        }
        let number = self.number(block.start, block.mapping, count, Exit::Fall);
        self.parts.insert(key, number);
        number
    }

    fn number(&mut self, start: u64, mapping: u32, count: u32, exit: Exit) -> u32 {
        let full = self.blocks >= BLOCKS - OTHERS;
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
        let record = self.bytes(BLOCKS_AT + number * BLOCK, BLOCK);
        record[..8].copy_from_slice(&start.to_le_bytes());
        record[8..12].copy_from_slice(&mapping.to_le_bytes());
        record[12..14].copy_from_slice(&(count as u16).to_le_bytes());
        record[14] = exit as u8;
        // Of 13 exits and 512 instructions, as many as QEMU makes a block of, fewer than `OTHERS` can be made.
        self.blocks = (number + 1).min(BLOCKS - 1);
        self.write_head();
        number as u32
    }

    /// A table of its own for a thread.
    pub(crate) fn table(&mut self, tid: u32) -> *const Cell {
        for index in FIRST..self.tables {
            if self.words(TIDS_AT, self.tables)[index] == 0 {
                self.words(TIDS_AT, self.tables)[index] = tid.into();
                return self.cells(index);
            }
        }
        // Of so many threads at once the last ones' counts are lost if the process is killed.
        anonymous(std::ptr::null_mut(), TABLE).cast()
    }

    /// The thread has ended: what it counted goes to table 0. How many instructions these were.
    pub(crate) fn end(&mut self, tid: u32, cells: *const Cell) -> u64 {
        let before = self.ended.instructions;
        for number in 0..self.blocks {
            // SAFETY: both tables have a cell for each number, and their threads write no more.
            let (own, all) = unsafe { (&*cells.add(number), &*self.cells(0).add(number)) };
            let [first, other] = [0, 1].map(|way| own[way].load(Ordering::Relaxed));
            if first | other == 0 {
                continue;
            }
            let record = self.bytes(BLOCKS_AT + number * BLOCK, BLOCK);
            let count = u64::from(u16::from_le_bytes([record[12], record[13]]));
            let unfinished = u64::from(record[14] == Exit::Repeat as u8);
            let (exit, in_file) = (usize::from(record[14]), record[8..12] != [0xff; 4]);
            self.ended.instructions += first * count + other * (count - unfinished);
            for (sum, count) in self.ended.exits[exit].iter_mut().zip([first, other]) {
                *sum += count;
            }
            if in_file && exit == Exit::Syscall as usize {
                self.ended.system_calls += first;
            }
            for (way, count) in [first, other].into_iter().enumerate() {
                all[way].fetch_add(count, Ordering::Relaxed);
                own[way].store(0, Ordering::Relaxed);
            }
        }
        let sums = self.words(ENDED_AT, 2 + 2 * EXITS);
        sums[..2].copy_from_slice(&[self.ended.instructions, self.ended.system_calls]);
        for (word, sum) in sums[2..].iter_mut().zip(self.ended.exits.iter().flatten()) {
            *word = *sum;
        }
        let tids = self.words(TIDS_AT, self.tables);
        match tids.iter_mut().find(|word| **word == u64::from(tid)) {
            Some(word) => *word = 0,
            // SAFETY: `table` mapped it for this thread.
            None => unsafe {
                libc::munmap(cells.cast_mut().cast(), TABLE);
            },
        }
        self.ended.instructions - before
    }

    fn write_head(&self) {
        let head = [MAGIC, self.blocks as u64, self.mappings.len() as u64];
        let words = self.words(0, 4);
        words[..3].copy_from_slice(&head);
        words[3] = self.tables as u64;
    }

    fn write_mapping(&self, index: usize, mapped: &Mapped) {
        let at = MAPPINGS_AT + index * MAPPING;
        let length = mapped.path.len();
        let head = [mapped.start, mapped.end, mapped.offset, length as u64];
        self.words(at, head.len()).copy_from_slice(&head);
        self.bytes(at + PATH_AT, length)
            .copy_from_slice(&mapped.path);
    }

    fn cells(&self, table: usize) -> *const Cell {
        // SAFETY: within the mapping.
        unsafe { self.base.add(CELLS_AT + table * TABLE).cast() }
    }

    #[allow(clippy::mut_from_ref)] // who has the lock has all of it
    fn bytes(&self, at: usize, size: usize) -> &mut [u8] {
        // SAFETY: all places are within the mapping, and the lock is held.
        unsafe { std::slice::from_raw_parts_mut(self.base.add(at), size) }
    }

    #[allow(clippy::mut_from_ref)] // as above
    fn words(&self, at: usize, count: usize) -> &mut [u64] {
        // SAFETY: as above; what is asked for begins at multiples of eight.
        unsafe { std::slice::from_raw_parts_mut(self.base.add(at).cast(), count) }
    }
}

/// Maps a new file, in the place of `old` if there is one, and gives it to the recorder. How many tables it has: `tables`
/// at most, as memory is limited.
fn map(link: &Link, pid: u32, old: *mut u8, tables: usize) -> (*mut u8, usize) {
    let mut tables = tables;
    loop {
        let size = CELLS_AT + tables * TABLE;
        match map_file(link, pid, old, size) {
            Ok(base) => return (base, tables),
            Err(error) if tables <= 2 => {
                let mut message = Message::new(Kind::Warning, pid, 0);
                message.flags = UNCOUNTED;
                let text = format!("the counts of process {pid} are missing: {error}");
                link.send(message, text.as_bytes());
                return (anonymous(old, size), tables);
            }
            Err(_) => tables /= 2,
        }
    }
}

fn map_file(link: &Link, pid: u32, old: *mut u8, size: usize) -> io::Result<*mut u8> {
    // SAFETY: calls on a file of our own, and a mapping that is ours.
    unsafe {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        let file = libc::memfd_create(c"rtit-counts".as_ptr(), flags);
        if file < 0 {
            return Err(io::Error::last_os_error());
        }
        let mapped = resize(file, size).and_then(|()| map_at(old, size, file));
        if mapped.is_ok() {
            let mut message = Message::new(Kind::Counts, pid, 0);
            message.ip = pid.into();
            link.send_file(message, file);
        }
        libc::close(file);
        mapped
    }
}

/// A limit for files would end the process by a signal.
unsafe fn resize(file: c_int, size: usize) -> io::Result<()> {
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
    // Who reads has it mapped: it must not become smaller.
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    if libc::fcntl(file, libc::F_ADD_SEALS, seals) < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

unsafe fn map_at(old: *mut u8, size: usize, file: c_int) -> io::Result<*mut u8> {
    let place = if old.is_null() { 0 } else { libc::MAP_FIXED };
    let sharing = if file < 0 {
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS
    } else {
        libc::MAP_SHARED
    };
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    let flags = sharing | libc::MAP_NORESERVE | place;
    let at = libc::mmap(old.cast(), size, rights, flags, file, 0);
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(at.cast())
}

/// Memory that nobody sees, in the place of `old` if there is one: blocks know their cells' addresses.
fn anonymous(old: *mut u8, size: usize) -> *mut u8 {
    // SAFETY: a new mapping, or one that is ours.
    match unsafe { map_at(old, size, -1) } {
        Ok(base) => base,
        Err(error) => die(&format!("no memory to count in: {error}")),
    }
}
