//! Memory for what is small, for when the system has none.
//!
//! There are thousands of places where Rust takes a little memory, and an abort is all that it knows where that is
//! refused. So some is kept, mapped and never touched, from which such an allocation is served. Who is at work ends at its
//! next look, and what it had taken comes back. Nobody else gets what is kept here, and what is large gets none. This is
//! the account alone: an allocator maps the memory, and hands it out.

use std::alloc::Layout;
use std::hint;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::refused::set_scarce;

/// Bytes of a reserve, of one allocation in it at most, and in use when memory is scarce.
const SIZE: usize = 1 << 23;
const LARGEST: usize = 1 << 20;
const SCARCE: usize = 1 << 18;
/// Reserves: one that is in use, others of which somebody still has memory.
const MOST: usize = 8;
/// What an allocation takes is a multiple of this, and it is aligned so.
const GRAIN: usize = 64;
const WORDS: usize = SIZE / GRAIN / 64;
/// Looks are so many before somebody does without, as in a process that was forked while another thread had it.
const PATIENCE: usize = 1 << 20;

/// Reserves of an allocator: who has which part of them.
pub struct Reserves {
    map: fn(usize) -> Option<usize>,
    /// Whoever changes what follows.
    locked: AtomicBool,
    current: AtomicUsize,
    /// All of them lie from here to before there.
    low: AtomicUsize,
    high: AtomicUsize,
    all: [Reserve; MOST],
}

/// A part of memory, and a bit for each grain that is taken.
struct Reserve {
    /// 0: not mapped.
    base: AtomicUsize,
    used: AtomicUsize,
    taken: [AtomicUsize; WORDS],
}

impl Reserve {
    const fn new() -> Reserve {
        Reserve {
            base: AtomicUsize::new(0),
            used: AtomicUsize::new(0),
            taken: [const { AtomicUsize::new(0) }; WORDS],
        }
    }

    /// The first place for so many grains.
    fn take(&self, grains: usize) -> Option<usize> {
        let base = self.base.load(Ordering::Relaxed);
        let mut free = 0;
        let mut grain = 0;
        while base != 0 && grain < WORDS * 64 {
            let word = self.taken[grain / 64].load(Ordering::Relaxed);
            match (word, grain % 64) {
                (usize::MAX, 0) => (free, grain) = (0, grain + 64),
                (0, 0) if free + 64 < grains => (free, grain) = (free + 64, grain + 64),
                _ => {
                    free = if word >> (grain % 64) & 1 == 0 {
                        free + 1
                    } else {
                        0
                    };
                    grain += 1;
                }
            }
            if free == grains {
                self.mark(grain - grains, grains, true);
                self.used.fetch_add(grains * GRAIN, Ordering::Relaxed);
                return Some(base + (grain - grains) * GRAIN);
            }
        }
        None
    }

    fn mark(&self, first: usize, grains: usize, taken: bool) {
        for grain in first..first + grains {
            let (word, bit) = (&self.taken[grain / 64], 1 << (grain % 64));
            match taken {
                true => word.fetch_or(bit, Ordering::Relaxed),
                false => word.fetch_and(!bit, Ordering::Relaxed),
            };
        }
    }

    fn holds(&self, at: usize) -> bool {
        let base = self.base.load(Ordering::Relaxed);
        base != 0 && (base..base + SIZE).contains(&at)
    }
}

impl Reserves {
    /// None is mapped yet. `map` gives the address of so many bytes, aligned to a page, for good; None if it is refused.
    pub const fn new(map: fn(usize) -> Option<usize>) -> Reserves {
        Reserves {
            map,
            locked: AtomicBool::new(false),
            current: AtomicUsize::new(0),
            low: AtomicUsize::new(0),
            high: AtomicUsize::new(0),
            all: [const { Reserve::new() }; MOST],
        }
    }

    /// Whether a reserve may have this; `give_back` knows.
    #[inline]
    pub fn may_have(&self, at: usize) -> bool {
        at >= self.low.load(Ordering::Relaxed) && at < self.high.load(Ordering::Relaxed)
    }

    /// Memory that the system has refused; None if it is too much, or more than is left.
    #[cold]
    pub fn take(&self, layout: Layout) -> Option<usize> {
        if layout.size() > LARGEST || layout.align() > GRAIN || !self.lock() {
            return None;
        }
        let current = &self.all[self.current.load(Ordering::Relaxed)];
        let memory = current.take(grains(layout));
        self.tell();
        self.unlock();
        memory
    }

    /// Takes back what `take` gave for this layout; false if it did not.
    #[cold]
    pub fn give_back(&self, at: usize, layout: Layout) -> bool {
        let Some(reserve) = self.all.iter().find(|reserve| reserve.holds(at)) else {
            return false;
        };
        if self.lock() {
            let grains = grains(layout);
            let first = (at - reserve.base.load(Ordering::Relaxed)) / GRAIN;
            reserve.mark(first, grains, false);
            reserve.used.fetch_sub(grains * GRAIN, Ordering::Relaxed);
            self.tell();
            self.unlock();
        }
        true
    }

    /// Whether there is memory to begin with: somebody may have kept what was taken of a reserve, then there is to be
    /// another one.
    pub fn are_ready(&self) -> bool {
        let current = &self.all[self.current.load(Ordering::Relaxed)];
        let ready = current.base.load(Ordering::Relaxed) != 0
            && current.used.load(Ordering::Relaxed) < SCARCE;
        ready || (self.lock() && self.renew())
    }

    #[cold]
    fn renew(&self) -> bool {
        let free = |reserve: &Reserve| reserve.used.load(Ordering::Relaxed) == 0;
        let found = self.all.iter().position(free);
        let ready = found.is_some_and(|index| {
            let reserve = &self.all[index];
            let mapped = reserve.base.load(Ordering::Relaxed) != 0 || self.map(reserve);
            if mapped {
                self.current.store(index, Ordering::Relaxed);
            }
            mapped
        });
        self.tell();
        self.unlock();
        ready
    }

    fn map(&self, reserve: &Reserve) -> bool {
        let Some(base) = (self.map)(SIZE) else {
            return false;
        };
        let low = match self.low.load(Ordering::Relaxed) {
            0 => base,
            low => low.min(base),
        };
        self.low.store(low, Ordering::Relaxed);
        self.high.fetch_max(base + SIZE, Ordering::Relaxed);
        reserve.base.store(base, Ordering::Relaxed);
        true
    }

    /// Everybody is told whether memory is scarce.
    fn tell(&self) {
        let current = &self.all[self.current.load(Ordering::Relaxed)];
        set_scarce(current.used.load(Ordering::Relaxed) >= SCARCE);
    }

    fn lock(&self) -> bool {
        let free = |_| {
            let locked = self.locked.swap(true, Ordering::Acquire);
            if locked {
                hint::spin_loop();
            }
            !locked
        };
        (0..PATIENCE).any(free)
    }

    fn unlock(&self) {
        self.locked.store(false, Ordering::Release);
    }
}

/// What an allocation takes.
fn grains(layout: Layout) -> usize {
    layout.size().div_ceil(GRAIN).max(1)
}

#[cfg(test)]
mod tests;
