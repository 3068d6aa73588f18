//! Packets of given events, and what else callers see of a unit.

use rtit_unit::{
    settings::ctl, AddressRange, CaptureEvent, Error, EventKind, OutputRegion, RangeKind, Settings,
    TraceUnit,
};

const CODE: u64 = 0x40_1000;
const PSB: [u8; 16] = [
    2, 0x82, 2, 0x82, 2, 0x82, 2, 0x82, 2, 0x82, 2, 0x82, 2, 0x82, 2, 0x82,
];

/// Packets by the definitions of section 33.4.2, worked out by hand.
///
/// A case begins with a line that names the situation. `with` changes the settings: bits and fields of IA32_RTIT_CTL in
/// capitals, other settings by name; `default` adds timing packets. The unit has begun to trace user code at `CODE`,
/// unless `with new` leaves tracing disabled. Then come lines with events and, after `=>`, the packets
/// that the unit has emitted since the last such line. Addresses are hexadecimal, relative to `CODE`, or absolute after
/// `=`. `3x` repeats an event; `expect` checks the state.
const CASES: &str = "
an enable emits PSB+ and TIP.PGE
    with new
    start => PSB CBR PSBEND PGE
TSC and TMA come first in PSB+
    # TSC 1_000_000_050 = 3B9ACA32H. 40 ticks a crystal clock: 25_000_001 of them, 017D7841H, and 10 ticks
    with new default
    clock 50, enable => PSB 19 32 CA 9A 3B 00 00 00 02 73 41 78 00 0A 00 CBR PSBEND
six bits fill a short TNT
    jcc 2 8 t, jcc 2 8 n, jcc 2 8 n, jcc 2 8 t, jcc 2 8 t =>
    jcc 2 8 n => 11001100b
47 bits fill a long TNT: the stop bit is bit 47, the oldest result bit 46
    with tnt_form=long
    jcc 0 0 t, 46x jcc 0 0 n => 02 A3 00 00 00 00 00 C0
a RET to a remembered CALL is a TNT bit; after a CALL with displacement 0 no RET is expected
    call 5 100, ret 5, call 5 5, ret 5 => 110b 2D 05 10
    icall 9 =7FFF00000000, ret 9, syscall => 6D 00 00 00 00 FF 7F 110b 01
events emit a FUP with their IP, and nothing new about the mode
    interrupt 1, resume 2 => 3D 01 10 01 31 02 10
filter and TraceStop ranges end the trace
    with new
    ranges filter 0 FF stop 800 8FF, start, discard
    jmp 100 => 21 00 11
    jmp 10 => 31 10 10
    jcc 12 200 t => 01
    jmp 800, expect stopped=1 => 02 83
    switch 0 =>
time alone emits MTC and CYC
    # TSC 10^9 is ART 25_000_000 = 8 x 3_125_000: the next MTC is due 320 cycles later. CYC: 5 low bits 0 with a second
    # byte, 10 in it. CTC: bits 10:3 of the ART, 3_125_001 AND FFH
    with MTC_EN CYC_EN MTC_FREQ=3
    clock 319 =>
    clock 320 => 07 14 59 09
a long wait in the kernel emits TSC instead of MTC
    # TSC 1_000_100_000 = 3B9C50A0H. 40 ticks a crystal clock: 25_002_500 of them, 017D8204H, and no tick more
    with default
    syscall, discard, wait 100000 =>
    start => 19 A0 50 9C 3B 00 00 00 02 73 04 82 00 00 00 CBR PGE48
a short time in the kernel emits MTC
    with default
    syscall, discard, wait 320 => 59 09
a full region cuts a packet and stops the trace
    with stop=31
    ijmp 4, expect stopped=1 => 2D 04
    ijmp 8, disable =>
an enable while stopped emits nothing
    ranges stop 800 8FF, switch 0, jmp 800, expect stopped=1, disable, expect trace_en=0, discard
    enable, resume 0, ijmp 4, expect trace_en=1 stopped=1 packet_en=0 =>
an enable while enabled emits nothing
    call 5 100, enable =>
    ret 5, syscall => 110b 01
