//! Any bytes as a truth file: read to its end, and what was read can be written and read again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rtit_truth::{
    compare_paths, summarize_truth_file, CompareOptions, ComparisonOutcome, Error, TruthItem,
    TruthReader, TruthWriter,
};

fuzz_target!(|data: &[u8]| {
    let Ok((items, error)) = items(data) else {
        return;
    };
    let summary = reader(data).map(summarize_truth_file);
    assert_eq!(error.is_some(), matches!(summary, Ok(Err(_)) | Err(_)));

    for tid in tids(&items) {
        // Only a decoded path marks open loops, and a decoder leaves a loop where the mark says.
        let unmarked =
            runs(data, tid).filter(|run| !matches!(run, Ok(run) if run.instructions == 0));
        let same = compare_paths(runs(data, tid), unmarked, CompareOptions::default());
        assert!(
            matches!(same, Err(_) | Ok(ComparisonOutcome::Identical(_))),
            "{same:?}"
        );
        let _ = compare_paths(runs(data, tid), runs(data, tid), CompareOptions::default());
    }

    let written = write(&items);
    let (again, error) = self::items(&written).expect("a header was written");
    assert!(error.is_none(), "{error:?}");
    for tid in tids(&items) {
        // The writer groups runs by thread, and leaves out those without instructions.
        let of = |items: &[TruthItem]| -> Vec<TruthItem> {
            let own = |item: &&TruthItem| match item {
                TruthItem::Run { tid: its, run } => *its == tid && run.instructions > 0,
                _ => false,
            };
            items.iter().filter(own).copied().collect()
        };
        assert_eq!(of(&items), of(&again));
    }
});

fn reader(data: &[u8]) -> Result<TruthReader<&[u8]>, Error> {
    TruthReader::new(data)
}

fn runs(data: &[u8], tid: u32) -> impl Iterator<Item = Result<rtit_truth::PathRun, Error>> + '_ {
    let runs = reader(data).map(|reader| reader.thread_runs(tid));
    runs.into_iter().flatten()
}

/// All items, and the error that ended them.
fn items(data: &[u8]) -> Result<(Vec<TruthItem>, Option<Error>), Error> {
    let mut reader = reader(data)?;
    let mut items = Vec::new();
    loop {
        let before = reader.bytes_read();
        match reader.next_item() {
            Ok(Some(item)) => items.push(item),
            Ok(None) => break,
            Err(error) => {
                assert!(error
                    .offset()
                    .is_some_and(|offset| offset <= data.len() as u64));
                assert!(!error.to_string().is_empty());
                assert!(matches!(reader.next_item(), Ok(None)));
                return Ok((items, Some(error)));
            }
        }
        assert!(reader.bytes_read() > before && reader.bytes_read() <= data.len() as u64);
    }
    assert_eq!(
        reader.is_complete(),
        items.last() == Some(&TruthItem::Complete)
    );
    Ok((items, None))
}

fn tids(items: &[TruthItem]) -> Vec<u32> {
    let mut tids: Vec<u32> = Vec::new();
    for item in items {
        if let TruthItem::Thread { tid, .. } = item {
            if !tids.contains(tid) && tids.len() < 8 {
                tids.push(*tid);
            }
        }
    }
    tids
}

fn write(items: &[TruthItem]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut writer = TruthWriter::new(&mut bytes).expect("memory takes everything");
    for item in items {
        let done = match *item {
            TruthItem::Thread { tid, pid } => writer.begin_thread(tid, pid),
            TruthItem::Run { tid, run } => {
                writer.add_run(tid, run.start, run.instructions, run.hash)
            }
            TruthItem::End { tid, status, .. } => writer.end_thread(tid, status),
            TruthItem::Tracing { tid, on } => writer.set_tracing(tid, on),
            TruthItem::Check { .. } | TruthItem::Range { .. } => Ok(()),
            TruthItem::Complete => writer.mark_complete(),
        };
        done.expect("what was read can be written");
    }
    writer.flush_runs().expect("memory takes everything");
    drop(writer);
    bytes
}
