//! Pages that are requested when they are needed.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::bytes::SharedBytes;

/// Bytes of a page; it begins at a multiple of it.
pub const PAGE: u64 = 1 << 12;

/// Pages that are cached; with more, the cache is emptied.
const MAX_PAGES: usize = 1 << 16;

/// A page could not be read; it is requested again when it is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageError;

/// Reads pages of memory.
pub trait PageSource: Send + Sync {
    /// Returns up to `PAGE` bytes at `page`, a multiple of `PAGE`; `None` or no bytes if nothing is there.
    fn read_page(&self, page: u64) -> Result<Option<SharedBytes>, PageError>;
}

/// Requests each page once, until `forget_pages`.
pub struct Pager {
    source: Box<dyn PageSource>,
    pages: Mutex<HashMap<u64, SharedBytes>>,
}

impl Pager {
    pub fn new(source: Box<dyn PageSource>) -> Pager {
        Pager {
            source,
            pages: Mutex::default(),
        }
    }

    /// Returns the cached bytes from `address` to the end of its page.
    pub fn cached_bytes_from(&self, address: u64) -> Option<SharedBytes> {
        let pages = self.lock_pages();
        let page = pages.get(&(address & !(PAGE - 1)))?;
        let rest = page.slice_of_clamped_range((address % PAGE) as usize, PAGE as usize);
        (!rest.is_empty()).then_some(rest)
    }

    /// Requests the page of `address` unless it is cached. Returns whether the byte is known.
    pub fn request_page_of(&self, address: u64) -> bool {
        let page = address & !(PAGE - 1);
        // The source can take long and use this pager, so the lock is not held.
        if !self.lock_pages().contains_key(&page) {
            let Ok(found) = self.source.read_page(page) else {
                return false;
            };
            let found = found.unwrap_or_else(|| SharedBytes::from(Vec::new()));
            let mut pages = self.lock_pages();
            if pages.len() >= MAX_PAGES {
                pages.clear();
            }
            pages.insert(page, found.slice_of_clamped_range(0, PAGE as usize));
        }
        self.cached_bytes_from(address).is_some()
    }

    /// Drops the pages with a byte in `size` bytes from `address` on.
    pub fn forget_pages(&self, address: u64, size: u64) {
        if let Some(last) = size.checked_sub(1) {
            let last = address.saturating_add(last);
            let first = address & !(PAGE - 1);
            self.lock_pages()
                .retain(|&page, _| page < first || page > last);
        }
    }

    fn lock_pages(&self) -> MutexGuard<'_, HashMap<u64, SharedBytes>> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Pager {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Pager({} pages)", self.lock_pages().len())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::Arc;

    use super::*;
    use crate::Space;

    /// Two bytes at 0x1000 up to the page's end at 0x2000, nothing at 0x2000, an error elsewhere.
    struct CountedSource(Arc<AtomicUsize>);

    impl PageSource for CountedSource {
        fn read_page(&self, page: u64) -> Result<Option<SharedBytes>, PageError> {
            self.0.fetch_add(1, Ordering::Relaxed);
            match page {
                0x1000 => Ok(Some(SharedBytes::from(vec![7; 5000]))),
                0x2000 => Ok(None),
                _ => Err(PageError),
            }
        }
    }

    fn counted_pager() -> (Arc<AtomicUsize>, Pager) {
        let requests = Arc::new(AtomicUsize::new(0));
        (
            Arc::clone(&requests),
            Pager::new(Box::new(CountedSource(requests))),
        )
    }

    #[test]
    fn each_page_is_requested_once() {
        let (requests, pager) = counted_pager();
        assert!(pager.cached_bytes_from(0x1800).is_none());
        for _ in 0..2 {
            assert!(pager.request_page_of(0x1800));
            assert!(!pager.request_page_of(0x2000));
        }
        assert_eq!(requests.load(Ordering::Relaxed), 2);
        // bytes beyond the page are dropped
        assert_eq!(
            pager.cached_bytes_from(0x1ffe).map(|rest| rest.len()),
            Some(2)
        );
        pager.forget_pages(0x1fff, 1);
        assert!(pager.cached_bytes_from(0x1800).is_none());
        assert!(!pager.request_page_of(0x2000) && pager.request_page_of(0x1000));
        assert_eq!(requests.load(Ordering::Relaxed), 3);
        pager.forget_pages(0, u64::MAX);
        assert!(!pager.request_page_of(0x2fff));
        assert_eq!(requests.load(Ordering::Relaxed), 4);
    }

    #[test]
    fn page_error_is_not_cached() {
        let (requests, pager) = counted_pager();
        assert!(!pager.request_page_of(0x5000) && !pager.request_page_of(0x5000));
        assert_eq!(requests.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn mapped_bytes_replace_a_page_and_are_read_with_it() {
        let (requests, pager) = counted_pager();
        let mut space = Space::new();
        space.map_bytes(0, 0x1ffe, SharedBytes::from(vec![1, 2, 3]));
        space.set_pager(Some(Arc::new(pager)));
        let view = space.view_at_start();
        let mut out = [0; 16];
        assert_eq!(view.read_instruction_bytes(0x1ffc, &mut out), 0);
        assert!(view.request_page(0x1ffc));
        assert_eq!(view.read_instruction_bytes(0x1ffc, &mut out), 5);
        assert_eq!(out[..5], [7, 7, 1, 2, 3]);
        assert!(!view.request_page(0x2001));
        assert_eq!(requests.load(Ordering::Relaxed), 2);
    }
}