a disable in user mode emits TNT, FUP and TIP.PGD
    jcc 2 8 t, disable, expect trace_en=0 packet_en=0 plain=0 => 110b 3D 08 10 01
    disable, ijmp 0 =>
a disable in the kernel emits nothing
    syscall, discard, disable =>
    resume 0 =>
a second enable in user mode emits no PSB, as PacketByteCnt is not 0, but knows neither mode nor LastIP
    call 5 0, disable, discard
    enable => CBR PGE48
    ret 5, expect psbs=1 => 2D 05 10
the PSB+ of an enable before TIP.PGE has no MODE.Exec and no FUP; LastIP is 0 after it
    with psb_cyc=off psb_on_enable_order=before_pge
    disable, discard, enable, expect psbs=2 => PSB CBR 99 20 PSBEND PGE
the PSB+ of an enable after TIP.PGE
    with psb_cyc=off psb_on_enable_order=after_pge
    disable, discard, enable, expect psbs=2 => PGE48 PSB_PLUS
an overflow in user mode emits OVF and FUP; result and CALL before it are lost
    jcc 2 8 t, call 5 100, overflow 0 => OVF_FUP
    ret 5, syscall => 2D 05 10 01
an overflow in the kernel emits OVF
    overflow kernel, expect packet_en=0 => 02 F3
    resume 0 => PGE48
an overflow before any MODE.Exec is followed by PSB+
    with new
    enable, discard, overflow 0 => OVF_FUP PSB_PLUS
no CYC precedes OVF before its threshold
    with CYC_EN CYC_THRESH=5
    clock 15, overflow 0 => OVF_FUP
a CYC precedes OVF at its threshold
    with CYC_EN CYC_THRESH=5
    clock 16, overflow 0 => 83 OVF_FUP
an overflow into a TraceStop range ends the trace
    with new
    ranges stop 800 8FF, start, discard, overflow 8FF, expect stopped=1 => 02 F3 02 83
    overflow 0 =>
an overflow without tracing emits nothing; the next enable is in user mode
    with new
    overflow 0 =>
    enable => PSB CBR 99 20 PSBEND PGE
a PSB+ empties the return stack
    with PSB_FREQ=0
    672x ijmp 0, call 5 0, discard, ijmp 0 => 2D 00 10 PSB_PLUS
    ret 5 => 2D 05 10
a PSB+ that is due by the bytes of 1010 MTCs waits for the next branch
    with MTC_EN PSB_FREQ=0
    clock 40400, expect size=2020 plain=0, discard
    jcc 8 0 t, expect plain=1 => 110b PSB_PLUS
leaving user mode empties the return stack
    call 5 0, syscall, resume 0, ret 5 => 01 31 00 10 2D 05 10
TSC has the adjustment and TMA has not
    with new TSC_EN MTC_EN tsc_start=80 tsc_adjust=-81
    enable => PSB 19 FF FF FF FF FF FF FF 02 73 02 00 00 00 00 CBR PSBEND
PSB+ has its packets in the order of the setting
    # FUP with 48 bits, MODE.Exec, MODE.TSX, CBR, TSC 10^9
    with TSC_EN psb_cyc=off psb_plus_order=FUP:MODE.Exec:MODE.TSX:CBR:PIP:TSC
    with psb_on_enable_order=after_pge compress_after_psb=off
    disable, discard, enable => PGE48 PSB FUP48 99 01 99 20 CBR 19 00 CA 9A 3B 00 00 00 PSBEND
far transfers and events emit their packets
    far 10 => 2D 10 10
    exception 3 => 3D 03 10 01
    far =0 =>
    resume 0, int 3, resume 0, interrupt 3 => 31 00 10 3D 03 10 01 31 00 10 3D 03 10 01
    resume 0, jcc 0 0 n, syscall => 31 00 10 100b 01
MODE.Exec comes with each TIP.PGE where it is not suppressed
    with modeexec_suppress=off
    syscall, resume 2 => 01 99 01 31 02 10
DisTNT emits no TNT
    with DIS_TNT
    call 5 100, ret 5, 10x jcc 0 0 t, ret 5 => 2D 05 10
