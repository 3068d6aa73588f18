//! A ring of block numbers between the program's thread and a second thread, the consumer, which follows the path.
//!
//! To follow a block costs more than to run it. With the ring, the program's thread only appends the number of each
//! block that starts (`rtit_qemu_append_to_ring`, five instructions), and the consumer makes packets from the numbers
//! on another CPU. Both work on whole chunks, so that they touch shared cache lines seldom.
//!
//! **Ownership.** While the ring is *open*, the state of the recorded thread (`RecordedThread`) belongs to whoever
//! holds `ConsumerLock`: usually the consumer. For anything but the start of a block (a system call, a signal, new
//! code, a fork, the end) the program's thread *closes* the ring first: it takes the lock as soon as the consumer has
//! finished its chunk, follows the remaining entries itself, and owns the `RecordedThread` as if it had followed each
//! block at once. So the rest of the plugin need not know of the ring.
//!
//! **Waiting.** The consumer sleeps until `WAKE_AT` chunks are full, because the program follows fewer chunks itself in
//! less time than a wake-up takes. A program without an empty chunk follows chunks itself if the consumer is not at
//! work; otherwise it sleeps until half of the ring is empty. Both spin briefly before they sleep.
//!
//! **Limits.** Only a process of one thread has an open ring. A fork finds it closed, in parent and child. If the
//! system allows no second thread, the program's thread follows everything itself, a chunk at a time.
//!
//! The parts, in order: the interface; the consumer thread; `Chunks`, the memory with its two counters `full` and
//! `done`; `ConsumerLock`; `FutexWaiter`.

use std::cell::Cell;
use std::mem::size_of;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicU8, AtomicUsize, Ordering};
use std::sync::OnceLock;
use std::thread::Builder;

use crate::shared::shared_state::is_multithreaded;
use crate::thread::block_arena::{self, BlockArena, BlockId};
use crate::thread::thread_state::RecordedThread;
use crate::thread::translation_block::TranslationBlock;

/// The address for the next entry. A multiple of `CHUNK_SIZE` is the end of a full chunk; 0 means that the ring is
/// closed. `rtit_qemu_append_to_ring` reads and advances it.
#[repr(transparent)]
pub(crate) struct WritePosition(Cell<usize>);

// SAFETY: only the program's thread uses it, as long as there is one.
unsafe impl Sync for WritePosition {}

pub(crate) static WRITE_POSITION: WritePosition = WritePosition(Cell::new(0));

/// The number of times that the ring was opened.
static TIMES_OPENED: AtomicU64 = AtomicU64::new(0);

/// Identifies a point of the execution while the ring is open: the next write position, the number of full chunks, and
/// `TIMES_OPENED`, since both others repeat.
pub(crate) type RingPosition = (usize, u32, u64);

/// Returns the current point; None if the ring is closed.
pub(crate) fn current_position() -> Option<RingPosition> {
    let position = WRITE_POSITION.0.get();
    (position != 0).then(|| {
        (
            position,
            CHUNKS.full_chunk_count(),
            TIMES_OPENED.load(Ordering::Relaxed),
        )
    })
}

pub(crate) fn is_ring_open() -> bool {
    WRITE_POSITION.0.get() != 0
}

/// Allocates a ring with `entries` entries in each chunk; false if there is no memory. `follow_block` follows blocks
/// that the fast paths do not handle.
pub(crate) fn allocate_ring(entries: usize, follow_block: FollowBlock) -> bool {
    set_follow_block(follow_block)
        && block_arena::reserve_address_space()
        && CHUNKS.allocate_chunks(entries)
}

/// Opens the ring, unless the next block of the thread needs more than to be followed.
pub(crate) fn open_ring(thread: &RecordedThread) {
    let busy = thread.attention.load(Ordering::Relaxed) != 0 || thread.is_outside_user_code();
    if !busy && !is_multithreaded() {
        TIMES_OPENED.fetch_add(1, Ordering::Relaxed);
        WRITE_POSITION.0.set(CHUNKS.write_position());
    }
}

/// Publishes the full chunk and appends the entry to the next one.
pub(crate) fn append_to_next_chunk(thread: *mut RecordedThread, entry: u32) {
    if CHUNKS.publish_chunk() {
        wake_or_start_consumer(thread);
    }
    // SAFETY: this thread holds the lock for the thread's state.
    CHUNKS.wait_for_room(|entries| unsafe { follow_entries(&mut *thread, entries) });
    let position = CHUNKS.write_position();
    // SAFETY: the beginning of a chunk that is ours.
    unsafe { (position as *mut u32).write(entry) };
    WRITE_POSITION.0.set(position + size_of::<BlockId>());
}

