//! Spaces against a naive model: one byte a map entry, replayed from the start for every question.

use std::collections::HashMap;

use proptest::prelude::*;
use rtit_image::{ChangedCode, SharedBytes, Space};

const SIZE: u64 = 80;
/// Miri looks at some addresses.
const EACH: usize = if cfg!(miri) { 11 } else { 1 };

#[derive(Clone, Debug)]
enum SpaceStep {
    Map(u64, Vec<u8>),
    Poke(u64, Vec<u8>),
    Unmap(u64, u64),
    Clear,
}

fn space_step() -> impl Strategy<Value = SpaceStep> {
    let bytes = || prop::collection::vec(0u8..4, 0..24);
    prop_oneof![
        4 => (0..SIZE - 24, bytes()).prop_map(|(at, bytes)| SpaceStep::Map(at, bytes)),
        4 => (0..SIZE - 24, bytes()).prop_map(|(at, bytes)| SpaceStep::Poke(at, bytes)),
        2 => (0..SIZE, 0..30u64).prop_map(|(at, size)| SpaceStep::Unmap(at, size)),
        1 => Just(SpaceStep::Clear),
    ]
}

fn space_history() -> impl Strategy<Value = Vec<(u64, SpaceStep)>> {
    prop::collection::vec((0..40u64, space_step()), 0..25)
}

fn space_of_history(history: &[(u64, SpaceStep)]) -> Space {
    let mut space = Space::new();
    for (time, step) in history {
        match step {
            SpaceStep::Map(at, bytes) => {
                space.map_bytes(*time, *at, SharedBytes::from(bytes.clone()))
            }
            SpaceStep::Poke(at, bytes) => space.overwrite_bytes(*time, *at, bytes),
            SpaceStep::Unmap(at, size) => space.unmap_range(*time, *at, *size),
            SpaceStep::Clear => space.clear_for_exec(*time),
        }
    }
    space
}

/// What each address reads as at `time` (`None`: before the first change), by the documented rules.
fn modelled_bytes_at_time(history: &[(u64, SpaceStep)], time: Option<u64>) -> HashMap<u64, u8> {
    let mut sorted = history.to_vec();
    sorted.sort_by_key(|(time, _)| *time);
    let mut now: HashMap<u64, u8> = HashMap::new();
    let mut seen: HashMap<u64, ()> = HashMap::new();
    let mut early = false;
    for (when, step) in &sorted {
        early |= time < Some(*when);
        match step {
            SpaceStep::Map(at, bytes) | SpaceStep::Poke(at, bytes) => {
                for (address, byte) in (*at..).zip(bytes) {
                    let first = seen.insert(address, ()).is_none();
                    if !early || first {
                        now.insert(address, *byte);
                    }
                }
            }
            SpaceStep::Unmap(at, size) => {
                for address in *at..at + size {
                    seen.insert(address, ());
                    if !early {
                        now.remove(&address);
                    }
                }
            }
            SpaceStep::Clear if early => break,
            SpaceStep::Clear => {
                now.clear();
                seen.clear();
            }
        }
    }
    now
}

proptest! {
    #[test]
    fn view_at_any_time_equals_the_model(history in space_history(), times in prop::collection::vec(0..45u64, 0..8)) {
        let mut times = times;
        times.sort_unstable();
        let mut view = space_of_history(&history).view_at_start();
        let mut before = modelled_bytes_at_time(&history, None);
        for time in std::iter::once(None).chain(times.into_iter().map(Some)) {
            let changed = time.map_or(ChangedCode::None, |time| view.advance_to_time(time));
            let now = modelled_bytes_at_time(&history, time);
            for address in (0..SIZE + 40).step_by(EACH) {
                let mut out = [0xEE; 16];
                let count = view.read_instruction_bytes(address, &mut out);
                let expected: Vec<u8> = (address..address + 16).map_while(|at| now.get(&at).copied()).collect();
                prop_assert_eq!(&out[..count], &expected[..], "address {} time {:?}", address, time);
                prop_assert!(out[count..].iter().all(|byte| *byte == 0xEE));
                let section = view.section_bytes(address);
                prop_assert_eq!(section.is_some(), count > 0);
                if let Some(section) = section {
                    let both = section.len().min(count);
                    prop_assert_eq!(&section[..both], &out[..both]);
                }
                let forgotten = match &changed {
                    ChangedCode::None => false,
                    ChangedCode::All => true,
                    ChangedCode::Ranges(ranges) => ranges.iter().any(|(start, end)| (*start..*end).contains(&address)),
                };
                // what was no byte may have been the end of code
                prop_assert!(forgotten || now.get(&address) == before.get(&address), "stale byte at {}", address);
            }
            before = now;
        }
    }

    #[test]
    fn forked_space_has_earlier_changes_only(history in space_history(), at in 0..40u64, later in space_step()) {
        let mut parent = space_of_history(&history);
        let child = parent.fork_at_time(at);
        if let SpaceStep::Map(address, bytes) = later {
            parent.overwrite_bytes(at, address, &bytes);
        }
        let past: Vec<_> = history.iter().filter(|(time, _)| *time <= at).cloned().collect();
        let mut reused = space_of_history(&history);
        reused.replace_by_copy_of_parent(at, &child);
        let mut adopted = reused.view_at_start();
        adopted.advance_to_time(at);
        let mut view = child.view_at_start();
        view.advance_to_time(at);
        for address in (0..SIZE).step_by(EACH) {
            let mut out = [0; 16];
            let count = view.read_instruction_bytes(address, &mut out);
            let mut again = [0; 16];
            adopted.read_instruction_bytes(address, &mut again);
            let now = modelled_bytes_at_time(&past, Some(at));
            let expected: Vec<u8> = (address..address + 16).map_while(|at| now.get(&at).copied()).collect();
            prop_assert_eq!(&out[..count], &expected[..]);
            if !history.iter().any(|(time, _)| *time > at) {
                prop_assert_eq!(again, out);
            }
        }
    }
}

