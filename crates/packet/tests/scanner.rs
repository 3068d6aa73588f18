//! The scanner over blocks, errors, truncated and random bytes.

use proptest::prelude::*;
use rtit_packet::{find_psb, Kind, PacketError, PacketKind, PacketScanner, PSB};

fn parse_hex(text: &str) -> Vec<u8> {
    text.split_whitespace()
        .map(|byte| u8::from_str_radix(byte, 16).unwrap())
        .collect()
}

#[test]
fn block_items_replace_tnts_until_the_block_ends() {
    let item4 = [0x0c, 1, 2, 3, 4];
    let mut data = parse_hex("02 63 84");
    data.extend(item4);
    data.extend(parse_hex("59 01"));
    data.extend(item4);
    data.extend(parse_hex(
        "02 63 04 14 01 02 03 04 05 06 07 08 02 33 0c 02 63 04 02 f3 0c 02 63 04 06 0c",
    ));
    let kinds: Vec<_> = PacketScanner::new(&data)
        .map(|p| p.unwrap().kind.kind())
        .collect();
    use Kind::{Bbp, Bep, Bip, Mtc, Ovf, Tnt};
    assert_eq!(
        kinds,
        [Bbp, Bip, Mtc, Bip, Bbp, Bip, Bep, Tnt, Bbp, Ovf, Tnt, Bbp, Tnt, Tnt]
    );
}

#[test]
fn error_is_returned_once_and_resync_continues_at_the_next_psb() {
    let mut data = parse_hex("06 02 52 06 06");
    data.extend(parse_hex("02 82 02 82"));
    data.extend(PSB);
    data.push(0x06);
    let mut scanner = PacketScanner::new(&data);
    assert!(scanner.next().unwrap().is_ok());
    assert_eq!(scanner.next().unwrap().unwrap_err().offset(), 1);
    assert!(scanner.next().is_none());
    assert_eq!(scanner.seek_next_psb(), Some(9));
    assert_eq!(scanner.next().unwrap().unwrap().kind, PacketKind::Psb);
    assert!(scanner.next().unwrap().is_ok());
    assert!(scanner.next().is_none());
    assert_eq!(scanner.seek_next_psb(), None);
    assert_eq!(scanner.next_packet_offset(), data.len());
}

/// Bytes that look like packets more often than random ones do.
fn packet_like_bytes() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        proptest::collection::vec(any::<u8>(), 1..4),
        any::<u8>().prop_map(|byte| vec![0x02, byte]),
        Just(PSB.to_vec()),
        Just(vec![0x02, 0x82]),
        any::<u8>().prop_map(|byte| vec![0x02, 0x63, byte]),
    ];
    proptest::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn any_bytes_are_scanned_to_the_end(data in packet_like_bytes()) {
        let mut scanner = PacketScanner::new(&data);
        let mut end = 0;
        loop {
            match scanner.next() {
                Some(Ok(packet)) => {
                    prop_assert_eq!(packet.offset, end);
                    prop_assert!((1..=16).contains(&packet.length));
                    end = packet.end_offset();
                    prop_assert!(end <= data.len());
                }
                Some(Err(error)) => {
                    prop_assert_eq!(error.offset(), end);
                    prop_assert!(scanner.next().is_none());
                    match scanner.seek_next_psb() {
                        Some(at) => {
                            prop_assert!(at > end);
                            end = at;
                        }
                        None => break,
                    }
                }
                None => {
                    prop_assert_eq!(end, data.len());
                    break;
                }
            }
        }
    }

    #[test]
    fn packet_cut_short_is_truncated(data in packet_like_bytes(), cut in 0usize..16) {
        let mut scanner = PacketScanner::new(&data);
        while let Some(Ok(packet)) = scanner.next() {
            if packet.length > 1 {
                let part = &data[packet.offset..packet.offset + 1 + cut % (packet.length - 1)];
                let mut again = PacketScanner::new(part);
                let is_item = packet.kind.kind() == Kind::Bip;
                again.set_block_item_size(is_item.then(|| packet.length as u8 - 1));
                prop_assert_eq!(again.next(), Some(Err(PacketError::Truncated { offset: 0 })));
            }
        }
    }

    #[test]
    fn find_psb_returns_the_last_psb_of_the_first_run(data in packet_like_bytes(), from in 0usize..60) {
        let naive = (from..data.len()).find(|&i| data[i..].starts_with(&PSB)).map(|mut i| {
            while data[i + 2..].starts_with(&PSB) {
                i += 2;
            }
            i
        });
        prop_assert_eq!(find_psb(&data, from), naive);
    }
}

/// Something before a PSB looked like its beginning, and is read before it.
#[test]
fn run_of_psb_bytes_read_from_its_start_ends_with_a_psb() {
    for pairs in 1..40 {
        let mut data = PSB[..2].repeat(pairs);
        let psbs = pairs / 8;
        let left = 2 * (pairs % 8);
        let read = |data: &[u8]| {
            let mut scanner = PacketScanner::new(data);
            let mut found = Vec::new();
            loop {
                match scanner.next() {
                    Some(Ok(packet)) => found.push(packet.offset),
                    Some(Err(error)) if error.is_truncated() => break,
                    Some(Err(_)) if scanner.seek_next_psb().is_some() => {}
                    _ => break,
                }
            }
            found
        };
        // at the end of the data the next PSB may be cut off
        let whole: Vec<usize> = (0..psbs).map(|psb| 16 * psb).collect();
        assert_eq!(read(&data), whole);
        data.push(0x02);
        assert_eq!(read(&data), whole);
        data.extend([0x23, 0x00]);
        let end = 2 * pairs;
        let mut expected = whole;
        if left > 0 {
            if let Some(last) = expected.last_mut() {
                *last += left;
            }
        }
        if psbs > 0 {
            expected.extend([end, end + 2]);
        }
        assert_eq!(read(&data), expected, "{pairs} pairs");
    }
}