without BranchEn no branch is traced
    with new -BRANCH_EN
    start, ijmp 4, exception 4 => PSB CBR PSBEND
without RET compression each RET is a TIP
    with DIS_RETC
    call 5 100, ret 5 => 2D 05 10
tnt_flush sends a short TNT earlier
    with tnt_form=short tnt_flush=3
    3x jcc 0 0 t => 11110b
tnt_flush sends a long TNT earlier
    with tnt_form=long tnt_flush=3
    3x jcc 0 0 t => 02 A3 0F 00 00 00 00 00
tnt_flush with mixed TNTs sends a short one
    with tnt_form=mixed tnt_flush=3
    3x jcc 0 0 t => 11110b
a mixed TNT is long from seven bits on
    with tnt_form=mixed
    7x jcc 0 0 n, syscall => 02 A3 80 00 00 00 00 00 01
a TraceStop range hides the target of a conditional branch with that setting
    with new tracestop_pgd_ip=suppressed
    ranges stop 800 8FF, start, discard, jcc 2 800 t => 01 02 83
a TraceStop range hides the target of an indirect jump with that setting
    with new tracestop_pgd_ip=suppressed
    ranges stop 800 8FF, start, discard, ijmp 800 => 01 02 83
branches inside a filter range are traced
    with new
    ranges filter 0 FF, start 100, discard
    jcc 0 100 n, call 5 300, icall 305 =400FFF =>
    ret FF => 99 01 51 FF 10 40 00
    jcc 2 8 t, jcc 2 8 n, call 5 10, ret 5, ijmp 20 => 11010b 2D 20 10
    interrupt 20, resume 100, jmp 0 => 3D 20 10 01 31 00 10
    far =400FFF => 21 FF 0F
address ranges take effect at the next enable
    ranges stop 800 8FF, jmp 800, expect stopped=0 plain=1
    switch 0, expect plain=0, jmp 800, expect stopped=1
CYC comes where the threshold has passed; a pending result has none
    with CYC_EN CYC_THRESH=5
    clock 15, ijmp 1, clock 16, ijmp 2 => 2D 01 10 83 2D 02 10
    clock 31, jcc 0 0 t, clock 40, syscall => 110b C3 01
CYC precedes the first pending TNT bit
    with CYC_EN
    clock 5, jcc 0 0 t, clock 6, jcc 0 0 n, clock 7, syscall => 2B 1100b 13 01
the end of a trace emits a CYC
    with CYC_EN
    clock 5, syscall, clock 6, disable => 2B 01 0B
    clock 1073741824 =>
the cycle counter starts at 0 with each enable
    with CYC_EN
    clock 50, disable, discard, clock 70, enable => 03 CBR PGE48
    clock 75, syscall => 2B 01
CYC comes before the counter wraps
    # CYC 0 goes with TIP.PGE; the result leaves, then 4095 = 1111111B and 11111B twice. 1810 = 56 x 32 + 18
    with CYC_EN cyc_counter_bits=12
    jcc 0 0 t, clock 4094 =>
    clock 10000 => 110b FF FE FF FE
    ijmp 0 => 97 70 2D 00 10
each MTC period emits an MTC
    with MTC_EN MTC_FREQ=3
    jcc 0 0 t, clock 960 => 110b 59 09 59 0A 59 0B
    clock 1279 =>
    disable, discard, clock 1600, enable, discard, clock 1920 => 59 0E
an MTC period of 40 TSC ticks is 28 cycles at 7/10 of the TSC rate
    with MTC_EN core_ratio=7
    clock 27 =>
    clock 28 => 59 41
an MTC period of 40 TSC ticks is 132 cycles at 33/10 of the TSC rate, 66 instructions
    with MTC_EN core_ratio=33 cpi=2
    clock 65 =>
    clock 66, expect clock=66 => 59 41
";

