//! Loops that a decoded path leaves open: the truth may have gone round more often, and nothing else may differ.

use rtit_truth::{
    compare, CompareOptions, DifferenceReason, Identical, Outcome, PathFinder, Run, RunHash,
};

fn run(ips: &[u64]) -> Run {
    let mut hash = RunHash::default();
    ips.iter().for_each(|&ip| hash.push(ip));
    Run {
        start: ips.first().copied().unwrap_or(0),
        instructions: hash.instructions,
        hash: hash.hash,
    }
}

/// Says that these instructions may come any number of times more.
fn open(round: &[u64]) -> Vec<Run> {
    let head = Run {
        hash: round.len() as u64,
        ..Run::default()
    };
    let ips = round.iter().map(|&start| Run {
        start,
        ..Run::default()
    });
    std::iter::once(head).chain(ips).collect()
}

fn outcome(truth: &[Run], decoded: &[Run]) -> Outcome {
    let truth = truth.iter().copied().map(Ok::<Run, ()>);
    let decoded = decoded.iter().copied().map(Ok);
    compare(truth, decoded, CompareOptions::default()).unwrap()
}

/// Runs of a path that is cut at these places, and at no other.
fn cut(path: &[u64], places: &[usize]) -> Vec<Run> {
    let mut places: Vec<usize> = places.iter().map(|&at| at.min(path.len())).collect();
    places.extend([0, path.len()]);
    places.sort_unstable();
    places.dedup();
    places
        .windows(2)
        .map(|pair| run(&path[pair[0]..pair[1]]))
        .collect()
}

const LOOP: [u64; 4] = [0x1000, 0x1003, 0x1007, 0x1008];
const HANDLER: [u64; 3] = [0x5000, 0x5001, 0x5002];

/// What is decoded: the loop up to its instruction number `left`, the handler.
fn decoded(left: usize) -> Vec<Run> {
    let mut round = LOOP;
    round.rotate_left(left);
    [vec![run(&LOOP[..left])], open(&round), vec![run(&HANDLER)]].concat()
}

/// What was executed: so many rounds more.
fn executed(left: usize, rounds: usize) -> Vec<u64> {
    [LOOP.repeat(rounds), LOOP[..left].to_vec(), HANDLER.to_vec()].concat()
}

#[test]
fn rounds_are_counted() {
    for rounds in [0, 1, 2, 1000] {
        let path = executed(2, rounds);
        let truth = cut(&path, &[4 * rounds + 2]);
        let expected = Outcome::Identical(Identical {
            instructions: path.len() as u64,
            runs: 2,
            repeated: 4 * rounds as u64,
            ..Identical::default()
        });
        assert_eq!(outcome(&truth, &decoded(2)), expected, "{rounds} rounds");
    }
}

/// The code there may be another by then, or the loop be entered anew.
#[test]
fn a_round_that_the_decoder_has_after_the_open_ones_is_kept_for_it() {
    let decoded = [
        vec![run(&[0x900])],
        open(&LOOP),
        vec![run(&LOOP), run(&HANDLER)],
    ]
    .concat();
    for rounds in 1..5 {
        let path = [&[0x900][..], &LOOP.repeat(rounds), &HANDLER].concat();
        let ends: Vec<usize> = (0..=rounds).map(|round| 1 + 4 * round).collect();
        let Outcome::Identical(found) = outcome(&cut(&path, &ends), &decoded) else {
            panic!("{rounds} rounds");
        };
        let counts = (found.instructions, found.repeated);
        assert_eq!(counts, (path.len() as u64, 4 * (rounds as u64 - 1)));
    }
    let without = [&[0x900][..], &HANDLER].concat();
    assert!(matches!(
        outcome(&cut(&without, &[1]), &decoded),
        Outcome::Different(_)
    ));
}

#[test]
fn without_the_word_of_the_decoder_nothing_is_passed_over() {
    let truth = cut(&executed(2, 1), &[6]);
    let told: Vec<Run> = decoded(2)
        .into_iter()
        .filter(|run| run.instructions > 0)
        .collect();
    assert!(matches!(outcome(&truth, &told), Outcome::Different(_)));
    // Announced and not told.
    let mut broken = decoded(2);
    broken.truncate(3);
    broken.push(run(&HANDLER));
    assert!(matches!(outcome(&truth, &broken), Outcome::Different(_)));
}

