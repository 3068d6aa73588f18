//! Runs items of work on scoped threads. The calling thread works, too, and polls for cancellation while it waits for
//! the others.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use crate::cancellation::CancellationToken;

/// How often the waiting thread polls for cancellation.
const POLL_PERIOD: Duration = Duration::from_millis(50);

/// Runs all items, each thread with one of the workers, and returns the results in the order of the items. The calling
/// thread polls `watch` while it waits for the others.
pub(super) fn run_on_threads<W: Send, P: Sync, R: Send>(
    workers: &mut [W],
    items: &[P],
    watch: &CancellationToken,
    run: impl Fn(&mut W, &P) -> R + Sync,
) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<(usize, R)>> = Mutex::default();
    let run_items = |worker: &mut W| {
        while let Some((index, item)) = {
            let index = next.fetch_add(1, Ordering::Relaxed);
            items.get(index).map(|item| (index, item))
        } {
            let result = run(worker, item);
            let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
            done.push((index, result));
        }
    };
    if let Some((first_worker, others)) = workers.split_first_mut() {
        let busy = AtomicUsize::new(others.len());
        let waiting_thread = thread::current();
        thread::scope(|scope| {
            for worker in others {
                let spawned = thread::Builder::new().spawn_scoped(scope, || {
                    let _signals_end = SignalsEnd(&busy, &waiting_thread);
                    run_items(worker);
                });
                if spawned.is_err() {
                    // The other threads take its items.
                    busy.fetch_sub(1, Ordering::Release);
                }
            }
            run_items(first_worker);
            while busy.load(Ordering::Acquire) > 0 {
                thread::park_timeout(POLL_PERIOD);
                if busy.load(Ordering::Acquire) > 0 {
                    watch.is_cancelled();
                }
            }
        });
    }
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|&(index, _)| index);
    done.into_iter().map(|(_, result)| result).collect()
}

/// Signals the end of a thread, also after a panic.
struct SignalsEnd<'a>(&'a AtomicUsize, &'a thread::Thread);

impl Drop for SignalsEnd<'_> {
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

    /// Signals arrive at the calling thread, which is idle here.
    #[test]
    fn waiting_thread_polls_for_cancellation() {
        let is_asked = Arc::new(AtomicBool::new(false));
        let set_asked = Arc::clone(&is_asked);
        let here = thread::current().id();
        let watch = CancellationToken::new(move || {
            assert_eq!(thread::current().id(), here);
            set_asked.store(true, Ordering::Relaxed);
            true
        });
        let both = Barrier::new(2);
        let found = run_on_threads(&mut [(), ()], &[1, 2], &watch, |(), item| {
            both.wait();
            while thread::current().id() != here && !is_asked.load(Ordering::Relaxed) {
                thread::yield_now();
            }
            *item
        });
        assert_eq!(found, [1, 2]);
    }
}
