//! The pool of code caches: a finished stream leaves its nodes, the next one over the same bytes starts with them.
//!
//! A recording has a stream for each thread and process. Without the pool each decoded the same code again: for 301
//! processes forked by one shell, counting took more than twice the CPU time. Two views have the same bytes if they
//! consist of the same parts of the same allocations at the same addresses; this needs neither times nor process names,
//! and code that has changed is other memory. Views that load pages on demand never match.
//!
//! A cache changes its owner and is not shared: decoding takes no lock, and parallel decoders of one stream each build
//! their own. Only nodes are kept, since transitions hold counters and ids of their sink. A node depends only on the
//! bytes at an address, so results do not depend on the pool. It is bounded in bytes, for the process, and in entries.

use super::CodeCache;
use rtit_image::SpaceView;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// Limit of the bytes of all pools in this process.
const MAX_POOL_BYTES: usize = 1 << 26;
static POOL_BYTES: AtomicUsize = AtomicUsize::new(0);
/// Limit of the caches in a pool.
const MAX_POOL_ENTRIES: usize = 32;

/// Code caches of finished streams, for later streams over the same code bytes: threads of one process,
/// forked processes, programs that are started repeatedly.
///
/// A cache changes its owner and is not shared, so that decoding locks nothing, and results are those of a decoder with
/// an empty cache. Access never blocks: while another thread searches the pool, or in a child that was forked
/// meanwhile, nothing is found. Clones share the pool.
#[derive(Clone, Default)]
pub struct CodeCachePool(Arc<Mutex<PoolEntries>>);

#[derive(Default)]
struct PoolEntries(Vec<(SpaceView, CodeCache)>);

impl PoolEntries {
    fn size_in_bytes(&self) -> usize {
        self.0.iter().map(|(_, code)| code.size_in_bytes()).sum()
    }

    fn take_cache_at(&mut self, at: usize) -> CodeCache {
        let (_, code) = self.0.remove(at);
        POOL_BYTES.fetch_sub(code.size_in_bytes(), Ordering::Relaxed);
        code
    }
}

impl Drop for PoolEntries {
    fn drop(&mut self) {
        POOL_BYTES.fetch_sub(self.size_in_bytes(), Ordering::Relaxed);
    }
}

impl fmt::Debug for CodeCachePool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CodeCachePool")
    }
}

impl CodeCachePool {
    /// Returns the size of all caches in the pool, in bytes.
    pub fn size_in_bytes(&self) -> usize {
        self.0
            .try_lock()
            .map_or(0, |entries| entries.size_in_bytes())
    }

    /// Removes and returns a cache of the same bytes as `view` that may replace `empty`, if there is one.
    pub(crate) fn take_matching_cache(
        &self,
        view: &SpaceView,
        empty: &CodeCache,
    ) -> Option<CodeCache> {
        let mut entries = self.0.try_lock().ok()?;
        let found = entries.0.iter().rposition(|(bytes_in_use, code)| {
            code.has_same_limits_as(empty) && bytes_in_use.has_same_bytes_as(view)
        })?;
        Some(entries.take_cache_at(found))
    }

    /// Adds a cache. Of two with the same bytes the larger one stays. If the pool is too large, its oldest caches go;
    /// caches that other pools hold stay, and may leave no room.
    pub(crate) fn add_cache(&self, view: SpaceView, code: CodeCache) {
        // A view with a page callback is asked again by each stream.
        if code.is_empty() || code.size_in_bytes() > MAX_POOL_BYTES || view.has_pager() {
            return;
        }
        let Ok(mut entries) = self.0.try_lock() else {
            return;
        };
        let others = POOL_BYTES
            .load(Ordering::Relaxed)
            .saturating_sub(entries.size_in_bytes());
        if others + code.size_in_bytes() > MAX_POOL_BYTES {
            return;
        }
        let same = |(bytes_in_use, other): &(SpaceView, CodeCache)| {
            other.has_same_limits_as(&code) && bytes_in_use.has_same_bytes_as(&view)
        };
        if let Some(at) = entries.0.iter().position(same) {
            if entries.0[at].1.size_in_bytes() > code.size_in_bytes() {
                return;
            }
            entries.take_cache_at(at);
        }
        let room =
            |bytes: usize| Some(bytes + code.size_in_bytes()).filter(|&sum| sum <= MAX_POOL_BYTES);
        while entries.0.len() >= MAX_POOL_ENTRIES
            || POOL_BYTES
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, room)
                .is_err()
        {
            if entries.0.is_empty() {
                return;
            }
            entries.take_cache_at(0);
        }
        entries.0.push((view, code));
    }
}

