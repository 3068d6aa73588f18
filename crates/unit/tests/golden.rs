//! Bytes by the packet definitions of section 33.4.2, worked out by hand.

use rtit_unit::{settings::ctl, Error, Event, Kind, Output, Range, RangeKind, Settings, Unit};

const CODE: u64 = 0x40_1000;
const PSB: [u8; 16] = [
    2, 0x82, 2, 0x82, 2, 0x82, 2, 0x82, 2, 0x82, 2, 0x82, 2, 0x82, 2, 0x82,
];
const CBR: [u8; 4] = [2, 3, 10, 0];
const PSBEND: [u8; 2] = [2, 0x23];
/// MODE.Exec for 64-bit code, TIP.PGE with 32 bits: after PSB LastIP is 0.
const PGE: [u8; 7] = [0x99, 1, 0x51, 0x00, 0x10, 0x40, 0];

/// Without packets of time.
fn quiet() -> Settings {
    Settings {
        ctl: ctl::USER | ctl::BRANCH_EN | 3 << ctl::PSB_FREQ,
        ..Settings::default()
    }
}

/// A unit that has begun to trace user code at `CODE`, its output empty.
fn started(settings: &Settings) -> Unit {
    let mut unit = Unit::new(settings).unwrap();
    unit.run(CODE);
    unit.discard();
    unit
}

#[test]
fn the_first_bytes() {
    let mut unit = Unit::new(&quiet()).unwrap();
    unit.run(CODE);
    let expected = [&PSB[..], &CBR, &PSBEND, &PGE].concat();
    assert_eq!(unit.take(), expected);
}

#[test]
fn tsc_and_tma_come_first_in_psb() {
    let mut unit = Unit::new(&Settings::default()).unwrap();
    unit.at(50).unwrap();
    unit.enable();
    // TSC 1_000_000_050 = 3B9ACA32H. 40 ticks a crystal clock: 25_000_001 of them, 017D7841H, and 10 ticks.
    let tsc = [0x19, 0x32, 0xCA, 0x9A, 0x3B, 0, 0, 0];
    let tma = [0x02, 0x73, 0x41, 0x78, 0, 10, 0];
    let expected = [&PSB[..], &tsc, &tma, &CBR, &PSBEND].concat();
    assert_eq!(unit.take(), expected);
}

#[test]
fn six_results_fill_a_short_tnt() {
    let mut unit = started(&quiet());
    for taken in [true, false, false, true, true, false] {
        assert!(unit.output().is_empty());
        unit.conditional(CODE + 2, CODE + 8, taken);
    }
    assert_eq!(unit.take(), [0b1100_1100]);
}

#[test]
fn forty_seven_results_fill_a_long_tnt() {
    let mut settings = quiet();
    settings.set("tnt_form", "long").unwrap();
    let mut unit = started(&settings);
    (0..47).for_each(|index| unit.conditional(CODE, CODE, index == 0));
    // The stop bit is bit 47, the oldest result bit 46.
    assert_eq!(unit.take(), [0x02, 0xA3, 0, 0, 0, 0, 0, 0xC0]);
}

#[test]
fn returns_to_known_calls_are_results() {
    let mut unit = started(&quiet());
    unit.call(CODE + 5, CODE + 0x100);
    unit.ret(CODE + 5);
    unit.call(CODE + 5, CODE + 5); // displacement 0: no return is expected
    unit.ret(CODE + 5);
    // TNT(T), then TIP with 16 bits.
    assert_eq!(unit.take(), [0b110, 0x2D, 0x05, 0x10]);
    unit.indirect_call(CODE + 9, 0x7FFF_0000_0000);
    unit.ret(CODE + 9);
    unit.syscall();
    assert_eq!(unit.take(), [0x6D, 0, 0, 0, 0, 0xFF, 0x7F, 0b110, 0x01]);
}

#[test]
fn events_tell_where_they_came() {
    let mut unit = started(&quiet());
    unit.interrupt(CODE + 1);
    unit.resume(CODE + 2);
    // FUP and TIP.PGE with 16 bits; nothing new about the mode.
    assert_eq!(unit.take(), [0x3D, 0x01, 0x10, 0x01, 0x31, 0x02, 0x10]);
}

#[test]
fn filters_and_tracestop() {
    let ranges = [
        Range {
            kind: RangeKind::FilterEn,
            first: CODE,
            last: CODE + 0xFF,
        },
        Range {
            kind: RangeKind::TraceStop,
            first: CODE + 0x800,
            last: CODE + 0x8FF,
        },
    ];
    let mut unit = Unit::new(&quiet()).unwrap();
    unit.set_ranges(&ranges).unwrap();
    unit.run(CODE);
    unit.discard();
    unit.jump(CODE + 0x100); // TIP.PGD with its target, 16 bits
    unit.jump(CODE + 0x10); // TIP.PGE
    unit.conditional(CODE + 0x12, CODE + 0x200, true); // TIP.PGD without IP
    unit.jump(CODE + 0x800); // TraceStop
    let expected = [0x21, 0x00, 0x11, 0x31, 0x10, 0x10, 0x01, 0x02, 0x83];
    assert_eq!(unit.take(), expected);
    assert!(unit.stopped());
    unit.switch(Some(CODE));
    assert!(unit.output().is_empty());
}

