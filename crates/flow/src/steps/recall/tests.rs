mod beginnings;
mod sums;

use rtit_image::{Space, View};
use rtit_x86::Mode;

use super::super::purse::Purse;
use super::super::table::base_of;
use super::*;
use crate::counts::Counts;
use crate::event::Event;
use crate::settings::{Settings, StepLimits};
use crate::sink::{End, Sequence, Sink, Step, StepSum, Wants};

/// What a sink of hits is told.
#[derive(Default)]
struct Told {
    steps: usize,
    sums: usize,
    /// Of the sums.
    numbers: Vec<u32>,
}

impl Sink for Told {
    const WANTS: Wants = Wants::Hits;

    fn append(&mut self, _sequence: &Sequence<'_>, _time: u64) {}
    fn close(&mut self, _end: End, _offset: u64) {}
    fn event(&mut self, _event: &Event) {}

    fn hits(&mut self, _step: &impl Step, _times: u64) {
        self.steps += 1;
    }

    fn sum_hits(&mut self, sum: &impl StepSum, _times: u64) {
        self.sums += 1;
        self.numbers.push(sum.number());
    }
}

const LIMIT: usize = 1 << 14;

/// A program whose packets all have steps.
struct Program {
    view: View,
    code: Code,
    steps: Steps,
    stack: ReturnStack,
    base: u32,
}

impl Program {
    /// At 1000.
    fn of(bytes: &[u8]) -> Program {
        Program::with(bytes, 0, 0)
    }

    /// `phrases` and `part` as `StepLimits` has them.
    fn with(bytes: &[u8], phrases: usize, part: usize) -> Program {
        let mut space = Space::new();
        space.map(0, 0x1000, bytes.into());
        let limits = StepLimits {
            phrases,
            passages: LIMIT,
            passages_part: part,
            ..StepLimits::default()
        };
        let mut program = Program {
            view: space.view(),
            code: Code::new(1 << 20, 0),
            steps: Steps::new(
                &Settings {
                    steps: limits,
                    ..Settings::default()
                },
                true,
            ),
            stack: ReturnStack::default(),
            base: 0,
        };
        assert!(program.steps.begin(Wants::Hits));
        let node = program.code.lookup(&program.view, 0x1000, Mode::Bits64);
        program.base = base_of(node.expect("there is code"));
        program
    }

    /// Packets with passages or without.
    fn take(&mut self, packets: &[u8], by_passages: bool) {
        self.steps.passages.start_again(by_passages);
        let bytes = [packets, &[0; AHEAD]].concat();
        let (end, mut lane) = (packets.len(), Lane::new(self.base, 0));
        let (code, view) = (&mut self.code, &self.view);
        let (steps, stack) = (&mut self.steps, &mut self.stack);
        steps.begin_passage();
        loop {
            match steps.run(false, code, stack, &bytes, end, 1 << 13, &mut lane) {
                Exit::Leave => break,
                Exit::Tnt(tnt) => assert!(steps.fill_tnt(code, view, lane.base, tnt)),
                Exit::Return(site) => {
                    let next = steps.fill_return(code, view, lane.base, site, lane.at);
                    lane.base = next.expect("there is code");
                    stack.drop_top();
                    lane.at += usize::from(lane.rest == 0);
                }
                Exit::Phrase => steps.fill_phrase(&bytes, &lane),
                exit => panic!("{exit:?}"),
            }
        }
        assert_eq!((lane.at, lane.rest), (end, 0));
        self.base = lane.base;
    }

    /// As `take`, and what is left more than before.
    fn gain(&mut self, packets: &[u8], by_passages: bool) -> i64 {
        let before = self.purse().left();
        self.take(packets, by_passages);
        self.purse().left() - before
    }

    fn purse(&mut self) -> &mut Purse {
        &mut self.steps.passages.purse
    }

    /// How many steps and sums a sink of hits is told, and what is left more than before.
    fn give(&mut self) -> (usize, usize, i64) {
        let before = self.purse().left();
        let mut told = Told::default();
        self.steps.give_hits(&self.code, &mut told);
        (told.steps, told.sums, self.purse().left() - before)
    }

