//! Any stream over any code, decoded in four ways: all end, agree, and account for every byte.
//!
//! Input: a byte of options (see `Case`), u16 size of the code, the code, the stream.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rtit_flow::{
    ByteStatus, CountingSink, CoverageLedger, ErrorClass, InstructionRun, InstructionSink,
    Settings, StreamCounts, StreamDecoder, TimeSettings,
};
use rtit_image::{Space, SpaceView};
use rtit_truth::hash::extend_hash;
use rtit_x86::{decode, CodeMode};

/// A packet can run all the code some fifty times: little code keeps a case short.
const MAX_CODE: usize = 512;
/// Instructions of a case that are decoded again.
const CHECKED: usize = 2000;

struct Case<'a> {
    options: u8,
    code: &'a [u8],
    stream: &'a [u8],
}

impl<'a> Case<'a> {
    fn parse(data: &'a [u8]) -> Option<Case<'a>> {
        let (&[options, low, high], rest) = data.split_first_chunk::<3>()?;
        let size = usize::from(u16::from_le_bytes([low, high]));
        let (code, stream) = rest.split_at(size.min(rest.len()).min(MAX_CODE));
        Some(Case {
            options,
            code,
            stream,
        })
    }

    fn has(&self, bit: u8) -> bool {
        self.options >> bit & 1 == 1
    }

    fn settings(&self) -> Settings {
        let timed = TimeSettings {
            mtc_freq: 3,
            tsc_ctc: (80, 2),
            max_nonturbo_ratio: 10,
            start_time: 0,
            ..TimeSettings::default()
        };
        Settings {
            no_tnt: self.has(0),
            no_retcomp: self.has(3),
            cache_limit: if self.has(1) { 1000 } else { 1 << 26 },
            time: if self.has(2) {
                timed
            } else {
                TimeSettings::default()
            },
            ..Settings::default()
        }
    }

    fn base(&self) -> u64 {
        [0x1000, 0x10_0000, 0xffff_fff0, u64::MAX - 0x1000][usize::from(self.options >> 6)]
    }

    /// Bits 3 and 4: half of the code is overwritten or goes away at time 0x1000.
    fn view(&self) -> SpaceView {
        let mut space = Space::new();
        space.map_bytes(0, self.base(), self.code.into());
        let half = self.code.len() / 2;
        if self.has(3) {
            space.overwrite_bytes(0x1000, self.base() + half as u64, &self.code[..half]);
        }
        if self.has(4) {
            space.unmap_range(0x1000, self.base(), half as u64);
        }
        space.view_at_start()
    }

    fn same_code_throughout(&self) -> bool {
        !self.has(3) && !self.has(4)
    }

    /// Whether the bytes at `ip` are an instruction of this length in some mode.
    fn is_instruction(&self, ip: u64, length: u8) -> bool {
        let at = ip.wrapping_sub(self.base()) as usize;
        let bytes = self.code.get(at..).unwrap_or(&[]);
        let modes = [CodeMode::Bits16, CodeMode::Bits32, CodeMode::Bits64];
        let mut found = modes
            .iter()
            .filter_map(|mode| decode(bytes, ip, *mode).ok());
        found.any(|instruction| instruction.length == length)
    }
}

fuzz_target!(|data: &[u8]| {
    let Some(case) = Case::parse(data) else {
        return;
    };
    let (rows, counts, spans) = columns(&case);

    let mut counting =
        StreamDecoder::with_sink(case.stream, case.view(), &case.settings(), CountingSink);
    let mut calls = 0;
    while counting.decode_up_to_bytes(1) {
        calls += 1;
        assert!(calls <= case.stream.len(), "a call did not move on");
        let closed = counting
            .coverage_ledger()
            .closed_spans()
            .last()
            .map_or(0, |span| span.to);
        assert!(closed <= case.stream.len() as u64);
    }
    assert_eq!(
        counting.coverage_ledger().closed_spans(),
        spans.closed_spans()
    );
    same_counts(&counting.counts(), &counts);

    hashes(&case, &rows, &counts);
});

/// Rows in the largest pieces.
fn columns(case: &Case) -> (Vec<InstructionRun>, StreamCounts, CoverageLedger) {
    let mut flow = StreamDecoder::new(case.stream, case.view(), &case.settings());
    let mut runs = Vec::new();
    let mut last_row = 0;
    while let Some(rows) = flow.next_batch(1 << 16) {
        runs.extend(rows.iter_runs());
        for event in rows.events {
            assert!(event.row >= last_row && event.event.offset <= case.stream.len() as u64);
            last_row = event.row;
        }
    }
    assert!(flow.is_finished());
    assert!(last_row <= runs.len() as u64);
    for run in &runs {
        assert!(run.instructions > 0 && run.offset <= case.stream.len() as u64);
    }
    let instructions: u64 = runs.iter().map(|run| u64::from(run.instructions)).sum();
    assert_eq!(instructions, flow.counts().instructions);
    check_ledger(flow.coverage_ledger(), case.stream.len() as u64);
    (runs, flow.counts(), flow.coverage_ledger().clone())
}

fn check_ledger(ledger: &CoverageLedger, length: u64) {
    let mut at = 0;
    let mut bytes = [0; 4];
    let mut errors = 0;
    for span in ledger.closed_spans() {
        assert_eq!(span.from, at, "a gap: {:?}", ledger.closed_spans());
        assert!(span.to > span.from || span.to == span.from && span.error.is_some());
        let class = span.error.map(|error| error.cause.error_class());
        if matches!(
            class,
            Some(ErrorClass::UnknownRepetitions | ErrorClass::AmbiguousThread)
        ) {
            assert!(span.from == span.to && span.status != ByteStatus::Lost);
        } else {
            assert_eq!(span.status == ByteStatus::Lost, class.is_some(), "{span:?}");
        }
        bytes[span.status as usize] += span.to - span.from;
        if let Some(error) = span.error {
            errors += 1;
            assert!(error.offset <= length);
            assert!(!error.to_string().is_empty());
        }
        at = span.to;
    }
    assert_eq!(at, length, "the stream's end is not in the ledger");
    for status in [ByteStatus::Exact, ByteStatus::Resumed, ByteStatus::Lost] {
        assert_eq!(ledger.byte_count(status), bytes[status as usize]);
    }
    let counted: u64 = ErrorClass::ALL
        .iter()
        .map(|class| ledger.error_count(*class))
        .sum();
    assert_eq!(counted, errors);
}

/// Hashed runs packet by packet, single instructions, and rows tell of the same path.
fn hashes(case: &Case, rows: &[InstructionRun], counts: &StreamCounts) {
    let mut single = StreamDecoder::for_instructions(case.stream, case.view(), &case.settings());
    let mut path = std::iter::from_fn(|| next_ips(&mut single)).flatten();
    let mut hashed = StreamDecoder::for_hashed_runs(case.stream, case.view(), &case.settings());
    let mut number = 0;
    let mut checked = 0;
    while let Some(batch) = hashed.next_batch(1) {
        for run in (0..).map_while(|at| batch.run_at(at)) {
            if run.instructions == 0 {
                continue; // what may have come more often
            }
            // Rows also end where an event came between two instructions.
            assert_eq!(run.start, rows[number].start);
            let mut left = run.instructions;
            while left > 0 {
                left = left
                    .checked_sub(rows[number].instructions)
                    .expect("whole rows");
                number += 1;
            }
            let mut hash = 0;
            let mut last = None;
            for index in 0..run.instructions {
                let (ip, length) = path.next().expect("as many instructions as in the runs");
                assert!(index > 0 || ip == run.start);
                hash = extend_hash(hash, ip);
                last = Some(ip);
                if checked < CHECKED && case.same_code_throughout() {
                    checked += 1;
                    assert!(case.is_instruction(ip, length), "{length} bytes at {ip:#x}");
                }
            }
            assert_eq!(hash, run.hash);
            assert_eq!(last, Some(rows[number - 1].last));
        }
    }
    assert_eq!(number, rows.len());
    assert_eq!(path.next(), None);
    same_counts(&hashed.counts(), counts);
}

fn next_ips(flow: &mut StreamDecoder<&[u8], InstructionSink>) -> Option<Vec<(u64, u8)>> {
    let batch = flow.next_batch(1000)?;
    assert_eq!(batch.ips.len(), batch.lengths.len());
    Some(batch.ips.into_iter().zip(batch.lengths).collect())
}

fn same_counts(one: &StreamCounts, other: &StreamCounts) {
    assert_eq!(one.instructions, other.instructions);
    assert_eq!(one.packets, other.packets);
    assert_eq!(one.cycles, other.cycles);
    let branches = |counts: &StreamCounts| (counts.conditional, counts.indirect, counts.returns);
    assert_eq!(branches(one), branches(other));
}