#[cfg(test)]
mod tests {
    use rtit_image::{SharedBytes, Space};
    use rtit_x86::CodeMode;

    use super::*;

    /// Bytes are counted for the whole process: one test at a time.
    static ALONE: Mutex<()> = Mutex::new(());

    /// A code cache with one node of a view.
    fn cache_of(view: &SpaceView, limit: usize) -> CodeCache {
        let mut code = CodeCache::new(limit, 0);
        assert!(code
            .find_or_decode_node(view, 0x1000, CodeMode::Bits64)
            .is_ok());
        code
    }

    fn space_of(ret: SharedBytes) -> Space {
        let mut space = Space::new();
        space.map_bytes(0, 0x1000, ret);
        space
    }

    #[test]
    fn cache_is_only_taken_for_the_same_bytes() {
        let _alone = ALONE.lock().unwrap();
        let ret = SharedBytes::from(&[0xc3_u8][..]);
        let space = space_of(ret.clone());
        let (pool, none) = (CodeCachePool::default(), CodeCache::new(100, 0));
        pool.add_cache(space.view_at_start(), cache_of(&space.view_at_start(), 100));
        let other = space_of([0xc3][..].into());
        let mut moved = Space::new();
        moved.map_bytes(0, 0x2000, ret.clone());
        let mut more = space.clone();
        more.map_bytes(0, 0x2000, ret.clone());
        let mut changed = space.clone();
        changed.overwrite_bytes(5, 0x1000, &[0x90]);
        let mut later = changed.view_at_start();
        later.advance_to_time(5);
        for view in [
            other.view_at_start(),
            moved.view_at_start(),
            more.view_at_start(),
            later,
        ] {
            assert!(pool.take_matching_cache(&view, &none).is_none());
        }
        assert!(pool
            .take_matching_cache(&space.view_at_start(), &CodeCache::new(99, 0))
            .is_none());
        assert!(pool
            .take_matching_cache(&space.view_at_start(), &CodeCache::new(100, 1))
            .is_none());
        // the bytes before the change, and those of a forked child, are the same
        assert!(pool
            .take_matching_cache(&changed.view_at_start(), &none)
            .is_some());
        assert!(pool
            .take_matching_cache(&space.view_at_start(), &none)
            .is_none());
        pool.add_cache(space.view_at_start(), cache_of(&space.view_at_start(), 100));
        assert!(pool
            .take_matching_cache(&space.fork_at_time(3).view_at_start(), &none)
            .is_some());
    }

    #[test]
    fn bytes_of_all_pools_are_bounded() {
        let _alone = ALONE.lock().unwrap();
        let space = space_of([0xc3][..].into());
        let size = cache_of(&space.view_at_start(), 100).size_in_bytes();
        let (one, two) = (CodeCachePool::default(), CodeCachePool::default());
        // other pools leave room for one more
        POOL_BYTES.fetch_add(MAX_POOL_BYTES - size, Ordering::Relaxed);
        one.add_cache(space.view_at_start(), cache_of(&space.view_at_start(), 100));
        two.add_cache(space.view_at_start(), cache_of(&space.view_at_start(), 100));
        assert_eq!((one.size_in_bytes(), two.size_in_bytes()), (size, 0));
        drop(one);
        two.add_cache(space.view_at_start(), cache_of(&space.view_at_start(), 100));
        assert_eq!(two.size_in_bytes(), size);
        drop(two.take_matching_cache(&space.view_at_start(), &CodeCache::new(100, 0)));
        POOL_BYTES.fetch_sub(MAX_POOL_BYTES - size, Ordering::Relaxed);
    }

    #[test]
    fn number_of_caches_is_bounded() {
        let _alone = ALONE.lock().unwrap();
        let pool = CodeCachePool::default();
        let first = space_of([0xc3][..].into());
        pool.add_cache(first.view_at_start(), cache_of(&first.view_at_start(), 100));
        let again = first.clone();
        pool.add_cache(again.view_at_start(), cache_of(&again.view_at_start(), 100));
        assert_eq!(pool.0.lock().unwrap().0.len(), 1);
        for _ in 0..MAX_POOL_ENTRIES {
            let space = space_of([0xc3][..].into());
            pool.add_cache(space.view_at_start(), cache_of(&space.view_at_start(), 100));
        }
        assert_eq!(pool.0.lock().unwrap().0.len(), MAX_POOL_ENTRIES);
        assert!(pool
            .take_matching_cache(&first.view_at_start(), &CodeCache::new(100, 0))
            .is_none());
    }
}
