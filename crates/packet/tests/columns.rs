//! Columns hold the packets that the scanner gives, wherever a batch ends.

use proptest::prelude::*;
use rtit_packet::{Columns, Scanner};

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let opcode = prop_oneof![
        4 => (0u8..=255).prop_map(|byte| vec![byte & 0xfe]),
        2 => prop::sample::select(vec![0x2du8, 0x4d, 0x6d, 0x8d, 0xcd, 0x0d, 0x59, 0x19, 0x99, 0x03]).prop_map(|byte| vec![byte]),
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

proptest! {
    #[test]
    fn same_as_the_scanner(data in bytes(), limit in 1usize..600) {
        let mut scanner = Scanner::new(&data);
        let mut reference = Scanner::new(&data);
        loop {
            let mut columns = Columns::default();
            let result = columns.fill(&mut scanner, limit, usize::MAX);
            prop_assert!(columns.len() <= limit);
            for (kind, offset) in columns.kind.iter().zip(&columns.offset) {
                let packet = reference.next().unwrap().unwrap();
                prop_assert_eq!((packet.kind.kind() as u8, packet.offset as u64), (*kind, *offset));
            }
            prop_assert_eq!(Scanner::position(&scanner), Scanner::position(&reference));
            prop_assert_eq!(scanner.block(), reference.block());
            if let Err(error) = result {
                prop_assert_eq!(reference.next(), Some(Err(error)));
                prop_assert_eq!(scanner.resync(), reference.resync());
            } else if columns.len() < limit {
                prop_assert_eq!(reference.next(), None);
                break;
            }
        }
    }
}