/// Follows all entries and closes the ring. The calling thread owns its `RecordedThread` afterwards.
pub(crate) fn close_ring(thread: *mut RecordedThread) {
    let position = WRITE_POSITION.0.replace(0);
    if position == 0 {
        return;
    }
    // SAFETY: this thread holds the lock for the thread's state.
    let work = |entries: &[BlockId]| unsafe { follow_entries(&mut *thread, entries) };
    // SAFETY: what is before `position` has been written.
    CHUNKS.follow_full_chunks(work, || work(unsafe { CHUNKS.entries_before(position) }));
}

/// Resets the ring in a forked child, which has no consumer.
pub(crate) fn reset_in_child() {
    CHUNKS.reset_in_child();
    reset_consumer();
}

const _: () = assert!(size_of::<BlockId>() == 4);

const CONSUMER_STACK: usize = 256 * 1024;

const NOT_STARTED: u8 = 0;
const RUNNING: u8 = 1;
const UNAVAILABLE: u8 = 2;
static CONSUMER_STATE: AtomicU8 = AtomicU8::new(NOT_STARTED);

/// Follows one block with the general path.
pub(crate) type FollowBlock = fn(&mut RecordedThread, &'static TranslationBlock);
static FOLLOW_BLOCK: OnceLock<FollowBlock> = OnceLock::new();

/// Sets the general path, once.
fn set_follow_block(follow_block: FollowBlock) -> bool {
    FOLLOW_BLOCK.set(follow_block).is_ok()
}

struct FollowedThread(*mut RecordedThread);
// SAFETY: only the holder of `ConsumerLock` uses it.
unsafe impl Send for FollowedThread {}

/// Wakes the consumer, or starts it if this is the first time.
fn wake_or_start_consumer(thread: *mut RecordedThread) {
    match CONSUMER_STATE.load(Ordering::Relaxed) {
        NOT_STARTED => {
            let state = if start_consumer(thread) {
                RUNNING
            } else {
                UNAVAILABLE
            };
            CONSUMER_STATE.store(state, Ordering::Relaxed);
        }
        RUNNING => CHUNKS.wake_consumer(),
        _ => {}
    }
}

fn start_consumer(thread: *mut RecordedThread) -> bool {
    let followed = FollowedThread(thread);
    // SAFETY: the masks are local. The new thread inherits the mask: it must not take the program's signals.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        let started = Builder::new().stack_size(CONSUMER_STACK).spawn(move || {
            let FollowedThread(thread) = { followed };
            run_consumer(thread)
        });
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        started.is_ok()
    }
}

/// A panic ends the process, as in a callback: the program could not take the lock back.
extern "C" fn run_consumer(thread: *mut RecordedThread) {
    // SAFETY: the consumer holds the lock.
    CHUNKS.consume_forever(|entries| follow_entries(unsafe { &mut *thread }, entries))
}

/// Forgets the consumer in a forked child.
fn reset_consumer() {
    CONSUMER_STATE.store(NOT_STARTED, Ordering::Relaxed);
}

/// Follows the blocks of `entries`, in order.
fn follow_entries(thread: &mut RecordedThread, entries: &[BlockId]) {
    let Some(follow_block) = FOLLOW_BLOCK.get() else {
        return;
    };
    let arena = BlockArena::load_block_arena();
    let mut at = 0;
    loop {
        at = thread.follow_block_ids(entries, at, arena);
        let Some(&entry) = entries.get(at) else {
            return;
        };
        let block = arena.block_of_id(entry);
        if thread.follow_almost_quietly(block) {
            thread.block = block;
        } else {
            follow_block(thread, block);
        }
        at += 1;
    }
}

/// Bytes of a chunk; its address is a multiple of them. The first entry stays unused, to distinguish the start of a
/// chunk from the end of the last one.
pub(crate) const CHUNK_SIZE: usize = 1 << 14;
const CHUNK_COUNT: u32 = 16;
/// A program that had no room waits until at most so many chunks are full. Half of them, so that program and consumer
/// do not wait for each other at every chunk.
const RESUME_BELOW: u32 = CHUNK_COUNT / 2;
const ENTRY_SIZE: usize = size_of::<BlockId>();
const MAX_ENTRIES: usize = CHUNK_SIZE / ENTRY_SIZE - 1;
/// Full chunks for which it pays to wake the consumer.
const WAKE_AT: u32 = 4;
/// Tests use smaller chunks, for which the consumer is always woken.
const SMALL_CHUNK: usize = 256;

