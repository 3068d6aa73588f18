//! What streams have learned of code, for those that come after them.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use rtit_image::View;

use super::cache::Code;

/// Bytes of code that wait in this process, at most.
const MOST: usize = 1 << 26;
static WAITING: AtomicUsize = AtomicUsize::new(0);
/// Views that are looked through.
const VIEWS: usize = 32;

/// The decoded code that streams leave when they end, and that others begin with, whose view has the very same bytes:
/// threads of one process, processes that were forked from one, programs that are started again and again. It is handed
/// on, not shared, so that nothing is locked while a stream is decoded, and results are those of a decoder that
/// begins with nothing. Nobody waits for it: while another thread looks, nothing is found, and in a child that was forked
/// meanwhile nothing ever is. Clones are the same.
#[derive(Clone, Default)]
pub struct Learned(Arc<Mutex<Shelf>>);

#[derive(Default)]
struct Shelf(Vec<(View, Code)>);

impl Shelf {
    fn size(&self) -> usize {
        self.0.iter().map(|(_, code)| code.size()).sum()
    }

    fn take(&mut self, at: usize) -> Code {
        let (_, code) = self.0.remove(at);
        WAITING.fetch_sub(code.size(), Ordering::Relaxed);
        code
    }
}

impl Drop for Shelf {
    fn drop(&mut self) {
        WAITING.fetch_sub(self.size(), Ordering::Relaxed);
    }
}

impl fmt::Debug for Learned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Learned")
    }
}

impl Learned {
    /// How many bytes wait.
    pub fn size(&self) -> usize {
        self.0.try_lock().map_or(0, |shelf| shelf.size())
    }

    /// The code of what `view` has, if any was left that `empty` may become. Whoever has it is the only one.
    pub(crate) fn take(&self, view: &View, empty: &Code) -> Option<Code> {
        let mut shelf = self.0.try_lock().ok()?;
        let found = shelf
            .0
            .iter()
            .rposition(|(of, code)| code.is_for(empty) && of.has_bytes_of(view))?;
        Some(shelf.take(found))
    }

    /// Leaves code behind; of the same bytes the larger stays, and what was left first goes when there is too much,
    /// but nothing of others, which may leave no room.
    pub(crate) fn leave(&self, view: View, code: Code) {
        // who asks for pages is asked again by each stream
        if code.is_empty() || code.size() > MOST || view.asks() {
            return;
        }
        let Ok(mut shelf) = self.0.try_lock() else {
            return;
        };
        let others = WAITING.load(Ordering::Relaxed).saturating_sub(shelf.size());
        if others + code.size() > MOST {
            return;
        }
        let same = |(of, other): &(View, Code)| other.is_for(&code) && of.has_bytes_of(&view);
        if let Some(at) = shelf.0.iter().position(same) {
            if shelf.0[at].1.size() > code.size() {
                return;
            }
            shelf.take(at);
        }
        let room = |waiting: usize| Some(waiting + code.size()).filter(|&sum| sum <= MOST);
        while shelf.0.len() >= VIEWS
            || WAITING
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, room)
                .is_err()
        {
            if shelf.0.is_empty() {
                return;
            }
            shelf.take(0);
        }
        shelf.0.push((view, code));
    }
}

#[cfg(test)]
mod tests {
    use rtit_image::{Bytes, Space};
    use rtit_x86::Mode;

    use super::*;

    /// What waits is counted for the process: one test at a time.
    static ALONE: Mutex<()> = Mutex::new(());

    /// A code cache that knows one node of a view.
    fn knows(view: &View, limit: usize) -> Code {
        let mut code = Code::new(limit, 0);
        assert!(code.lookup(view, 0x1000, Mode::Bits64).is_ok());
        code
    }

    #[test]
    fn code_goes_to_the_same_bytes_alone() {
        let _alone = ALONE.lock().unwrap();
        let ret = Bytes::from(&[0xc3_u8][..]);
        let mut space = Space::new();
        space.map(0, 0x1000, ret.clone());
        let (learned, none) = (Learned::default(), Code::new(100, 0));
        learned.leave(space.view(), knows(&space.view(), 100));
        let mut other = Space::new();
        other.map(0, 0x1000, [0xc3][..].into());
        let mut moved = Space::new();
        moved.map(0, 0x2000, ret.clone());
        let mut more = space.clone();
        more.map(0, 0x2000, ret.clone());
        let mut changed = space.clone();
        changed.poke(5, 0x1000, &[0x90]);
        let mut later = changed.view();
        later.advance(5);
        for view in [other.view(), moved.view(), more.view(), later] {
            assert!(learned.take(&view, &none).is_none());
        }
        assert!(learned.take(&space.view(), &Code::new(99, 0)).is_none());
        assert!(learned.take(&space.view(), &Code::new(100, 1)).is_none());
        // before its change, and of a child, it is the same
        assert!(learned.take(&changed.view(), &none).is_some());
        assert!(learned.take(&space.view(), &none).is_none());
        learned.leave(space.view(), knows(&space.view(), 100));
        assert!(learned.take(&space.fork(3).view(), &none).is_some());
    }

    #[test]
    fn what_is_left_of_all_is_bounded() {
        let _alone = ALONE.lock().unwrap();
        let ret = Bytes::from(&[0xc3_u8][..]);
        let mut space = Space::new();
        space.map(0, 0x1000, ret);
        let size = knows(&space.view(), 100).size();
        let (one, two) = (Learned::default(), Learned::default());
        // others wait: room for one more
        WAITING.fetch_add(MOST - size, Ordering::Relaxed);
        one.leave(space.view(), knows(&space.view(), 100));
        two.leave(space.view(), knows(&space.view(), 100));
        assert_eq!((one.size(), two.size()), (size, 0));
        drop(one);
        two.leave(space.view(), knows(&space.view(), 100));
        assert_eq!(two.size(), size);
        drop(two.take(&space.view(), &Code::new(100, 0)));
        WAITING.fetch_sub(MOST - size, Ordering::Relaxed);
    }

    #[test]
    fn what_is_left_is_bounded() {
        let _alone = ALONE.lock().unwrap();
        let learned = Learned::default();
        let mut first = Space::new();
        first.map(0, 0x1000, [0xc3][..].into());
        learned.leave(first.view(), knows(&first.view(), 100));
        let again = first.clone();
        learned.leave(again.view(), knows(&again.view(), 100));
        assert_eq!(learned.0.lock().unwrap().0.len(), 1);
        for _ in 0..VIEWS {
            let mut space = Space::new();
            space.map(0, 0x1000, [0xc3][..].into());
            learned.leave(space.view(), knows(&space.view(), 100));
        }
        assert_eq!(learned.0.lock().unwrap().0.len(), VIEWS);
        assert!(learned.take(&first.view(), &Code::new(100, 0)).is_none());
    }
}
