use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use proptest::prelude::*;

use super::*;
use crate::{caught, look};

/// Whether memory is scarce is known to all threads.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    MAPS.set(0);
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

thread_local! {
    static MAPS: Cell<usize> = const { Cell::new(0) };
}

const PAGE: usize = 1 << 12;
const FIRST: usize = 1 << 30;

/// Far from one another, and each below the last.
fn map(size: usize) -> Option<usize> {
    assert_eq!(size, 8 << 20);
    MAPS.set(MAPS.get() + 1);
    Some(FIRST - MAPS.get() * (size + PAGE))
}

fn bytes(size: usize) -> Layout {
    Layout::from_size_align(size, 8).unwrap()
}

fn is_scarce() -> bool {
    caught(look).is_err()
}

fn ready() -> Box<Reserves> {
    let reserves = Box::new(Reserves::new(map));
    assert!(reserves.are_ready());
    reserves
}

#[test]
fn before_any_is_mapped_nothing_is_had_or_given_back() {
    let _alone = alone();
    let reserves = Reserves::new(map);
    assert_eq!(reserves.take(bytes(8)), None);
    for at in [0, 8, usize::MAX] {
        assert!(!reserves.may_have(at) && !reserves.give_back(at, bytes(8)));
    }
}

#[test]
fn what_is_large_or_aligned_otherwise_gets_nothing() {
    let _alone = alone();
    let reserves = ready();
    assert_eq!(reserves.take(bytes((1 << 20) + 1)), None);
    assert_eq!(
        reserves.take(Layout::from_size_align(8, 128).unwrap()),
        None
    );
    assert!(reserves.take(bytes(1 << 20)).is_some());
    let aligned = reserves.take(Layout::from_size_align(1, 64).unwrap());
    assert_eq!(aligned.map(|at| at % 64), Some(0));
}

#[test]
fn others_memory_is_not_taken_back() {
    let _alone = alone();
    let reserves = ready();
    let at = reserves.take(bytes(8)).unwrap();
    for other in [at - 1, at + (8 << 20)] {
        assert!(!reserves.may_have(other) && !reserves.give_back(other, bytes(8)));
    }
    assert!(reserves.may_have(at + (8 << 20) - 1));
}

#[test]
fn memory_is_scarce_from_a_quarter_of_a_megabyte_on() {
    let _alone = alone();
    let reserves = ready();
    let most = reserves.take(bytes((1 << 18) - 64)).unwrap();
    assert!(!is_scarce());
    let last = reserves.take(bytes(0)).unwrap();
    assert!(is_scarce());
    assert!(reserves.give_back(last, bytes(0)));
    assert!(!is_scarce());
    assert!(reserves.give_back(most, bytes((1 << 18) - 64)));
}

#[test]
fn what_somebody_keeps_is_replaced() {
    let _alone = alone();
    let reserves = ready();
    let kept = bytes(1 << 18);
    let all: Vec<usize> = (0..MOST)
        .map(|number| {
            assert_eq!(MAPS.get(), number + 1);
            let at = reserves.take(kept).unwrap();
            assert!(is_scarce());
            assert_eq!(reserves.are_ready(), number + 1 < MOST);
            assert_eq!(is_scarce(), number + 1 == MOST);
            at
        })
        .collect();
    // one that is free is used again, not the one in which something is left
    let second = reserves.take(bytes(64)).unwrap();
    assert!(reserves.give_back(all[3], kept));
    assert!(is_scarce() && reserves.are_ready() && !is_scarce());
    assert_eq!(MAPS.get(), MOST);
    assert_eq!(reserves.take(kept), Some(all[3]));
    assert!(reserves.give_back(second, bytes(64)));
    for at in all {
        assert!(reserves.may_have(at) && reserves.give_back(at, kept));
    }
    assert!(reserves.are_ready() && !is_scarce());
    assert_eq!(MAPS.get(), MOST);
}

