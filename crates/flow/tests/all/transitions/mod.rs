//! Transition tables against the interpreter: whatever the program, the packets and the damage, results are the same.

mod program;
mod results;
mod reuse;
mod threads;

use crate::support::{examples, psb_plus};
use program::{execution_plan, ExecutionPlan, TestThread, TracedProgram};
use proptest::prelude::*;
use results::check_against_interpreter;
use rtit_flow::{CpuModel, EventKind, Settings, StreamDecoder};

fn proptest_config(cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases: examples(cases),
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

fn random_thread() -> impl Strategy<Value = Option<TestThread>> {
    prop_oneof![
        5 => Just(Some(TestThread::Busy)),
        1 => Just(Some(TestThread::Idle)),
        1 => Just(None),
    ]
}

proptest! {
    #![proptest_config(proptest_config(2000))]

    /// The interpreter itself finds what ran.
    #[test]
    fn tables_equal_interpreter_on_whole_streams(plan in execution_plan()) {
        let traced = plan.trace_execution();
        let ips = check_against_interpreter(&traced, plan.decoder_settings())?;
        if plan.has_exact_times() {
            let first = ips.iter().zip(&traced.ips).position(|(a, b)| a != b);
            prop_assert_eq!((ips.len(), first), (traced.ips.len(), None));
        }
    }

    #[test]
    fn tables_equal_interpreter_on_damaged_streams(
        plan in execution_plan(),
        flips in proptest::collection::vec((any::<usize>(), any::<u8>()), 1..6),
    ) {
        let mut traced = plan.trace_execution();
        traced.flip_bits(flips);
        check_against_interpreter(&traced, plan.decoder_settings())?;
    }

    #[test]
    fn tables_equal_interpreter_on_cut_and_spliced_streams(
        plan in execution_plan(),
        other in execution_plan(),
        cut in any::<usize>(),
        from in any::<usize>(),
    ) {
        let mut traced = plan.trace_execution();
        traced.splice_streams(cut, &other.trace_execution(), from);
        check_against_interpreter(&traced, plan.decoder_settings())?;
    }

    /// Settings that the stream was not made with: compressed RETs where there should be none, another clock, errata.
    #[test]
    fn tables_equal_interpreter_with_wrong_settings(
        plan in execution_plan(),
        flip in any::<Option<(usize, u8)>>(),
        no_retcomp in any::<bool>(),
        no_tnt in prop_oneof![5 => Just(false), 1 => Just(true)],
        model in proptest::option::of(prop_oneof![Just(0x3d), Just(0x4e), Just(0x5c), Just(0x97), any::<u16>()]),
    ) {
        let mut traced = plan.trace_execution();
        traced.flip_bits(flip);
        let cpu = model.map(|model| CpuModel { family: 6, model, stepping: 3 });
        let settings = Settings { no_retcomp, no_tnt, cpu, ..ExecutionPlan::default().decoder_settings() };
        check_against_interpreter(&traced, settings)?;
    }
}

proptest! {
    #![proptest_config(proptest_config(600))]

    /// Threads that share a processor, also ones that are not decoded, and ambiguous positions.
    #[test]
    fn tables_equal_interpreter_for_threads_on_one_processor(
        plan in execution_plan(),
        in_kernel in any::<bool>(),
        intervals in proptest::collection::vec((0..2000u16, random_thread()), 1..12),
        flip in any::<Option<(usize, u8)>>(),
    ) {
        let plan = if in_kernel { plan.moved_to_kernel() } else { plan };
        let mut traced = plan.trace_execution();
        traced.add_intervals(intervals);
        if flip.is_some_and(|(_, bits)| bits & 3 == 0) {
            traced.flip_bits(flip);
        }
        check_against_interpreter(&traced, plan.decoder_settings())?;
    }
}

/// A PWRE without EXSTOP has its own position, however the packet after it is decoded.
#[test]
fn power_event_precedes_the_branches_after_it() {
    let mut stream = psb_plus(Some(0x1000));
    // 1000: jnz 1000, taken six times with each TNT
    stream.extend([0xfe, 0xfe, 0x02, 0x22, 0x40, 0x00, 0xfe, 0xfe]);
    let traced = TracedProgram::new(stream, 0x1000, &[0x75, 0xfe]);
    check_against_interpreter(&traced, Settings::default()).unwrap();
    let mut rows = StreamDecoder::new(&traced.stream[..], traced.view(), &Settings::default());
    let events = rows.next_batch(usize::MAX).unwrap().events;
    let event = events
        .iter()
        .find(|event| event.event.kind == EventKind::Pwre);
    assert_eq!(event.map(|event| event.row), Some(12));
}

/// 64 calls are open; one more that comes and goes within a packet takes the oldest with it.
#[test]
fn call_on_a_full_return_stack_drops_the_oldest_entry() {
    // 1000 jnz 100c; 1006 call 1000; 100b ret; 100c call 1012; 1011 ret; 1012 ret
    let code = [
        0x0f, 0x85, 6, 0, 0, 0, 0xe8, 0xf5, 0xff, 0xff, 0xff, 0xc3, 0xe8, 1, 0, 0, 0, 0xc3, 0xc3,
    ];
    let mut results = vec![false; 64];
    results.extend([true; 2 + 66]);
    let mut stream = Vec::new();
    for _ in 0..2 {
        stream.extend(psb_plus(Some(0x1000)));
        for six in results.chunks_exact(6) {
            let bits = six
                .iter()
                .fold(1, |bits, &taken| bits << 1 | u8::from(taken));
            stream.push(bits << 1);
        }
    }
    let traced = TracedProgram::new(stream, 0x1000, &code);
    let ips = check_against_interpreter(&traced, Settings::default()).unwrap();
    // two of the RETs have their call before the 64 that were open
    let rets = ips.iter().filter(|&&ip| ip == 0x100b).count();
    assert_eq!(rets, 2 * 62);
}

/// 65 calls are open within packets that recur, and 64 of them return.
#[test]
fn recurring_calls_on_a_full_return_stack_drop_each_other() {
    // 1000 jz 1002; 1002 call 1008; 1007 ret: 58 of these, one in the other; jz; 7 more of these; ret
    let call = [0xe8, 1, 0, 0, 0, 0xc3];
    let code = [
        vec![0x74, 0],
        call.repeat(58),
        vec![0x74, 0],
        call.repeat(7),
        vec![0xc3],
    ]
    .concat();
    // TNT of a result for each of the jumps; TNTs of 6, of 19 * 3 and of 1 RET
    let calls = [&[0x04, 0x04, 0xfe][..], &[0x1e; 19]].concat();
    // the RET to 1007 and the one there have lost their calls: TIP 1007, TIP 1000
    let sound = [&calls[..], &[0x06, 0x2d, 0x07, 0x10, 0x2d, 0x00, 0x10]].concat();
    let mut stream = psb_plus(Some(0x1000));
    // a PAD, after which the transitions are known
    stream.extend(&sound);
    stream.push(0);
    stream.extend(sound.repeat(6));
    // a TNT of 2 results contradicts one of them; TIP 1000
    let wrong = stream.len() + calls.len();
    stream.extend(calls);
    stream.extend([0x0e, 0x2d, 0x00, 0x10]);
    stream.extend(sound);
    let traced = TracedProgram::new(stream, 0x1000, &code);
    check_against_interpreter(&traced, Settings::default()).unwrap();
    let mut rows = StreamDecoder::new(&traced.stream[..], traced.view(), &Settings::default());
    while rows.next_batch(usize::MAX).is_some() {}
    let errors: Vec<u64> = rows
        .coverage_ledger()
        .closed_spans()
        .iter()
        .filter_map(|span| span.error.map(|error| error.offset))
        .collect();
    assert_eq!(errors, [wrong as u64]);
}
