//! Any events, under any settings, through the packetizer: packets that the scanner knows, from PSB to PSB; the same in
//! pieces, and by a unit that took over its state.
//!
//! Input: 16 bytes of settings, then events of 12 bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rtit_packet::PacketScanner;
use rtit_unit::settings::{ctl, IpCompression, PsbOnEnable, TntForm};
use rtit_unit::{
    AddressRange, CaptureEvent, EventKind, LegalChoices, OutputRegion, RangeKind, SavedState,
    Settings, TraceUnit, RECORD_SIZE,
};

const EVENT: usize = 12;
const MOST: usize = 400;

fuzz_target!(|data: &[u8]| {
    let Some((choices, rest)) = data.split_first_chunk::<16>() else {
        return;
    };
    let settings = settings(choices);
    let Ok(mut unit) = TraceUnit::new(&settings) else {
        assert!(settings.check_settings().is_err());
        return;
    };
    let ranges = ranges(choices);
    unit.set_ranges(&ranges)
        .expect("as many ranges as there may be");
    let mut clock = 0;
    let records: Vec<[u8; RECORD_SIZE]> = rest
        .chunks_exact(EVENT)
        .take(MOST)
        .map(|event| record(event, &mut clock))
        .collect();
    for record in &records {
        let known = CaptureEvent::from_bytes(record);
        assert_eq!(
            known.is_ok(),
            record[0] > 0 && record[0] <= EventKind::End as u8
        );
    }

    let fed = unit.feed_records(&records.concat());
    let whole = unit.take_output();
    check(&whole, &settings);

    let half = records.len() / 2;
    let mut first = TraceUnit::new(&settings).expect("as before");
    first.set_ranges(&ranges).expect("as before");
    let mut parts = Vec::new();
    if first.feed_records(&records[..half].concat()).is_ok() {
        parts.extend(first.take_output());
        let bytes = first.save_state().to_bytes();
        let state = SavedState::from_bytes(&bytes).expect("what was written can be read");
        assert_eq!(state.to_bytes(), bytes);
        let mut second = TraceUnit::new(&settings).expect("as before");
        second
            .restore_state(&state)
            .expect("the state of such a unit");
        assert_eq!(
            second.feed_records(&records[half..].concat()).is_ok(),
            fed.is_ok()
        );
        if matches!(settings.output, OutputRegion::Stream) {
            parts.extend(second.take_output());
            assert_eq!(parts, whole);
        }
    }
    // Anything as a state: an error, or a state.
    let _ = SavedState::from_bytes(rest)
        .map(|state| TraceUnit::new(&settings).map(|mut unit| unit.restore_state(&state)));
});

fn settings(choices: &[u8; 16]) -> Settings {
    let word = u64::from_le_bytes([0, 1, 2, 3, 4, 5, 6, 7].map(|at| choices[at]));
    let small = choices[8];
    Settings {
        ctl: if small & 1 == 0 {
            word & ctl::SUPPORTED | ctl::USER
        } else {
            word
        },
        psb_cyc: small & 2 == 0,
        output: match small >> 2 & 3 {
            0 | 1 => OutputRegion::Stream,
            2 => OutputRegion::Circular(128 + u64::from(choices[9])),
            _ => OutputRegion::Stop(1 + u64::from(choices[9])),
        },
        parameters: LegalChoices {
            tnt_form: [TntForm::Short, TntForm::Long, TntForm::Mixed][usize::from(small >> 4) % 3],
            tnt_flush: u32::from(choices[10] & 7),
            ip_compression: [
                IpCompression::Shortest,
                IpCompression::None,
                IpCompression::Sext48Only,
                IpCompression::Bdw,
            ][usize::from(small >> 6)],
            compress_after_psb: choices[10] & 8 == 0,
            ret_compression_depth: u32::from(choices[11] & 127),
            modeexec_suppress: choices[10] & 16 == 0,
            tracestop_pgd_target: choices[10] & 32 == 0,
            psb_on_enable_order: if choices[10] & 64 == 0 {
                PsbOnEnable::BeforePge
            } else {
                PsbOnEnable::AfterPge
            },
            psb_delay: u64::from(choices[12]),
            psb_counts_itself: choices[10] & 128 == 0,
            cyc_counter_bits: 12 + u32::from(choices[13] & 63),
            cyc_max_bytes: 2 + u32::from(choices[13] >> 5),
            ..LegalChoices::default()
        },
        ..Settings::default()
    }
}

fn ranges(choices: &[u8; 16]) -> Vec<AddressRange> {
    let one = |from: u8, kind| AddressRange {
        kind,
        first: 0x1000 + u64::from(from),
        last: 0x1000 + u64::from(from) + 64,
    };
    match choices[14] & 3 {
        0 | 1 => vec![],
        2 => vec![one(choices[15], RangeKind::FilterEn)],
        _ => vec![
            one(choices[15], RangeKind::FilterEn),
            one(choices[14], RangeKind::TraceStop),
        ],
    }
}

/// EventKind, flags, length; the IP; the target near it or far; how much later.
fn record(event: &[u8], clock: &mut u64) -> [u8; RECORD_SIZE] {
    *clock += match event[11] {
        small @ 0..=199 => u64::from(small),
        // Each period that passes has its MTC.
        large => 1 << ((large - 200) % 20),
    };
    let near = |byte: u8| 0x1000 + u64::from(byte);
    let far = u64::from_le_bytes([5, 6, 7, 8, 9, 10, 5, 6].map(|at| event[at]));
    let (ip, target) = match event[1] >> 6 {
        0 | 1 => (near(event[3]), near(event[4])),
        2 => (near(event[3]), far),
        _ => (far, near(event[4])),
    };
    let mut record = [0; RECORD_SIZE];
    record[0] = event[0] % 23;
    record[1] = event[1] & 1;
    record[2] = event[2] & 15;
    record[8..16].copy_from_slice(&ip.to_le_bytes());
    record[16..24].copy_from_slice(&target.to_le_bytes());
    record[24..32].copy_from_slice(&clock.to_le_bytes());
    record
}

/// All that a unit writes is packets, but where a ring was written again in their midst or a region ended.
fn check(bytes: &[u8], settings: &Settings) {
    let mut scanner = PacketScanner::new(bytes);
    for found in &mut scanner {
        match (found, settings.output) {
            (Ok(packet), _) => assert!(packet.end_offset() <= bytes.len()),
            (Err(error), OutputRegion::Stream) => panic!("{error}"),
            (Err(_), _) => return,
        }
    }
}
