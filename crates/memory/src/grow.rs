//! Growth of collections.

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::{BuildHasher, Hash};
use std::mem::size_of_val;

use crate::refused::{look, refuse};

/// Room in a collection, which is there before anything is put in: what is put in then takes no memory.
pub trait MakeRoom {
    /// For `more` items. Unwinds if there is none, or if memory is scarce.
    fn room(&mut self, more: usize);
}

macro_rules! room {
    ($collection:ty, $($bounds:tt)*) => {
        impl<$($bounds)*> MakeRoom for $collection {
            #[inline]
            fn room(&mut self, more: usize) {
                if self.capacity() - self.len() < more {
                    look();
                    if self.try_reserve(more).is_err() {
                        refuse();
                    }
                }
            }
        }
    };
}

room!(Vec<T>, T);
room!(String,);
room!(VecDeque<T>, T);
room!(HashMap<K, V, S>, K: Eq + Hash, V, S: BuildHasher);
room!(HashSet<T, S>, T: Eq + Hash, S: BuildHasher);

/// What `Vec` does, for vectors that grow with the input. Unwinds if memory is refused.
pub trait Grow<T>: MakeRoom {
    /// As `push`.
    fn put(&mut self, item: T);

    /// As `extend_from_slice`.
    fn put_all(&mut self, items: &[T])
    where
        T: Clone;

    /// As `extend`.
    fn gather(&mut self, items: impl IntoIterator<Item = T>);

    /// As `resize`.
    fn fill_to(&mut self, len: usize, item: T)
    where
        T: Clone;

    /// As `room`, and no more than that: for what is large, and grows by much at once.
    fn room_exactly(&mut self, more: usize);
}

impl<T> Grow<T> for Vec<T> {
    #[inline]
    fn put(&mut self, item: T) {
        if self.len() == self.capacity() {
            one_more(self);
        }
        self.push(item);
    }

    #[inline]
    fn put_all(&mut self, items: &[T])
    where
        T: Clone,
    {
        self.room(items.len());
        self.extend_from_slice(items);
    }

    fn gather(&mut self, items: impl IntoIterator<Item = T>) {
        let items = items.into_iter();
        let (least, most) = items.size_hint();
        self.room(least);
        match most == Some(least) {
            true => self.extend(items),
            false => items.for_each(|item| self.put(item)),
        }
    }

    fn fill_to(&mut self, len: usize, item: T)
    where
        T: Clone,
    {
        self.room(len.saturating_sub(self.len()));
        self.resize(len, item);
    }

    fn room_exactly(&mut self, more: usize) {
        look();
        if self.try_reserve_exact(more).is_err() {
            refuse();
        }
    }
}

#[cold]
#[inline(never)]
fn one_more<T>(items: &mut Vec<T>) {
    items.room(1);
}

/// As `vec![item; len]`.
pub fn filled<T: Clone>(len: usize, item: T) -> Vec<T> {
    let mut items = Vec::new();
    items.fill_to(len, item);
    items
}

/// As `collect`.
pub fn gathered<T>(items: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut all = Vec::new();
    all.gather(items);
    all
}

/// As `to_vec`.
pub fn copied<T: Clone>(items: &[T]) -> Vec<T> {
    let mut all = Vec::new();
    all.put_all(items);
    all
}

/// As `sort_by_key`, which wants as much memory again.
pub fn sort_by_key<T, K: Ord>(items: &mut [T], key: impl FnMut(&T) -> K) {
    headroom(size_of_val(items));
    items.sort_by_key(key);
}

/// Unwinds unless there are so many bytes at once: for those who take memory and know no error for it.
pub fn headroom(bytes: usize) {
    Vec::<u8>::new().room(bytes);
}
