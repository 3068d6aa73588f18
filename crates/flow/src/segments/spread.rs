//! Pieces of work over threads.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Does all pieces, each thread with one of the workers, and gives what came of them in order.
pub(super) fn spread<W: Send, P: Sync, R: Send>(
    workers: &mut [W],
    pieces: &[P],
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
        std::thread::scope(|scope| {
            for worker in others {
                scope.spawn(|| work(worker));
            }
            work(own);
        });
    }
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|&(index, _)| index);
    done.into_iter().map(|(_, result)| result).collect()
}
