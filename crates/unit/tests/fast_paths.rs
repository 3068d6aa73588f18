//! The fast paths emit the same bytes as the plain events, for all settings.

use rtit_unit::settings::{ctl, IpCompression, TntForm};
use rtit_unit::{AddressRange, LegalChoices, RangeKind, Settings, TimeModel, TraceUnit};

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

/// A unit, and the limit and counts that its caller keeps.
struct Driven {
    unit: TraceUnit,
    quiet_until: u64,
    quiet: usize,
    event_count: usize,
}

impl Driven {
    fn new(settings: &Settings, ranges: &[AddressRange]) -> Driven {
        let mut unit = TraceUnit::new(settings).unwrap();
        unit.set_ranges(ranges).unwrap();
        unit.switch_thread_in(CODE);
        Driven {
            unit,
            quiet_until: 0,
            quiet: 0,
            event_count: 0,
        }
    }

    fn plain_event(&mut self, clock: u64, event: Event, next: u64, target: u64) {
        self.unit.advance_clock(clock).unwrap();
        match event {
            Event::Conditional(taken) => self.unit.conditional(next, target, taken),
            Event::Jump => self.unit.jump(target),
            Event::Call => self.unit.call(next, target),
            Event::Ret => self.unit.ret(target),
            Event::IndirectJump => self.unit.indirect_jump(target),
        }
    }

    fn fast_event(&mut self, clock: u64, event: Event, next: u64, target: u64) {
        let quiet = clock < self.quiet_until
            && match event {
                Event::Conditional(taken) => {
                    let ip = if taken { target } else { next };
                    match self.event_count % 2 {
                        0 => self.unit.try_quiet_branch(1, taken, ip),
                        _ => self.unit.try_conditional_branch(taken, ip),
                    }
                }
                Event::Jump => self.unit.try_quiet_branch(0, true, target),
                Event::Ret => self.unit.try_compressed_return(target),
                Event::Call => {
                    self.unit.call(next, target);
                    true
                }
                Event::IndirectJump => false,
            };
        self.event_count += 1;
        if quiet {
            self.quiet += 1;
        } else {
            self.plain_event(clock, event, next, target);
            self.quiet_until = self.unit.next_packet_clock();
        }
    }
}

/// Drives two units, by plain events and by fast paths; returns how many events took a fast path.
fn compare(settings: &Settings, ranges: &[AddressRange]) -> usize {
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    let mut reference = Driven::new(settings, ranges);
    let mut fast = Driven::new(settings, ranges);
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
            // Sometimes a RET goes elsewhere.
            Event::Ret => target = calls.pop().unwrap_or(target) + random.below(30) / 29,
            _ => {}
        }
        reference.plain_event(clock, event, next, target);
        fast.fast_event(clock, event, next, target);
        assert_eq!(fast.unit.untaken_output(), reference.unit.untaken_output());
        if fast.unit.untaken_output().len() > 1000 {
            fast.unit.discard_output();
            reference.unit.discard_output();
        }
    }
    reference.unit.advance_clock(clock + 1).unwrap();
    fast.unit.advance_clock(clock + 1).unwrap();
    assert_eq!(fast.unit.save_state(), reference.unit.save_state());
    fast.quiet
}

fn settings(ctl: u64) -> Settings {
    Settings {
        ctl,
        ..Settings::default()
    }
}

#[test]
fn most_events_take_a_fast_path() {
    for tnt_form in [TntForm::Short, TntForm::Long, TntForm::Mixed] {
        let parameters = LegalChoices {
            tnt_form,
            ip_compression: IpCompression::Shortest,
            ..LegalChoices::default()
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
fn fast_paths_equal_plain_events_at_several_cycles_an_instruction() {
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
fn no_event_takes_a_fast_path_with_cyc_or_ranges() {
    let range = AddressRange {
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
    let [mut reference, mut fast] = [0; 2].map(|_| {
        let mut unit = TraceUnit::new(settings).unwrap();
        unit.switch_thread_in(CODE);
        unit
    });
    let (mut clock, mut together, mut count, mut done) = (0, 0, 0, 0);
    let mut events = Vec::new();
    for event_count in 0..EVENTS as u64 {
        let taken = random.below(3) > 0;
        // A count of instructions, whether it is conditional, and where it goes.
        events.push((
            1 + random.below(9),
            random.below(4) > 0,
            taken,
            CODE + event_count,
        ));
    }
    while done < EVENTS {
        let rest = &events[done..];
        let most = fast.room_for_tnt_bits().min(random.below(300) as usize);
        let (until, mut now, mut taken, mut branches) = (fast.next_packet_clock(), clock, 0, 0);
        let added = fast.add_tnt_bits(most, |_| {
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
            fast.set_ip(rest[taken - 1].3);
        }
        together += taken;
        let step = usize::from(done + taken < EVENTS);
        for (index, &(instructions, conditional, other, ip)) in
            rest.iter().take(taken + step).enumerate()
        {
            clock += instructions;
            let follow = |unit: &mut TraceUnit| {
                unit.advance_clock(clock).unwrap();
                if conditional {
                    unit.conditional(ip, ip, other);
                } else {
                    unit.jump(ip);
                }
            };
            follow(&mut reference);
            if index >= taken {
                follow(&mut fast);
            }
        }
        done += taken + step;
        fast.advance_clock(clock).unwrap();
        assert_eq!(fast.untaken_output(), reference.untaken_output());
        assert_eq!(fast.save_state(), reference.save_state());
        count += 1;
        if count % 3 == 0 {
            fast.discard_output();
            reference.discard_output();
        }
    }
    together
}

#[test]
fn adding_many_tnt_bits_equals_single_branches() {
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
fn add_tnt_bits_is_not_available_with_long_tnt() {
    let parameters = LegalChoices {
        tnt_form: TntForm::Long,
        ..LegalChoices::default()
    };
    let reference = Settings {
        parameters,
        ..settings(DEFAULT)
    };
    assert_eq!(compare_many(&reference), 0);
}
