//! The scanner over golden, truncated, reserved and random bytes.

use proptest::prelude::*;
use rtit_packet::{find_psb, Ip, Kind, PacketError, PacketKind, Scanner, Tnt, PSB};

fn one(bytes: &[u8]) -> Result<PacketKind, PacketError> {
    let packet = Scanner::new(bytes).next().expect("not empty")?;
    assert_eq!((packet.offset, packet.length), (0, bytes.len()));
    Ok(packet.kind)
}

fn hex(text: &str) -> Vec<u8> {
    text.split_whitespace()
        .map(|byte| u8::from_str_radix(byte, 16).unwrap())
        .collect()
}

#[test]
fn every_packet_of_the_chapter() {
    let ip = |ip_bytes, payload| Ip { ip_bytes, payload };
    let cases = [
        ("00", PacketKind::Pad),
        ("06", PacketKind::Tnt(Tnt { count: 1, bits: 1 })),
        (
            "48",
            PacketKind::Tnt(Tnt {
                count: 5,
                bits: 0b00100,
            }),
        ),
        ("82", PacketKind::Tnt(Tnt { count: 6, bits: 1 })),
        (
            "02 a3 ff ff ff ff ff ff",
            PacketKind::Tnt64(Tnt {
                count: 47,
                bits: (1 << 47) - 1,
            }),
        ),
        (
            "02 a3 03 00 00 00 00 00",
            PacketKind::Tnt64(Tnt { count: 1, bits: 1 }),
        ),
        ("0d", PacketKind::Tip(ip(0, 0))),
        ("2d 08 13", PacketKind::Tip(ip(1, 0x1308))),
        ("51 78 56 34 12", PacketKind::TipPge(ip(2, 0x12345678))),
        (
            "61 01 02 03 04 05 06",
            PacketKind::TipPgd(ip(3, 0x060504030201)),
        ),
        (
            "9d 01 02 03 04 05 06",
            PacketKind::Fup(ip(4, 0x060504030201)),
        ),
        (
            "dd 01 02 03 04 05 06 07 08",
            PacketKind::Fup(ip(6, 0x0807060504030201)),
        ),
        (
            "02 43 01 45 23 01 00 00",
            PacketKind::Pip {
                nr: true,
                cr3: 0x12345000,
            },
        ),
        (
            "99 01",
            PacketKind::ModeExec {
                csl: true,
                csd: false,
                iflag: false,
            },
        ),
        (
            "99 06",
            PacketKind::ModeExec {
                csl: false,
                csd: true,
                iflag: true,
            },
        ),
        (
            "99 22",
            PacketKind::ModeTsx {
                in_tx: false,
                tx_abort: true,
            },
        ),
        ("02 83", PacketKind::TraceStop),
        ("02 03 27 00", PacketKind::Cbr { ratio: 0x27 }),
        (
            "19 01 02 03 04 05 06 07",
            PacketKind::Tsc {
                tsc: 0x07060504030201,
            },
        ),
        ("59 8b", PacketKind::Mtc { ctc: 0x8b }),
        (
            "02 73 57 64 00 1c 01",
            PacketKind::Tma {
                ctc: 0x6457,
                fast_counter: 0x11c,
            },
        ),
        ("fb", PacketKind::Cyc { cycles: 31 }),
        ("df fa", PacketKind::Cyc { cycles: 4027 }),
        ("17 01 04", PacketKind::Cyc { cycles: 8194 }),
        (
            "02 c8 56 34 12 00 00",
            PacketKind::Vmcs {
                pointer: 0x123456000,
            },
        ),
        ("02 f3", PacketKind::Ovf),
        ("02 23", PacketKind::PsbEnd),
        (
            "02 c3 88 08 07 06 05 04 03 02 01",
            PacketKind::Mnt {
                payload: 0x0102030405060708,
            },
        ),
        (
            "02 92 04 03 02 01",
            PacketKind::Ptw {
                ip: true,
                payload_bytes: 0,
                payload: 0x01020304,
            },
        ),
        (
            "02 32 08 07 06 05 04 03 02 01",
            PacketKind::Ptw {
                ip: false,
                payload_bytes: 1,
                payload: 0x0102030405060708,
            },
        ),
        ("02 62", PacketKind::ExStop { ip: false }),
        ("02 e2", PacketKind::ExStop { ip: true }),
        (
            "02 c2 20 00 00 00 01 00 00 00",
            PacketKind::Mwait {
                hints: 0x20,
                ext: 1,
            },
        ),
        (
            "02 22 80 21",
            PacketKind::Pwre {
                hw: true,
                state: 2,
                sub_state: 1,
            },
        ),
        (
            "02 a2 23 04 00 00 00",
            PacketKind::Pwrx {
                last: 2,
                deepest: 3,
                wake: 4,
            },
        ),
        ("02 63 84", PacketKind::Bbp { sz: true, kind: 4 }),
        ("02 b3", PacketKind::Bep { ip: true }),
        (
            "02 13 81 20",
            PacketKind::Cfe {
                ip: true,
                kind: 1,
                vector: 0x20,
            },
        ),
        (
            "02 53 02 08 07 06 05 04 03 02 01",
            PacketKind::Evd {
                kind: 2,
                payload: 0x0102030405060708,
            },
        ),
        (
            "d9 20 a1",
            PacketKind::Unknown {
                opcode: 0xd9,
                icntv: false,
            },
        ),
        (
            "d9 40 a1 17 00",
            PacketKind::Unknown {
                opcode: 0xd9,
                icntv: true,
            },
        ),
    ];
    for (text, kind) in cases {
        assert_eq!(one(&hex(text)), Ok(kind), "{text}");
    }
    assert_eq!(one(&PSB), Ok(PacketKind::Psb));
}