static CHUNKS: RingChunks = RingChunks::new();

struct RingChunks {
    base: AtomicUsize,
    /// Entries of a chunk that are in use: the last ones.
    used: AtomicUsize,
    wake_at: AtomicU32,
    /// Chunks that have ever been full, and those of them that have been followed. The program writes to number `full`.
    full: AtomicU32,
    done: AtomicU32,
    consumer_lock: ConsumerLock,
    /// Where the consumer waits for full chunks, and the program for empty ones.
    consumer: FutexWaiter,
    program: FutexWaiter,
}

impl RingChunks {
    const fn new() -> RingChunks {
        RingChunks {
            base: AtomicUsize::new(0),
            used: AtomicUsize::new(MAX_ENTRIES),
            wake_at: AtomicU32::new(WAKE_AT),
            full: AtomicU32::new(0),
            done: AtomicU32::new(0),
            consumer_lock: ConsumerLock::new(),
            consumer: FutexWaiter::new(),
            program: FutexWaiter::new(),
        }
    }

    /// Allocates the chunks, with `used` entries in each; false if there is no memory.
    fn allocate_chunks(&self, used: usize) -> bool {
        self.used
            .store(used.clamp(1, MAX_ENTRIES), Ordering::Relaxed);
        if used < SMALL_CHUNK {
            self.wake_at.store(1, Ordering::Relaxed);
        }
        // SAFETY: new memory of our own.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                (CHUNK_COUNT as usize + 1) * CHUNK_SIZE,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if at == libc::MAP_FAILED {
            return false;
        }
        let base = (at as usize).next_multiple_of(CHUNK_SIZE);
        self.base.store(base, Ordering::Relaxed);
        true
    }

    /// Returns the address of the first entry of the program's chunk.
    fn write_position(&self) -> usize {
        self.chunk_address(self.full_chunk_count()) + self.first_entry_offset()
    }

    /// Returns the number of chunks that have ever been full.
    fn full_chunk_count(&self) -> u32 {
        self.full.load(Ordering::Relaxed)
    }

    /// Publishes the program's full chunk. Returns whether to wake the consumer.
    fn publish_chunk(&self) -> bool {
        let full = self.full_chunk_count().wrapping_add(1);
        self.full.store(full, Ordering::SeqCst);
        let waiting = full.wrapping_sub(self.done.load(Ordering::SeqCst));
        waiting >= self.wake_at.load(Ordering::Relaxed)
    }

    /// Wakes the consumer if it sleeps.
    fn wake_consumer(&self) {
        self.consumer.wake_sleeper(&self.full);
    }

    /// Waits until the program's next chunk is empty. If the consumer is idle, the program follows chunks by `work`.
    fn wait_for_room(&self, work: impl FnMut(&[BlockId])) {
        let full = self.full_chunk_count();
        let waiting = |done: u32| full.wrapping_sub(done);
        if waiting(self.done.load(Ordering::SeqCst)) < CHUNK_COUNT {
            return;
        }
        if self.consumer_lock.try_lock_for_program() {
            self.consume_until_left(RESUME_BELOW, work);
            self.consumer_lock.unlock_for_program();
        } else {
            let some = |done| waiting(done) <= RESUME_BELOW;
            self.program.wait_for_word(&self.done, some, some);
        }
    }

    /// Follows all full chunks in the program's thread, then runs `last`, under the lock.
    fn follow_full_chunks(&self, work: impl FnMut(&[BlockId]), last: impl FnOnce()) {
        self.consumer_lock.lock_for_program();
        self.consume_until_left(0, work);
        last();
        self.consumer_lock.unlock_for_program();
    }

    /// Follows chunks by `work` as they become full.
    fn consume_forever(&self, mut work: impl FnMut(&[BlockId])) -> ! {
        let wake_at = self.wake_at.load(Ordering::Relaxed);
        loop {
            let waiting = |full: u32| full.wrapping_sub(self.done.load(Ordering::SeqCst));
            let any = |full| waiting(full) > 0;
            let enough = |full| waiting(full) >= wake_at;
            self.consumer.wait_for_word(&self.full, any, enough);
            self.consumer_lock.with_consumer_lock(|| {
                // The program may have followed them since.
                let left = waiting(self.full.load(Ordering::SeqCst)).saturating_sub(1);
                self.consume_until_left(left, &mut work);
            });
        }
    }

    /// Follows full chunks until `left` are left. The caller holds the lock.
    fn consume_until_left(&self, left: u32, mut work: impl FnMut(&[BlockId])) {
        let full = self.full.load(Ordering::SeqCst);
        let mut done = self.done.load(Ordering::SeqCst);
        while full.wrapping_sub(done) > left {
            // SAFETY: a full chunk is not written to before it is done.
            work(unsafe { self.entries_before(self.chunk_address(done) + CHUNK_SIZE) });
            done = done.wrapping_add(1);
            self.done.store(done, Ordering::SeqCst);
            // Not before: `full` may have grown since, but not while the program waits.
            if full.wrapping_sub(done) <= RESUME_BELOW {
                self.program.wake_sleeper(&self.done);
            }
        }
    }

    /// Returns the entries before address `position` in its chunk.
    ///
    /// # Safety
    /// They have been written, and no thread writes to them any more.
    unsafe fn entries_before(&self, position: usize) -> &[BlockId] {
        let first = ((position - 1) & !(CHUNK_SIZE - 1)) + self.first_entry_offset();
        std::slice::from_raw_parts(first as *const BlockId, (position - first) / ENTRY_SIZE)
    }

    /// Resets the lock and the consumer in a forked child. The parent closed the ring before the fork.
    fn reset_in_child(&self) {
        self.consumer_lock.reset_in_child();
        self.consumer.reset_in_child();
    }

    fn chunk_address(&self, number: u32) -> usize {
        self.base.load(Ordering::Relaxed) + (number % CHUNK_COUNT) as usize * CHUNK_SIZE
    }

    /// Returns the offset of the first used entry in a chunk.
    fn first_entry_offset(&self) -> usize {
        CHUNK_SIZE - self.used.load(Ordering::Relaxed) * ENTRY_SIZE
    }
}

