//! The changes of one address space, in order of time.

use std::sync::Arc;

use crate::bytes::Bytes;
use crate::change::{Action, Change};
use crate::pager::Pager;
use crate::view::View;

/// Code bytes of one process over time. Times are TSC values; changes may be added in any order and
/// take effect in order of time, those of equal time in the order they were added. Cloning is
/// cheap.
#[derive(Clone, Debug, Default)]
pub struct Space {
    /// Shared with the views, which keep the list as it was when they were made, and each with the spaces of those that
    /// were forked.
    changes: Arc<Vec<Arc<Change>>>,
    pager: Option<Arc<Pager>>,
}

impl Space {
    pub fn new() -> Space {
        Space::default()
    }

    /// `bytes` are mapped at `address` from `time` on and replace what they overlap. A mapping that
    /// would reach the last byte of the address space loses that byte.
    pub fn map(&mut self, time: u64, address: u64, bytes: Bytes) {
        let room = usize::try_from(u64::MAX - address).unwrap_or(usize::MAX);
        let bytes = bytes.cut(0, room);
        if !bytes.is_empty() {
            self.add(time, Action::Put { address, bytes });
        }
    }

    /// Code was written: `bytes` replace those at `address` from `time` on, mapped before or not.
    pub fn poke(&mut self, time: u64, address: u64, bytes: &[u8]) {
        self.map(time, address, bytes.into());
    }

    /// From `time` on nothing can be read in `size` bytes from `address`: what is mapped there now
    /// is not known.
    pub fn unmap(&mut self, time: u64, address: u64, size: u64) {
        let end = address.saturating_add(size);
        if end > address {
            self.add(
                time,
                Action::Remove {
                    start: address,
                    end,
                },
            );
        }
    }

    /// All mappings are gone (exec).
    pub fn clear(&mut self, time: u64) {
        self.add(time, Action::Clear);
    }

    /// The space of a process that was forked from this one at `time`: later changes of either do
    /// not reach the other.
    pub fn fork(&self, time: u64) -> Space {
        let end = self.changes.partition_point(|change| change.time <= time);
        let past = self.changes.get(..end).unwrap_or(&[]);
        let cleared = past
            .iter()
            .rposition(|change| matches!(change.action, Action::Clear));
        if cleared.is_none() && past.len() == self.changes.len() {
            return self.clone();
        }
        let live = past
            .get(cleared.map_or(0, |index| index + 1)..)
            .unwrap_or(&[]);
        Space {
            changes: Arc::new(live.to_vec()),
            pager: self.pager.clone(),
        }
    }

    /// The process number is used again at `time`: from then on this is a copy of `parent` as of
    /// `time`.
    pub fn adopt(&mut self, time: u64, parent: &Space) {
        let inherited = parent.fork(time);
        self.clear(time);
        for change in inherited.changes.iter() {
            self.add(time, change.action.clone());
        }
    }

    /// Where nothing is mapped the pager is asked, at any time.
    pub fn set_pager(&mut self, pager: Option<Arc<Pager>>) {
        self.pager = pager;
    }

    pub fn pager(&self) -> Option<&Arc<Pager>> {
        self.pager.as_ref()
    }

    /// The number of different contents that a decoder can meet: 1, and one more for each time at
    /// which bytes that were readable change or go.
    pub fn epochs(&self) -> usize {
        let mut view = self.view();
        let mut epochs = 1;
        let mut last = None;
        for change in self.changes.iter() {
            if last != Some(change.time) {
                last = Some(change.time);
                epochs += usize::from(view.pass(change.time).is_loss());
            }
        }
        epochs
    }

    /// The number of changes recorded.
    pub fn changes(&self) -> usize {
        self.changes.len()
    }

    /// A cursor before the first change. It shares the bytes and does not see later additions to
    /// this space.
    pub fn view(&self) -> View {
        View::new(Arc::clone(&self.changes), self.pager.clone())
    }

    fn add(&mut self, time: u64, action: Action) {
        let changes = Arc::make_mut(&mut self.changes);
        let index = changes.partition_point(|change| change.time <= time);
        changes.insert(index, Arc::new(Change { time, action }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_is_used_often_has_its_changes_copied_for_nobody() {
        let (mut parent, mut space) = (Space::new(), Space::new());
        parent.map(0, 0x1000, [0x90][..].into());
        let own = Arc::as_ptr(&space.changes);
        for time in 1..100 {
            space.adopt(time, &parent);
        }
        assert_eq!(Arc::as_ptr(&space.changes), own);
        assert_eq!(space.changes(), 2 * 99);
        let seen = space.view();
        space.adopt(100, &parent);
        assert_ne!(Arc::as_ptr(&space.changes), own);
        drop(seen);
    }
}