/// Names for packets and parts of them in `CASES`.
const NAMED_BYTES: [(&str, &str); 8] = [
    ("PSB_PLUS", "PSB CBR 99 20 99 01 5D 00 10 40 00 PSBEND"), // at CODE in user mode
    ("OVF_FUP", "02 F3 FUP48"),
    ("FUP48", "7D 00 10 40 00 00 00"),
    ("PGE48", "99 01 71 00 10 40 00 00 00"),
    ("PGE", "99 01 51 00 10 40 00"), // MODE.Exec for 64-bit code, TIP.PGE with 32 bits: after PSB LastIP is 0
    ("PSBEND", "02 23"),
    ("PSB", "02 82 02 82 02 82 02 82 02 82 02 82 02 82 02 82"),
    ("CBR", "02 03 0A 00"),
];

fn bytes(text: &str) -> Vec<u8> {
    let byte = |word: &str| {
        if let Some((_, named)) = NAMED_BYTES.iter().find(|(name, _)| *name == word) {
            return bytes(named);
        }
        let (digits, radix) = match word.strip_suffix('b').filter(|digits| digits.len() > 1) {
            Some(digits) => (digits, 2),
            None => (word, 16),
        };
        vec![u8::from_str_radix(digits, radix).expect(word)]
    };
    text.split_whitespace().flat_map(byte).collect()
}

fn address(word: &str) -> u64 {
    let (base, digits) = match word.strip_prefix('=') {
        Some(digits) => (0, digits),
        None => (CODE, word),
    };
    base + u64::from_str_radix(digits, 16).expect(word)
}

fn change_settings(settings: &mut Settings, word: &str) {
    let bit = |name: &str| match name {
        "CYC_EN" => ctl::CYC_EN,
        "MTC_EN" => ctl::MTC_EN,
        "TSC_EN" => ctl::TSC_EN,
        "DIS_TNT" => ctl::DIS_TNT,
        "DIS_RETC" => ctl::DIS_RETC,
        "BRANCH_EN" => ctl::BRANCH_EN,
        _ => panic!("{word}"),
    };
    let mut set_field = |shift: u32, value: &str| {
        settings.ctl &= !(15 << shift);
        settings.ctl |= value.parse::<u64>().expect(word) << shift;
    };
    match word.split_once('=') {
        Some(("CYC_THRESH", value)) => set_field(ctl::CYC_THRESH, value),
        Some(("MTC_FREQ", value)) => set_field(ctl::MTC_FREQ, value),
        Some(("PSB_FREQ", value)) => set_field(ctl::PSB_FREQ, value),
        Some((name, value)) => settings.set_by_name(name, value).expect(word),
        None if word == "default" => settings.ctl = Settings::default().ctl,
        None => match word.strip_prefix('-') {
            Some(name) => settings.ctl &= !bit(name),
            None => settings.ctl |= bit(word),
        },
    }
}

fn apply_event(unit: &mut TraceUnit, event: &str) {
    let event = event.trim();
    let words: Vec<&str> = event.split_whitespace().collect();
    if let Some(times) = words[0].strip_suffix('x') {
        for _ in 0..times.parse().expect(event) {
            apply_event(unit, event.split_once(' ').expect(event).1);
        }
        return;
    }
    match *words.as_slice() {
        ["jcc", next, to, taken] => unit.conditional(address(next), address(to), taken == "t"),
        ["jmp", to] => unit.jump(address(to)),
        ["call", next, to] => unit.call(address(next), address(to)),
        ["ijmp", to] => unit.indirect_jump(address(to)),
        ["icall", next, to] => unit.indirect_call(address(next), address(to)),
        ["ret", to] => unit.ret(address(to)),
        ["far", to] => unit.emit_far_branch(address(to)),
        ["syscall"] => unit.syscall(),
        ["resume", to] => unit.resume_user_code(address(to)),
        ["interrupt", ip] => unit.interrupt(address(ip)),
        ["exception", ip] => unit.exception(address(ip)),
        ["int", ip] => unit.software_interrupt(address(ip)),
        ["start"] => unit.switch_thread_in(CODE),
        ["start", to] => unit.switch_thread_in(address(to)),
        ["switch", ip] => unit.switch_thread_out_and_in(Some(address(ip))),
        ["enable"] => unit.enable_tracing(),
        ["disable"] => unit.disable_tracing(),
        ["overflow", "kernel"] => unit.apply_overflow(None),
        ["overflow", ip] => unit.apply_overflow(Some(address(ip))),
        ["clock", clock] => unit.advance_clock(clock.parse().unwrap()).unwrap(),
        ["wait", clock] => unit.advance_clock_until(clock.parse().unwrap()).unwrap(),
        ["discard"] => unit.discard_output(),
        ["ranges", ref ranges @ ..] => {
            let range = |words: &[&str]| AddressRange {
                kind: match words[0] {
                    "stop" => RangeKind::TraceStop,
                    _ => RangeKind::FilterEn,
                },
                first: address(words[1]),
                last: address(words[2]),
            };
            let ranges: Vec<_> = ranges.chunks(3).map(range).collect();
            unit.set_ranges(&ranges).unwrap();
        }
        ["expect", ref states @ ..] => {
            for state in states {
                let (name, value) = state.split_once('=').expect(state);
                let found = match name {
                    "stopped" => unit.is_stopped().into(),
                    "trace_en" => unit.trace_en().into(),
                    "packet_en" => unit.packet_en().into(),
                    "plain" => unit.has_plain_branches().into(),
                    "psbs" => unit.psb_count(),
                    "clock" => unit.clock_in_instructions(),
                    "size" => unit.untaken_output().len() as u64,
                    _ => panic!("{event}"),
                };
                assert_eq!(found, value.parse().expect(state), "{event}");
            }
        }
        _ => panic!("{event}"),
    }
}

