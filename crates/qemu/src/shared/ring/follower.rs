//! The thread that follows.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::OnceLock;
use std::thread::Builder;

use crate::shared::ring::chunks::CHUNKS;
use crate::thread::arena::{Arena, Entry};
use crate::thread::block::Block;
use crate::thread::state::Thread;

const STACK: usize = 256 * 1024;

const NONE: u8 = 0;
const RUNS: u8 = 1;
const CANNOT: u8 = 2;
static STATE: AtomicU8 = AtomicU8::new(NONE);

/// A thread goes on to a block.
pub(crate) type Each = fn(&mut Thread, &'static Block);
static EACH: OnceLock<Each> = OnceLock::new();

/// Before the ring is used.
pub(super) fn prepare(each: Each) -> bool {
    EACH.set(each).is_ok()
}

struct Followed(*mut Thread);
// SAFETY: it is touched by whose turn it is.
unsafe impl Send for Followed {}

/// There is work: it begins if it has not, or wakes up. A system that allows no more threads has none.
pub(super) fn call(thread: *mut Thread) {
    match STATE.load(Ordering::Relaxed) {
        NONE => {
            let state = if start(thread) { RUNS } else { CANNOT };
            STATE.store(state, Ordering::Relaxed);
        }
        RUNS => CHUNKS.call(),
        _ => {}
    }
}

fn start(thread: *mut Thread) -> bool {
    let followed = Followed(thread);
    // SAFETY: masks are values of ours. A new thread begins with its creator's: the program's signals are not for it.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        let started = Builder::new().stack_size(STACK).spawn(move || {
            let Followed(thread) = { followed };
            serve(thread)
        });
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        started.is_ok()
    }
}

/// A panic ends the process, as in a callback: nobody else would get the turn back.
extern "C" fn serve(thread: *mut Thread) {
    // SAFETY: called when it is its turn.
    CHUNKS.serve(|entries| follow(unsafe { &mut *thread }, entries))
}

/// In a fork's child there is none.
pub(super) fn forget() {
    STATE.store(NONE, Ordering::Relaxed);
}

/// The thread has run these blocks, one after the other.
pub(super) fn follow(thread: &mut Thread, entries: &[Entry]) {
    let Some(each) = EACH.get() else {
        return;
    };
    let arena = Arena::get();
    let mut at = 0;
    loop {
        at = thread.follow_many(entries, at, arena);
        let Some(&entry) = entries.get(at) else {
            return;
        };
        let block = arena.block(entry);
        if thread.follow_almost_quietly(block) {
            thread.block = block;
        } else {
            each(thread, block);
        }
        at += 1;
    }
}
