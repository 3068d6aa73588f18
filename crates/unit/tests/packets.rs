//! Bytes by the packet definitions of section 33.4.2, worked out by hand.

use rtit_unit::{
    settings::ctl, AddressRange, CaptureEvent, Error, EventKind, Output, RangeKind, Settings, Unit,
};

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
    unit.switch_in(CODE);
    unit.discard_output();
    unit
}

#[test]
fn enable_emits_psb_plus_and_pge() {
    let mut unit = Unit::new(&quiet()).unwrap();
    unit.switch_in(CODE);
    let expected = [&PSB[..], &CBR, &PSBEND, &PGE].concat();
    assert_eq!(unit.take_output(), expected);
}

#[test]
fn tsc_and_tma_come_first_in_psb() {
    let mut unit = Unit::new(&Settings::default()).unwrap();
    unit.advance_clock(50).unwrap();
    unit.enable();
    // TSC 1_000_000_050 = 3B9ACA32H. 40 ticks a crystal clock: 25_000_001 of them, 017D7841H, and 10 ticks.
    let tsc = [0x19, 0x32, 0xCA, 0x9A, 0x3B, 0, 0, 0];
    let tma = [0x02, 0x73, 0x41, 0x78, 0, 10, 0];
    let expected = [&PSB[..], &tsc, &tma, &CBR, &PSBEND].concat();
    assert_eq!(unit.take_output(), expected);
}

#[test]
fn six_bits_fill_a_short_tnt() {
    let mut unit = started(&quiet());
    for taken in [true, false, false, true, true, false] {
        assert!(unit.output().is_empty());
        unit.conditional(CODE + 2, CODE + 8, taken);
    }
    assert_eq!(unit.take_output(), [0b1100_1100]);
}

#[test]
fn forty_seven_bits_fill_a_long_tnt() {
    let mut settings = quiet();
    settings.set("tnt_form", "long").unwrap();
    let mut unit = started(&settings);
    (0..47).for_each(|index| unit.conditional(CODE, CODE, index == 0));
    // The stop bit is bit 47, the oldest result bit 46.
    assert_eq!(unit.take_output(), [0x02, 0xA3, 0, 0, 0, 0, 0, 0xC0]);
}

#[test]
fn returns_to_remembered_calls_are_tnt_bits() {
    let mut unit = started(&quiet());
    unit.call(CODE + 5, CODE + 0x100);
    unit.ret(CODE + 5);
    unit.call(CODE + 5, CODE + 5); // displacement 0: no return is expected
    unit.ret(CODE + 5);
    // TNT(T), then TIP with 16 bits.
    assert_eq!(unit.take_output(), [0b110, 0x2D, 0x05, 0x10]);
    unit.indirect_call(CODE + 9, 0x7FFF_0000_0000);
    unit.ret(CODE + 9);
    unit.syscall();
    assert_eq!(
        unit.take_output(),
        [0x6D, 0, 0, 0, 0, 0xFF, 0x7F, 0b110, 0x01]
    );
}

#[test]
fn events_emit_fup_with_their_ip() {
    let mut unit = started(&quiet());
    unit.interrupt(CODE + 1);
    unit.resume(CODE + 2);
    // FUP and TIP.PGE with 16 bits; nothing new about the mode.
    assert_eq!(
        unit.take_output(),
        [0x3D, 0x01, 0x10, 0x01, 0x31, 0x02, 0x10]
    );
}

#[test]
fn filter_and_tracestop_ranges_end_the_trace() {
    let ranges = [
        AddressRange {
            kind: RangeKind::FilterEn,
            first: CODE,
            last: CODE + 0xFF,
        },
        AddressRange {
            kind: RangeKind::TraceStop,
            first: CODE + 0x800,
            last: CODE + 0x8FF,
        },
    ];
    let mut unit = Unit::new(&quiet()).unwrap();
    unit.set_ranges(&ranges).unwrap();
    unit.switch_in(CODE);
    unit.discard_output();
    unit.jump(CODE + 0x100); // TIP.PGD with its target, 16 bits
    unit.jump(CODE + 0x10); // TIP.PGE
    unit.conditional(CODE + 0x12, CODE + 0x200, true); // TIP.PGD without IP
    unit.jump(CODE + 0x800); // TraceStop
    let expected = [0x21, 0x00, 0x11, 0x31, 0x10, 0x10, 0x01, 0x02, 0x83];
    assert_eq!(unit.take_output(), expected);
    assert!(unit.is_stopped());
    unit.switch_out_and_in(Some(CODE));
    assert!(unit.output().is_empty());
}

#[test]
fn time_alone_emits_mtc_and_cyc() {
    let mut settings = quiet();
    settings.ctl |= ctl::MTC_EN | ctl::CYC_EN | 3 << ctl::MTC_FREQ;
    let mut unit = started(&settings);
    // TSC 10^9 is ART 25_000_000 = 8 x 3_125_000: the next MTC is due 320 cycles later.
    unit.advance_clock(319).unwrap();
    assert!(unit.output().is_empty());
    unit.advance_clock(320).unwrap();
    // 320 cycles: 5 low bits 0 with a second byte, 10 in it. CTC: bits 10:3 of the ART, 3_125_001 AND FFH.
    assert_eq!(unit.take_output(), [0x07, 10 << 1, 0x59, 0x09]);
}