#[test]
fn time_alone_brings_mtc_and_cyc() {
    let mut settings = quiet();
    settings.ctl |= ctl::MTC_EN | ctl::CYC_EN | 3 << ctl::MTC_FREQ;
    let mut unit = started(&settings);
    // TSC 10^9 is ART 25_000_000 = 8 x 3_125_000: the next MTC is due 320 cycles later.
    unit.at(319).unwrap();
    assert!(unit.output().is_empty());
    unit.at(320).unwrap();
    // 320 cycles: 5 low bits 0 with a second byte, 10 in it. CTC: bits 10:3 of the ART, 3_125_001 AND FFH.
    assert_eq!(unit.take(), [0x07, 10 << 1, 0x59, 0x09]);
}

#[test]
fn a_full_region_ends_the_trace_within_a_packet() {
    let mut settings = quiet();
    settings.output = Output::Stop(16 + 4 + 2 + 7 + 2);
    let mut unit = started(&settings);
    unit.indirect_jump(CODE + 4);
    assert_eq!(unit.take(), [0x2D, 0x04]);
    assert!(unit.stopped());
    unit.indirect_jump(CODE + 8);
    unit.disable();
    assert!(unit.output().is_empty());
}

#[test]
fn a_clock_that_cannot_be_changes_nothing() {
    let mut unit = started(&Settings::default());
    unit.at(10).unwrap();
    let state = unit.state();
    let back = Error::ClockWentBack { clock: 9, was: 10 };
    assert_eq!(unit.at(9), Err(back));
    for clock in [u64::MAX, 1 << 54] {
        assert!(matches!(unit.at(clock), Err(Error::ClockTooHigh { .. })));
    }
    assert_eq!(unit.state(), state);
}

#[test]
fn records_that_are_none() {
    let mut unit = Unit::new(&quiet()).unwrap();
    let mut records = [0u8; 100];
    records[0] = Kind::Jump as u8;
    let unknown = |kind| Error::Record {
        offset: 40,
        cause: Box::new(Error::UnknownKind(kind)),
    };
    assert_eq!(unit.feed(&records), Err(unknown(0)));
    records[40] = 22;
    assert_eq!(unit.feed(&records), Err(unknown(22)));
    records[40] = Kind::End as u8;
    let truncated = Error::TruncatedRecord {
        offset: 80,
        size: 20,
    };
    assert_eq!(unit.feed(&records), Err(truncated));
}

#[test]
fn a_record_by_its_layout() {
    let mut record = [0u8; 40];
    record[..4].copy_from_slice(&[1, 1, 5, 0]);
    record[8..16].copy_from_slice(&0x10u64.to_le_bytes());
    record[16..24].copy_from_slice(&0x20u64.to_le_bytes());
    record[24..32].copy_from_slice(&7u64.to_le_bytes());
    let event = Event::from_bytes(&record).unwrap();
    assert_eq!(
        (event.kind, event.flags, event.next_ip()),
        (Kind::Conditional, 1, 0x15)
    );
    assert_eq!((event.target, event.clock), (0x20, 7));
}

#[test]
fn settings_by_name() {
    let mut settings = Settings::default();
    settings.set("ctl", "0x2008").unwrap();
    settings.set("modeexec_suppress", "False").unwrap();
    settings
        .set("psb_plus_order", "FUP:TSC:PIP:CBR:MODE.TSX:MODE.Exec")
        .unwrap();
    settings.set("stop", "4096").unwrap();
    assert_eq!(settings.ctl, ctl::USER | ctl::BRANCH_EN);
    assert!(!settings.parameters.modeexec_suppress);
    assert_eq!(settings.output, Output::Stop(4096));
    settings.check().unwrap();
    for (name, text) in [
        ("ctl", "x"),
        ("cpi", "-1"),
        ("core_ratio", "256"),
        ("psb_plus_order", "FUP"),
        ("tnt_form", "wide"),
        ("colour", "red"),
    ] {
        let error = settings.set(name, text).unwrap_err().to_string();
        assert!(error.contains(name), "{error}");
    }
    for (name, text) in [
        ("ctl", "0x1"), // TraceEn
        ("ctl", "0x4"), // OS
        ("cpi", "0"),
        ("crystal_hz", "1"),
        ("tnt_flush", "7"),
        ("cyc_counter_bits", "20"),
        ("psb_plus_order", "FUP:FUP:PIP:CBR:MODE.TSX:MODE.Exec"),
        ("circular", "1"),
    ] {
        let mut settings = Settings::default();
        settings.set(name, text).unwrap();
        let error = Unit::new(&settings).err().unwrap().to_string();
        assert!(error.contains(name), "{error}");
    }
}
