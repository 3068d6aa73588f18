//! What streams have learned of code, for those that come after them.

use std::fmt;
use std::sync::{Arc, Mutex};

use rtit_image::View;

use super::cache::Code;

/// Nodes and lengths of instructions that wait, at most: some 50 MB.
const MOST: usize = 1 << 20;
/// Views that are looked through.
const VIEWS: usize = 32;

/// The decoded code that streams leave when they end, and that others begin with, whose view has the very same bytes:
/// threads of one process, processes that were forked from one, programs that are started again and again. It is handed
/// on, not shared, so that nothing is locked while a stream is decoded, and results are those of a decoder that
/// begins with nothing. Nobody waits for it: while another thread looks, nothing is found, and in a child that was forked
/// meanwhile nothing ever is. Clones are the same.
#[derive(Clone, Default)]
pub struct Learned(Arc<Mutex<Vec<(View, Code)>>>);

impl fmt::Debug for Learned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Learned")
    }
}

impl Learned {
    /// How many nodes and instructions wait.
    pub fn size(&self) -> usize {
        let all = self.0.try_lock();
        all.map_or(0, |all| all.iter().map(|(_, code)| code.size()).sum())
    }

    /// The code of what `view` has, if any was left that `empty` may become. Whoever has it is the only one.
    pub(crate) fn take(&self, view: &View, empty: &Code) -> Option<Code> {
        let mut all = self.0.try_lock().ok()?;
        let found = all
            .iter()
            .rposition(|(of, code)| code.is_for(empty) && of.has_bytes_of(view))?;
        Some(all.remove(found).1)
    }

    /// Leaves code behind; of the same bytes the larger stays, and what was left first goes when there is too much.
    pub(crate) fn leave(&self, view: View, code: Code) {
        // who asks for pages is asked again by each stream
        if code.size() == 0 || code.size() > MOST || view.asks() {
            return;
        }
        let Ok(mut all) = self.0.try_lock() else {
            return;
        };
        let same = |(of, other): &(View, Code)| other.is_for(&code) && of.has_bytes_of(&view);
        if let Some(at) = all.iter().position(same) {
            if all[at].1.size() > code.size() {
                return;
            }
            all.remove(at);
        }
        all.push((view, code));
        let mut size: usize = all.iter().map(|(_, code)| code.size()).sum();
        while size > MOST || all.len() > VIEWS {
            size -= all.remove(0).1.size();
        }
    }
}

#[cfg(test)]
mod tests {
    use rtit_image::{Bytes, Space};
    use rtit_x86::Mode;

    use super::*;

    /// A code cache that knows one node of a view.
    fn knows(view: &View, limit: usize) -> Code {
        let mut code = Code::new(limit, 0);
        assert!(code.lookup(view, 0x1000, Mode::Bits64).is_ok());
        code
    }

    #[test]
    fn code_goes_to_the_same_bytes_alone() {
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
    fn what_is_left_is_bounded() {
        let learned = Learned::default();
        let mut first = Space::new();
        first.map(0, 0x1000, [0xc3][..].into());
        learned.leave(first.view(), knows(&first.view(), 100));
        let again = first.clone();
        learned.leave(again.view(), knows(&again.view(), 100));
        assert_eq!(learned.0.lock().unwrap().len(), 1);
        for _ in 0..VIEWS {
            let mut space = Space::new();
            space.map(0, 0x1000, [0xc3][..].into());
            learned.leave(space.view(), knows(&space.view(), 100));
        }
        assert_eq!(learned.0.lock().unwrap().len(), VIEWS);
        assert!(learned.take(&first.view(), &Code::new(100, 0)).is_none());
    }
}
