//! The runs of one thread that are traced, by its address ranges and TraceEn in a truth file.

use rtit_truth::{Error, FilterRange, PathRun, SelectedRuns, TracedPathSelector, TruthReader};

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
    bytes.extend(rtit_truth::hash::mix_address(start).to_le_bytes());
    bytes
}

/// Returns the starts of the traced runs of thread 7; the file has thread 8, too.
fn traced_starts(records: &[Vec<u8>], filters: &Ranges, stops: &Ranges) -> Result<Vec<u64>, Error> {
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
fn ranges_and_trace_en_select_runs() {
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
    assert_eq!(
        traced_starts(&records, &[LOW, HIGH], &[]).unwrap(),
        [0x1001, 0x1101]
    );
    // a range that no filter gives
    assert!(traced_starts(&records, &[LOW], &[]).is_err());
}

#[test]
fn given_ranges_apply_until_the_file_sets_others() {
    let records = [
        executed(7, 0x1000),
        executed(7, 0x2000),
        filter(0, HIGH),
        executed(7, 0x1001),
        executed(7, 0x1101),
    ];
    assert_eq!(
        traced_starts(&records, &[LOW, HIGH], &[]).unwrap(),
        [0x1000, 0x1101]
    );
    let stopped = [
        executed(7, 0x2000),
        executed(7, 0x1000),
        executed(7, 0x2000),
    ];
    assert_eq!(traced_starts(&stopped, &[], &[LOW]).unwrap(), [0x2000]);
}

#[test]
fn ranges_of_other_threads_do_not_apply() {
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
    assert_eq!(
        traced_starts(&records, &[LOW, HIGH], &[]).unwrap(),
        [0x1001]
    );
}

#[test]
fn ranges_of_filters_and_stops_are_distinct() {
    let high = (0x2000, 0x20ff);
    let records = [
        filter(0, LOW),
        stop(1, high),
        executed(7, 0x1000),
        executed(7, 0x1100),
        executed(7, 0x2000),
        executed(7, 0x1000),
    ];
    assert_eq!(traced_starts(&records, &[LOW], &[high]).unwrap(), [0x1000]);
    // of the other kind
    assert!(traced_starts(&records, &[LOW, high], &[]).is_err());
    assert!(traced_starts(&records, &[], &[LOW, high]).is_err());
}

/// Number 0 comes first, of either kind.
#[test]
fn setting_range_0_replaces_all_ranges() {
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
        traced_starts(&records, &[LOW], &stops).unwrap(),
        [0x1000, 0x3000, 0x2000, 0x1001]
    );
}

/// Neighbours are joined, and a filter may be nowhere in a program.
#[test]
fn ends_of_ranges_must_be_ends_of_filters() {
    let joined = (LOW.0, HIGH.1);
    let both = [filter(0, joined), executed(7, 0x1000), executed(7, 0x1200)];
    assert_eq!(traced_starts(&both, &[LOW, HIGH], &[]).unwrap(), [0x1000]);
    let nowhere = [filter(0, (0, 0)), executed(7, 0x1000), executed(7, 1)];
    assert_eq!(traced_starts(&nowhere, &[LOW], &[]).unwrap(), [0; 0]);
    for ends in [(LOW.0 + 1, LOW.1), (LOW.0, LOW.1 - 1), (0, LOW.1)] {
        let other = [filter(0, ends)];
        let wrong = traced_starts(&other, &[LOW], &[]).unwrap_err();
        assert!(matches!(wrong, Error::Range { tid: 7, first, last } if (first, last) == ends));
    }
}

/// Returns whether each run that starts at one of these addresses is traced, in order.
fn traced(selector: &mut TracedPathSelector, starts: &[u64]) -> Vec<bool> {
    let run = |&start| PathRun {
        start,
        instructions: 900,
        hash: 0,
    };
    let runs = starts.iter().map(run);
    runs.map(|run| selector.is_run_traced(&run)).collect()
}

#[test]
fn run_is_traced_by_its_start() {
    let mut selector = TracedPathSelector::default();
    assert_eq!(traced(&mut selector, &[0, u64::MAX]), [true, true]);
    let mut selector = TracedPathSelector::new(vec![(0x1000, 0x10ff), (0x3000, 0x3000)], vec![]);
    // The first run enters the range sequentially, the third one leaves it.
    let starts = [0xffc, 0x1000, 0x10ff, 0x1100, 0x3000, 0x3001];
    let expected = [false, true, true, false, true, false];
    assert_eq!(traced(&mut selector, &starts), expected);
}

#[test]
fn trace_stop_ends_the_trace_for_good() {
    let mut selector = TracedPathSelector::new(vec![(0x1000, 0x2fff)], vec![(0x2000, 0x20ff)]);
    assert_eq!(traced(&mut selector, &[0x1000, 0x1ff0]), [true, true]);
    assert!(!selector.has_trace_stopped());
    // Where the ranges overlap, TraceStop applies.
    assert_eq!(traced(&mut selector, &[0x2080, 0x1000]), [false, false]);
    assert!(selector.has_trace_stopped());
    let mut outside = TracedPathSelector::new(vec![(0x1000, 0x1fff)], vec![(0x5000, 0x5fff)]);
    assert_eq!(traced(&mut outside, &[0x5000, 0x1000]), [false, false]);
}

#[test]
fn setting_a_range_again_replaces_it_and_those_after_it() {
    let mut selector = TracedPathSelector::default();
    for (sets, starts, expected) in [
        (
            &[(0, false, 100), (1, false, 200)][..],
            &[100][..],
            &[true][..],
        ),
        (&[(1, false, 300)], &[100, 300, 200], &[true, true, false]),
        (&[(0, false, 400)], &[400, 300], &[true, false]),
        // Of any kind.
        (
            &[(1, true, 200), (1, true, 300), (1, false, 500)],
            &[400, 500, 200, 300],
            &[true, true, false, false],
        ),
        (
            &[(1, true, 300)],
            &[400, 500, 300, 400],
            &[true, false, false, false],
        ),
    ] {
        for &(number, stop, first) in sets {
            let last = first + 9;
            selector.set_range(FilterRange {
                number,
                stop,
                first,
                last,
            });
        }
        assert!(!selector.has_trace_stopped());
        assert_eq!(traced(&mut selector, starts), expected);
    }
    assert!(selector.has_trace_stopped());
}