#[test]
fn a_map_that_is_refused_is_asked_for_again() {
    let _alone = alone();
    fn later(size: usize) -> Option<usize> {
        map(size).filter(|_| MAPS.get() > 2)
    }
    let reserves = Reserves::new(later);
    assert!(!reserves.are_ready() && !reserves.are_ready());
    assert_eq!(reserves.take(bytes(8)), None);
    assert!(reserves.are_ready());
    assert!(reserves.take(bytes(8)).is_some());
}

/// As in the child of a thread that forked while another had it.
#[test]
fn nobody_waits_for_ever() {
    let _alone = alone();
    let reserves = ready();
    let at = reserves.take(bytes(8)).unwrap();
    reserves.locked.store(true, Ordering::Relaxed);
    assert_eq!(reserves.take(bytes(8)), None);
    assert!(reserves.give_back(at, bytes(8)));
    reserves.unlock();
    // nobody knew whether the other was at it
    assert_ne!(reserves.take(bytes(8)), Some(at));
}

#[test]
fn a_part_goes_over_no_other() {
    let _alone = alone();
    let reserves = ready();
    let most = reserves.take(bytes(60 * 64)).unwrap();
    let gap = reserves.take(bytes(4 * 64)).unwrap();
    let behind = reserves.take(bytes(64 * 64)).unwrap();
    assert!(reserves.give_back(gap, bytes(4 * 64)));
    // the gap is too short, and what is behind it begins a word of the account
    assert_eq!(reserves.take(bytes(8 * 64)), Some(behind + 64 * 64));
    assert_eq!(reserves.take(bytes(4 * 64)), Some(most + 60 * 64));
}

#[derive(Clone, Debug)]
enum Step {
    Take(usize),
    GiveBack(prop::sample::Index),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        (0usize..300).prop_map(Step::Take),
        (0usize..64).prop_map(|grains| Step::Take(grains * 64)),
        ((1usize << 17)..=1 << 20).prop_map(Step::Take),
        any::<prop::sample::Index>().prop_map(Step::GiveBack),
    ];
    prop::collection::vec(step, 0..80)
}

/// The first gap between what is taken, by starts and ends.
fn gap(taken: &BTreeMap<usize, usize>, size: usize, all: (usize, usize)) -> Option<usize> {
    let starts = std::iter::once(all.0).chain(taken.values().copied());
    let ends = taken.keys().copied().chain([all.1]);
    starts
        .zip(ends)
        .find(|(start, end)| end - start >= size)
        .map(|(start, _)| start)
}

proptest! {
    /// As much is taken as whole grains make, at the first place that is free, and it comes back.
    #[test]
    fn each_part_has_one_owner(steps in steps()) {
        let _alone = alone();
        let reserves = ready();
        let base = FIRST - (8 << 20) - PAGE;
        let mut taken: BTreeMap<usize, usize> = BTreeMap::new();
        let mut sizes = BTreeMap::new();
        for step in steps {
            match step {
                Step::Take(size) => {
                    let whole = size.max(1).next_multiple_of(64);
                    let found = reserves.take(bytes(size));
                    prop_assert_eq!(found, gap(&taken, whole, (base, base + (8 << 20))));
                    if let Some(at) = found {
                        taken.insert(at, at + whole);
                        sizes.insert(at, size);
                    }
                }
                Step::GiveBack(index) if !sizes.is_empty() => {
                    let (&at, &size) = sizes.iter().nth(index.index(sizes.len())).unwrap();
                    prop_assert!(reserves.may_have(at));
                    prop_assert!(reserves.give_back(at, bytes(size)));
                    taken.remove(&at);
                    sizes.remove(&at);
                }
                Step::GiveBack(_) => {}
            }
            let used: usize = taken.iter().map(|(start, end)| end - start).sum();
            prop_assert_eq!(is_scarce(), used >= 1 << 18);
        }
    }
}
