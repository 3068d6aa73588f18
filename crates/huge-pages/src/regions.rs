//! Maps of huge pages and their free parts.

use std::alloc::Layout;
use std::cell::UnsafeCell;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Once;

use memmap2::{Advice, MmapOptions, MmapRaw};

pub(crate) static REGIONS: RegionList = RegionList::new();

const HUGE_PAGE: usize = 1 << 21;
/// Blocks take whole plain pages.
const PAGE: usize = 1 << 12;
/// Size of a map, in use; no block is larger.
const REGION: usize = 1 << 24;
/// Bytes of blocks on plain pages before the first map.
const MAX_PLAIN: usize = 1 << 20;

/// An anonymous map of huge pages.
struct Region {
    map: MmapRaw,
    /// Start of the first huge page, in bytes from the start of the map.
    start: usize,
    /// Free parts, in bytes from `start`, in order; no two touch.
    free: Vec<Range<usize>>,
}

impl Region {
    /// `None` if the system refuses the map.
    fn map() -> Option<Region> {
        let map = MmapOptions::new().len(REGION + HUGE_PAGE).map_anon().ok()?;
        let map = MmapRaw::from(map);
        let start = (map.as_mut_ptr() as usize).wrapping_neg() % HUGE_PAGE;
        // A map without huge pages serves, too. Miri knows no advice.
        if !cfg!(miri) {
            let _ = map.advise_range(Advice::HugePage, start, REGION);
        }
        Some(Region {
            map,
            start,
            free: std::iter::once(0..REGION).collect(),
        })
    }

    /// The first free part that is large enough.
    fn allocate(&mut self, bytes: usize) -> Option<NonNull<u8>> {
        let found = self.free.iter().position(|free| free.len() >= bytes)?;
        let at = self.free[found].start;
        self.free[found].start += bytes;
        if self.free[found].is_empty() {
            self.free.remove(found);
        }
        NonNull::new(self.map.as_mut_ptr().wrapping_add(self.start + at))
    }

    /// Returns the offset of a block from `start`, or `None` if it is not in this map.
    fn offset_of_block(&self, block: NonNull<u8>) -> Option<usize> {
        let start = self.map.as_mut_ptr() as usize + self.start;
        let offset = (block.as_ptr() as usize).checked_sub(start)?;
        (offset < REGION).then_some(offset)
    }

    fn deallocate(&mut self, block: Range<usize>) {
        let next = self.free.partition_point(|free| free.start < block.start);
        let joins_next = self
            .free
            .get(next)
            .is_some_and(|free| free.start == block.end);
        let joins_last = next > 0 && self.free[next - 1].end == block.start;
        match (joins_last, joins_next) {
            (true, true) => self.free[next - 1].end = self.free.remove(next).end,
            (true, false) => self.free[next - 1].end = block.end,
            (false, true) => self.free[next].start = block.start,
            (false, false) => self.free.insert(next, block),
        }
    }

    fn is_unused(&self) -> bool {
        self.free.first().is_some_and(|free| free.len() == REGION)
    }
}

#[derive(Default)]
struct Blocks {
    regions: Vec<Region>,
    /// Bytes of the blocks that are in no map.
    plain_bytes: usize,
}

/// All maps, under a lock that a fork respects: a child that another thread forks could never take a lock that was
/// held. So the fork takes this lock before, and parent and child release it after.
pub(crate) struct RegionList {
    is_locked: AtomicBool,
    blocks: UnsafeCell<Blocks>,
}

// SAFETY: only the holder of the lock uses `blocks`. A map may be unmapped by any thread.
unsafe impl Sync for RegionList {}

extern "C" fn lock_before_fork() {
    REGIONS.lock();
}

extern "C" fn unlock_after_fork() {
    REGIONS.unlock();
}

impl RegionList {
    pub const fn new() -> RegionList {
        let blocks = Blocks {
            regions: Vec::new(),
            plain_bytes: 0,
        };
        RegionList {
            is_locked: AtomicBool::new(false),
            blocks: UnsafeCell::new(blocks),
        }
    }

    /// Returns a block of a map, or `None` if the block should be on plain pages.
    pub fn allocate(&self, layout: Layout) -> Option<NonNull<u8>> {
        static FORK_HANDLERS: Once = Once::new();
        if !cfg!(miri) {
            FORK_HANDLERS.call_once(|| {
                let (lock, unlock) = (lock_before_fork, unlock_after_fork);
                // SAFETY: the functions are never unloaded, and only use atomics.
                unsafe { libc::pthread_atfork(Some(lock), Some(unlock), Some(unlock)) };
            });
        }
        let bytes = layout.size().next_multiple_of(PAGE);
        self.with_blocks(|blocks| {
            let is_small = blocks.regions.is_empty() && blocks.plain_bytes + bytes <= MAX_PLAIN;
            let is_plain = is_small || layout.align() > PAGE;
            let in_map = if is_plain {
                None
            } else {
                blocks.allocate(bytes)
            };
            if in_map.is_none() {
                blocks.plain_bytes += bytes;
            }
            in_map
        })
    }

    /// Releases a block of `allocate`. Returns false if it is on plain pages.
    pub fn deallocate(&self, block: NonNull<u8>, layout: Layout) -> bool {
        let bytes = layout.size().next_multiple_of(PAGE);
        let (is_in_map, _unmapped) = self.with_blocks(|blocks| {
            let regions = blocks.regions.iter().enumerate();
            let offsets = regions.map(|(index, region)| (index, region.offset_of_block(block)));
            let found = offsets
                .filter_map(|(index, offset)| Some((index, offset?)))
                .next();
            let Some((index, offset)) = found else {
                blocks.plain_bytes -= bytes;
                return (false, None);
            };
            let region = &mut blocks.regions[index];
            region.deallocate(offset..offset + bytes);
            let is_unused = region.is_unused();
            (true, is_unused.then(|| blocks.regions.swap_remove(index)))
        });
        is_in_map
    }

