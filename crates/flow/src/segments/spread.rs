//! Pieces of work over threads.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use crate::watch::Watch;

/// How often who waits for the others is asked whether to give up.
const PERIOD: Duration = Duration::from_millis(50);

/// Does all pieces, each thread with one of the workers, and gives what came of them in order. `watch` is also asked by
/// this thread while it waits for the others.
pub(super) fn spread<W: Send, P: Sync, R: Send>(
    workers: &mut [W],
    pieces: &[P],
    watch: &Watch,
    each: impl Fn(&mut W, &P) -> R + Sync,
) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<(usize, R)>> = Mutex::default();
    let work = |worker: &mut W| {
        while let Some((index, piece)) = {
            let index = next.fetch_add(1, Ordering::Relaxed);
            pieces.get(index).map(|piece| (index, piece))
        } {
            let result = each(worker, piece);
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
    use std::sync::atomic::AtomicBool;
    use std::sync::{Arc, Barrier};

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
