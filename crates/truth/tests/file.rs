//! Writing and reading the file form; bad files.

use std::io::Cursor;

use rtit_truth::{
    summarize_truth_file, Error, PathHash, PathRun, RunHash, ThreadSummary, TruthItem, TruthReader,
    TruthWriter,
};

/// A run of `instructions` instructions of one byte each.
fn run(start: u64, instructions: u32) -> PathRun {
    let mut hash = RunHash::default();
    (0..u64::from(instructions)).for_each(|i| hash.push_instruction(start + i));
    PathRun {
        start,
        instructions,
        hash: hash.hash,
    }
}

fn add(writer: &mut TruthWriter<&mut Vec<u8>>, tid: u32, run: PathRun) {
    writer
        .add_run(tid, run.start, run.instructions, run.hash)
        .unwrap();
}

fn sample() -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut writer = TruthWriter::new(&mut bytes).unwrap();
    writer.begin_thread(10, 10).unwrap();
    add(&mut writer, 10, run(0x40_1000, 5));
    writer.begin_thread(11, 10).unwrap();
    add(&mut writer, 11, run(0x40_2000, 1));
    add(&mut writer, 10, run(0x40_3000, 2));
    add(&mut writer, 10, PathRun::default());
    writer.end_thread(11, 0x100).unwrap();
    writer.end_thread(10, 9).unwrap();
    writer.mark_complete().unwrap();
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
fn small_file_has_the_documented_bytes() {
    let mut bytes = Vec::new();
    let mut writer = TruthWriter::new(&mut bytes).unwrap();
    writer.begin_thread(7, 6).unwrap();
    writer.add_run(7, 0x1122_3344_5566_7788, 1, 2).unwrap();
    writer.end_thread(7, 0x8b).unwrap();
    writer.mark_complete().unwrap();
    let expected: &[u8] = b"rtit-truth\0\0\x01\0\0\0\
        \x01\0\0\0\x08\0\0\0\x07\0\0\0\x06\0\0\0\
        \x02\0\0\0\x20\0\0\0\x07\0\0\0\x01\0\0\0\
        \x88\x77\x66\x55\x44\x33\x22\x11\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\
        \x04\0\0\0\x18\0\0\0\x07\0\0\0\x8b\0\0\0\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\
        \x05\0\0\0\0\0\0\0";
    assert_eq!(bytes, expected);
}

#[test]
fn written_file_is_read() {
    let bytes = sample();
    let contents = summarize_truth_file(TruthReader::new(bytes.as_slice()).unwrap()).unwrap();
    let thread = |index: usize, tid, runs: &[PathRun], status| {
        let mut chain = PathHash::default();
        runs.iter().for_each(|run| chain.push_run(run));
        ThreadSummary {
            tid,
            pid: 10,
            chain,
            runs: runs.len() as u64,
            status: Some(status),
            extent: contents.threads[index].extent.clone(),
        }
    };
    let first = thread(0, 10, &[run(0x40_1000, 5), run(0x40_3000, 2)], 9);
    let second = thread(1, 11, &[run(0x40_2000, 1)], 0x100);
    assert!(contents.complete);
    assert_eq!(contents.threads, [first, second]);
    let of_10: Result<Vec<PathRun>, Error> = TruthReader::new(bytes.as_slice())
        .unwrap()
        .thread_runs(10)
        .collect();
    assert_eq!(of_10.unwrap(), [run(0x40_1000, 5), run(0x40_3000, 2)]);
}

