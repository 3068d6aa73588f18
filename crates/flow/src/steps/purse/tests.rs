use proptest::prelude::*;

use super::*;

/// What happens to a stream: bytes that are taken by steps, a piece that is not known, one that is, a sum.
fn events() -> impl Strategy<Value = Vec<(u8, usize, usize)>> {
    prop::collection::vec((0..4u8, 1..512usize, 0..200usize), 1..400)
}

proptest! {
    /// In streams of which nothing comes again no more is spent than the part that may be, and one piece.
    #[test]
    fn what_never_comes_again_costs_a_part(
        part in 1..40usize,
        streams in prop::collection::vec(events(), 1..6),
    ) {
        let mut purse = Purse::new(part);
        let (mut bytes, mut spent, mut dearest) = (0.0, 0, 0.0f64);
        for stream in streams {
            purse.start_again();
            bytes += STREAM as f64;
            for (event, size, steps) in stream {
                let (before, pause) = (purse.left, purse.pause());
                prop_assert_eq!(purse.left, before);
                if event == 0 || pause != 0 {
                    purse.took(size);
                    bytes += size as f64 * dearest.max((BYTE * FRACTION) as f64) / FRACTION as f64;
                } else if event == 1 {
                    purse.pays_sum(steps);
                } else {
                    purse.looked(size);
                    purse.tried(size, Some(steps));
                }
                dearest = dearest.max(purse.byte as f64);
                spent += (before - purse.left).max(0);
            }
        }
        let most = bytes / part as f64 + (LOOK + MOST_FAR + TRY + 512 * TRY_BYTE) as f64;
        prop_assert!(spent as f64 <= most, "{spent} {most}");
    }

    /// So many bytes are enough, one less is not; a part of them leaves the rest, and to ask changes nothing.
    #[test]
    fn pauses_are_as_long_as_they_say(
        part in 1..40usize,
        size in 64..512usize,
        steps in 0..200usize,
        share in 0.0..1.0f64,
    ) {
        let waiting = || {
            let mut purse = Purse::new(part);
            purse.tried(size, Some(steps));
            let pause = purse.pause();
            (purse, pause)
        };
        let (mut purse, pause) = waiting();
        prop_assert_eq!(purse.pause(), pause);
        purse.took(pause);
        prop_assert_eq!(purse.pause(), 0);
        let (mut purse, pause) = waiting();
        purse.took(pause - 1);
        // the kernel does not begin for one
        prop_assert_eq!(purse.pause(), 256);
        let (mut purse, pause) = waiting();
        let taken = (pause as f64 * share) as usize;
        purse.took(taken);
        prop_assert!(purse.pause() >= (pause - taken).max(256));
    }

    /// Behind a pause there is enough, and it is spent before there is another one, which is longer.
    #[test]
    fn pauses_grow(part in 1..40usize, size in 64..512usize) {
        let mut purse = Purse::new(part);
        let mut last = 0;
        for _ in 0..8 {
            let pause = purse.pause();
            prop_assert!(pause > last, "{pause} {last}");
            last = pause;
            let mut left = pause;
            while left > 0 {
                purse.took(left);
                left = purse.pause();
            }
            while purse.left > 0 {
                prop_assert_eq!(purse.pause(), 0);
                purse.tried(size, None);
            }
        }
    }
}

#[test]
fn what_is_won_is_spent() {
    let mut purse = Purse::new(10);
    assert!(purse.pause() > 0);
    purse.start_again();
    (0..1000).for_each(|_| purse.won(200, 100));
    assert_eq!(purse.pause(), 0);
    assert!(purse.pays_sum(1000));
    // the first one needed a map
    let left = purse.left;
    assert!(purse.pays_sum(1000));
    assert!(left - purse.left < FIRST_SUM);
    assert!(!purse.pays_sum(1 << 20));
}

#[test]
fn a_debt_has_an_end() {
    let mut purse = Purse::new(1);
    (0..1 << 20).for_each(|_| purse.won(200, 1));
    let mut bytes = 0;
    while let pause @ 1.. = purse.pause() {
        purse.took(pause);
        bytes += pause as i64;
    }
    assert!((MOST / BYTE..4 * MOST / BYTE).contains(&bytes), "{bytes}");
}

#[test]
fn with_no_part_everything_is_paid_for() {
    let mut purse = Purse::new(0);
    purse.tried(1 << 30, None);
    assert_eq!(purse.pause(), 0);
    assert!(purse.pays_sum(1 << 30));
}

/// However often nothing was left, and however much was lost.
#[test]
fn pauses_have_an_end() {
    let mut purse = Purse::new(3);
    for _ in 0..40 {
        let pause = purse.pause();
        purse.took(pause);
        assert_eq!(purse.pause(), 0, "{pause}");
        purse.tried(1 << 30, None);
    }
}

