//! Any stream as columns of packets, and the clocks that take them: the same in pieces, and with padding between.
//!
//! Input: 8 bytes of choices (see `Case`), the stream.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rtit_flow::{GuestTsc, PacketClock, StreamWindow, TimeSettings, TimingSample};
use rtit_packet::table::ROWS;
use rtit_packet::{Kind, PacketColumns, PacketScanner};

struct Case<'a> {
    settings: TimeSettings,
    /// Sizes of pieces: packets of a batch, and the bytes that these may begin in.
    limit: usize,
    bytes: usize,
    stream: &'a [u8],
}

impl<'a> Case<'a> {
    fn parse(data: &'a [u8]) -> Option<Case<'a>> {
        let (choices, stream) = data.split_first_chunk::<8>()?;
        let &[count, freq, ratio, start, guest, limit, bytes, more] = choices;
        let settings = TimeSettings {
            mtc_freq: freq,
            tsc_ctc: [(80, 2), (0, 1), (3, 0), (u32::MAX, 1), (1, u32::MAX)]
                [usize::from(count >> 2) % 5],
            max_nonturbo_ratio: ratio,
            start_time: [0, 0x900, 1 << 55, u64::MAX - 0x900][usize::from(start & 3)],
            guest: match guest {
                0 => GuestTsc::default(),
                _ => GuestTsc {
                    offset: u64::from(more) << (start & 63),
                    multiplier: u64::from(guest) << (start >> 2),
                },
            },
        };
        Some(Case {
            settings,
            limit: 1 + usize::from(limit),
            bytes: 1 + usize::from(bytes),
            stream,
        })
    }
}

/// A packet with the fields of `PacketColumns`, and whether bytes that are no packet follow it.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Packet {
    kind: Kind,
    detail: u8,
    payload: u64,
    offset: u64,
    lost: bool,
}

const PAD: Packet = Packet {
    kind: Kind::Pad,
    detail: 0,
    payload: 0,
    offset: 0,
    lost: false,
};

fuzz_target!(|data: &[u8]| {
    let Some(case) = Case::parse(data) else {
        return;
    };
    let packets = packets(case.stream, usize::MAX, usize::MAX);
    assert_eq!(
        self::packets(case.stream, case.limit, case.bytes),
        packets,
        "in pieces"
    );
    let mut scanner = PacketScanner::new(case.stream);
    for packet in &packets {
        let alone = match scanner.next() {
            Some(Ok(alone)) => (alone.kind.kind(), alone.offset as u64, false),
            Some(Err(error)) => (Kind::Pad, error.offset() as u64, true),
            None => panic!("more packets than there are"),
        };
        assert_eq!((packet.kind, packet.offset, packet.lost), alone);
        if packet.lost {
            scanner.seek_next_psb();
        }
    }
    assert_eq!(scanner.next(), None);
    own_clock(&case, &packets);
});

/// All packets, from batches of `limit` that begin in so many `bytes`.
fn packets(stream: &[u8], limit: usize, bytes: usize) -> Vec<Packet> {
    let mut found: Vec<Packet> = Vec::new();
    let mut scanner = PacketScanner::new(stream);
    loop {
        let begin = PacketScanner::next_packet_offset(&scanner);
        let until = begin.saturating_add(bytes);
        let mut columns = PacketColumns::default();
        let result = columns.append_packets(&mut scanner, limit, until);
        assert!(columns.len() <= limit);
        for at in 0..columns.len() {
            assert!(columns.offset[at] < until as u64);
            found.push(Packet {
                kind: ROWS[usize::from(columns.kind[at])].kind,
                detail: columns.detail[at],
                payload: columns.payload[at],
                offset: columns.offset[at],
                lost: false,
            });
        }
        if result.is_err() {
            let offset = PacketScanner::next_packet_offset(&scanner) as u64;
            found.push(Packet {
                lost: true,
                offset,
                ..PAD
            });
            scanner.seek_next_psb();
        }
        if PacketScanner::next_packet_offset(&scanner) >= stream.len() {
            return found;
        }
        assert!(
            PacketScanner::next_packet_offset(&scanner) > begin,
            "a batch did not move on"
        );
    }
}

/// Our clock, with the numbers of points and with times, tells the same; padding is nothing to it.
fn own_clock(case: &Case, packets: &[Packet]) {
    let window = StreamWindow::of_whole_stream(case.stream);
    let mut plain = PacketClock::new(case.settings, false);
    let mut padded = PacketClock::new(case.settings, false);
    let mut pointed = PacketClock::new(case.settings, true);
    let mut points: Vec<TimingSample> = Vec::new();
    let mut cycles = 0;
    for (number, packet) in packets.iter().enumerate() {
        for clock in [&mut plain, &mut padded, &mut pointed] {
            if packet.lost {
                clock.note_missing_packets();
            } else {
                clock.process_packet(
                    packet.kind,
                    packet.detail,
                    packet.payload,
                    packet.offset,
                    window,
                );
            }
        }
        // no packet begins where bytes are lost, and the clock looks ahead from the first one
        if !packet.lost {
            padded.process_packet(Kind::Pad, 0, 0, packet.offset, window);
        }
        assert_eq!(padded.current_time(), plain.current_time());
        let frequency = plain.cycles_per_tsc_tick();
        assert!(frequency.is_nan() || frequency >= 0.0);
        assert_eq!(frequency.to_bits(), pointed.cycles_per_tsc_tick().to_bits());
        assert!(plain.total_cycles() >= cycles && plain.total_cycles() == pointed.total_cycles());
        cycles = plain.total_cycles();
        if number % case.limit == 0 {
            points.extend(pointed.take_timing_samples());
        }
    }
    points.extend(pointed.take_timing_samples());
    assert_eq!(points.len() as u64, pointed.current_time());
    assert!(points.is_sorted_by_key(|point| point.offset));
    let last = points.last().map_or(case.settings.start_time, |it| it.time);
    if !packets.iter().any(|packet| packet.lost) {
        assert_eq!(last, plain.current_time());
    }
    assert!(plain.take_timing_samples().is_empty());
}
