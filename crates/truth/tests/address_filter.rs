//! What a truth file says of address ranges and of TraceEn, of one of its threads.

use rtit_truth::{Error, SelectedRuns, TruthReader};

type Ranges = [(u64, u64)];

fn words(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn range(tid: u32, what: u32, number: u32, (first, last): (u64, u64)) -> Vec<u8> {
    let mut bytes = words(&[6, 24, tid, what << 16 | number]);
    bytes.extend(first.to_le_bytes());
    bytes.extend(last.to_le_bytes());
    bytes
}

fn filter(number: u32, ends: (u64, u64)) -> Vec<u8> {
    range(7, 1, number, ends)
}

fn stop(number: u32, ends: (u64, u64)) -> Vec<u8> {
    range(7, 2, number, ends)
}

fn tracing(tid: u32, on: u32) -> Vec<u8> {
    words(&[7, 8, tid, on])
}

fn executed(tid: u32, start: u64) -> Vec<u8> {
    let mut bytes = words(&[2, 32, tid, 1]);
    bytes.extend(start.to_le_bytes());
    bytes.extend(words(&[1, 0]));
    bytes.extend(rtit_truth::hash::mix(start).to_le_bytes());
    bytes
}

/// Where the runs begin that thread 7 is traced in; thread 8 is there, too.
fn kept(records: &[Vec<u8>], filters: &Ranges, stops: &Ranges) -> Result<Vec<u64>, Error> {
    let mut file = b"rtit-truth\0\0\x01\0\0\0".to_vec();
    file.extend(words(&[1, 8, 7, 7, 1, 8, 8, 7]));
    file.extend(records.concat());
    file.extend(words(&[5, 0]));
    let runs = SelectedRuns::new(
        TruthReader::new(&file[..])?,
        7,
        filters.to_vec(),
        stops.to_vec(),
    );
    runs.map(|run| run.map(|run| run.start)).collect()
}

const LOW: (u64, u64) = (0x1000, 0x10ff);
const HIGH: (u64, u64) = (0x1100, 0x11ff);

#[test]
fn ranges_and_trace_en() {
    let records = [
        tracing(7, 0),
        filter(0, LOW),
        executed(7, 0x1000), // off
        tracing(7, 1),
        executed(7, 0x1001),
        executed(7, 0x1100), // outside
        filter(0, HIGH),
        executed(7, 0x1101),
        executed(7, 0x1002), // the first range is gone
    ];
    assert_eq!(kept(&records, &[LOW, HIGH], &[]).unwrap(), [0x1001, 0x1101]);
    // a range that no filter gives
    assert!(kept(&records, &[LOW], &[]).is_err());
}

#[test]
fn what_is_given_holds_until_the_file_says_otherwise() {
    let records = [
        executed(7, 0x1000),
        executed(7, 0x2000),
        filter(0, HIGH),
        executed(7, 0x1001),
        executed(7, 0x1101),
    ];
    assert_eq!(kept(&records, &[LOW, HIGH], &[]).unwrap(), [0x1000, 0x1101]);
    let stopped = [
        executed(7, 0x2000),
        executed(7, 0x1000),
        executed(7, 0x2000),
    ];
    assert_eq!(kept(&stopped, &[], &[LOW]).unwrap(), [0x2000]);
}

#[test]
fn other_threads_have_their_own() {
    let records = [
        filter(0, LOW),
        range(8, 1, 0, HIGH),
        // of no filter, but another thread's
        range(8, 1, 1, (1, 2)),
        tracing(8, 0),
        executed(8, 0x1002),
        executed(7, 0x1001),
        executed(7, 0x1101),
    ];
    assert_eq!(kept(&records, &[LOW, HIGH], &[]).unwrap(), [0x1001]);
}

#[test]
fn a_range_is_of_filters_or_of_stops() {
    let high = (0x2000, 0x20ff);
    let records = [
        filter(0, LOW),
        stop(1, high),
        executed(7, 0x1000),
        executed(7, 0x1100),
        executed(7, 0x2000),
        executed(7, 0x1000),
    ];
    assert_eq!(kept(&records, &[LOW], &[high]).unwrap(), [0x1000]);
    // the one is not taken for the other
    assert!(kept(&records, &[LOW, high], &[]).is_err());
    assert!(kept(&records, &[], &[LOW, high]).is_err());
}

/// Number 0 comes first of all, whichever kind it is of.
#[test]
fn others_than_before() {
    let records = [
        filter(0, LOW),
        stop(1, (0x2000, 0x20ff)),
        executed(7, 0x1000),
        stop(0, HIGH),
        executed(7, 0x3000), // there is no filter any more
        executed(7, 0x2000), // and no such stop
        filter(0, LOW),
        executed(7, 0x1101),
        executed(7, 0x1001),
    ];
    let stops = [(0x2000, 0x20ff), HIGH];
    assert_eq!(
        kept(&records, &[LOW], &stops).unwrap(),
        [0x1000, 0x3000, 0x2000, 0x1001]
    );
}

/// Neighbours are joined, and a filter may be nowhere in a program.
#[test]
fn ends_are_those_of_filters() {
    let joined = (LOW.0, HIGH.1);
    let both = [filter(0, joined), executed(7, 0x1000), executed(7, 0x1200)];
    assert_eq!(kept(&both, &[LOW, HIGH], &[]).unwrap(), [0x1000]);
    let nowhere = [filter(0, (0, 0)), executed(7, 0x1000), executed(7, 1)];
    assert_eq!(kept(&nowhere, &[LOW], &[]).unwrap(), [0; 0]);
    for ends in [(LOW.0 + 1, LOW.1), (LOW.0, LOW.1 - 1), (0, LOW.1)] {
        let other = [filter(0, ends)];
        let wrong = kept(&other, &[LOW], &[]).unwrap_err();
        assert!(matches!(wrong, Error::Range { tid: 7, first, last } if (first, last) == ends));
    }
}
