//! The scanner over any bytes: packets lie end to end, it always moves on, and a packet is what its own bytes say.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rtit_packet::{find_psb, PacketScanner, PSB};

fuzz_target!(|data: &[u8]| {
    let mut scanner = PacketScanner::new(data);
    let mut at = 0;
    loop {
        let block = scanner.block_item_size();
        match scanner.next() {
            Some(Ok(packet)) => {
                assert_eq!(packet.offset, at);
                assert!((1..=16).contains(&packet.length));
                at = packet.end_offset();
                assert!(at <= data.len());
                assert_eq!(scanner.next_packet_offset(), at);
                // What follows does not matter, nor does what went before beyond the block.
                let mut alone = PacketScanner::starting_at(&data[..at], packet.offset);
                alone.set_block_item_size(block);
                assert_eq!(alone.next(), Some(Ok(packet)));
                assert_eq!(alone.block_item_size(), scanner.block_item_size());
                assert_eq!(alone.next(), None);
            }
            Some(Err(error)) => {
                assert_eq!(error.offset(), at);
                assert_eq!(scanner.next_packet_offset(), at);
                assert_eq!(scanner.next(), None);
                if error.is_truncated() {
                    assert!(data.len() - at < 16);
                }
                let found = scanner.seek_next_psb();
                assert_eq!(found, find_psb(data, at + 1));
                assert_eq!(scanner.next_packet_offset(), found.unwrap_or(data.len()));
                assert!(scanner.next_packet_offset() > at);
                at = scanner.next_packet_offset();
            }
            None => break,
        }
    }
    assert_eq!(at, data.len());

    for from in (0..data.len()).step_by(1 + data.len() / 16) {
        assert_eq!(find_psb(data, from), plain_find_psb(data, from));
    }
    assert_eq!(find_psb(data, data.len() + 1), None);
});

/// The first PSB from `from` on, at the end of its run of 02H 82H; written without a search library.
fn plain_find_psb(data: &[u8], from: usize) -> Option<usize> {
    let is_psb = |at: usize| data[at..].starts_with(&PSB);
    let mut at = (from..data.len()).find(|&at| is_psb(at))?;
    while is_psb(at + 2) {
        at += 2;
    }
    Some(at)
}
