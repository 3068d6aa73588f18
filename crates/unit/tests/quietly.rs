//! The short way of events that make no packets gives the same bytes as the long one, whatever the settings.

use rtit_unit::settings::{ctl, IpCompression, TntForm};
use rtit_unit::{Parameters, Range, RangeKind, Settings, TimeModel, Unit};

const CODE: u64 = 0x40_1000;
const DEFAULT: u64 = ctl::USER | ctl::BRANCH_EN | ctl::TSC_EN;
const EVENTS: usize = 40_000;

struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

#[derive(Clone, Copy)]
enum Event {
    Conditional(bool),
    Jump,
    Call,
    Ret,
    IndirectJump,
}

/// A unit with the clock and the limit that a caller keeps beside it.
struct Driven {
    unit: Unit,
    quiet_until: u64,
    quiet: usize,
    turn: usize,
}

impl Driven {
    fn new(settings: &Settings, ranges: &[Range]) -> Driven {
        let mut unit = Unit::new(settings).unwrap();
        unit.set_ranges(ranges).unwrap();
        unit.run(CODE);
        Driven {
            unit,
            quiet_until: 0,
            quiet: 0,
            turn: 0,
        }
    }

    fn long(&mut self, clock: u64, event: Event, next: u64, target: u64) {
        self.unit.at(clock).unwrap();
        match event {
            Event::Conditional(taken) => self.unit.conditional(next, target, taken),
            Event::Jump => self.unit.jump(target),
            Event::Call => self.unit.call(next, target),
            Event::Ret => self.unit.ret(target),
            Event::IndirectJump => self.unit.indirect_jump(target),
        }
    }

    fn short(&mut self, clock: u64, event: Event, next: u64, target: u64) {
        let quiet = clock < self.quiet_until
            && match event {
                Event::Conditional(taken) => {
                    let ip = if taken { target } else { next };
                    match self.turn % 2 {
                        0 => self.unit.quietly(1, taken, ip),
                        _ => self.unit.conditional_quietly(taken, ip),
                    }
                }
                Event::Jump => self.unit.quietly(0, true, target),
                Event::Ret => self.unit.ret_quietly(target),
                Event::Call => {
                    self.unit.call(next, target);
                    true
                }
                Event::IndirectJump => false,
            };
        self.turn += 1;
        if quiet {
            self.quiet += 1;
        } else {
            self.long(clock, event, next, target);
            self.quiet_until = self.unit.quiet_until();
        }
    }
}

/// How many of the events went the short way.
fn compare(settings: &Settings, ranges: &[Range]) -> usize {
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    let mut long = Driven::new(settings, ranges);
    let mut short = Driven::new(settings, ranges);
    let mut calls: Vec<u64> = Vec::new();
    let mut clock = 0;
    for _ in 0..EVENTS {
        clock += random.below(9);
        let next = CODE + random.below(0x4000);
        let mut target = CODE + random.below(0x4000);
        let event = match random.below(20) {
            0 => Event::Jump,
            1 | 2 => Event::Call,
            3 | 4 => Event::Ret,
            5 => Event::IndirectJump,
            other => Event::Conditional(other % 2 == 0),
        };
        match event {
            Event::Call => calls.push(next),
            // Sometimes a RET goes where no CALL came from.
            Event::Ret => target = calls.pop().unwrap_or(target) + random.below(30) / 29,
            _ => {}
        }
        long.long(clock, event, next, target);
        short.short(clock, event, next, target);
        assert_eq!(short.unit.output(), long.unit.output());
        if short.unit.output().len() > 1000 {
            short.unit.discard();
            long.unit.discard();
        }
    }
    long.unit.at(clock + 1).unwrap();
    short.unit.at(clock + 1).unwrap();
    assert_eq!(short.unit.state(), long.unit.state());
    short.quiet
}

fn settings(ctl: u64) -> Settings {
    Settings {
        ctl,
        ..Settings::default()
    }
}

#[test]
fn most_events_go_the_short_way() {
    for tnt_form in [TntForm::Short, TntForm::Long, TntForm::Mixed] {
        let parameters = Parameters {
            tnt_form,
            ip_compression: IpCompression::Shortest,
            ..Parameters::default()
        };
        let mtc = DEFAULT | ctl::MTC_EN | 3 << ctl::MTC_FREQ;
        for ctl in [mtc, DEFAULT, DEFAULT | ctl::DIS_RETC] {
            let settings = Settings {
                parameters: parameters.clone(),
                ..settings(ctl)
            };
            assert!(compare(&settings, &[]) > EVENTS / 3);
        }
    }
}

