//! Writing and reading the file form; bad files.

use std::io::Cursor;

use rtit_truth::{
    summarize, Chain, Error, Run, RunHash, ThreadRuns, ThreadSummary, TruthItem, TruthReader,
    TruthWriter,
};

/// A run of `instructions` instructions of one byte each.
fn run(start: u64, instructions: u32) -> Run {
    let mut hash = RunHash::default();
    (0..u64::from(instructions)).for_each(|i| hash.push(start + i));
    Run {
        start,
        instructions,
        hash: hash.hash,
    }
}

fn put(writer: &mut TruthWriter<&mut Vec<u8>>, tid: u32, run: Run) {
    writer
        .add_run(tid, run.start, run.instructions, run.hash)
        .unwrap();
}

fn sample() -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut writer = TruthWriter::new(&mut bytes).unwrap();
    writer.begin_thread(10, 10).unwrap();
    put(&mut writer, 10, run(0x40_1000, 5));
    writer.begin_thread(11, 10).unwrap();
    put(&mut writer, 11, run(0x40_2000, 1));
    put(&mut writer, 10, run(0x40_3000, 2));
    put(&mut writer, 10, Run::default());
    writer.end_thread(11, 0x100).unwrap();
    writer.end_thread(10, 9).unwrap();
    writer.finish().unwrap();
    bytes
}

fn items(bytes: &[u8]) -> Result<Vec<TruthItem>, Error> {
    TruthReader::new(bytes)?.collect()
}