const FREE: u32 = 0;
const CONSUMER: u32 = 1;
const PROGRAM: u32 = 2;
/// Set while the program waits: the consumer must not take the lock again.
const PROGRAM_WAITS: u32 = 4;

struct ConsumerLock {
    word: AtomicU32,
    program: FutexWaiter,
    consumer: FutexWaiter,
}

impl ConsumerLock {
    const fn new() -> ConsumerLock {
        ConsumerLock {
            word: AtomicU32::new(FREE),
            program: FutexWaiter::new(),
            consumer: FutexWaiter::new(),
        }
    }

    /// Takes the lock for the program, at the latest when the consumer has finished its chunk.
    fn lock_for_program(&self) {
        self.word.fetch_or(PROGRAM_WAITS, Ordering::SeqCst);
        let free = |word| word & CONSUMER == 0;
        self.program.wait_for_word(&self.word, free, free);
        self.word.store(PROGRAM, Ordering::SeqCst);
    }

    /// Takes the lock for the program if it is free.
    fn try_lock_for_program(&self) -> bool {
        let order = Ordering::SeqCst;
        let taken = self.word.compare_exchange(FREE, PROGRAM, order, order);
        taken.is_ok()
    }

    /// Releases the lock of the program.
    fn unlock_for_program(&self) {
        self.word.store(FREE, Ordering::SeqCst);
        self.consumer.wake_sleeper(&self.word);
    }

    /// Runs `work` in the consumer while it holds the lock.
    fn with_consumer_lock(&self, work: impl FnOnce()) {
        let order = Ordering::SeqCst;
        let taken = || self.word.compare_exchange(FREE, CONSUMER, order, order);
        while taken().is_err() {
            let free = |word| word == FREE;
            self.consumer.wait_for_word(&self.word, free, free);
        }
        work();
        self.word.fetch_and(!CONSUMER, order);
        self.program.wake_sleeper(&self.word);
    }

    /// Frees the lock in a forked child. The parent had taken and released it; the consumer, which the child lacks, may
    /// have held it at the moment of the fork, without any work to do.
    fn reset_in_child(&self) {
        self.word.store(FREE, Ordering::Relaxed);
        self.consumer.reset_in_child();
    }
}