#[test]
fn long_wait_in_the_kernel_emits_tsc_instead_of_mtc() {
    let mut unit = started(&Settings::default());
    unit.syscall();
    unit.discard_output();
    unit.wait_until(100_000).unwrap();
    assert!(unit.output().is_empty());
    unit.switch_in(CODE);
    // TSC 1_000_100_000 = 3B9C50A0H. 40 ticks a crystal clock: 25_002_500 of them, 017D8204H, and no tick more.
    let tsc = [0x19, 0xA0, 0x50, 0x9C, 0x3B, 0, 0, 0];
    let tma = [0x02, 0x73, 0x04, 0x82, 0, 0, 0];
    let pge = [0x99, 1, 0x71, 0x00, 0x10, 0x40, 0, 0, 0];
    assert_eq!(unit.take_output(), [&tsc[..], &tma, &CBR, &pge].concat());
}

#[test]
fn short_time_in_the_kernel_emits_mtc() {
    let mut unit = started(&Settings::default());
    unit.syscall();
    unit.discard_output();
    unit.wait_until(320).unwrap();
    assert_eq!(unit.take_output(), [0x59, 0x09]);
}

#[test]
fn full_region_cuts_a_packet_and_stops() {
    let mut settings = quiet();
    settings.output = Output::Stop(16 + 4 + 2 + 7 + 2);
    let mut unit = started(&settings);
    unit.indirect_jump(CODE + 4);
    assert_eq!(unit.take_output(), [0x2D, 0x04]);
    assert!(unit.is_stopped());
    unit.indirect_jump(CODE + 8);
    unit.disable();
    assert!(unit.output().is_empty());
}

#[test]
fn invalid_clock_changes_nothing() {
    let mut unit = started(&Settings::default());
    unit.advance_clock(10).unwrap();
    let state = unit.save_state();
    let back = Error::ClockWentBack { clock: 9, was: 10 };
    assert_eq!(unit.advance_clock(9), Err(back));
    for clock in [u64::MAX, 1 << 54] {
        assert!(matches!(
            unit.advance_clock(clock),
            Err(Error::ClockTooHigh { .. })
        ));
    }
    assert_eq!(unit.save_state(), state);
}

#[test]
fn malformed_records_are_refused() {
    let mut unit = Unit::new(&quiet()).unwrap();
    let mut records = [0u8; 100];
    records[0] = EventKind::Jump as u8;
    let unknown = |kind| Error::Record {
        offset: 40,
        cause: Box::new(Error::UnknownKind(kind)),
    };
    assert_eq!(unit.feed_records(&records), Err(unknown(0)));
    records[40] = 22;
    assert_eq!(unit.feed_records(&records), Err(unknown(22)));
    records[40] = EventKind::End as u8;
    let truncated = Error::TruncatedRecord {
        offset: 80,
        size: 20,
    };
    assert_eq!(unit.feed_records(&records), Err(truncated));
}

