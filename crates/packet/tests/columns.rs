//! Columns hold the packets that the scanner gives, wherever a batch ends.

use proptest::prelude::*;
use rtit_packet::{PacketColumns, PacketScanner};

fn any_bytes() -> impl Strategy<Value = Vec<u8>> {
    let opcode = prop_oneof![
        4 => (0u8..=255).prop_map(|byte| vec![byte & 0xfe]),
        2 => prop::sample::select(vec![0x2du8, 0x4d, 0x6d, 0x8d, 0xcd, 0x0d, 0x59, 0x19, 0x99, 0x03])
            .prop_map(|byte| vec![byte]),
        1 => any::<u8>().prop_map(|byte| vec![2, byte]),
        1 => Just(vec![2, 0x63, 4]),
    ];
    prop::collection::vec((opcode, prop::collection::vec(any::<u8>(), 0..9)), 0..60).prop_map(
        |parts| {
            parts
                .into_iter()
                .flat_map(|(head, rest)| [head, rest].concat())
                .collect()
        },
    )
}

/// Mostly packets whose kind follows from their first byte; TSCs, pieces of PSBs, and packets that swallow the
/// beginning of a PSB.
fn stream_of_first_byte_packets() -> impl Strategy<Value = Vec<u8>> {
    let tip = prop::sample::select(vec![0x2du8, 0x4d, 0x71, 0x8d, 0x01, 0x3d]);
    let part = prop_oneof![
        60 => (2u8..=127).prop_map(|byte| vec![byte << 1]),
        20 => (tip, any::<[u8; 6]>()).prop_map(|(tip, rest)| {
            let size = [0, 2, 4, 6, 6][usize::from(tip >> 5)];
            [&[tip], &rest[..size]].concat()
        }),
        8 => any::<u8>().prop_map(|byte| vec![byte & 0xf8 | 3]),
        4 => any::<[u8; 7]>().prop_map(|rest| [&[0x19], &rest[..]].concat()),
        1 => (0usize..=16).prop_map(|size| [2, 0x82].repeat(8)[..size].to_vec()),
        1 => any::<[u8; 3]>().prop_map(|rest| [&[0x19], &rest[..], &[2, 0x82].repeat(8)].concat()),
    ];
    prop::collection::vec(part, 0..1500).prop_map(|parts| parts.concat())
}

proptest! {
    /// What is found many bytes at a time is what is found packet by packet: a short batch is too short for that.
    #[test]
    fn long_batches_equal_short_batches(data in stream_of_first_byte_packets(), until in 0usize..8000) {
        let all = |limit| {
            let mut columns = PacketColumns::default();
            let mut scanner = PacketScanner::new(&data);
            loop {
                let most = columns.len().saturating_add(limit);
                let result = columns.append_packets(&mut scanner, most, until);
                if result.is_err() || columns.len() < most {
                    return (columns, result, PacketScanner::next_packet_offset(&scanner));
                }
            }
        };
        prop_assert_eq!(all(usize::MAX), all(100));
    }

    #[test]
    fn packet_columns_equal_packets_of_the_scanner(data in any_bytes(), limit in 1usize..600) {
        let mut scanner = PacketScanner::new(&data);
        let mut reference = PacketScanner::new(&data);
        loop {
            let mut columns = PacketColumns::default();
            let result = columns.append_packets(&mut scanner, limit, usize::MAX);
            prop_assert!(columns.len() <= limit);
            for (kind, offset) in columns.kind.iter().zip(&columns.offset) {
                let packet = reference.next().unwrap().unwrap();
                prop_assert_eq!((packet.kind.kind() as u8, packet.offset as u64), (*kind, *offset));
            }
            prop_assert_eq!(PacketScanner::next_packet_offset(&scanner), PacketScanner::next_packet_offset(&reference));
            prop_assert_eq!(scanner.block_item_size(), reference.block_item_size());
            if let Err(error) = result {
                prop_assert_eq!(reference.next(), Some(Err(error)));
                prop_assert_eq!(scanner.seek_next_psb(), reference.seek_next_psb());
            } else if columns.len() < limit {
                prop_assert_eq!(reference.next(), None);
                break;
            }
        }
    }
}