/// Reads of the word before the thread sleeps: some microseconds.
const LOOKS: u32 = 300;

/// Waits for changes of a word; says whether a thread sleeps.
struct FutexWaiter(AtomicU32);

impl FutexWaiter {
    const fn new() -> FutexWaiter {
        FutexWaiter(AtomicU32::new(0))
    }

    /// Wakes the thread that sleeps. Call it after changing the word.
    #[inline(always)]
    fn wake_sleeper(&self, word: &AtomicU32) {
        if self.0.load(Ordering::SeqCst) != 0 {
            call_futex(word, libc::FUTEX_WAKE, 1);
        }
    }

    /// Resets the waiter in a forked child.
    fn reset_in_child(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// Spins until `awaited` holds of the word, then sleeps until `enough` holds. `enough` must imply `awaited`.
    fn wait_for_word(
        &self,
        word: &AtomicU32,
        awaited: impl Fn(u32) -> bool,
        enough: impl Fn(u32) -> bool,
    ) {
        for _ in 0..LOOKS {
            if awaited(word.load(Ordering::SeqCst)) {
                return;
            }
            std::hint::spin_loop();
        }
        self.0.store(1, Ordering::SeqCst);
        loop {
            let seen = word.load(Ordering::SeqCst);
            if enough(seen) {
                break;
            }
            // Returns at once if the word has changed.
            call_futex(word, libc::FUTEX_WAIT, seen);
        }
        self.0.store(0, Ordering::Relaxed);
    }
}

fn call_futex(word: &AtomicU32, operation: i32, value: u32) {
    let none = std::ptr::null::<libc::timespec>();
    // SAFETY: the word lives; a time limit is not given.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            operation | libc::FUTEX_PRIVATE_FLAG,
            value,
            none,
        )
    };
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// The numbers that were followed, in order.
    type Seen = Mutex<Vec<u32>>;

    fn number(entry: BlockId) -> u32 {
        // SAFETY: it is one word.
        unsafe { std::mem::transmute(entry) }
    }

    /// Appends the numbers below `count` to chunks of `used` entries, and drains after each `every` of them.
    fn append_and_drain(used: usize, count: u32, every: u32, followed: bool) -> Vec<u32> {
        let chunks: &'static RingChunks = Box::leak(Box::new(RingChunks::new()));
        let seen: &'static Seen = Box::leak(Box::new(Mutex::new(Vec::new())));
        // `try_lock` fails if two threads follow at once.
        let follow = |entries: &[BlockId]| {
            let mut seen = seen.try_lock().unwrap();
            seen.extend(entries.iter().map(|&entry| number(entry)));
        };
        assert!(chunks.allocate_chunks(used));
        if followed {
            std::thread::spawn(move || chunks.consume_forever(follow));
        }
        let mut position = chunks.write_position();
        for value in 0..count {
            if position % CHUNK_SIZE == 0 {
                if chunks.publish_chunk() && followed {
                    chunks.wake_consumer();
                }
                chunks.wait_for_room(follow);
                position = chunks.write_position();
            }
            // SAFETY: an entry of a chunk that is ours.
            unsafe { (position as *mut u32).write(value) };
            position += ENTRY_SIZE;
            if value % every == every - 1 {
                // SAFETY: written above.
                let written = unsafe { chunks.entries_before(position) };
                chunks.follow_full_chunks(follow, || follow(written));
                assert_eq!(seen.lock().unwrap().len() as u32, value + 1);
                position = chunks.write_position();
            }
        }
        let found = seen.lock().unwrap().clone();
        found
    }

    #[test]
    fn entries_are_followed_once_and_in_order() {
        for followed in [true, false] {
            for (used, every) in [
                (1, 7),
                (3, 100),
                (3, 1),
                (50, 20_000),
                (usize::MAX, 200_000),
            ] {
                let count = if used > 100 { 400_000 } else { 20_000 };
                let found = append_and_drain(used, count - count % every, every, followed);
                assert!(found.into_iter().eq(0..count - count % every));
            }
        }
    }

    #[test]
    fn lock_held_at_a_fork_is_free_in_the_child() {
        let lock = ConsumerLock::new();
        // The state in which a fork at this moment would leave the lock.
        lock.with_consumer_lock(|| {
            lock.reset_in_child();
            assert!(lock.try_lock_for_program());
            lock.unlock_for_program();
            lock.lock_for_program();
            lock.unlock_for_program();
        });
    }
}
