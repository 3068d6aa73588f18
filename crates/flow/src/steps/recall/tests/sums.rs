//! What sums add up, and when there are any.

use super::*;

/// Two parts of eight pieces.
fn stream() -> Vec<u8> {
    (1..17).flat_map(piece).collect()
}

/// A program that knows the pieces, and can pay for sums.
fn rich() -> Program {
    let mut program = knows_a_piece(NO_PART, 1 << 12);
    program.take(&stream(), false);
    program.take(&stream(), true);
    program.purse().won(0, 1 << 17);
    program.give();
    program
}

#[test]
fn parts_are_added_up_when_they_come_again() {
    let mut program = rich();
    for sums in [0, 2, 2] {
        program.take(&stream(), true);
        assert_eq!(program.give().1, sums);
    }
    // a piece alone is no part
    let mut program = rich();
    for _ in 0..3 {
        program.take(&piece(3), true);
        assert_eq!(program.give().1, 0);
    }
}

/// Each piece is 64 TNTs of six branches.
#[test]
fn nothing_that_came_as_a_sum_is_lost_or_counted_twice() {
    let mut program = rich();
    let mut before = program.counts().conditional;
    let mut more = |program: &mut Program| {
        let now = program.counts().conditional;
        std::mem::replace(&mut before, now).abs_diff(now)
    };
    for _ in 0..3 {
        program.take(&stream(), true);
        program.give();
        assert_eq!(more(&mut program), 16 * 64 * 6);
    }
    // without a sink: as steps
    program.take(&stream().repeat(2), true);
    assert_eq!(more(&mut program), 2 * 16 * 64 * 6);
    assert_eq!(program.give().1, 0);
}

/// What a sink knows of a sum it knows by its number: no other may have it later.
#[test]
fn another_sum_has_another_number() {
    let mut program = rich();
    let mut numbers = Vec::new();
    for _ in 0..2 {
        for _ in 0..2 {
            program.take(&stream(), true);
            let mut told = Told::default();
            program.steps.give_hits(&program.code, &mut told);
            numbers.extend(told.numbers);
        }
        program.steps.forget_passages();
        program.take(&stream(), true);
    }
    assert_eq!(numbers.len(), 4);
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), 4);
}
