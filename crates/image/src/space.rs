//! The changes of one address space, in order of time.

use std::sync::Arc;

use crate::bytes::SharedBytes;
use crate::pager::Pager;
use crate::view::SpaceView;

#[derive(Clone, PartialEq, Debug)]
pub(crate) enum ChangeAction {
    /// Bytes appear at `address` and replace what was there (a mapping, or code that was written).
    Map { address: u64, bytes: SharedBytes },
    /// `start..end` can no longer be read.
    Remove { start: u64, end: u64 },
    /// Nothing can be read any more.
    Clear,
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) struct CodeChange {
    pub time: u64,
    pub action: ChangeAction,
}

/// Code bytes of one process over time. Times are TSC values; changes may be added in any order and
/// take effect in order of time, those of equal time in the order they were added. Cloning is
/// cheap.
#[derive(Clone, Debug, Default)]
pub struct Space {
    /// Shared with the views, which keep the list as it was when they were made, and each with the spaces of those that
    /// were forked.
    changes: Arc<Vec<Arc<CodeChange>>>,
    pager: Option<Arc<Pager>>,
}

impl Space {
    pub fn new() -> Space {
        Space::default()
    }

    /// `bytes` are mapped at `address` from `time` on and replace what they overlap. A mapping that
    /// would reach the last byte of the address space loses that byte.
    pub fn map_bytes(&mut self, time: u64, address: u64, bytes: SharedBytes) {
        let room = usize::try_from(u64::MAX - address).unwrap_or(usize::MAX);
        let bytes = bytes.slice_of_clamped_range(0, room);
        if !bytes.is_empty() {
            self.add_change(time, ChangeAction::Map { address, bytes });
        }
    }

    /// Code was written: `bytes` replace those at `address` from `time` on, mapped before or not.
    pub fn overwrite_bytes(&mut self, time: u64, address: u64, bytes: &[u8]) {
        self.map_bytes(time, address, bytes.into());
    }

    /// From `time` on nothing can be read in `size` bytes from `address`: what is mapped there now
    /// is not known.
    pub fn unmap_range(&mut self, time: u64, address: u64, size: u64) {
        let end = address.saturating_add(size);
        if end > address {
            self.add_change(
                time,
                ChangeAction::Remove {
                    start: address,
                    end,
                },
            );
        }
    }

    /// All mappings are gone (exec).
    pub fn clear_for_exec(&mut self, time: u64) {
        self.add_change(time, ChangeAction::Clear);
    }

    /// Returns the space of a process that is forked from this one at `time`. Later changes of either do
    /// not affect the other.
    pub fn fork_at_time(&self, time: u64) -> Space {
        let end = self.changes.partition_point(|change| change.time <= time);
        let past = self.changes.get(..end).unwrap_or(&[]);
        let cleared = past
            .iter()
            .rposition(|change| matches!(change.action, ChangeAction::Clear));
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

    /// Replaces the code by a copy of that of `parent` at `time`: the process number is reused.
    pub fn replace_by_copy_of_parent(&mut self, time: u64, parent: &Space) {
        let inherited = parent.fork_at_time(time);
        self.clear_for_exec(time);
        for change in inherited.changes.iter() {
            self.add_change(time, change.action.clone());
        }
    }

    /// Returns whether both have the same code at all times. False if either has a pager, as later answers can differ.
    pub fn has_equal_code(&self, other: &Space) -> bool {
        self.pager.is_none() && other.pager.is_none() && self.changes == other.changes
    }

    /// Sets the pager, which has the bytes where nothing is mapped, at all times.
    pub fn set_pager(&mut self, pager: Option<Arc<Pager>>) {
        self.pager = pager;
    }

    pub fn pager(&self) -> Option<&Arc<Pager>> {
        self.pager.as_ref()
    }

    /// Returns the number of different contents over time: 1, and one more for each time at which
    /// readable bytes change or disappear.
    pub fn distinct_content_count(&self) -> usize {
        let mut view = self.view_at_start();
        let mut epochs = 1;
        let mut last = None;
        for change in self.changes.iter() {
            if last != Some(change.time) {
                last = Some(change.time);
                epochs += usize::from(
                    view.apply_changes_until(change.time)
                        .makes_bytes_unreadable(),
                );
            }
        }
        epochs
    }

    /// Returns the number of changes.
    pub fn change_count(&self) -> usize {
        self.changes.len()
    }

    /// Returns a view before the first change. It shares the bytes, and later changes of this space do
    /// not affect it.
    pub fn view_at_start(&self) -> SpaceView {
        SpaceView::new(Arc::clone(&self.changes), self.pager.clone())
    }

    fn add_change(&mut self, time: u64, action: ChangeAction) {
        let changes = Arc::make_mut(&mut self.changes);
        let index = changes.partition_point(|change| change.time <= time);
        changes.insert(index, Arc::new(CodeChange { time, action }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adopting_often_copies_the_changes_only_for_views() {
        let (mut parent, mut space) = (Space::new(), Space::new());
        parent.map_bytes(0, 0x1000, [0x90][..].into());
        let list = Arc::as_ptr(&space.changes);
        for time in 1..100 {
            space.replace_by_copy_of_parent(time, &parent);
        }
        assert_eq!(Arc::as_ptr(&space.changes), list);
        assert_eq!(space.change_count(), 2 * 99);
        let view = space.view_at_start();
        space.replace_by_copy_of_parent(100, &parent);
        assert_ne!(Arc::as_ptr(&space.changes), list);
        drop(view);
    }
}