#[test]
fn bytes_mapped_where_nothing_was_are_readable_earlier() {
    let mut space = Space::new();
    space.map_bytes(10, 0x1000, vec![1; 16].into());
    space.map_bytes(20, 0x1010, vec![2; 16].into());
    let mut view = space.view_at_start();
    let mut out = [0; 16];
    assert_eq!(view.read_instruction_bytes(0x100c, &mut out), 16);
    assert_eq!(out, [1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2]);
    assert_eq!(view.advance_to_time(100), ChangedCode::None);
    assert_eq!(space.distinct_content_count(), 1);
}

#[test]
fn overwriting_reports_the_bytes_that_differ() {
    let mut space = Space::new();
    space.map_bytes(0, 0x1000, vec![0x90; 64].into());
    space.overwrite_bytes(50, 0x1008, &[0x90, 0xCC, 0xCC, 0x90]);
    let mut view = space.view_at_start();
    assert_eq!(view.advance_to_time(49), ChangedCode::None);
    assert_eq!(
        view.advance_to_time(50),
        ChangedCode::Ranges(vec![(0x1009, 0x100b)])
    );
    assert_eq!(view.advance_to_time(10), ChangedCode::None);
    assert_eq!(space.distinct_content_count(), 2);
}

#[test]
fn mapping_the_same_bytes_again_changes_nothing() {
    let mut space = Space::new();
    let code = SharedBytes::from(vec![7; 32]);
    space.map_bytes(0, 0x1000, code.clone());
    space.map_bytes(5, 0x1000, code);
    space.map_bytes(6, 0x1000, vec![7; 32].into());
    assert_eq!(space.view_at_start().advance_to_time(9), ChangedCode::None);
}

#[test]
fn mapping_after_unmapping_reports_a_change() {
    let mut space = Space::new();
    space.map_bytes(0, 0x1000, vec![1; 16].into());
    space.unmap_range(5, 0x1004, 8);
    space.map_bytes(6, 0x1002, vec![1; 4].into());
    space.map_bytes(7, 0x1000, vec![1; 32].into());
    let mut view = space.view_at_start();
    assert_eq!(
        view.advance_to_time(5),
        ChangedCode::Ranges(vec![(0x1004, 0x100c)])
    );
    assert_eq!(
        view.advance_to_time(6),
        ChangedCode::Ranges(vec![(0x1004, 0x1006)])
    );
    // the last 16 could be read from the beginning on
    assert_eq!(
        view.advance_to_time(7),
        ChangedCode::Ranges(vec![(0x1006, 0x100c)])
    );
    assert_eq!(space.distinct_content_count(), 2);
}

#[test]
fn first_mapping_after_exec_reports_no_further_change() {
    let mut space = Space::new();
    space.clear_for_exec(5);
    space.map_bytes(6, 0x1000, vec![1; 16].into());
    let mut view = space.view_at_start();
    assert_eq!(view.advance_to_time(5), ChangedCode::All);
    assert_eq!(view.advance_to_time(6), ChangedCode::None);
    assert_eq!(space.distinct_content_count(), 1);
}

#[test]
fn exec_reports_all_code_as_changed() {
    let mut space = Space::new();
    space.map_bytes(0, 0x1000, vec![1; 8].into());
    space.clear_for_exec(5);
    space.map_bytes(6, 0x2000, vec![2; 8].into());
    let mut view = space.view_at_start();
    assert!(view.section_bytes(0x2000).is_none());
    assert_eq!(view.advance_to_time(5), ChangedCode::All);
    assert!(view.section_bytes(0x1000).is_none());
    assert_eq!(view.section_bytes(0x2004), Some(&[2u8; 4][..]));
}

#[test]
fn mapping_at_the_top_of_the_address_space_does_not_wrap() {
    let mut space = Space::new();
    space.map_bytes(0, u64::MAX - 4, vec![1; 64].into());
    space.unmap_range(1, u64::MAX - 1, u64::MAX);
    let mut view = space.view_at_start();
    let mut out = [0; 16];
    assert_eq!(view.read_instruction_bytes(u64::MAX - 4, &mut out), 4);
    assert_eq!(view.read_instruction_bytes(u64::MAX, &mut out), 0);
    assert_eq!(
        view.advance_to_time(1),
        ChangedCode::Ranges(vec![(u64::MAX - 1, u64::MAX)])
    );
}