#[test]
fn events_emit_their_packets() {
    let mut lines = CASES
        .lines()
        .filter(|line| !line.trim().is_empty())
        .peekable();
    while let Some(name) = lines.next() {
        let (mut settings, mut is_new, mut unit) = (quiet(), false, None);
        while let Some(line) = lines.next_if(|line| line.starts_with(' ')).map(str::trim) {
            if line.starts_with('#') {
                continue;
            }
            if let Some(changes) = line.strip_prefix("with ") {
                for word in changes.split_whitespace() {
                    match word {
                        "new" => is_new = true,
                        _ => change_settings(&mut settings, word),
                    }
                }
                continue;
            }
            let unit = unit.get_or_insert_with(|| match is_new {
                true => TraceUnit::new(&settings).unwrap(),
                false => started(&settings),
            });
            let (events, expected) = match line.split_once("=>") {
                Some((events, expected)) => (events, Some(bytes(expected))),
                None => (line, None),
            };
            events.split(',').for_each(|event| apply_event(unit, event));
            if let Some(expected) = expected {
                assert_eq!(unit.take_output(), expected, "{name}: {line}");
            }
        }
    }
}

/// Without timing packets.
fn quiet() -> Settings {
    Settings {
        ctl: ctl::USER | ctl::BRANCH_EN | 3 << ctl::PSB_FREQ,
        ..Settings::default()
    }
}

/// `quiet` with what `change` does.
fn with(change: impl FnOnce(&mut Settings)) -> Settings {
    let mut settings = quiet();
    change(&mut settings);
    settings
}

/// A unit that has begun to trace user code at `CODE`, its output empty.
fn started(settings: &Settings) -> TraceUnit {
    let mut unit = TraceUnit::new(settings).unwrap();
    unit.switch_thread_in(CODE);
    unit.discard_output();
    unit
}

fn stop_range(first: u64) -> AddressRange {
    AddressRange {
        kind: RangeKind::TraceStop,
        first,
        last: first + 0xFF,
    }
}

