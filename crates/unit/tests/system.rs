//! Packets of the events of a system, worked out by hand from section 33.4.2. `tests/unit/bulk/test_system.py` compares
//! them with the reference unit.

use rtit_unit::{
    settings::ctl, CodeWidth, EventReport, MwaitOperands, ProcessorState, Settings, TraceUnit,
};

const KERNEL: u64 = 0xffff_ffff_8100_0000;
const IN_KERNEL: ProcessorState = ProcessorState {
    user: false,
    code: CodeWidth::Bits64,
    interrupt_flag: false,
};
const IN_PROGRAM: ProcessorState = ProcessorState {
    user: true,
    ..IN_KERNEL
};

/// A unit that traces from the instruction at `KERNEL` on; its first packets are taken.
fn unit_in_kernel(bits: u64, cr3_match: u64) -> TraceUnit {
    let settings = Settings {
        ctl: ctl::BRANCH_EN | bits,
        cr3_match,
        ..Settings::default()
    };
    let mut unit = TraceUnit::new(&settings).unwrap();
    unit.start_in_state(KERNEL, IN_KERNEL, 0x5000);
    unit.enable_tracing();
    unit.take_output();
    unit
}

#[test]
fn kernel_and_programs_are_one_path() {
    let mut unit = unit_in_kernel(ctl::OS | ctl::USER, 0);
    unit.transfer(0x1000, IN_PROGRAM, None, None);
    // TIP with 48 bits, sign extended
    assert_eq!(unit.take_output(), [0x6d, 0x00, 0x10, 0, 0, 0, 0]);
    unit.transfer(KERNEL + 0x10, IN_KERNEL, Some(0x1004), None);
    // FUP with 16 bits, TIP
    assert_eq!(
        unit.take_output(),
        [0x3d, 0x04, 0x10, 0x6d, 0x10, 0, 0, 0x81, 0xff, 0xff]
    );
    unit.mov_cr3(KERNEL + 0x20, 0x6000);
    // PIP: NR in bit 0, then CR3 from bit 5 on
    assert_eq!(unit.take_output(), [0x02, 0x43, 0, 0x06, 0, 0, 0, 0]);
}

#[test]
fn change_of_code_width_sends_mode_exec_before_the_target() {
    let mut unit = unit_in_kernel(ctl::OS, 0);
    let narrow = ProcessorState {
        code: CodeWidth::Bits32,
        ..IN_KERNEL
    };
    unit.transfer(KERNEL + 0x10, narrow, None, None);
    assert_eq!(unit.take_output()[..2], [0x99, 0x02]);
}

#[test]
fn filter_by_cpl_stops_at_the_transfer() {
    let mut unit = unit_in_kernel(ctl::OS, 0);
    unit.transfer(0x1000, IN_PROGRAM, None, None);
    // TIP.PGD without IP
    assert_eq!(unit.take_output(), [0x01]);
    assert!(!unit.packet_en());
    unit.transfer(KERNEL, IN_KERNEL, Some(0x1000), None);
    assert!(unit.packet_en());
}

#[test]
fn filter_by_cr3_starts_after_mov_cr3() {
    let mut unit = unit_in_kernel(ctl::OS | ctl::CR3_FILTER, 0x6000);
    assert!(!unit.packet_en());
    unit.mov_cr3(KERNEL + 3, 0x6001);
    // PIP, MODE.Exec, TIP.PGE
    let packets = unit.take_output();
    assert_eq!(packets[..8], [0x02, 0x43, 0, 0x06, 0, 0, 0, 0]);
    assert_eq!(packets[8..11], [0x99, 0x01, 0x71]);
    unit.mov_cr3(KERNEL + 6, 0x5000);
    assert_eq!(unit.take_output(), [0x01]);
}

#[test]
fn event_trace_reports_a_page_fault() {
    let mut unit = unit_in_kernel(ctl::OS | ctl::EVENT_EN, 0);
    let report = EventReport::Interrupt {
        vector: 14,
        page_fault: Some(0x1234),
    };
    unit.transfer(KERNEL + 0x100, IN_KERNEL, Some(KERNEL + 4), Some(report));
    let packets = unit.take_output();
    // EVD of type 0 with the address, CFE of type 1 with vector 14, FUP
    assert_eq!(packets[..11], [0x02, 0x53, 0, 0x34, 0x12, 0, 0, 0, 0, 0, 0]);
    assert_eq!(packets[11..15], [0x02, 0x13, 0x01, 14]);
    assert_eq!(packets[15..18], [0x3d, 0x04, 0x00]);
}

#[test]
fn hlt_until_an_interrupt_has_power_packets() {
    let mut unit = unit_in_kernel(ctl::OS | ctl::PWR_EVT_EN, 0);
    unit.sleep(KERNEL + 4, 0, 0, None);
    // PWRE(C1), EXSTOP with IP, FUP (Table 33-57, row 5)
    let packets = unit.take_output();
    assert_eq!(packets, [0x02, 0x22, 0, 0, 0x02, 0xe2, 0x3d, 0x04, 0x00]);
    unit.wake(0, 0, 1);
    // CBR, PWRX by an interrupt (row 7)
    let packets = unit.take_output();
    assert_eq!(packets[..3], [0x02, 0x03, 10]);
    assert_eq!(packets[4..], [0x02, 0xa2, 0x00, 0x01, 0, 0, 0]);
}

#[test]
fn mwait_has_its_operands_if_the_context_is_traced() {
    let mwait = Some(MwaitOperands {
        hints: 0x21,
        extensions: 1,
    });
    let mut unit = unit_in_kernel(ctl::OS | ctl::PWR_EVT_EN, 0);
    unit.sleep(KERNEL + 4, 2, 1, mwait);
    // MWAIT, PWRE, EXSTOP with IP, FUP (Table 33-57, row 4)
    let packets = unit.take_output();
    assert_eq!(packets[..10], [0x02, 0xc2, 0x21, 0, 0, 0, 1, 0, 0, 0]);
    assert_eq!(packets[10..16], [0x02, 0x22, 0, 0x21, 0x02, 0xe2]);
    let mut unit = unit_in_kernel(ctl::USER | ctl::PWR_EVT_EN, 0);
    unit.sleep(KERNEL + 4, 2, 1, mwait);
    // PWRE, EXSTOP (row 3)
    assert_eq!(unit.take_output(), [0x02, 0x22, 0, 0x21, 0x02, 0x62]);
}

#[test]
fn wake_without_power_event_trace_shows_the_clocks() {
    let mut unit = unit_in_kernel(ctl::OS, 0);
    unit.sleep(KERNEL + 4, 0, 0, None);
    assert_eq!(unit.take_output(), []);
    unit.wake(0, 0, 1);
    // CBR (Table 33-55, row 25)
    assert_eq!(unit.take_output(), [0x02, 0x03, 10, 0]);
}
