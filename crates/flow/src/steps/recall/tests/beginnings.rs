//! Where passages may begin, and that those which have begun are taken to their end.

use super::super::super::passages::{Passage, Passages};
use super::*;

#[test]
fn none_begins_within_a_packet_or_where_time_is_told() {
    let mut program = knows_a_piece(NO_PART, 1 << 14);
    let bytes = [&piece(1)[..], &[0; AHEAD]].concat();
    let mut finds = |change: fn(&mut Lane)| {
        let mut lane = Lane::new(program.base, 0);
        change(&mut lane);
        let found = program
            .steps
            .passages
            .find(&bytes, 64, 1 << 13, &lane, |_, _| true);
        (program.steps.passages.pause(&lane), found)
    };
    assert_eq!(finds(|_| {}), (0, Some(0)));
    // the walker, or a RET, took the first branches of the TNT
    let (pause, found) = finds(|lane| lane.rest = 0x0c);
    assert!(pause > 0 && found.is_none());
    // what an MTC tells here may settle something, or is told with the CYC before it
    assert_eq!(finds(|lane| lane.leaves_mtcs = true), (0, None));
    assert_eq!(finds(|lane| lane.told = 0), (0, None));
}

/// What has begun goes on where a step was missing, though looking for it took all that was there.
#[test]
fn what_has_begun_is_no_pause() {
    let mut program = looping(NO_PART);
    program.purse().won(0, 7);
    assert!((1..50).contains(&program.purse().left()));
    program.take(&piece(1), true);
    assert!(program.purse().left() < 0);
    assert_eq!(program.steps.passages.all.len(), 1);
    let before = program.counts().conditional;
    program.purse().won(0, 1 << 12);
    program.take(&piece(1), true);
    assert_eq!(program.steps.sums.waiting(), 2);
    assert_eq!(program.counts().conditional - before, 64 * 6);
}

#[test]
fn there_are_none_in_a_first_stream_or_without_memory() {
    for (passages, ready, off) in [(0, true, true), (1, false, true), (1, true, false)] {
        let mut passages = Passages::new(&StepLimits {
            passages,
            ..StepLimits::default()
        });
        passages.start_again(ready);
        assert_eq!(passages.is_off(), off);
    }
}

/// As many as fit: a piece takes its bytes, a word for each of its steps and what is known of it.
#[test]
fn what_passages_take_is_counted() {
    let mut program = knows_a_piece(NO_PART, 1 << 20);
    for round in 0..4u8 {
        // three packets that tell pieces apart
        let pieces = (0..32).map(|which| {
            let mut bytes = piece(which);
            bytes[1] = 0x80 | round << 1;
            bytes
        });
        pieces.for_each(|piece| program.take(&piece, true));
    }
    let index = (1 << 8) * size_of::<u32>();
    let take = |pieces: usize| pieces * (64 + 64 * size_of::<u32>() + size_of::<Passage>()) + index;
    let kept = program.steps.passages.all.len();
    assert!(take(kept) <= LIMIT, "{kept}");
    // the last one that was tried did not fit: that its trail was there already
    assert!(take(kept + 2) > LIMIT, "{kept}");
}