    fn counts(&mut self) -> Counts {
        self.steps.spread();
        let mut counts = Counts::default();
        self.steps.add_counts(&mut counts);
        counts
    }
}

#[test]
fn full_ranges_are_added_up_in_the_midst_of_a_stream() {
    // je 1002; jmp 1000
    let mut program = Program::of(&[0x74, 0x00, 0xeb, 0xfc]);
    // which end where they end
    let piece = [0xac, 0xd4, 0x92, 0xfe];
    program.take(&piece, false);
    program.take(&piece, true);
    let pieces = program.steps.passages.all.len();
    // each is a range
    let times = LIMIT - 3;
    program.take(&piece.repeat(times), true);
    assert_eq!(program.steps.passages.all.len(), pieces);
    let waiting = program.steps.sums.waiting() * size_of::<u32>();
    assert!(waiting != 0 && waiting <= LIMIT / 8, "{waiting}");
    assert_eq!(program.counts().conditional, 24 * (times as u64 + 2));
}

#[test]
fn another_piece_is_taken_where_the_stack_differs() {
    let mut code = [0x90; 0x50];
    let mut put = |at: usize, bytes: &[u8]| code[at..at + bytes.len()].copy_from_slice(bytes);
    // 1000: je 1010; call 1040; jmp 1000; 1010: call 1040; jmp 1000; 1040: je 1044; jmp 1040; 1044: ret
    put(0, &[0x74, 0x0e, 0xe8, 0x39, 0, 0, 0, 0xeb, 0xf7]);
    put(0x10, &[0xe8, 0x2b, 0, 0, 0, 0xeb, 0xe9]);
    put(0x40, &[0x74, 0x02, 0xeb, 0xfc, 0xc3]);
    let mut program = Program::of(&code);
    // one branch on and into the loop; the loop and its end, and a RET
    let (here, there, rest) = ([0x08], [0x0c], [0x80, 0x80, 0x0e]);
    for call in [here, there] {
        program.take(&call, false);
        program.take(&rest, false);
    }
    // what is expected where a stream begins
    program.take(&here, true);
    program.take(&rest, true);
    program.take(&there, false);
    program.take(&rest, true);
    let pieces = program.steps.passages.all.len();
    assert_eq!(pieces, 3);
    let times = program.counts();
    for call in [here, there, there, here] {
        program.take(&call, false);
        assert_eq!(program.steps.sums.waiting(), 0);
        program.take(&rest, true);
        assert_eq!(program.steps.passages.all.len(), pieces);
        assert_eq!(program.steps.sums.waiting(), 2);
        program.steps.spread();
    }
    let returns = program.counts().compressed_returns - times.compressed_returns;
    assert_eq!(returns, 4);
    assert!(program.stack.is_empty());
}

/// 1000: je 1002; jmp 1000
const LOOP: [u8; 4] = [0x74, 0x00, 0xeb, 0xfc];
/// So little is put in that it is nothing.
const NO_PART: usize = 1 << 16;

/// As many TNTs of six results, the first of which say this, as a piece has that ends where its last bytes say so. They are
/// a step each, without phrases.
fn piece(which: u8) -> Vec<u8> {
    let ends = [0xac, 0xa0, 0xec, 0xfe];
    [&[0x80 | which << 1][..], &[0xfe; 59], &ends].concat()
}

/// A program that runs in `LOOP`, without phrases, and is where a piece ends.
fn looping(part: usize) -> Program {
    let mut program = Program::with(&LOOP, usize::MAX, part);
    program.take(&piece(0), false);
    program
}

/// One that knows a piece and has so many steps with passages behind it.
fn knows_a_piece(part: usize, won: u32) -> Program {
    let mut program = looping(part);
    program.take(&piece(1), false);
    program.purse().won(0, won);
    program.take(&piece(1), true);
    assert_eq!(program.steps.passages.all.len(), 1);
    program.steps.spread();
    program
}

/// As much is put in where there is nothing left for passages as where there are none.
#[test]
fn what_is_done_without_passages_is_put_in() {
    let mut program = looping(1);
    program.purse().tried(1 << 18, None);
    let new = program.gain(&piece(1), false);
    for by_passages in [false, true] {
        let gains = [1, 11, 21].map(|times| program.gain(&piece(1).repeat(times), by_passages));
        // to make steps costs as well
        assert!(0 < gains[0] && gains[0] < new);
        assert!(gains[0] < gains[1]);
        assert_eq!(gains[1] - gains[0], gains[2] - gains[1]);
    }
    let gain = program.gain(&piece(1), false);
    assert_eq!(program.gain(&piece(1), true), gain);
    assert!(program.steps.passages.all.is_empty());
    let before = program.purse().left();
    program.steps.passages.start_again(true);
    assert!((1..gain).contains(&(program.purse().left() - before)));
}

/// Bytes that are taken piece by piece are put in as others are, beside what is won.
#[test]
fn what_is_done_with_passages_is_put_in() {
    let more = |mut program: Program, by_passages| {
        // what follows a piece is known from the first time on
        let gains = [5, 10, 20].map(|times| program.gain(&piece(1).repeat(times), by_passages));
        gains[2] - gains[1]
    };
    let won = more(knows_a_piece(NO_PART, 1 << 12), true);
    assert!(won > 0);
    let bytes = more(knows_a_piece(1, 1 << 12), false);
    assert_eq!(more(knows_a_piece(1, 1 << 12), true), won + bytes);
}

#[test]
fn pieces_that_are_looked_for_cost() {
    let mut program = knows_a_piece(NO_PART, 1 << 14);
    // what is expected at the beginning is the first
    let expected = program.gain(&piece(1), true);
    program.take(&piece(2), false);
    let new = program.gain(&piece(2), true);
    let found = program.gain(&piece(2), true);
    assert_eq!(program.steps.passages.all.len(), 2);
    assert!(found < expected, "{expected} {found}");
    // it is looked for as well, and nothing is won
    assert!(new < found - expected, "{expected} {new} {found}");
}

/// What the steps of new pieces tell of bytes: those of a loop without phrases cost more than is thought at first.
#[test]
fn pieces_tell_what_bytes_cost() {
    let mut program = knows_a_piece(1, 1 << 15);
    let of_bytes = |program: &mut Program| {
        let before = program.purse().left();
        program.purse().took(1000);
        program.purse().left() - before
    };
    let known = of_bytes(&mut program);
    (2..30).for_each(|which| program.take(&piece(which), true));
    assert_eq!(program.steps.passages.all.len(), 29);
    let told = of_bytes(&mut program);
    assert!(told > known, "{told} {known}");
    // where there is no more room they are not told
    (30..64).for_each(|which| program.take(&piece(which), true));
    let kept = program.steps.passages.all.len();
    assert!((30..60).contains(&kept), "{kept}");
    assert!(of_bytes(&mut program) >= told);
}

#[test]
fn a_piece_that_comes_to_nothing_costs() {
    let mut program = knows_a_piece(NO_PART, 1 << 14);
    let lane = Lane::new(program.base, 0);
    let bytes = [0xfa; 8];
    let log = program.steps.log.len();
    let length = program.steps.hits.trail.len();
    let trail = &mut program.steps.hits.trail;
    program.steps.passages.begin(&bytes, 8, &lane, trail, log);
    trail.extend([0; 3]);
    let before = program.purse().left();
    program.steps.begin_passage();
    assert_eq!(program.steps.hits.trail.len(), length);
    assert!(program.purse().left() < before);
}

#[test]
fn sums_are_paid_for_and_pay() {
    // two parts of eight
    let stream: Vec<u8> = (1..17).flat_map(piece).collect();
    let mut program = knows_a_piece(NO_PART, 1 << 12);
    program.take(&stream, false);
    program.take(&stream, true);
    assert_eq!(program.steps.passages.all.len(), 16);
    program.give();
    for _ in 0..3 {
        program.take(&stream, true);
        assert_eq!(program.give().1, 0);
    }
    // a map costs more than that
    assert!(program.purse().left() > 0);
    program.purse().won(0, 1 << 15);
    program.take(&stream, true);
    let (_, sums, gain) = program.give();
    assert_eq!(sums, 2);
    assert!(gain < 0);
    // the second time they are there
    program.take(&stream, true);
    let (steps, sums, gain) = program.give();
    assert_eq!((steps, sums), (0, 2));
    assert!(gain > 0);
}

/// Steps that are handed over are put in.
#[test]
fn hits_are_handed_over_at_a_cost() {
    let mut program = looping(1);
    program.take(&piece(1), false);
    program.give();
    assert_eq!(program.give(), (0, 0, 0));
    program.take(&piece(1), false);
    let (steps, _, few) = program.give();
    assert!(steps > 0 && few > 0);
    program.take(&(1..30).flat_map(piece).collect::<Vec<u8>>(), false);
    let (more, _, many) = program.give();
    assert!(more > steps);
    assert_eq!(many * steps as i64, few * more as i64);
}
