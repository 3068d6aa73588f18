//! Pages that are asked for when they are needed, with the answers.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::bytes::Bytes;

/// Bytes of a page; it begins at a multiple of it.
pub const PAGE: u64 = 1 << 12;

/// So many answers are remembered; then all are forgotten, and asked for again where they are needed.
const MAX_ANSWERS: usize = 1 << 16;

/// The question could not be answered: nothing is remembered of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoAnswer;

/// Whoever knows what is in memory.
pub trait Fetch: Send + Sync {
    /// What is at `page`, a multiple of `PAGE`, and behind it, up to `PAGE` bytes; `None` or nothing: nothing is there.
    fn fetch(&self, page: u64) -> Result<Option<Bytes>, NoAnswer>;
}

/// Asks for each page once, until it is told to forget.
pub struct Pager {
    fetch: Box<dyn Fetch>,
    answers: Mutex<HashMap<u64, Bytes>>,
}

impl Pager {
    pub fn new(fetch: Box<dyn Fetch>) -> Pager {
        Pager {
            fetch,
            answers: Mutex::default(),
        }
    }

    /// What is known from `address` to the end of its page; nobody is asked.
    pub fn known(&self, address: u64) -> Option<Bytes> {
        let answers = self.answers();
        let page = answers.get(&(address & !(PAGE - 1)))?;
        let rest = page.cut((address % PAGE) as usize, PAGE as usize);
        (!rest.is_empty()).then_some(rest)
    }

    /// Asks for the page of `address` if that was not done; whether there is something at `address`.
    pub fn ask(&self, address: u64) -> bool {
        let page = address & !(PAGE - 1);
        // The answer may take long, and need this pager: it is not waited for with the lock.
        if !self.answers().contains_key(&page) {
            let Ok(found) = self.fetch.fetch(page) else {
                return false;
            };
            let found = found.unwrap_or_else(|| Bytes::from(Vec::new()));
            let mut answers = self.answers();
            if answers.len() >= MAX_ANSWERS {
                answers.clear();
            }
            answers.insert(page, found.cut(0, PAGE as usize));
        }
        self.known(address).is_some()
    }

    /// The pages that have a byte in `size` bytes from `address` on are asked for again when they are needed.
    pub fn forget(&self, address: u64, size: u64) {
        if let Some(last) = size.checked_sub(1) {
            let last = address.saturating_add(last);
            let first = address & !(PAGE - 1);
            self.answers()
                .retain(|&page, _| page < first || page > last);
        }
    }

    fn answers(&self) -> MutexGuard<'_, HashMap<u64, Bytes>> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Pager {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Pager({} pages)", self.answers().len())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::Arc;

    use super::*;
    use crate::Space;

    /// Two bytes at 0x1000 up to the page's end at 0x2000, nothing at 0x2000, no answer elsewhere.
    struct Counted(Arc<AtomicUsize>);

    impl Fetch for Counted {
        fn fetch(&self, page: u64) -> Result<Option<Bytes>, NoAnswer> {
            self.0.fetch_add(1, Ordering::Relaxed);
            match page {
                0x1000 => Ok(Some(Bytes::from(vec![7; 5000]))),
                0x2000 => Ok(None),
                _ => Err(NoAnswer),
            }
        }
    }

    fn counted() -> (Arc<AtomicUsize>, Pager) {
        let asked = Arc::new(AtomicUsize::new(0));
        (Arc::clone(&asked), Pager::new(Box::new(Counted(asked))))
    }

    #[test]
    fn each_page_is_asked_for_once() {
        let (asked, pager) = counted();
        assert!(pager.known(0x1800).is_none());
        for _ in 0..2 {
            assert!(pager.ask(0x1800));
            assert!(!pager.ask(0x2000));
        }
        assert_eq!(asked.load(Ordering::Relaxed), 2);
        // what was given beyond the page is not taken
        assert_eq!(pager.known(0x1ffe).map(|rest| rest.len()), Some(2));
        pager.forget(0x1fff, 1);
        assert!(pager.known(0x1800).is_none());
        assert!(!pager.ask(0x2000) && pager.ask(0x1000));
        assert_eq!(asked.load(Ordering::Relaxed), 3);
        pager.forget(0, u64::MAX);
        assert!(!pager.ask(0x2fff));
        assert_eq!(asked.load(Ordering::Relaxed), 4);
    }

    #[test]
    fn no_answer_is_not_remembered() {
        let (asked, pager) = counted();
        assert!(!pager.ask(0x5000) && !pager.ask(0x5000));
        assert_eq!(asked.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn what_is_mapped_goes_before_and_is_read_together() {
        let (asked, pager) = counted();
        let mut space = Space::new();
        space.map(0, 0x1ffe, Bytes::from(vec![1, 2, 3]));
        space.set_pager(Some(Arc::new(pager)));
        let view = space.view();
        let mut out = [0; 16];
        assert_eq!(view.read(0x1ffc, &mut out), 0);
        assert!(view.ask(0x1ffc));
        assert_eq!(view.read(0x1ffc, &mut out), 5);
        assert_eq!(out[..5], [7, 7, 1, 2, 3]);
        assert!(!view.ask(0x2001));
        assert_eq!(asked.load(Ordering::Relaxed), 2);
    }
}