/// What another one waited for, and how long, is over.
#[test]
fn a_stream_begins_with_what_is_left() {
    let mut purse = Purse::new(10);
    let first = purse.pause();
    purse.took(first - 1);
    assert_ne!(purse.pause(), 0);
    purse.start_again();
    assert_eq!(purse.pause(), 0);
    // the next stream waits as long for the same
    let mut pauses = [0; 2];
    for pause in &mut pauses {
        purse.start_again();
        purse.pause();
        purse.put(-purse.left);
        *pause = purse.pause();
        purse.took(*pause);
        assert_eq!(purse.pause(), 0);
        purse.put(-purse.left);
        assert!(purse.pause() > *pause);
    }
    assert_eq!(pauses, [first; 2]);
}

/// What happened to a purse of this part, and what that left.
fn left(part: usize, happened: impl Fn(&mut Purse)) -> i64 {
    let mut purse = Purse::new(part);
    happened(&mut purse);
    purse.left
}

#[test]
fn a_part_of_each_cost_is_put_in() {
    let costs: [fn(&mut Purse); 4] = [
        |purse| purse.start_again(),
        |purse| purse.enters(),
        |purse| purse.handed_over(1000),
        |purse| purse.took(1000),
    ];
    for (at, cost) in costs.iter().enumerate() {
        assert!(left(1, cost) > 0, "{at}");
        assert_eq!(left(1, cost) / 10, left(10, cost), "{at}");
        assert_eq!(left(usize::MAX, cost), 0, "{at}");
    }
    // by how much it was
    let (few, many) = (costs[2], |purse: &mut Purse| purse.handed_over(2000));
    assert_eq!(left(1, many), 2 * left(1, few));
    let (few, many) = (costs[3], |purse: &mut Purse| purse.took(2000));
    assert_eq!(left(1, many), 2 * left(1, few));
    // not more than is kept
    assert_eq!(left(1, |purse| purse.took(usize::MAX)), MOST);
    assert_eq!(left(1, |purse| purse.handed_over(usize::MAX)), MOST);
}

#[test]
fn what_is_looked_for_in_vain_is_paid_for() {
    let looked = |entries| left(1, |purse| purse.looked(entries));
    // memory is farther away, up to some end
    assert!(looked(1 << 30) < looked(1 << 12) && looked(1 << 12) < looked(0) && looked(0) < 0);
    assert_eq!(looked(1 << 30), looked(1 << 24));
    let tried = |bytes| left(1, |purse| purse.tried(bytes, None));
    assert!(tried(512) < tried(64) && tried(64) < tried(0) && tried(0) < 0);
}

#[test]
fn a_byte_costs_what_its_steps_do() {
    let took = |tried: fn(&mut Purse)| {
        let mut purse = Purse::new(1);
        (0..100).for_each(|_| tried(&mut purse));
        let before = purse.left;
        purse.took(1000);
        purse.left - before
    };
    let unknown = took(|purse| purse.tried(64, None));
    assert!(took(|purse| purse.tried(64, Some(64))) > 2 * unknown);
    // and half a nanosecond at least, to look at it
    assert!((500..unknown).contains(&took(|purse| purse.tried(64, Some(0)))));
    // none tell nothing
    assert_eq!(took(|purse| purse.tried(0, Some(7))), unknown);
}

#[test]
fn no_more_is_won_than_steps_cost() {
    let won = |bytes, steps| left(1, |purse| purse.won(bytes, steps));
    let by_sum = |steps, own| left(1, |purse| purse.won_by_sum(steps, own));
    assert!(won(0, 0) < 0 && won(512, 1000) < won(64, 1000));
    assert_eq!(by_sum(1000, 1000), 0);
    assert!(by_sum(1000, 0) > by_sum(1000, 500) && by_sum(1000, 500) > 0);
    // a step and what counts it
    assert!(won(0, 1000) > 0 && won(0, 1000) + by_sum(1000, 0) <= 1000 * STEP);
    // more is not kept for what comes later
    assert_eq!(won(0, u32::MAX), MOST);
    assert_eq!(left(1, |purse| purse.tried(usize::MAX >> 8, None)), -MOST);
}

#[test]
fn a_sum_is_paid_for_or_not_made() {
    for (steps, first) in [(0, true), (1000, true), (0, false), (1000, false)] {
        let cost = steps as i64 * SUM_STEP + i64::from(first) * FIRST_SUM;
        for missing in [0, 1] {
            let mut purse = Purse::new(1);
            purse.has_sum = !first;
            purse.left = cost - missing;
            assert_eq!(purse.pays_sum(steps), missing == 0, "{steps} {first}");
            let left = if missing == 0 { 0 } else { cost - 1 };
            assert_eq!(purse.left, left, "{steps} {first}");
            // the map is paid for once
            assert_eq!(purse.has_sum, !first || missing == 0, "{steps} {first}");
        }
    }
}