/// Other bytes around the extent, and records of other threads in it, do not matter.
#[test]
fn one_thread_is_read_from_its_extent() {
    let whole = sample();
    for size in 16..=whole.len() {
        let bytes = &whole[..size];
        for thread in summarize_truth_file(TruthReader::new(bytes).unwrap())
            .unwrap()
            .threads
        {
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
fn prefix_of_a_file_has_its_first_items() {
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
fn check_follows_every_2_20_instructions_and_records_are_bounded() {
    let mut bytes = Vec::new();
    let mut writer = TruthWriter::new(&mut bytes).unwrap();
    writer.begin_thread(1, 1).unwrap();
    let one = run(0x1000, 100);
    for _ in 0..22_000 {
        add(&mut writer, 1, one);
    }
    writer.end_thread(1, 0).unwrap();
    writer.mark_complete().unwrap();
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
    add(&mut writer, 1, run(5, 3));
    writer.flush_runs().unwrap();
    add(&mut writer, 1, run(50, 3));
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
fn unannounced_thread_is_an_error() {
    let mut bytes = Vec::new();
    let mut writer = TruthWriter::new(&mut bytes).unwrap();
    for result in [writer.add_run(3, 0, 1, 0), writer.end_thread(3, 0)] {
        assert!(matches!(result, Err(Error::NotAnnounced { tid: 3 })));
    }
}

#[test]
fn bad_headers_are_errors() {
    let wrong = |bytes: &[u8]| TruthReader::new(bytes).map(drop).unwrap_err();
    for bytes in [&b""[..], b"rtit-truth\0\0\x01", b"PERFILE2 and more of it"] {
        assert!(matches!(wrong(bytes), Error::Magic { .. }));
    }
    let version = wrong(b"rtit-truth\0\0\x02\0\0\0");
    assert!(matches!(version, Error::Version { found: 2 }));
}

/// Returns `size` zero bytes, except for those given with their positions.
fn payload(size: usize, bytes: &[(usize, u8)]) -> Vec<u8> {
    let mut payload = vec![0; size];
    for &(at, byte) in bytes {
        payload[at] = byte;
    }
    payload
}

#[test]
fn bad_records_are_errors() {
    let mut many = payload(32, &[(0, 1)]);
    many[4..8].fill(0xff);
    let size = |kind: u32| format!("Size {{ offset: 32, kind: {kind}, found: 4 }}");
    let flagged = payload(32, &[(0, 1), (4, 1), (20, 4)]);
    let stranger = "UnknownThread { offset: 32, tid: 2 }";
    for (kind, payload, expected) in [
        (8, vec![], "Type { offset: 32, found: 8 }"),
        // Neither FilterEn nor TraceStop; neither off nor on.
        (
            6,
            payload(24, &[(0, 1), (4, 2), (6, 3)]),
            "Reserved { offset: 44, found: 196610 }",
        ),
        (
            7,
            payload(8, &[(0, 1), (4, 2), (6, 3)]),
            "Reserved { offset: 44, found: 196610 }",
        ),
        // There is no IA32_RTIT_ADDR4_A.
        (
            6,
            payload(24, &[(0, 1), (4, 4), (6, 1)]),
            "Reserved { offset: 44, found: 65540 }",
        ),
        (2, flagged, "Reserved { offset: 60, found: 4 }"),
        (6, b"1234".to_vec(), &size(6)),
        (7, b"1234".to_vec(), &size(7)),
        (1, b"1234".to_vec(), &size(1)),
        (2, b"1234".to_vec(), &size(2)),
        (2, many, "Size { offset: 32, kind: 2, found: 32 }"),
        (2, payload(8, &[(0, 2)]), stranger),
        (3, payload(24, &[(0, 2)]), stranger),
        (
            4,
            payload(24, &[(0, 1), (8, 9)]),
            "Chain { offset: 32, tid: 1, instructions: 9, counted: 0 }",
        ),
    ] {
        let error = items(&with(kind, &payload)).unwrap_err();
        assert_eq!(format!("{error:?}"), expected);
    }
    let trailing = items(&[with(5, b""), vec![0]].concat()).unwrap_err();
    assert!(matches!(trailing, Error::Trailing { offset: 40 }));
    let text = items(&with(6, b"")).unwrap_err().to_string();
    assert!(text.ends_with("(offset 0x20)"));
}

#[test]
fn reading_stops_at_an_error() {
    let bytes = with(6, b"");
    let mut reader = TruthReader::new(bytes.as_slice()).unwrap();
    assert!(reader.next_item().is_ok());
    assert!(reader.next_item().is_err());
    assert!(matches!(reader.next_item(), Ok(None)));
}

#[cfg(unix)]
#[test]
fn dangling_link_is_not_followed() {
    let folder = std::env::temp_dir().join(format!("rtit-truth-link-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (link, target) = (folder.join("link"), folder.join("target"));
    std::os::unix::fs::symlink(&target, &link).unwrap();
    assert!(TruthWriter::create_truth_file(&link).is_err());
    assert!(!target.exists());
    std::fs::write(&target, b"before").unwrap();
    TruthWriter::create_truth_file(&link)
        .unwrap()
        .mark_complete()
        .unwrap();
    assert!(std::fs::read(&target).unwrap().starts_with(b"rtit-truth"));
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn reused_tid_starts_another_path() {
    let mut bytes = Vec::new();
    let mut writer = TruthWriter::new(&mut bytes).unwrap();
    for start in [0x1000, 0x2000] {
        writer.begin_thread(7, 5).unwrap();
        add(&mut writer, 7, run(start, 3));
        // Without an end before it, the path continues: an exec by another thread.
        writer.begin_thread(7, 5).unwrap();
        add(&mut writer, 7, run(start + 16, 1));
        writer.end_thread(7, 0).unwrap();
    }
    writer.mark_complete().unwrap();
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
    // The summary joins all paths of a tid.
    let contents = summarize_truth_file(TruthReader::new(bytes.as_slice()).unwrap()).unwrap();
    assert_eq!(contents.threads[0].chain.instructions, 8);
}
