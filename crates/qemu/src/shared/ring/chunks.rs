//! The ring's memory, in chunks: the program fills one after the other, and they are followed in this order.

use std::mem::size_of;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use crate::shared::ring::turn::Turn;
use crate::shared::ring::wait::Sleeper;
use crate::thread::arena::Entry;

/// Bytes of a chunk, whose address is a multiple of it. At least one entry stays empty: full is told from begun.
pub(crate) const SIZE: usize = 1 << 14;
const COUNT: u32 = 16;
/// So many wait when a program goes on that had no room: half of them, so that the two do not wait for each other at
/// each.
const ENOUGH: u32 = COUNT / 2;
const ENTRY: usize = size_of::<Entry>();
const MOST: usize = SIZE / ENTRY - 1;
/// Chunks that are worth waking somebody: the program itself follows less in less time.
const WORTH: u32 = 4;
/// Chunks of fewer entries are for tests, and always worth it.
const FEW: usize = 256;

pub(super) static CHUNKS: Chunks = Chunks::new();

pub(super) struct Chunks {
    base: AtomicUsize,
    /// Entries of a chunk that are in use: its last ones.
    used: AtomicUsize,
    worth: AtomicU32,
    /// Chunks that are full or have been, ever, and those of them that were followed. The next one is the program's.
    full: AtomicU32,
    done: AtomicU32,
    turn: Turn,
    /// Where who follows waits for chunks, and the program for empty ones.
    follower: Sleeper,
    program: Sleeper,
}

impl Chunks {
    pub(super) const fn new() -> Chunks {
        Chunks {
            base: AtomicUsize::new(0),
            used: AtomicUsize::new(MOST),
            worth: AtomicU32::new(WORTH),
            full: AtomicU32::new(0),
            done: AtomicU32::new(0),
            turn: Turn::new(),
            follower: Sleeper::new(),
            program: Sleeper::new(),
        }
    }