#[test]
fn a_clock_of_several_cycles_an_instruction() {
    let time = TimeModel {
        cpi: 7,
        ..TimeModel::default()
    };
    let settings = Settings {
        time,
        ..settings(DEFAULT | ctl::MTC_EN | 3 << ctl::MTC_FREQ)
    };
    assert!(compare(&settings, &[]) > EVENTS / 10);
}

#[test]
fn where_time_or_place_matters_none_does() {
    let range = Range {
        kind: RangeKind::FilterEn,
        first: CODE,
        last: CODE + 0x1fff,
    };
    let cyc = ctl::CYC_EN | 4 << ctl::CYC_THRESH;
    assert_eq!(compare(&settings(DEFAULT | cyc), &[]), 0);
    assert_eq!(compare(&settings(DEFAULT | ctl::DIS_TNT), &[]), 0);
    assert_eq!(compare(&settings(DEFAULT), &[range]), 0);
}

/// Direct branches and straight code alone, many at a time; how many of them went so.
fn compare_many(settings: &Settings) -> usize {
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    let [mut long, mut short] = [0; 2].map(|_| {
        let mut unit = Unit::new(settings).unwrap();
        unit.run(CODE);
        unit
    });
    let (mut clock, mut together, mut count, mut done) = (0, 0, 0, 0);
    let mut events = Vec::new();
    for turn in 0..EVENTS as u64 {
        let taken = random.below(3) > 0;
        // A count of instructions, whether it is conditional, and where it goes.
        events.push((1 + random.below(9), random.below(4) > 0, taken, CODE + turn));
    }
    while done < EVENTS {
        let rest = &events[done..];
        let most = short.room_for_results().min(random.below(300) as usize);
        let (until, mut now, mut taken, mut branches) = (short.quiet_until(), clock, 0, 0);
        let added = short.add_results(most, |_| {
            let at_once = taken + 1 + random.below(4) as usize;
            let (mut results, mut bits) = (0, 0);
            let before = taken;
            while let Some(&(instructions, conditional, other, _)) =
                rest.get(taken).filter(|_| taken < most.min(at_once))
            {
                if now + instructions >= until {
                    break;
                }
                (now, taken) = (now + instructions, taken + 1);
                branches += u64::from(conditional);
                results += u8::from(conditional);
                bits = bits << u8::from(conditional) | u64::from(conditional && other);
            }
            (taken > before).then_some((results, bits))
        });
        assert_eq!(added, branches);
        if taken > 0 {
            short.arrive(rest[taken - 1].3);
        }
        together += taken;
        let step = usize::from(done + taken < EVENTS);
        for (index, &(instructions, conditional, other, ip)) in
            rest.iter().take(taken + step).enumerate()
        {
            clock += instructions;
            let follow = |unit: &mut Unit| {
                unit.at(clock).unwrap();
                if conditional {
                    unit.conditional(ip, ip, other);
                } else {
                    unit.jump(ip);
                }
            };
            follow(&mut long);
            if index >= taken {
                follow(&mut short);
            }
        }
        done += taken + step;
        short.at(clock).unwrap();
        assert_eq!(short.output(), long.output());
        assert_eq!(short.state(), long.state());
        count += 1;
        if count % 3 == 0 {
            short.discard();
            long.discard();
        }
    }
    together
}

#[test]
fn results_go_many_at_a_time() {
    let mtc = DEFAULT | ctl::MTC_EN | 3 << ctl::MTC_FREQ;
    for (ctl, period) in [(mtc, 0), (DEFAULT, 0), (mtc, 3)] {
        assert!(compare_many(&settings(ctl | period << ctl::PSB_FREQ)) > EVENTS * 2 / 3);
    }
    let time = TimeModel {
        cpi: 7,
        ..TimeModel::default()
    };
    let slow = Settings {
        time,
        ..settings(mtc)
    };
    assert!(compare_many(&slow) > EVENTS / 3);
}

#[test]
fn results_go_one_by_one_where_a_packet_has_more_than_six() {
    let parameters = Parameters {
        tnt_form: TntForm::Long,
        ..Parameters::default()
    };
    let long = Settings {
        parameters,
        ..settings(DEFAULT)
    };
    assert_eq!(compare_many(&long), 0);
}
