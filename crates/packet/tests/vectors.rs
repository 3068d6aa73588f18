//! The packet vectors of `tests/packets/vectors.txt`, which the tests of the Python decoder read as well.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::read_to_string;

use rtit_packet::table::ROWS;
use rtit_packet::{Kind, PacketError, PacketKind, PacketScanner};

const FILE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../tests/packets/vectors.txt"
);

/// A line of the file: bytes, and what they are, or nothing.
struct PacketVector {
    bytes: Vec<u8>,
    packet: Option<ShownPacket>,
}

/// A packet as the file shows it: its name, the results of a TNT, the numbers of all others.
#[derive(PartialEq, Eq, Debug)]
struct ShownPacket {
    name: String,
    bits: String,
    fields: BTreeMap<String, u64>,
}

fn read_vectors() -> Vec<PacketVector> {
    let text = read_to_string(FILE).expect(FILE);
    text.lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(|line| {
            let at = line.find(['=', '>', '!']).expect(line);
            let (packet, _source) = line[at + 1..].split_once(';').expect(line);
            PacketVector {
                bytes: parse_hex(&line[..at]),
                packet: (!line[at..].starts_with('!')).then(|| parse_shown_packet(packet)),
            }
        })
        .collect()
}

fn parse_hex(text: &str) -> Vec<u8> {
    text.split_whitespace()
        .map(|byte| u8::from_str_radix(byte, 16).expect(text))
        .collect()
}

fn parse_shown_packet(text: &str) -> ShownPacket {
    let mut words = text.split_whitespace();
    let mut shown = ShownPacket {
        name: words.next().expect("a name").to_owned(),
        bits: String::new(),
        fields: BTreeMap::new(),
    };
    for (name, value) in words.map(|word| word.split_once('=').expect(text)) {
        if name == "bits" {
            shown.bits = value.to_owned();
        } else {
            let number = value.split('(').next().expect(text);
            let number = match number.strip_prefix("0x") {
                Some(digits) => u64::from_str_radix(digits, 16),
                None => number.parse(),
            };
            shown.fields.insert(name.to_owned(), number.expect(text));
        }
    }
    shown
}

fn show_packet(kind: &PacketKind) -> ShownPacket {
    let mut shown = ShownPacket {
        name: kind.name().to_owned(),
        bits: String::new(),
        fields: BTreeMap::new(),
    };
    if let PacketKind::Tnt(tnt) | PacketKind::Tnt64(tnt) = kind {
        let letter = |index| {
            if tnt.result_at(index) == Some(true) {
                'T'
            } else {
                'N'
            }
        };
        shown.bits = (0..tnt.count).map(letter).collect();
    } else {
        kind.for_each_field(|name, value| {
            shown.fields.insert(name.to_owned(), value);
        });
    }
    shown
}

/// A scanner over the bytes, within a block of the item's size if they are to be an item.
fn scanner_for_vector<'data>(vector: &PacketVector, bytes: &'data [u8]) -> PacketScanner<'data> {
    let mut scanner = PacketScanner::new(bytes);
    let item = |shown: &&ShownPacket| shown.name == Kind::Bip.name();
    let item = vector.packet.as_ref().filter(item);
    scanner.set_block_item_size(item.map(|item| if item.fields["sz"] == 0 { 8 } else { 4 }));
    scanner
}

#[test]
fn every_packet_of_the_chapter_is_scanned() {
    let mut seen = BTreeSet::new();
    for vector in read_vectors() {
        let Some(expected) = &vector.packet else {
            continue;
        };
        let packet = scanner_for_vector(&vector, &vector.bytes)
            .next()
            .unwrap()
            .unwrap();
        assert_eq!(&show_packet(&packet.kind), expected);
        assert_eq!((packet.offset, packet.length), (0, vector.bytes.len()));
        seen.insert(packet.kind.kind());
    }
    assert_eq!(seen.len(), ROWS.len());
}

#[test]
fn reserved_and_undefined_bytes_are_errors() {
    let mut count = 0;
    for vector in read_vectors()
        .iter()
        .filter(|vector| vector.packet.is_none())
    {
        let found = scanner_for_vector(vector, &vector.bytes).next().unwrap();
        let error = found.expect_err(&format!("{:02x?}", vector.bytes));
        assert!(!error.is_truncated(), "{:02x?}: {error}", vector.bytes);
        assert_eq!(error.offset(), 0);
        assert!(error.to_string().contains("offset 0x0"), "{error}");
        count += 1;
    }
    assert!(count > 0);
}

#[test]
fn packet_cut_short_at_any_byte_is_truncated() {
    for vector in read_vectors()
        .iter()
        .filter(|vector| vector.packet.is_some())
    {
        for end in 1..vector.bytes.len() {
            let found = scanner_for_vector(vector, &vector.bytes[..end]).next();
            assert_eq!(found, Some(Err(PacketError::Truncated { offset: 0 })));
        }
    }
}