#[test]
fn reserved_encodings_are_errors() {
    for text in [
        "05",
        "09",
        "39",
        "ad",
        "ed",
        "f1",
        "79",
        "b9",
        "f9",
        "02 00",
        "02 52",
        "02 f2",
        "99 40",
        "99 03",
        "99 23",
        "02 82 02 83",
        "02 c3 00",
        "02 a3 00 00 00 00 00 00",
        "02 a3 01 00 00 00 00 00",
        "07 01 01 01 01 01 01 01 01",
    ] {
        let error = one(&hex(text)).expect_err(text);
        assert!(!error.is_truncated(), "{text}: {error}");
        assert_eq!(error.offset(), 0);
        assert!(error.to_string().contains("offset 0x0"), "{error}");
    }
}

#[test]
fn block_items_take_the_place_of_tnts_until_the_block_ends() {
    let item4 = [0x0c, 1, 2, 3, 4];
    let mut data = hex("02 63 84");
    data.extend(item4);
    data.extend(hex("59 01"));
    data.extend(item4);
    data.extend(hex(
        "02 63 04 14 01 02 03 04 05 06 07 08 02 33 0c 02 63 04 02 f3 0c 02 63 04 06 0c",
    ));
    let kinds: Vec<_> = Scanner::new(&data)
        .map(|p| p.unwrap().kind.kind())
        .collect();
    use Kind::{Bbp, Bep, Bip, Mtc, Ovf, Tnt};
    assert_eq!(
        kinds,
        [Bbp, Bip, Mtc, Bip, Bbp, Bip, Bep, Tnt, Bbp, Ovf, Tnt, Bbp, Tnt, Tnt]
    );
}

#[test]
fn an_error_is_given_once_and_resync_goes_on_at_the_next_psb() {
    let mut data = hex("06 02 52 06 06");
    data.extend(hex("02 82 02 82"));
    data.extend(PSB);
    data.push(0x06);
    let mut scanner = Scanner::new(&data);
    assert!(scanner.next().unwrap().is_ok());
    assert_eq!(scanner.next().unwrap().unwrap_err().offset(), 1);
    assert!(scanner.next().is_none());
    assert_eq!(scanner.resync(), Some(9));
    assert_eq!(scanner.next().unwrap().unwrap().kind, PacketKind::Psb);
    assert!(scanner.next().unwrap().is_ok());
    assert!(scanner.next().is_none());
    assert_eq!(scanner.resync(), None);
    assert_eq!(scanner.position(), data.len());
}

/// Bytes that look like packets more often than random ones do.
fn stream() -> impl Strategy<Value = Vec<u8>> {
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
    fn any_bytes_are_scanned_to_the_end(data in stream()) {
        let mut scanner = Scanner::new(&data);
        let mut end = 0;
        loop {
            match scanner.next() {
                Some(Ok(packet)) => {
                    prop_assert_eq!(packet.offset, end);
                    prop_assert!((1..=16).contains(&packet.length));
                    end = packet.end();
                    prop_assert!(end <= data.len());
                }
                Some(Err(error)) => {
                    prop_assert_eq!(error.offset(), end);
                    prop_assert!(scanner.next().is_none());
                    match scanner.resync() {
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
    fn a_packet_cut_short_is_truncated(data in stream(), cut in 0usize..16) {
        let mut scanner = Scanner::new(&data);
        while let Some(Ok(packet)) = scanner.next() {
            if packet.length > 1 {
                let part = &data[packet.offset..packet.offset + 1 + cut % (packet.length - 1)];
                let mut again = Scanner::new(part);
                again.set_block(if packet.kind.kind() == Kind::Bip { Some(packet.length as u8 - 1) } else { None });
                prop_assert_eq!(again.next(), Some(Err(PacketError::Truncated { offset: 0 })));
            }
        }
    }

    #[test]
    fn find_psb_is_the_end_of_the_first_run(data in stream(), from in 0usize..60) {
        let naive = (from..data.len()).find(|&i| data[i..].starts_with(&PSB)).map(|mut i| {
            while data[i + 2..].starts_with(&PSB) {
                i += 2;
            }
            i
        });
        prop_assert_eq!(find_psb(&data, from), naive);
    }
}
