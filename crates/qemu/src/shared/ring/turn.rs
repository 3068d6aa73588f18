//! Whose turn it is to follow: who has it, has the thread's state.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::shared::ring::wait::Sleeper;

const FREE: u32 = 0;
const FOLLOWER: u32 = 1;
const PROGRAM: u32 = 2;
/// The program waits: the follower does not take another turn.
const WANTED: u32 = 4;

pub(super) struct Turn {
    word: AtomicU32,
    program: Sleeper,
    follower: Sleeper,
}

impl Turn {
    pub(super) const fn new() -> Turn {
        Turn {
            word: AtomicU32::new(FREE),
            program: Sleeper::new(),
            follower: Sleeper::new(),
        }
    }

    /// The program takes it, at the latest when the follower is through with its chunk.
    pub(super) fn take(&self) {
        self.word.fetch_or(WANTED, Ordering::SeqCst);
        let free = |word| word & FOLLOWER == 0;
        self.program.wait(&self.word, free, free);
        self.word.store(PROGRAM, Ordering::SeqCst);
    }

    /// The program takes it if it is free.
    pub(super) fn try_to_take(&self) -> bool {
        let order = Ordering::SeqCst;
        let taken = self.word.compare_exchange(FREE, PROGRAM, order, order);
        taken.is_ok()
    }

    /// The program gives it up.
    pub(super) fn leave(&self) {
        self.word.store(FREE, Ordering::SeqCst);
        self.follower.wake(&self.word);
    }

    /// The follower does `work` when it has it.
    pub(super) fn follow(&self, work: impl FnOnce()) {
        let order = Ordering::SeqCst;
        let taken = || self.word.compare_exchange(FREE, FOLLOWER, order, order);
        while taken().is_err() {
            let free = |word| word == FREE;
            self.follower.wait(&self.word, free, free);
        }
        work();
        self.word.fetch_and(!FOLLOWER, order);
        self.program.wake(&self.word);
    }

    /// Of a fork's child, whose parent had taken and left it: there is no follower. It may have had it at that moment,
    /// for nothing.
    pub(super) fn forget(&self) {
        self.word.store(FREE, Ordering::Relaxed);
        self.follower.forget();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_childs_turn_is_free_though_its_parents_follower_had_it() {
        let turn = Turn::new();
        // As a fork in there would leave it.
        turn.follow(|| {
            turn.forget();
            assert!(turn.try_to_take());
            turn.leave();
            turn.take();
            turn.leave();
        });
    }
}