    /// Memory for them all, of which `used` entries each are used; false if there is none.
    pub(super) fn prepare(&self, used: usize) -> bool {
        self.used.store(used.clamp(1, MOST), Ordering::Relaxed);
        if used < FEW {
            self.worth.store(1, Ordering::Relaxed);
        }
        // SAFETY: new memory of our own.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                (COUNT as usize + 1) * SIZE,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if at == libc::MAP_FAILED {
            return false;
        }
        let base = (at as usize).next_multiple_of(SIZE);
        self.base.store(base, Ordering::Relaxed);
        true
    }

    /// Where the program's chunk begins.
    pub(super) fn begin(&self) -> usize {
        self.chunk(self.full()) + self.first()
    }

    /// How many have been full, ever.
    pub(super) fn full(&self) -> u32 {
        self.full.load(Ordering::Relaxed)
    }

    /// The program's chunk is full. True if there is work for another thread.
    pub(super) fn next(&self) -> bool {
        let full = self.full().wrapping_add(1);
        self.full.store(full, Ordering::SeqCst);
        let waiting = full.wrapping_sub(self.done.load(Ordering::SeqCst));
        waiting >= self.worth.load(Ordering::Relaxed)
    }

    /// Wakes who follows.
    pub(super) fn call(&self) {
        self.follower.wake(&self.full);
    }

    /// Waits until the program's chunk is empty. Where nobody follows just now, the program does by `work`.
    pub(super) fn wait_for_room(&self, work: impl FnMut(&[Entry])) {
        let full = self.full();
        let waiting = |done: u32| full.wrapping_sub(done);
        if waiting(self.done.load(Ordering::SeqCst)) < COUNT {
            return;
        }
        if self.turn.try_to_take() {
            self.follow_down_to(ENOUGH, work);
            self.turn.leave();
        } else {
            let some = |done| waiting(done) <= ENOUGH;
            self.program.wait(&self.done, some, some);
        }
    }

    /// The program follows all that is full, and what else it does in `last`, with nobody else.
    pub(super) fn finish(&self, work: impl FnMut(&[Entry]), last: impl FnOnce()) {
        self.turn.take();
        self.follow_down_to(0, work);
        last();
        self.turn.leave();
    }

    /// Does `work` with chunk after chunk as they come.
    pub(super) fn serve(&self, mut work: impl FnMut(&[Entry])) -> ! {
        let worth = self.worth.load(Ordering::Relaxed);
        loop {
            let waiting = |full: u32| full.wrapping_sub(self.done.load(Ordering::SeqCst));
            let any = |full| waiting(full) > 0;
            let enough = |full| waiting(full) >= worth;
            self.follower.wait(&self.full, any, enough);
            self.turn.follow(|| {
                // The program may have followed them meanwhile.
                let left = waiting(self.full.load(Ordering::SeqCst)).saturating_sub(1);
                self.follow_down_to(left, &mut work);
            });
        }
    }

    /// Whose turn it is follows until so many are left.
    fn follow_down_to(&self, left: u32, mut work: impl FnMut(&[Entry])) {
        let full = self.full.load(Ordering::SeqCst);
        let mut done = self.done.load(Ordering::SeqCst);
        while full.wrapping_sub(done) > left {
            // SAFETY: it is full, and will not be written to before it is done.
            work(unsafe { self.before(self.chunk(done) + SIZE) });
            done = done.wrapping_add(1);
            self.done.store(done, Ordering::SeqCst);
            // No earlier: `full` may have grown since, but not while the program waits.
            if full.wrapping_sub(done) <= ENOUGH {
                self.program.wake(&self.done);
            }
        }
    }

    /// The entries before `place` in its chunk.
    ///
    /// # Safety
    /// They have been written, and nobody writes to them any more.
    pub(super) unsafe fn before(&self, place: usize) -> &[Entry] {
        let first = ((place - 1) & !(SIZE - 1)) + self.first();
        std::slice::from_raw_parts(first as *const Entry, (place - first) / ENTRY)
    }

    /// The calling process is a fork's child, where only the program is left, which has finished.
    pub(super) fn forget(&self) {
        self.turn.forget();
        self.follower.forget();
    }

    fn chunk(&self, number: u32) -> usize {
        self.base.load(Ordering::Relaxed) + (number % COUNT) as usize * SIZE
    }

    /// Of a chunk the place of its first entry that is used.
    fn first(&self) -> usize {
        SIZE - self.used.load(Ordering::Relaxed) * ENTRY
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// Everything that was followed, in order.
    type Seen = Mutex<Vec<u32>>;

    fn number(entry: Entry) -> u32 {
        // SAFETY: it is one word.
        unsafe { std::mem::transmute(entry) }
    }

    /// Keeps the numbers below `count` in chunks of `used` entries, and finishes after each of `every`.
    fn keep(used: usize, count: u32, every: u32, followed: bool) -> Vec<u32> {
        let chunks: &'static Chunks = Box::leak(Box::new(Chunks::new()));
        let seen: &'static Seen = Box::leak(Box::new(Mutex::new(Vec::new())));
        // `try_lock`: only one at a time.
        let follow = |entries: &[Entry]| {
            let mut seen = seen.try_lock().unwrap();
            seen.extend(entries.iter().map(|&entry| number(entry)));
        };
        assert!(chunks.prepare(used));
        if followed {
            std::thread::spawn(move || chunks.serve(follow));
        }
        let mut place = chunks.begin();
        for value in 0..count {
            if place % SIZE == 0 {
                if chunks.next() && followed {
                    chunks.call();
                }
                chunks.wait_for_room(follow);
                place = chunks.begin();
            }
            // SAFETY: a place in a chunk that is ours.
            unsafe { (place as *mut u32).write(value) };
            place += ENTRY;
            if value % every == every - 1 {
                // SAFETY: written above.
                chunks.finish(follow, || follow(unsafe { chunks.before(place) }));
                assert_eq!(seen.lock().unwrap().len() as u32, value + 1);
                place = chunks.begin();
            }
        }
        let found = seen.lock().unwrap().clone();
        found
    }

    #[test]
    fn all_is_followed_once_and_in_order() {
        for followed in [true, false] {
            for (used, every) in [
                (1, 7),
                (3, 100),
                (3, 1),
                (50, 20_000),
                (usize::MAX, 200_000),
            ] {
                let count = if used > 100 { 400_000 } else { 20_000 };
                let found = keep(used, count - count % every, every, followed);
                assert!(found.into_iter().eq(0..count - count % every));
            }
        }
    }
}