#[test]
fn record_layout() {
    let mut record = [0u8; 40];
    record[..4].copy_from_slice(&[1, 1, 5, 0]);
    record[8..16].copy_from_slice(&0x10u64.to_le_bytes());
    record[16..24].copy_from_slice(&0x20u64.to_le_bytes());
    record[24..32].copy_from_slice(&7u64.to_le_bytes());
    let event = CaptureEvent::from_bytes(&record).unwrap();
    assert_eq!(
        (event.kind, event.flags, event.next_ip()),
        (EventKind::Conditional, 1, 0x15)
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

/// `quiet` with what `change` does.
fn with(change: impl FnOnce(&mut Settings)) -> Settings {
    let mut settings = quiet();
    change(&mut settings);
    settings
}

fn stop_range(first: u64) -> AddressRange {
    AddressRange {
        kind: RangeKind::TraceStop,
        first,
        last: first + 0xFF,
    }
}

/// OVF, then FUP with 48 bits: nothing is compressed against what was lost.
const OVF_FUP: [u8; 9] = [0x02, 0xF3, 0x7D, 0x00, 0x10, 0x40, 0, 0, 0];
/// PSB+ at `CODE` in user mode: MODE.TSX, MODE.Exec, FUP with 32 bits.
fn psb_plus_at_code() -> Vec<u8> {
    let context = [0x99, 0x20, 0x99, 0x01, 0x5D, 0x00, 0x10, 0x40, 0];
    [&PSB[..], &CBR, &context, &PSBEND].concat()
}

#[test]
fn enable_while_stopped_sends_nothing() {
    let mut unit = started(&quiet());
    unit.set_ranges(&[stop_range(CODE + 0x800)]).unwrap();
    unit.switch_out_and_in(Some(CODE));
    unit.jump(CODE + 0x800);
    assert!(unit.is_stopped());
    unit.disable();
    assert!(!unit.trace_en());
    unit.discard_output();
    unit.enable();
    unit.resume(CODE);
    unit.indirect_jump(CODE + 4);
    assert!(unit.trace_en() && unit.is_stopped() && !unit.packet_en());
    assert!(unit.output().is_empty());
}

#[test]
fn enable_while_enabled_sends_nothing() {
    let mut unit = started(&quiet());
    unit.call(CODE + 5, CODE + 0x100);
    unit.enable();
    assert!(unit.output().is_empty());
    unit.ret(CODE + 5);
    unit.syscall();
    assert_eq!(unit.take_output(), [0b110, 0x01]);
}

#[test]
fn disable_in_user_mode_sends_results_fup_and_pgd() {
    let mut unit = started(&quiet());
    unit.conditional(CODE + 2, CODE + 8, true);
    unit.disable();
    assert_eq!(unit.take_output(), [0b110, 0x3D, 0x08, 0x10, 0x01]);
    assert!(!unit.trace_en() && !unit.packet_en() && !unit.has_plain_branches());
    unit.disable();
    unit.indirect_jump(CODE);
    assert!(unit.output().is_empty());
}

#[test]
fn disable_in_the_kernel_sends_nothing() {
    let mut unit = started(&quiet());
    unit.syscall();
    unit.discard_output();
    unit.disable();
    assert!(unit.output().is_empty());
    unit.resume(CODE);
    assert!(unit.output().is_empty());
}

#[test]
fn second_enable_in_user_mode_emits_no_psb() {
    let mut unit = started(&quiet());
    unit.call(CODE + 5, CODE);
    unit.disable();
    unit.discard_output();
    unit.enable();
    // PacketByteCnt is not 0. Nothing is known of mode and LastIP: MODE.Exec, TIP.PGE with 48 bits.
    let expected = [&CBR[..], &[0x99, 1, 0x71, 0x00, 0x10, 0x40, 0, 0, 0]].concat();
    assert_eq!(unit.take_output(), expected);
    unit.ret(CODE + 5);
    assert_eq!(unit.take_output(), [0x2D, 0x05, 0x10]);
    assert_eq!(unit.psbs(), 1);
}

#[test]
fn psb_of_an_enable_comes_before_or_after_pge() {
    let pge = [0x99, 1, 0x71, 0x00, 0x10, 0x40, 0, 0, 0];
    for (order, expected) in [
        (
            "before_pge",
            // Before PacketEn is 1 PSB+ has no MODE.Exec and no FUP; LastIP is 0 after it.
            [&PSB[..], &CBR, &[0x99, 0x20], &PSBEND, &PGE].concat(),
        ),
        ("after_pge", [&pge[..], &psb_plus_at_code()].concat()),
    ] {
        let mut unit = started(&with(|settings| {
            settings.psb_cyc = false;
            settings.set("psb_on_enable_order", order).unwrap();
        }));
        unit.disable();
        unit.discard_output();
        unit.enable();
        assert_eq!(unit.take_output(), expected, "{order}");
        assert_eq!(unit.psbs(), 2);
    }
}

#[test]
fn overflow_in_user_mode_sends_ovf_and_fup() {
    let mut unit = started(&quiet());
    unit.conditional(CODE + 2, CODE + 8, true);
    unit.call(CODE + 5, CODE + 0x100);
    unit.overflow(Some(CODE));
    assert_eq!(unit.take_output(), OVF_FUP);
    // Neither the result nor the CALL are known to a decoder.
    unit.ret(CODE + 5);
    unit.syscall();
    assert_eq!(unit.take_output(), [0x2D, 0x05, 0x10, 0x01]);
}

#[test]
fn overflow_in_the_kernel_sends_ovf() {
    let mut unit = started(&quiet());
    unit.overflow(None);
    assert_eq!(unit.take_output(), [0x02, 0xF3]);
    assert!(!unit.packet_en());
    unit.resume(CODE);
    assert_eq!(
        unit.take_output(),
        [0x99, 1, 0x71, 0x00, 0x10, 0x40, 0, 0, 0]
    );
}

#[test]
fn overflow_before_any_mode_exec_is_followed_by_psb() {
    let mut unit = Unit::new(&quiet()).unwrap();
    unit.enable();
    unit.discard_output();
    unit.overflow(Some(CODE));
    let expected = [&OVF_FUP[..], &psb_plus_at_code()].concat();
    assert_eq!(unit.take_output(), expected);
}

#[test]
fn cyc_precedes_overflow() {
    let settings = with(|settings| settings.ctl |= ctl::CYC_EN | 5 << ctl::CYC_THRESH);
    for (cycles, cyc) in [(15, vec![]), (16, vec![16 << 3 | 3])] {
        let mut unit = started(&settings);
        unit.advance_clock(cycles).unwrap();
        unit.overflow(Some(CODE));
        assert_eq!(unit.take_output(), [&cyc[..], &OVF_FUP].concat());
    }
}

#[test]
fn overflow_into_a_stop_range_ends_the_trace() {
    let mut unit = Unit::new(&quiet()).unwrap();
    unit.set_ranges(&[stop_range(CODE + 0x800)]).unwrap();
    unit.switch_in(CODE);
    unit.discard_output();
    unit.overflow(Some(CODE + 0x8FF));
    assert_eq!(unit.take_output(), [0x02, 0xF3, 0x02, 0x83]);
    assert!(unit.is_stopped());
    unit.overflow(Some(CODE));
    assert!(unit.output().is_empty());
}

#[test]
fn overflow_without_tracing_emits_nothing() {
    let mut unit = Unit::new(&quiet()).unwrap();
    unit.overflow(Some(CODE));
    assert!(unit.output().is_empty());
    unit.enable();
    // The processor is in user mode at CODE: MODE.TSX in PSB+, and TIP.PGE.
    let expected = [&PSB[..], &CBR, &[0x99, 0x20], &PSBEND, &PGE].concat();
    assert_eq!(unit.take_output(), expected);
}

/// Offsets of the PSBs among TIPs of 3 bytes.
fn psb_offsets(settings: &Settings) -> Vec<u64> {
    let mut unit = Unit::new(settings).unwrap();
    unit.switch_in(CODE);
    unit.discard_output();
    let mut offsets = vec![0];
    for _ in 0..2100 {
        let before = unit.bytes_written();
        unit.indirect_jump(CODE);
        if unit.take_output().windows(16).any(|bytes| bytes == PSB) {
            offsets.push(before + 3);
        }
    }
    assert_eq!(unit.psbs(), offsets.len() as u64);
    offsets
}

#[test]
fn psb_comes_each_time_the_period_is_crossed() {
    let every_2048 = with(|settings| settings.ctl &= !(15 << ctl::PSB_FREQ));
    // 29 bytes, then 673 TIPs; PSB+ has 31 bytes, then 673 and 672 TIPs come to the next multiples of 2048.
    let expected = [0, 2048, 2048 + 31 + 673 * 3, 2048 + 2 * 31 + 1345 * 3];
    assert_eq!(psb_offsets(&every_2048), expected);
}

#[test]
fn psb_that_does_not_count_itself_comes_later() {
    let settings = with(|settings| {
        settings.ctl &= !(15 << ctl::PSB_FREQ);
        settings.parameters.psb_counts_itself = false;
    });
    // 7 bytes of MODE.Exec and TIP.PGE count; 681 TIPs reach 2050, 682 more 4096, 683 more 6145.
    let second = 29 + 681 * 3;
    let third = second + 31 + 682 * 3;
    assert_eq!(
        psb_offsets(&settings),
        [0, second, third, third + 31 + 683 * 3]
    );
}

#[test]
fn psb_delay_postpones_the_psb() {
    let settings = with(|settings| {
        settings.ctl &= !(15 << ctl::PSB_FREQ);
        settings.parameters.psb_delay = 20;
    });
    // 7 more TIPs: 21 bytes.
    assert_eq!(psb_offsets(&settings).get(1), Some(&(2048 + 21)));
}

#[test]
fn psb_empties_the_return_stack() {
    let every_2048 = with(|settings| settings.ctl &= !(15 << ctl::PSB_FREQ));
    let mut unit = started(&every_2048);
    (0..672).for_each(|_| unit.indirect_jump(CODE));
    unit.call(CODE + 5, CODE);
    unit.discard_output();
    unit.indirect_jump(CODE); // the last byte of 2048, and PSB+
    assert_eq!(
        unit.take_output(),
        [&[0x2D, 0x00, 0x10], &psb_plus_at_code()[..]].concat()
    );
    unit.ret(CODE + 5);
    assert_eq!(unit.take_output(), [0x2D, 0x05, 0x10]);
}

#[test]
fn psb_due_by_time_waits_for_the_next_branch() {
    let mut unit = started(&with(|settings| {
        settings.ctl = ctl::USER | ctl::BRANCH_EN | ctl::MTC_EN;
    }));
    // 29 bytes, and MTCs every 40 cycles.
    unit.advance_clock(40 * 1010).unwrap();
    assert_eq!(unit.take_output().len(), 2 * 1010);
    assert!(!unit.has_plain_branches());
    unit.conditional(CODE + 8, CODE, true);
    assert_eq!(
        unit.take_output(),
        [&[0b110], &psb_plus_at_code()[..]].concat()
    );
    assert!(unit.has_plain_branches());
}

#[test]
fn leaving_user_mode_empties_the_return_stack() {
    let mut unit = started(&quiet());
    unit.call(CODE + 5, CODE);
    unit.syscall();
    unit.resume(CODE);
    unit.ret(CODE + 5);
    assert_eq!(
        unit.take_output(),
        [0x01, 0x31, 0x00, 0x10, 0x2D, 0x05, 0x10]
    );
}

#[test]
fn tsc_has_the_adjustment_and_tma_has_not() {
    let mut settings = quiet();
    settings.ctl |= ctl::TSC_EN | ctl::MTC_EN;
    settings.time.tsc_start = 80;
    settings.time.tsc_adjust = -81;
    let mut unit = Unit::new(&settings).unwrap();
    unit.enable();
    let tsc = [0x19, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF];
    let tma = [0x02, 0x73, 2, 0, 0, 0, 0];
    assert_eq!(
        unit.take_output(),
        [&PSB[..], &tsc, &tma, &CBR, &PSBEND].concat()
    );
}

#[test]
fn psb_plus_has_its_packets_in_the_order_of_the_setting() {
    let settings = with(|settings| {
        settings.psb_cyc = false;
        settings.ctl |= ctl::TSC_EN;
        let order = "FUP:MODE.Exec:MODE.TSX:CBR:PIP:TSC";
        settings.set("psb_plus_order", order).unwrap();
        settings.set("psb_on_enable_order", "after_pge").unwrap();
        settings.parameters.compress_after_psb = false;
    });
    let mut unit = started(&settings);
    unit.disable();
    unit.enable();
    let bytes = unit.take_output();
    // FUP with 48 bits, MODE.Exec, MODE.TSX; TSC 10^9.
    let fup = [0x7D, 0x00, 0x10, 0x40, 0, 0, 0, 0x99, 1, 0x99, 0x20];
    let tsc = [0x19, 0x00, 0xCA, 0x9A, 0x3B, 0, 0, 0];
    assert!(bytes.ends_with(&[&PSB[..], &fup, &CBR, &tsc, &PSBEND].concat()));
}

#[test]
fn far_transfers_and_events_emit_their_packets() {
    let mut unit = started(&quiet());
    unit.far(CODE + 0x10);
    assert_eq!(unit.take_output(), [0x2D, 0x10, 0x10]);
    for event in [Unit::exception, Unit::software_interrupt, Unit::interrupt] {
        event(&mut unit, CODE + 3);
        assert_eq!(unit.take_output(), [0x3D, 0x03, 0x10, 0x01]);
        unit.far(0); // in the kernel
        assert!(unit.output().is_empty());
        unit.resume(CODE);
        assert_eq!(unit.take_output(), [0x31, 0x00, 0x10]);
    }
    unit.conditional(CODE, CODE, false);
    unit.syscall();
    assert_eq!(unit.take_output(), [0b100, 0x01]);
}

#[test]
fn mode_exec_comes_with_each_pge_where_it_is_not_suppressed() {
    let mut unit = started(&with(|settings| {
        settings.parameters.modeexec_suppress = false;
    }));
    unit.syscall();
    unit.resume(CODE + 2);
    assert_eq!(unit.take_output(), [0x01, 0x99, 1, 0x31, 0x02, 0x10]);
}

#[test]
fn dis_tnt_emits_no_tnt() {
    let mut unit = started(&with(|settings| settings.ctl |= ctl::DIS_TNT));
    unit.call(CODE + 5, CODE + 0x100);
    unit.ret(CODE + 5);
    (0..10).for_each(|_| unit.conditional(CODE, CODE, true));
    unit.ret(CODE + 5);
    assert_eq!(unit.take_output(), [0x2D, 0x05, 0x10]);
}

#[test]
fn sixty_four_bits_at_once_are_ten_packets_and_four_bits() {
    let mut unit = started(&quiet());
    let mut blocks = [(4, 0); 16].into_iter();
    assert_eq!(unit.add_tnt_bits(16, |_| blocks.next()), 64);
    unit.set_ip(CODE);
    unit.syscall();
    assert_eq!(
        unit.take_output(),
        [&[0x80; 10][..], &[0b10_0000, 0x01]].concat()
    );
}

#[test]
fn without_branch_en_no_branch_is_traced() {
    let mut unit = Unit::new(&with(|settings| settings.ctl &= !ctl::BRANCH_EN)).unwrap();
    unit.switch_in(CODE);
    unit.indirect_jump(CODE + 4);
    unit.exception(CODE + 4);
    assert_eq!(unit.take_output(), [&PSB[..], &CBR, &PSBEND].concat());
}

#[test]
fn without_ret_compression_each_ret_is_a_tip() {
    let mut unit = started(&with(|settings| settings.ctl |= ctl::DIS_RETC));
    unit.call(CODE + 5, CODE + 0x100);
    unit.ret(CODE + 5);
    assert_eq!(unit.take_output(), [0x2D, 0x05, 0x10]);
}

#[test]
fn tnt_flush_sends_short_and_long_packets_earlier() {
    for (form, expected) in [
        ("short", vec![0b1_1110]),
        ("long", vec![0x02, 0xA3, 0b1111, 0, 0, 0, 0, 0]),
        ("mixed", vec![0b1_1110]),
    ] {
        let mut unit = started(&with(|settings| {
            settings.set("tnt_form", form).unwrap();
            settings.parameters.tnt_flush = 3;
        }));
        (0..3).for_each(|_| unit.conditional(CODE, CODE, true));
        assert_eq!(unit.take_output(), expected, "{form}");
    }
}

#[test]
fn mixed_tnt_is_long_from_seven_bits_on() {
    let mut unit = started(&with(|settings| settings.set("tnt_form", "mixed").unwrap()));
    (0..7).for_each(|_| unit.conditional(CODE, CODE, false));
    unit.syscall();
    assert_eq!(unit.take_output(), [0x02, 0xA3, 0x80, 0, 0, 0, 0, 0, 0x01]);
}

#[test]
fn stop_range_hides_the_target_where_the_setting_says_so() {
    for taken in [false, true] {
        let mut unit = Unit::new(&with(|settings| {
            settings.set("tracestop_pgd_ip", "suppressed").unwrap();
        }))
        .unwrap();
        unit.set_ranges(&[stop_range(CODE + 0x800)]).unwrap();
        unit.switch_in(CODE);
        unit.discard_output();
        match taken {
            true => unit.conditional(CODE + 2, CODE + 0x800, true),
            false => unit.indirect_jump(CODE + 0x800),
        }
        assert_eq!(unit.take_output(), [0x01, 0x02, 0x83]);
    }
}

#[test]
fn branches_inside_a_filter_range_are_traced() {
    let inside = AddressRange {
        kind: RangeKind::FilterEn,
        first: CODE,
        last: CODE + 0xFF,
    };
    let mut unit = Unit::new(&quiet()).unwrap();
    unit.set_ranges(&[inside]).unwrap();
    unit.switch_in(CODE + 0x100); // outside
    unit.discard_output();
    unit.conditional(CODE, CODE + 0x100, false);
    unit.call(CODE + 5, CODE + 0x300);
    unit.indirect_call(CODE + 0x305, CODE - 1);
    assert!(unit.output().is_empty());
    unit.ret(CODE + 0xFF); // TIP.PGE at the last byte
    assert_eq!(unit.take_output(), [0x99, 1, 0x51, 0xFF, 0x10, 0x40, 0]);
    unit.conditional(CODE + 2, CODE + 8, true);
    unit.conditional(CODE + 2, CODE + 8, false);
    unit.call(CODE + 5, CODE + 0x10);
    unit.ret(CODE + 5);
    unit.indirect_jump(CODE + 0x20); // TNT(TNT), TIP
    assert_eq!(unit.take_output(), [0b1_1010, 0x2D, 0x20, 0x10]);
    unit.interrupt(CODE + 0x20);
    unit.resume(CODE + 0x100); // back outside: TIP.PGE only at the next branch inside
    unit.jump(CODE);
    assert_eq!(
        unit.take_output(),
        [0x3D, 0x20, 0x10, 0x01, 0x31, 0x00, 0x10]
    );
    unit.far(CODE - 1);
    assert_eq!(unit.take_output(), [0x21, 0xFF, 0x0F]);
}

#[test]
fn set_ranges_take_effect_at_the_next_enable() {
    let mut unit = started(&quiet());
    unit.set_ranges(&[stop_range(CODE + 0x800)]).unwrap();
    unit.jump(CODE + 0x800);
    assert!(!unit.is_stopped());
    assert!(unit.has_plain_branches());
    unit.switch_out_and_in(Some(CODE));
    assert!(!unit.has_plain_branches());
    unit.jump(CODE + 0x800);
    assert!(unit.is_stopped());
    let five = [stop_range(CODE); 5];
    assert_eq!(unit.set_ranges(&five), Err(Error::TooManyRanges(5)));
}

#[test]
fn cyc_comes_where_the_threshold_has_passed() {
    let mut unit = started(&with(|settings| {
        settings.ctl |= ctl::CYC_EN | 5 << ctl::CYC_THRESH;
    }));
    unit.advance_clock(15).unwrap();
    unit.indirect_jump(CODE + 1);
    unit.advance_clock(16).unwrap();
    unit.indirect_jump(CODE + 2);
    unit.advance_clock(31).unwrap();
    unit.conditional(CODE, CODE, true); // the result waits, and so would its CYC
    unit.advance_clock(40).unwrap();
    unit.syscall();
    let cyc = |cycles: u8| cycles << 3 | 3;
    let expected = [
        0x2D,
        0x01,
        0x10,
        cyc(16),
        0x2D,
        0x02,
        0x10,
        0b110,
        cyc(24),
        0x01,
    ];
    assert_eq!(unit.take_output(), expected);
}

#[test]
fn cyc_precedes_the_first_pending_tnt_bit() {
    let mut unit = started(&with(|settings| settings.ctl |= ctl::CYC_EN));
    unit.advance_clock(5).unwrap();
    unit.conditional(CODE, CODE, true);
    unit.advance_clock(6).unwrap();
    unit.conditional(CODE, CODE, false);
    unit.advance_clock(7).unwrap();
    unit.syscall();
    assert_eq!(unit.take_output(), [5 << 3 | 3, 0b1100, 2 << 3 | 3, 0x01]);
}

#[test]
fn end_of_trace_emits_a_cyc() {
    let mut unit = started(&with(|settings| settings.ctl |= ctl::CYC_EN));
    unit.advance_clock(5).unwrap();
    unit.syscall();
    unit.advance_clock(6).unwrap();
    unit.disable();
    assert_eq!(unit.take_output(), [5 << 3 | 3, 0x01, 1 << 3 | 3]);
    unit.advance_clock(1 << 30).unwrap();
    assert!(unit.output().is_empty());
}

#[test]
fn the_cycle_counter_starts_at_zero_with_each_enable() {
    let mut unit = started(&with(|settings| settings.ctl |= ctl::CYC_EN));
    unit.advance_clock(50).unwrap();
    unit.disable();
    unit.discard_output();
    unit.advance_clock(70).unwrap();
    unit.enable();
    let pge = [0x99, 1, 0x71, 0x00, 0x10, 0x40, 0, 0, 0];
    assert_eq!(unit.take_output(), [&[3], &CBR[..], &pge].concat());
    unit.advance_clock(75).unwrap();
    unit.syscall();
    assert_eq!(unit.take_output(), [5 << 3 | 3, 0x01]);
}

#[test]
fn cyc_comes_before_the_counter_wraps() {
    let mut unit = started(&with(|settings| {
        settings.ctl |= ctl::CYC_EN;
        settings.parameters.cyc_counter_bits = 12;
    }));
    unit.conditional(CODE, CODE, true);
    unit.advance_clock(4094).unwrap();
    assert_eq!(unit.take_output(), []);
    unit.advance_clock(10_000).unwrap();
    // CYC 0 goes with TIP.PGE; the result leaves, then 4095 = 1111111B and 11111B twice.
    assert_eq!(unit.take_output(), [0b110, 0xFF, 0xFE, 0xFF, 0xFE]);
    unit.indirect_jump(CODE);
    // 1810 = 56 x 32 + 18.
    assert_eq!(unit.take_output(), [18 << 3 | 7, 56 << 1, 0x2D, 0x00, 0x10]);
}

#[test]
fn each_mtc_period_emits_an_mtc() {
    let mut unit = started(&with(|settings| {
        settings.ctl |= ctl::MTC_EN | 3 << ctl::MTC_FREQ;
    }));
    unit.conditional(CODE, CODE, true);
    unit.advance_clock(3 * 320).unwrap();
    assert_eq!(
        unit.take_output(),
        [0b110, 0x59, 0x09, 0x59, 0x0A, 0x59, 0x0B]
    );
    unit.advance_clock(4 * 320 - 1).unwrap();
    assert!(unit.output().is_empty());
    unit.disable();
    unit.discard_output();
    unit.advance_clock(5 * 320).unwrap();
    unit.enable();
    unit.discard_output();
    unit.advance_clock(6 * 320).unwrap();
    assert_eq!(unit.take_output(), [0x59, 0x0E]);
}

#[test]
fn mtc_periods_that_are_no_whole_cycles() {
    let mut unit = started(&with(|settings| {
        settings.ctl |= ctl::MTC_EN;
        settings.time.core_ratio = 7;
    }));
    // A crystal clock is 40 ticks of the TSC, which are 28 cycles at 7/10 of its rate.
    unit.advance_clock(27).unwrap();
    assert!(unit.output().is_empty());
    unit.advance_clock(28).unwrap();
    // 25_000_001 AND FFH.
    assert_eq!(unit.take_output(), [0x59, 0x41]);
    let mut unit = started(&with(|settings| {
        settings.ctl |= ctl::MTC_EN;
        settings.time.core_ratio = 33;
        settings.time.cpi = 2;
    }));
    // 40 ticks are 132 cycles, 66 instructions.
    unit.advance_clock(65).unwrap();
    assert!(unit.output().is_empty());
    unit.advance_clock(66).unwrap();
    assert_eq!(unit.take_output(), [0x59, 0x41]);
    assert_eq!(unit.clock(), 66);
}

#[test]
fn circular_region_keeps_the_last_bytes() {
    let settings = with(|settings| settings.output = Output::Circular(128));
    let (mut stream, mut circular) = (started(&quiet()), Unit::new(&settings).unwrap());
    circular.switch_in(CODE);
    for jump in 0..60_000 {
        stream.indirect_jump(jump << 4);
        circular.indirect_jump(jump << 4);
    }
    assert_eq!(circular.bytes_written(), stream.bytes_written());
    let whole = stream.take_output();
    assert_eq!(circular.output(), &whole[whole.len() - 128..]);
    let mut sink = Vec::new();
    assert_eq!(circular.drain_output(&mut sink).unwrap(), 128);
    assert_eq!(sink, &whole[whole.len() - 128..]);
    assert!(circular.output().is_empty());
}

#[test]
fn restored_unit_continues_as_the_original() {
    let settings = with(|settings| {
        settings.ctl |= ctl::CYC_EN | ctl::MTC_EN | ctl::TSC_EN | 3 << ctl::MTC_FREQ;
    });
    let mut unit = Unit::new(&settings).unwrap();
    unit.set_ranges(&[stop_range(CODE + 0x800)]).unwrap();
    unit.switch_in(CODE);
    unit.set_ranges(&[stop_range(CODE + 0x900), stop_range(0)])
        .unwrap();
    unit.advance_clock(100).unwrap();
    unit.call(CODE + 5, CODE + 0x100);
    unit.call(CODE + 0x105, CODE + 0x200);
    unit.conditional(CODE, CODE + 0x200, true);
    unit.discard_output();
    let state = unit.save_state();
    let read = rtit_unit::SavedState::from_bytes(&state.to_bytes()).unwrap();
    assert_eq!(read, state);
    let mut other = Unit::new(&settings).unwrap();
    other.indirect_jump(7);
    other.restore_state(&read).unwrap();
    assert_eq!(other.save_state(), state);
    for unit in [&mut unit, &mut other] {
        unit.advance_clock(200).unwrap();
        unit.ret(CODE + 0x105);
        unit.ret(CODE + 5);
        unit.ret(CODE + 9);
        unit.advance_clock(1000).unwrap();
        unit.switch_out_and_in(Some(CODE));
        unit.jump(CODE + 0x900);
        assert!(unit.is_stopped());
    }
    assert_eq!(other.take_output(), unit.take_output());
    assert_eq!(other.bytes_written(), unit.bytes_written());
}

#[test]
fn restored_unit_keeps_return_stack_and_psb_count() {
    let every_2048 = with(|settings| settings.ctl &= !(15 << ctl::PSB_FREQ));
    let mut unit = started(&every_2048);
    (0..672).for_each(|_| unit.indirect_jump(CODE));
    (0..70).for_each(|call| unit.call(CODE + call, CODE + 0x100));
    let mut other = Unit::new(&every_2048).unwrap();
    other.restore_state(&unit.save_state()).unwrap();
    assert_eq!(other.bytes_written(), 29 + 672 * 3);
    other.ret(CODE + 69);
    other.indirect_jump(CODE); // TNT and TIP come to 2049 bytes
    let expected = [&[0b110, 0x2D, 0x00, 0x10], &psb_plus_at_code()[..]].concat();
    assert_eq!(other.take_output(), expected);
}

#[test]
fn invalid_states_are_refused() {
    let settings = with(|settings| settings.output = Output::Stop(4096));
    let mut unit = started(&settings);
    unit.call(CODE + 5, CODE + 0x100);
    let state = unit.save_state();
    type Damage = fn(&mut rtit_unit::SavedState);
    let damages: [(&str, Damage); 14] = [
        ("packet_en", |state| state.core.packet_en = false),
        ("packet_en", |state| state.core.context_en = false),
        ("packet_en", |state| state.core.filter_en = false),
        ("plain", |state| state.ranges = vec![stop_range(0)]),
        ("tnt", |state| state.core.tnt = 0),
        ("tnt", |state| state.core.tnt = 64),
        ("ret_stack", |state| state.ret_stack = vec![0; 65]),
        ("cycle", |state| state.core.cycle = 1 << 60),
        ("cyc_base", |state| state.core.cyc_base = 1),
        ("next_mtc", |state| state.core.next_mtc = 1),
        ("trigger_en", |state| state.core.stopped = true),
        ("trigger_en", |state| state.core.trace_en = false),
        ("packet_byte_count", |state| {
            state.core.packet_byte_count = 1 << 60
        }),
        ("written", |state| state.core.written = 4097),
    ];
    for (field, damage) in damages {
        let mut damaged = state.clone();
        damage(&mut damaged);
        match unit.restore_state(&damaged) {
            Err(Error::State { field: found, .. }) => assert_eq!(found, field),
            other => panic!("{field}: {other:?}"),
        }
        assert_eq!(unit.save_state(), state);
    }
    let mut ranges = state.clone();
    ranges.next_ranges = vec![stop_range(0); 5];
    assert_eq!(unit.restore_state(&ranges), Err(Error::TooManyRanges(5)));
    let bytes = state.to_bytes();
    for wrong in [&bytes[..8], &bytes[..bytes.len() - 1], &[0; 120]] {
        let size = wrong.len();
        let error = rtit_unit::SavedState::from_bytes(wrong);
        assert_eq!(error, Err(Error::StateSize { size }));
    }
}

#[test]
fn records_equal_their_events() {
    let ip = |low: u64| CODE + low;
    // Kind, flags, length, ip, target; each a cycle after the one before.
    let events: [(EventKind, u8, u16, u64, u64); 17] = [
        (EventKind::Resume, 0, 0, 0, ip(0)),
        (EventKind::Conditional, 1, 2, ip(0), ip(8)),
        (EventKind::Conditional, 0, 2, ip(8), ip(0)),
        (EventKind::Jump, 0, 2, ip(10), ip(16)),
        (EventKind::Call, 0, 5, ip(16), ip(32)),
        (EventKind::Return, 0, 1, ip(32), ip(21)),
        (EventKind::IndirectJump, 0, 2, ip(21), ip(64)),
        (EventKind::IndirectCall, 0, 2, ip(64), ip(80)),
        (EventKind::Return, 0, 1, ip(80), ip(66)),
        (EventKind::Far, 0, 2, ip(66), ip(96)),
        (EventKind::Syscall, 0, 2, ip(96), 0),
        (EventKind::Switch, 0, 0, ip(98), 0),
        (EventKind::Resume, 0, 0, 0, ip(98)),
        (EventKind::Interrupt, 0, 0, ip(99), 0),
        (EventKind::Resume, 0, 0, 0, ip(99)),
        (EventKind::Switch, 1, 0, ip(100), 0),
        (EventKind::Exit, 0, 0, 0, 0),
    ];
    let mut records = Vec::new();
    for (index, (kind, flags, length, ip, target)) in events.into_iter().enumerate() {
        records.extend([kind as u8, flags]);
        records.extend(length.to_le_bytes());
        records.extend([0; 4]);
        let clock = index as u64;
        for word in [ip, target, clock, 0] {
            records.extend(word.to_le_bytes());
        }
    }
    let mut unit = Unit::new(&quiet()).unwrap();
    unit.feed_records(&records).unwrap();
    let tip = |header: u8, low: u8| [header | 0x20, low, 0x10];
    let pge_48 = |low: u8| [0x99, 1, 0x71, low, 0x10, 0x40, 0, 0, 0];
    let expected = [
        &PSB[..],
        &CBR,
        &PSBEND,
        &PGE,
        // TNT(TNT), TIP; TIP; TNT(T), TIP
        &[0b1_1010],
        &tip(0x0D, 64),
        &tip(0x0D, 80),
        &[0b110],
        &tip(0x0D, 96),
        // SYSCALL; the switch in the kernel has CBR
        &[0x01],
        &CBR,
        &pge_48(98),
        &tip(0x1D, 99),
        &[0x01],
        &tip(0x11, 99),
        // The switch in user mode: an interrupt, CBR, and back
        &tip(0x1D, 100),
        &[0x01],
        &CBR,
        &pge_48(100),
        &tip(0x1D, 100),
        &[0x01],
    ]
    .concat();
    assert_eq!(unit.take_output(), expected);
    assert_eq!(unit.clock(), 16);
}

#[test]
fn the_default_settings_are_those_of_perf() {
    // tsc, mtc, mtc_period=3, psb_period=3, pt, branch, and user mode alone.
    assert_eq!(Settings::default().ctl, 0x0300_E608);
}

#[test]
fn settings_accept_their_limits_only() {
    for (name, last, beyond) in [
        ("circular", "128", "127"),
        ("circular", "0x100000000", "0x100000001"),
        ("stop", "1", "0"),
        ("tnt_flush", "6", "7"),
        ("ret_compression_depth", "64", "65"),
        ("psb_delay", "0x100000000", "0x100000001"),
        ("cyc_max_bytes", "9", "10"),
        ("cyc_counter_bits", "12", "11"),
        ("cyc_counter_bits", "19", "20"),
        ("cpi", "1", "0"),
        ("tsc_start", "0x200000000000000", "0x200000000000001"),
        ("core_ratio", "255", "0"),
        ("max_non_turbo_ratio", "10", "0"),
        ("tsc_denominator", "2", "0"),
        ("tsc_numerator", "80", "0"),
        ("bus_hz", "100000000", "0"),
    ] {
        let mut settings = quiet();
        settings.set(name, last).unwrap();
        assert_eq!(settings.check(), Ok(()), "{name} {last}");
        settings.set(name, beyond).unwrap();
        let error = settings.check().unwrap_err().to_string();
        assert!(error.contains(name) || name.ends_with("ratio") || error.contains("crystal"));
    }
}

/// One instruction is one tick of a TSC of 1 GHz, 40 of them one of the crystal's 25 MHz.
#[test]
fn default_clock_has_a_tsc_of_1_ghz_and_a_crystal_of_25_mhz() {
    let time = Settings::default().time;
    assert_eq!((time.cpi, time.tsc_start), (1, 1_000_000_000));
    assert_eq!(
        time.bus_hz * u64::from(time.max_non_turbo_ratio),
        1_000_000_000
    );
    assert_eq!(time.crystal_hz, 25_000_000);
    assert_eq!((time.tsc_numerator, time.tsc_denominator), (80, 2));
}