#[test]
fn fifth_address_range_is_refused() {
    let five = [stop_range(CODE); 5];
    let result = started(&quiet()).set_ranges(&five);
    assert_eq!(result, Err(Error::TooManyRanges(5)));
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
    let mut unit = TraceUnit::new(&quiet()).unwrap();
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
fn capture_record_has_the_documented_layout() {
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
fn settings_can_be_set_by_name() {
    let mut settings = Settings::default();
    settings.set_by_name("ctl", "0x2008").unwrap();
    settings.set_by_name("modeexec_suppress", "False").unwrap();
    settings
        .set_by_name("psb_plus_order", "FUP:TSC:PIP:CBR:MODE.TSX:MODE.Exec")
        .unwrap();
    settings.set_by_name("stop", "4096").unwrap();
    assert_eq!(settings.ctl, ctl::USER | ctl::BRANCH_EN);
    assert!(!settings.parameters.modeexec_suppress);
    assert_eq!(settings.output, OutputRegion::Stop(4096));
    settings.check_settings().unwrap();
    for (name, text) in [
        ("ctl", "x"),
        ("cpi", "-1"),
        ("core_ratio", "256"),
        ("psb_plus_order", "FUP"),
        ("tnt_form", "wide"),
        ("colour", "red"),
    ] {
        let error = settings.set_by_name(name, text).unwrap_err().to_string();
        assert!(error.contains(name), "{error}");
    }
    for (name, text) in [
        ("ctl", "0x1"),  // TraceEn
        ("ctl", "0x40"), // FabricEn
        ("cpi", "0"),
        ("crystal_hz", "1"),
        ("tnt_flush", "7"),
        ("cyc_counter_bits", "20"),
        ("psb_plus_order", "FUP:FUP:PIP:CBR:MODE.TSX:MODE.Exec"),
        ("circular", "1"),
    ] {
        let mut settings = Settings::default();
        settings.set_by_name(name, text).unwrap();
        let error = TraceUnit::new(&settings).err().unwrap().to_string();
        assert!(error.contains(name), "{error}");
    }
}

/// Offsets of the PSBs among TIPs of 3 bytes.
fn psb_offsets(settings: &Settings) -> Vec<u64> {
    let mut unit = TraceUnit::new(settings).unwrap();
    unit.switch_thread_in(CODE);
    unit.discard_output();
    let mut offsets = vec![0];
    for _ in 0..2100 {
        let before = unit.bytes_written();
        unit.indirect_jump(CODE);
        if unit.take_output().windows(16).any(|bytes| bytes == PSB) {
            offsets.push(before + 3);
        }
    }
    assert_eq!(unit.psb_count(), offsets.len() as u64);
    offsets
}

#[test]
fn psb_is_emitted_at_each_multiple_of_its_period() {
    let every_2048 = with(|settings| settings.ctl &= !(15 << ctl::PSB_FREQ));
    // 29 bytes, then 673 TIPs; PSB+ has 31 bytes, then 673 and 672 TIPs come to the next multiples of 2048.
    let expected = [0, 2048, 2048 + 31 + 673 * 3, 2048 + 2 * 31 + 1345 * 3];
    assert_eq!(psb_offsets(&every_2048), expected);
    let mut settings = every_2048.clone();
    settings.parameters.psb_counts_itself = false;
    // 7 bytes of MODE.Exec and TIP.PGE count; 681 TIPs reach 2050, 682 more 4096, 683 more 6145.
    let second = 29 + 681 * 3;
    let third = second + 31 + 682 * 3;
    let expected = [0, second, third, third + 31 + 683 * 3];
    assert_eq!(psb_offsets(&settings), expected);
    let mut settings = every_2048;
    settings.parameters.psb_delay = 20;
    // 7 more TIPs: 21 bytes.
    assert_eq!(psb_offsets(&settings).get(1), Some(&(2048 + 21)));
}

#[test]
fn adding_64_tnt_bits_emits_ten_packets_and_keeps_four_bits() {
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
fn circular_region_keeps_the_last_bytes() {
    let settings = with(|settings| settings.output = OutputRegion::Circular(128));
    let (mut stream, mut circular) = (started(&quiet()), TraceUnit::new(&settings).unwrap());
    circular.switch_thread_in(CODE);
    for jump in 0..60_000 {
        stream.indirect_jump(jump << 4);
        circular.indirect_jump(jump << 4);
    }
    assert_eq!(circular.bytes_written(), stream.bytes_written());
    let whole = stream.take_output();
    assert_eq!(circular.untaken_output(), &whole[whole.len() - 128..]);
    let mut sink = Vec::new();
    assert_eq!(circular.drain_output(&mut sink).unwrap(), 128);
    assert_eq!(sink, &whole[whole.len() - 128..]);
    assert!(circular.untaken_output().is_empty());
}

#[test]
fn restored_unit_continues_as_the_original() {
    let settings = with(|settings| {
        settings.ctl |= ctl::CYC_EN | ctl::MTC_EN | ctl::TSC_EN | 3 << ctl::MTC_FREQ;
    });
    let mut unit = TraceUnit::new(&settings).unwrap();
    unit.set_ranges(&[stop_range(CODE + 0x800)]).unwrap();
    unit.switch_thread_in(CODE);
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
    let mut other = TraceUnit::new(&settings).unwrap();
    other.indirect_jump(7);
    other.restore_state(&read).unwrap();
    assert_eq!(other.save_state(), state);
    for unit in [&mut unit, &mut other] {
        unit.advance_clock(200).unwrap();
        unit.ret(CODE + 0x105);
        unit.ret(CODE + 5);
        unit.ret(CODE + 9);
        unit.advance_clock(1000).unwrap();
        unit.switch_thread_out_and_in(Some(CODE));
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
    let mut other = TraceUnit::new(&every_2048).unwrap();
    other.restore_state(&unit.save_state()).unwrap();
    assert_eq!(other.bytes_written(), 29 + 672 * 3);
    other.ret(CODE + 69);
    other.indirect_jump(CODE); // TNT and TIP come to 2049 bytes
    assert_eq!(other.take_output(), bytes("110b 2D 00 10 PSB_PLUS"));
}

#[test]
fn invalid_saved_states_are_refused() {
    let settings = with(|settings| settings.output = OutputRegion::Stop(4096));
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
fn fed_records_emit_the_bytes_of_their_events() {
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
    let mut unit = TraceUnit::new(&quiet()).unwrap();
    unit.feed_records(&records).unwrap();
    let tip = |header: u8, low: u8| [header | 0x20, low, 0x10];
    let pge_48 = |low: u8| [0x99, 1, 0x71, low, 0x10, 0x40, 0, 0, 0];
    let (started, cbr) = (bytes("PSB CBR PSBEND PGE"), bytes("CBR"));
    let expected = [
        &started[..],
        // TNT(TNT), TIP; TIP; TNT(T), TIP
        &[0b1_1010],
        &tip(0x0D, 64),
        &tip(0x0D, 80),
        &[0b110],
        &tip(0x0D, 96),
        // SYSCALL; the switch in the kernel has CBR
        &[0x01],
        &cbr,
        &pge_48(98),
        &tip(0x1D, 99),
        &[0x01],
        &tip(0x11, 99),
        // The switch in user mode: an interrupt, CBR, and back
        &tip(0x1D, 100),
        &[0x01],
        &cbr,
        &pge_48(100),
        &tip(0x1D, 100),
        &[0x01],
    ]
    .concat();
    assert_eq!(unit.take_output(), expected);
    assert_eq!(unit.clock_in_instructions(), 16);
}

#[test]
fn settings_beyond_their_limits_are_refused() {
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
        settings.set_by_name(name, last).unwrap();
        assert_eq!(settings.check_settings(), Ok(()), "{name} {last}");
        settings.set_by_name(name, beyond).unwrap();
        let error = settings.check_settings().unwrap_err().to_string();
        assert!(error.contains(name) || name.ends_with("ratio") || error.contains("crystal"));
    }
}

/// One instruction is one tick of a TSC of 1 GHz, 40 of them one of the crystal's 25 MHz.
#[test]
fn default_settings_are_those_of_perf_with_a_tsc_of_1_ghz() {
    // tsc, mtc, mtc_period=3, psb_period=3, pt, branch, and user mode alone.
    assert_eq!(Settings::default().ctl, 0x0300_E608);
    let time = Settings::default().time;
    assert_eq!((time.cpi, time.tsc_start), (1, 1_000_000_000));
    assert_eq!(
        time.bus_hz * u64::from(time.max_non_turbo_ratio),
        1_000_000_000
    );
    assert_eq!(time.crystal_hz, 25_000_000);
    assert_eq!((time.tsc_numerator, time.tsc_denominator), (80, 2));
}