/// A file of one thread 1 followed by `record`.
fn with(kind: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = b"rtit-truth\0\0\x01\0\0\0\x01\0\0\0\x08\0\0\0\x01\0\0\0\x01\0\0\0".to_vec();
    bytes.extend_from_slice(&kind.to_le_bytes());
    bytes.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

#[test]
fn bytes_of_a_small_file() {
    let mut bytes = Vec::new();
    let mut writer = TruthWriter::new(&mut bytes).unwrap();
    writer.begin_thread(7, 6).unwrap();
    writer.add_run(7, 0x1122_3344_5566_7788, 1, 2).unwrap();
    writer.end_thread(7, 0x8b).unwrap();
    writer.finish().unwrap();
    let expected: &[u8] = b"rtit-truth\0\0\x01\0\0\0\
        \x01\0\0\0\x08\0\0\0\x07\0\0\0\x06\0\0\0\
        \x02\0\0\0\x20\0\0\0\x07\0\0\0\x01\0\0\0\
        \x88\x77\x66\x55\x44\x33\x22\x11\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\
        \x04\0\0\0\x18\0\0\0\x07\0\0\0\x8b\0\0\0\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\
        \x05\0\0\0\0\0\0\0";
    assert_eq!(bytes, expected);
}

#[test]
fn what_was_written_is_read() {
    let bytes = sample();
    let contents = summarize(TruthReader::new(bytes.as_slice()).unwrap()).unwrap();
    let mut first = Chain::default();
    first.push(&run(0x40_1000, 5));
    first.push(&run(0x40_3000, 2));
    let mut second = Chain::default();
    second.push(&run(0x40_2000, 1));
    assert!(contents.complete);
    assert_eq!(
        contents.threads,
        [
            ThreadSummary {
                tid: 10,
                pid: 10,
                chain: first,
                runs: 2,
                status: Some(9),
                extent: contents.threads[0].extent.clone(),
            },
            ThreadSummary {
                tid: 11,
                pid: 10,
                chain: second,
                runs: 1,
                status: Some(0x100),
                extent: contents.threads[1].extent.clone(),
            },
        ]
    );
    let of_10: Result<Vec<Run>, Error> =
        ThreadRuns::new(TruthReader::new(bytes.as_slice()).unwrap(), 10).collect();
    assert_eq!(of_10.unwrap(), [run(0x40_1000, 5), run(0x40_3000, 2)]);
}

/// What a whole file says of a thread is found where its records are, whatever is around and between them.
#[test]
fn one_thread_is_where_its_records_are() {
    let whole = sample();
    for size in 16..=whole.len() {
        let bytes = &whole[..size];
        for thread in summarize(TruthReader::new(bytes).unwrap()).unwrap().threads {
            let of = |item: &TruthItem| match *item {
                TruthItem::Thread { tid, .. } | TruthItem::Run { tid, .. } => tid == thread.tid,
                TruthItem::End { tid, .. } => tid == thread.tid,
                _ => false,
            };
            let mut expected = items(bytes).unwrap();
            expected.retain(of);
            let mut other = vec![0xff; size];
            let inside = thread.extent.start as usize..thread.extent.end as usize;
            other[..16].copy_from_slice(&bytes[..16]);
            other[inside.clone()].copy_from_slice(&bytes[inside]);
            let reader = TruthReader::new(Cursor::new(other)).unwrap();
            let reader = reader.for_thread(thread.tid, &thread.extent).unwrap();
            let mut found = reader.collect::<Result<Vec<TruthItem>, Error>>().unwrap();
            found.retain(of);
            assert_eq!(found, expected);
        }
    }
}

#[test]
fn every_prefix_is_a_prefix() {
    let bytes = sample();
    let all = items(&bytes).unwrap();
    assert_eq!(all.last(), Some(&TruthItem::Complete));
    for size in 16..bytes.len() {
        let some = items(&bytes[..size]).unwrap();
        assert!(some.len() < all.len());
        assert_eq!(some, all[..some.len()]);
    }
}

#[test]
fn a_check_every_2_20_instructions_and_bounded_records() {
    let mut bytes = Vec::new();
    let mut writer = TruthWriter::new(&mut bytes).unwrap();
    writer.begin_thread(1, 1).unwrap();
    let one = run(0x1000, 100);
    for _ in 0..22_000 {
        put(&mut writer, 1, one);
    }
    writer.end_thread(1, 0).unwrap();
    writer.finish().unwrap();
    let checks: Vec<u64> = items(&bytes)
        .unwrap()
        .iter()
        .filter_map(|item| match item {
            TruthItem::Check { chain, .. } => Some(chain.instructions),
            _ => None,
        })
        .collect();
    assert_eq!(checks, [1_048_600, 2_097_200]);
    let (mut at, mut runs_records) = (16, 0);
    while at < bytes.len() {
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        runs_records += u32::from(word(at) == 2);
        let size = word(at + 4) as usize + 8;
        assert!(size <= 64 * 1024);
        at += size;
    }
    assert!(runs_records > 8);
}

#[test]
fn flush_leaves_a_readable_prefix() {
    let mut bytes = Vec::new();
    let mut writer = TruthWriter::new(&mut bytes).unwrap();
    writer.begin_thread(1, 1).unwrap();
    put(&mut writer, 1, run(5, 3));
    writer.flush().unwrap();
    put(&mut writer, 1, run(50, 3));
    drop(writer);
    assert_eq!(
        items(&bytes).unwrap(),
        [
            TruthItem::Thread { tid: 1, pid: 1 },
            TruthItem::Run {
                tid: 1,
                run: run(5, 3)
            }
        ]
    );
}

#[test]
fn a_thread_must_be_announced() {
    let mut bytes = Vec::new();
    let mut writer = TruthWriter::new(&mut bytes).unwrap();
    assert!(matches!(
        writer.add_run(3, 0, 1, 0),
        Err(Error::NotAnnounced { tid: 3 })
    ));
    assert!(matches!(
        writer.end_thread(3, 0),
        Err(Error::NotAnnounced { tid: 3 })
    ));
}

#[test]
fn bad_headers() {
    assert!(matches!(
        TruthReader::new(&b""[..]),
        Err(Error::Magic { .. })
    ));
    assert!(matches!(
        TruthReader::new(&b"rtit-truth\0\0\x01"[..]),
        Err(Error::Magic { .. })
    ));
    assert!(matches!(
        TruthReader::new(&b"PERFILE2 and more of it"[..]),
        Err(Error::Magic { .. })
    ));
    let version = TruthReader::new(&b"rtit-truth\0\0\x02\0\0\0"[..]).map(|_| ());
    assert!(matches!(version, Err(Error::Version { found: 2 })));
}

#[test]
fn bad_records() {
    let mut chain = vec![0u8; 24];
    chain[0] = 1;
    chain[8] = 9;
    let mut stranger = vec![0u8; 24];
    stranger[0] = 2;
    let mut flagged = vec![0u8; 32];
    (flagged[0], flagged[4], flagged[20]) = (1, 1, 4);
    let mut many = vec![0u8; 32];
    many[0] = 1;
    many[4..8].fill(0xff);
    let wrong = |kind, payload: &[u8]| items(&with(kind, payload)).unwrap_err();
    assert!(matches!(
        wrong(8, b""),
        Error::Type {
            offset: 32,
            found: 8
        }
    ));
    for (kind, size) in [(6, 24), (7, 8)] {
        // Neither FilterEn nor TraceStop; neither off nor on.
        let mut payload = vec![0u8; size];
        (payload[0], payload[4], payload[6]) = (1, 2, 3);
        assert!(matches!(
            wrong(kind, &payload),
            Error::Reserved { offset: 44, .. }
        ));
        assert!(matches!(wrong(kind, b"1234"), Error::Size { .. }));
    }
    // There is no IA32_RTIT_ADDR4_A.
    let mut fifth = vec![0u8; 24];
    (fifth[0], fifth[4], fifth[6]) = (1, 4, 1);
    let fifth = wrong(6, &fifth);
    assert!(matches!(fifth, Error::Reserved { offset: 44, found } if found == 0x1_0004));
    assert!(matches!(
        wrong(1, b"1234"),
        Error::Size {
            offset: 32,
            kind: 1,
            found: 4
        }
    ));
    assert!(matches!(
        wrong(2, b"1234"),
        Error::Size {
            offset: 32,
            kind: 2,
            found: 4
        }
    ));
    assert!(matches!(
        wrong(2, &many),
        Error::Size {
            offset: 32,
            kind: 2,
            found: 32
        }
    ));
    assert!(matches!(
        wrong(2, &[2, 0, 0, 0, 0, 0, 0, 0]),
        Error::UnknownThread { tid: 2, .. }
    ));
    assert!(matches!(
        wrong(2, &flagged),
        Error::Reserved {
            offset: 60,
            found: 4
        }
    ));
    assert!(matches!(
        wrong(3, &stranger),
        Error::UnknownThread { offset: 32, tid: 2 }
    ));
    assert!(matches!(
        wrong(4, &chain),
        Error::Chain {
            tid: 1,
            instructions: 9,
            counted: 0,
            ..
        }
    ));
    let mut trailing = with(5, b"");
    trailing.push(0);
    assert!(matches!(
        items(&trailing),
        Err(Error::Trailing { offset: 40 })
    ));
    assert!(wrong(6, b"").to_string().ends_with("(offset 0x20)"));
}

#[test]
fn nothing_follows_an_error() {
    let bytes = with(6, b"");
    let mut reader = TruthReader::new(bytes.as_slice()).unwrap();
    assert!(reader.next_item().is_ok());
    assert!(reader.next_item().is_err());
    assert!(matches!(reader.next_item(), Ok(None)));
}

#[cfg(unix)]
#[test]
fn a_link_to_nothing_is_not_followed() {
    let folder = std::env::temp_dir().join(format!("rtit-truth-link-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (link, target) = (folder.join("link"), folder.join("target"));
    std::os::unix::fs::symlink(&target, &link).unwrap();
    assert!(TruthWriter::create(&link).is_err());
    assert!(!target.exists());
    std::fs::write(&target, b"before").unwrap();
    TruthWriter::create(&link).unwrap().finish().unwrap();
    assert!(std::fs::read(&target).unwrap().starts_with(b"rtit-truth"));
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_number_that_is_used_again_begins_anew() {
    let mut bytes = Vec::new();
    let mut writer = TruthWriter::new(&mut bytes).unwrap();
    for start in [0x1000, 0x2000] {
        writer.begin_thread(7, 5).unwrap();
        put(&mut writer, 7, run(start, 3));
        // Without an end before it, it goes on: an exec by another thread.
        writer.begin_thread(7, 5).unwrap();
        put(&mut writer, 7, run(start + 16, 1));
        writer.end_thread(7, 0).unwrap();
    }
    writer.finish().unwrap();
    drop(writer);
    let ends: Vec<u64> = items(&bytes)
        .unwrap()
        .into_iter()
        .filter_map(|item| match item {
            TruthItem::End { chain, .. } => Some(chain.instructions),
            _ => None,
        })
        .collect();
    assert_eq!(ends, [4, 4]);
    // What has the number is one path all the same.
    let contents = summarize(TruthReader::new(bytes.as_slice()).unwrap()).unwrap();
    assert_eq!(contents.threads[0].chain.instructions, 8);
}
