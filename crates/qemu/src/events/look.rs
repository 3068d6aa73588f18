//! What a thread does every now and then: edges among the instructions that retire, and packets that wait.

use std::sync::atomic::Ordering;

use crate::shared::state::shared;
use crate::thread::state::{Thread, LOOK};

/// Bytes of packets that a thread holds back, at most: so many, and what `LOOK` instructions more make.
const HELD: usize = 32 * 1024;

/// See `thread::state::Look`.
#[cold]
#[inline(never)]
pub(crate) fn look(thread: &mut Thread, count: u32) -> u32 {
    let shared = shared();
    let clock = thread.now() + u64::from(count);
    thread.next_look = clock + LOOK;
    let done = thread.pass_edges(count);
    thread.clock.store(clock, Ordering::Relaxed);
    thread.catch_up();
    let asked = shared.clock.asked();
    if thread.unit.output().len() >= HELD || thread.path.is_long() || asked != thread.asked {
        if thread.path.may_end() {
            thread.asked = asked;
            thread.flush(shared);
        } else {
            thread.next_look = clock;
        }
    }
    done
}