#[test]
fn a_round_that_is_not_whole_is_a_difference() {
    // One instruction of the loop less, or twice, right before it was left.
    for path in [
        [&LOOP[..], &LOOP[..1], &HANDLER].concat(),
        [&LOOP[..], &LOOP[..2], &LOOP[1..2], &HANDLER].concat(),
    ] {
        let truth = cut(&path, &[path.len() - HANDLER.len()]);
        assert!(matches!(
            outcome(&truth, &decoded(2)),
            Outcome::Different(_)
        ));
    }
}

#[test]
fn what_comes_after_the_loop_is_compared() {
    let mut path = executed(2, 7);
    *path.last_mut().unwrap() += 1;
    let truth = cut(&path, &[30]);
    let Outcome::Different(difference) = outcome(&truth, &decoded(2)) else {
        panic!("the handler's last instruction is another");
    };
    assert_eq!(difference.reason, DifferenceReason::Path { until: 33 });
    assert_eq!(difference.instructions, 30);
}

/// Numbers below a bound, the same in each run.
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) as usize % bound
    }

    fn places(&mut self) -> Vec<usize> {
        (0..self.below(30)).map(|_| self.below(100)).collect()
    }
}

/// However the truth is cut, if only where the loop was left; also where the program comes back to the loop.
#[test]
fn any_cuts() {
    let mut chance = Chance(1);
    for _ in 0..2000 {
        let (mut path, mut told, mut at, mut extra) = (vec![], vec![], 0, 0);
        let mut places = chance.places();
        for _ in 0..=chance.below(4) {
            let (left, rounds) = (chance.below(4), chance.below(20));
            // from where it is in the loop to `left`, and whole rounds more
            let there = (0..4).map(|i| (at + i) % 4).take_while(|&i| i != left);
            let first: Vec<u64> = there.map(|i| LOOP[i]).collect();
            let mut round = LOOP;
            round.rotate_left(left);
            path.extend(&first);
            path.extend(round.repeat(rounds));
            places.push(path.len());
            told.push(run(&first));
            told.extend(open(&round));
            extra += 4 * rounds as u64;
            if chance.below(2) == 0 {
                path.extend(HANDLER);
                told.push(run(&HANDLER));
                places.push(path.len());
            }
            at = left;
        }
        let found = outcome(&cut(&path, &places), &told);
        let Outcome::Identical(identical) = found else {
            panic!("{found:?}: {path:x?} {places:?} {told:x?}");
        };
        assert_eq!(identical.instructions, path.len() as u64);
        assert_eq!(identical.repeated, extra);
    }
}

#[test]
fn any_other_instruction_anywhere_is_a_difference() {
    let mut chance = Chance(2);
    for _ in 0..2000 {
        let (left, rounds) = (chance.below(4), chance.below(9));
        let mut path = executed(left, rounds);
        let at = chance.below(path.len());
        path[at] += 0x10_0000;
        let mut places = chance.places();
        places.push(4 * rounds + left);
        let found = outcome(&cut(&path, &places), &decoded(left));
        assert!(
            matches!(found, Outcome::Different(_)),
            "{path:x?} {found:?}"
        );
    }
}

/// A snapshot is a part of the truth: there, too, it may have gone round more often; and nothing else is taken for it.
#[test]
fn a_part_that_leaves_a_loop_open() {
    let before: Vec<u64> = (0..40).map(|at| 0x9000 + at).collect();
    let lead = [0x2000, 0x2004];
    for rounds in [0, 1, 1000] {
        let head = [before.clone(), lead.to_vec()].concat();
        let path = [head.clone(), executed(2, rounds), before.clone()].concat();
        let places = [20, 40, 42, 42 + 4 * rounds + 2, path.len() - before.len()];
        let truth = cut(&path, &places);
        let find = |decoded: &[Run]| {
            let part = PathFinder::from_runs(decoded.iter().copied().map(Ok::<Run, ()>)).unwrap();
            let truth = || Ok(truth.iter().copied().map(Ok::<Run, ()>));
            part.find_with_open_loops(truth).unwrap()
        };
        let told = [vec![run(&lead)], decoded(2)].concat();
        let found = find(&told).unwrap();
        assert_eq!(found.instructions, (2 + 4 * rounds + 2 + 3) as u64);
        assert_eq!((found.repeated, found.unchecked), (4 * rounds as u64, 0));

        let elsewhere = [vec![run(&[0x2000, 0x2005])], decoded(2)].concat();
        assert_eq!(find(&elsewhere), None);
        let mut another = told.clone();
        *another.last_mut().unwrap() = run(&[0x5000, 0x5001, 0x5003]);
        assert_eq!(find(&another), None);
        let closed: Vec<Run> = told
            .into_iter()
            .filter(|run| run.instructions > 0)
            .collect();
        assert_eq!(find(&closed), None);
    }
}
