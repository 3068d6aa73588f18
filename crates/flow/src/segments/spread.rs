//! Pieces of work over threads.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use rtit_memory::{caught, refuse};

use crate::watch::Watch;

/// How often who waits for the others is asked whether to give up.
const PERIOD: Duration = Duration::from_millis(50);

/// Does all pieces, each thread with one of the workers, and gives what came of them in order. `watch` is also asked by
/// this thread while it waits for the others. Where one of them is refused memory this one unwinds, when all have ended.
pub(super) fn spread<W: Send, P: Sync, R: Send>(
    workers: &mut [W],
    pieces: &[P],
    watch: &Watch,
    each: impl Fn(&mut W, &P) -> R + Sync,
) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<(usize, R)>> = Mutex::default();
    let refused = AtomicBool::new(false);
    let work = |worker: &mut W| {
        while let Some((index, piece)) = {
            let index = next.fetch_add(1, Ordering::Relaxed);
            pieces.get(index).map(|piece| (index, piece))
        } {
            let Ok(result) = caught(|| each(worker, piece)) else {
                // all that comes is of no use: nobody begins another piece
                refused.store(true, Ordering::Relaxed);
                next.store(pieces.len(), Ordering::Relaxed);
                return;
            };
            let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
            done.push((index, result));
        }
    };
    if let Some((own, others)) = workers.split_first_mut() {
        let busy = AtomicUsize::new(others.len());
        let waits = thread::current();
        thread::scope(|scope| {
            for worker in others {
                let begun = thread::Builder::new().spawn_scoped(scope, || {
                    let _leaves = Leaves(&busy, &waits);
                    work(worker);
                });
                if begun.is_err() {
                    // no thread more: the others do its share
                    busy.fetch_sub(1, Ordering::Release);
                }
            }
            work(own);
            while busy.load(Ordering::Acquire) > 0 {
                thread::park_timeout(PERIOD);
                if busy.load(Ordering::Acquire) > 0 {
                    watch.asks();
                }
            }
        });
    }
    if refused.load(Ordering::Relaxed) {
        refuse();
    }
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|&(index, _)| index);
    done.into_iter().map(|(_, result)| result).collect()
}

/// Says that a thread is at its end, also by a panic.
struct Leaves<'a>(&'a AtomicUsize, &'a thread::Thread);

impl Drop for Leaves<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
        self.1.unpark();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Barrier};

    #[test]
    fn memory_is_refused_in_any_thread() {
        for bad in 0..8 {
            let pieces = Vec::from_iter(0..8);
            let found = caught(|| {
                spread(
                    &mut [(), (), ()],
                    &pieces,
                    &Watch::default(),
                    |(), &piece| {
                        if piece == bad {
                            refuse();
                        }
                    },
                )
            });
            assert!(found.is_err());
        }
    }

    /// Signals come to this thread, which has nothing else to do any more.
    #[test]
    fn who_waits_is_asked() {
        let told = Arc::new(AtomicBool::new(false));
        let asked = Arc::clone(&told);
        let here = thread::current().id();
        let watch = Watch::new(move || {
            assert_eq!(thread::current().id(), here);
            asked.store(true, Ordering::Relaxed);
            true
        });
        let both = Barrier::new(2);
        let found = spread(&mut [(), ()], &[1, 2], &watch, |(), piece| {
            both.wait();
            while thread::current().id() != here && !told.load(Ordering::Relaxed) {
                thread::yield_now();
            }
            *piece
        });
        assert_eq!(found, [1, 2]);
    }
}