    fn with_blocks<R>(&self, work: impl FnOnce(&mut Blocks) -> R) -> R {
        self.lock();
        // SAFETY: this thread holds the lock.
        let result = work(unsafe { &mut *self.blocks.get() });
        self.unlock();
        result
    }

    fn lock(&self) {
        while self.is_locked.swap(true, Ordering::Acquire) {
            std::thread::yield_now();
        }
    }

    fn unlock(&self) {
        self.is_locked.store(false, Ordering::Release);
    }
}

impl Blocks {
    fn allocate(&mut self, bytes: usize) -> Option<NonNull<u8>> {
        let mut regions = self.regions.iter_mut();
        let found = regions.find_map(|region| region.allocate(bytes));
        found.or_else(|| {
            self.regions.push(Region::map()?);
            self.regions.last_mut()?.allocate(bytes)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(bytes: usize) -> Layout {
        Layout::from_size_align(bytes, 8).unwrap()
    }

    fn list_that_maps() -> RegionList {
        let list = RegionList::new();
        list.with_blocks(|blocks| blocks.plain_bytes = MAX_PLAIN);
        list
    }

    fn mapped_regions(list: &RegionList) -> usize {
        list.with_blocks(|blocks| blocks.regions.len())
    }

    fn write_pattern(block: NonNull<u8>, bytes: usize, pattern: u8) {
        // SAFETY: the block has this length and belongs to the test.
        unsafe { block.as_ptr().write_bytes(pattern, bytes) }
    }

    fn has_pattern(block: NonNull<u8>, bytes: usize, pattern: u8) -> bool {
        // SAFETY: as above; the pattern was written to all bytes.
        let content = unsafe { std::slice::from_raw_parts(block.as_ptr(), bytes) };
        content.iter().all(|&byte| byte == pattern)
    }

    #[test]
    fn first_megabyte_of_blocks_is_on_plain_pages() {
        let list = RegionList::new();
        for _ in 0..4 {
            assert!(list.allocate(layout(MAX_PLAIN / 4)).is_none());
        }
        let block = list.allocate(layout(1 << 15)).unwrap();
        assert_eq!(block.as_ptr() as usize % HUGE_PAGE, 0);
        assert!(list.deallocate(block, layout(1 << 15)));
        assert_eq!(mapped_regions(&list), 0);
    }

    #[test]
    fn blocks_do_not_overlap_and_unused_maps_are_unmapped() {
        let list = list_that_maps();
        let mut blocks: Vec<(NonNull<u8>, usize, u8)> = Vec::new();
        let mut random = 1_u64;
        let (rounds, unit) = if cfg!(miri) {
            (60, 1 << 11)
        } else {
            (500, 1 << 20)
        };
        for round in 0..rounds {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let number = (random >> 33) as usize;
            if number % 16 < 9 || blocks.is_empty() {
                let (bytes, pattern) = (1 + number % unit, round as u8);
                let block = list.allocate(layout(bytes)).unwrap();
                write_pattern(block, bytes, pattern);
                blocks.push((block, bytes, pattern));
            } else {
                let (block, bytes, pattern) = blocks.swap_remove(number / 16 % blocks.len());
                assert!(has_pattern(block, bytes, pattern));
                assert!(list.deallocate(block, layout(bytes)));
            }
        }
        assert!(mapped_regions(&list) > 0);
        for (block, bytes, pattern) in blocks {
            assert!(has_pattern(block, bytes, pattern));
            assert!(list.deallocate(block, layout(bytes)));
        }
        assert_eq!(mapped_regions(&list), 0);
    }

    /// Runs `work` in a forked child, and returns whether it succeeds within ten seconds.
    #[cfg(not(miri))]
    fn succeeds_in_child(work: impl FnOnce() -> bool) -> bool {
        // SAFETY: the child only allocates, which glibc and `REGIONS` permit after a fork, and exits.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::alarm(10);
                libc::_exit(i32::from(!work()));
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &mut status, 0), child);
            status == 0
        }
    }

    #[cfg(not(miri))]
    #[test]
    fn child_forked_while_another_thread_allocates_can_allocate() {
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    drop(crate::Buffer::<u8>::filled(0, 1 << 16));
                }
            });
            let mut forks = 0..100;
            let can_allocate = forks.all(|_| {
                succeeds_in_child(|| {
                    crate::Buffer::filled(1_u8, 1 << 21)
                        .iter()
                        .all(|&byte| byte == 1)
                })
            });
            is_over.store(true, Ordering::Relaxed);
            assert!(can_allocate);
        });
    }

    #[cfg(not(miri))]
    #[test]
    fn block_is_on_plain_pages_if_the_system_refuses_a_map() {
        let list = list_that_maps();
        let is_plain = succeeds_in_child(|| {
            let limit = libc::rlimit {
                rlim_cur: 0,
                rlim_max: libc::RLIM_INFINITY,
            };
            // SAFETY: `limit` is valid for the call.
            let is_limited = unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) } == 0;
            is_limited && list.allocate(layout(1 << 21)).is_none()
        });
        assert!(is_plain);
    }
}
