//! The program runs ahead: blocks are kept in a ring, and another thread of the process follows the path behind it.
//!
//! While the ring is *open* the program's thread does nothing at a block but keep it (`callbacks::ahead`), and its state
//! belongs to whose turn it is to follow. For anything else than the next block the program's thread closes the ring: it
//! takes the turn as soon as the other is through with a chunk, follows what is left itself, and has its state as if it
//! had followed every block at once. So all that happens beside blocks (system calls, signals, code that changes, forks,
//! ends) finds the thread as it always was, and need not know of the ring.
//!
//! * `chunks`: the memory; `turn`: who follows; `wait`: sleeping until that changes;
//! * `follower`: the other thread, which begins when there is enough for it to do.
//!
//! Only a process of one thread has a ring, that thread's. Whoever forks finds it closed, and so does the child.

mod chunks;
mod follower;
mod turn;
mod wait;

use std::cell::Cell;
use std::mem::size_of;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::shared::threads::many;
use crate::thread::arena::{self, Entry};
use crate::thread::state::Thread;
use chunks::CHUNKS;
pub(crate) use chunks::SIZE;
use follower::{follow, Each};

/// Where the next block is to be kept: after a chunk's end if this is a multiple of `SIZE`. 0 where the ring is closed.
/// The callback knows this place.
#[repr(transparent)]
pub(crate) struct Place(Cell<usize>);

// SAFETY: only the program's thread uses it, as long as there is one.
unsafe impl Sync for Place {}

pub(crate) static PLACE: Place = Place(Cell::new(0));

/// How often the ring has been opened.
static OPENED: AtomicU64 = AtomicU64::new(0);

/// How far the program has come, to be compared: where its next block will be kept, chunks before that, and `OPENED`, as
/// places come again.
pub(crate) type Mark = (usize, u32, u64);

/// None if the ring is closed.
pub(crate) fn mark() -> Option<Mark> {
    let place = PLACE.0.get();
    (place != 0).then(|| (place, CHUNKS.full(), OPENED.load(Ordering::Relaxed)))
}

pub(crate) fn is_open() -> bool {
    PLACE.0.get() != 0
}

/// Memory for a ring whose chunks have so many entries; false if there is none. `each` is what a block means to its
/// thread.
pub(crate) fn prepare(entries: usize, each: Each) -> bool {
    follower::prepare(each) && arena::prepare() && CHUNKS.prepare(entries)
}

/// Opens the ring, unless the thread has more to do at its next block than to follow it.
pub(crate) fn open(thread: &Thread) {
    let busy = thread.attention.load(Ordering::Relaxed) != 0 || thread.is_out();
    if !busy && !many() {
        OPENED.fetch_add(1, Ordering::Relaxed);
        PLACE.0.set(CHUNKS.begin());
    }
}

/// A chunk is full: keeps the block in the next one.
pub(crate) fn turn(thread: *mut Thread, entry: u32) {
    if CHUNKS.next() {
        follower::call(thread);
    }
    // SAFETY: the thread's state is touched by whose turn it is.
    CHUNKS.wait_for_room(|entries| unsafe { follow(&mut *thread, entries) });
    let place = CHUNKS.begin();
    // SAFETY: the beginning of a chunk that is ours.
    unsafe { (place as *mut u32).write(entry) };
    PLACE.0.set(place + size_of::<Entry>());
}

/// Everything that the thread has executed is followed; its state is its own.
pub(crate) fn close(thread: *mut Thread) {
    let place = PLACE.0.replace(0);
    if place == 0 {
        return;
    }
    // SAFETY: the thread's state is touched by whose turn it is.
    let work = |entries: &[Entry]| unsafe { follow(&mut *thread, entries) };
    // SAFETY: what is before `place` has been written.
    CHUNKS.finish(work, || work(unsafe { CHUNKS.before(place) }));
}

/// The calling process is a fork's child: nobody follows.
pub(crate) fn forked() {
    CHUNKS.forget();
    follower::forget();
}

const _: () = assert!(size_of::<Entry>() == 4);
