//! Steps against the walker: whatever the program, the packets and the damage, all results are the same.

#[path = "steps/program.rs"]
mod program;
#[path = "steps/same.rs"]
mod same;

use program::{plan, Plan};
use proptest::prelude::*;
use rtit_flow::{Cpu, Settings};
use same::check;

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases,
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config(2000))]

    /// The walker itself finds what ran.
    #[test]
    fn whole_streams(plan in plan()) {
        let traced = plan.trace();
        let ips = check(&traced, plan.settings())?;
        if plan.is_true() {
            let first = ips.iter().zip(&traced.ips).position(|(a, b)| a != b);
            prop_assert_eq!((ips.len(), first), (traced.ips.len(), None));
        }
    }

    #[test]
    fn damaged_streams(plan in plan(), flips in proptest::collection::vec((any::<usize>(), any::<u8>()), 1..6)) {
        let mut traced = plan.trace();
        for (at, value) in flips {
            let at = at % traced.stream.len();
            traced.stream[at] ^= value;
        }
        check(&traced, plan.settings())?;
    }

    #[test]
    fn cut_and_spliced_streams(plan in plan(), other in plan(), cut in any::<usize>(), from in any::<usize>()) {
        let mut traced = plan.trace();
        let more = other.trace().stream;
        traced.stream.truncate(cut % traced.stream.len());
        traced.stream.extend(&more[from % more.len()..]);
        check(&traced, plan.settings())?;
    }

    /// Settings that the stream was not made with: compressed RETs where there should be none, another clock, errata.
    #[test]
    fn wrong_settings(
        plan in plan(),
        flip in any::<Option<(usize, u8)>>(),
        no_retcomp in any::<bool>(),
        no_tnt in prop_oneof![5 => Just(false), 1 => Just(true)],
        model in proptest::option::of(prop_oneof![Just(0x3d), Just(0x4e), Just(0x5c), Just(0x97), any::<u16>()]),
    ) {
        let mut traced = plan.trace();
        if let Some((at, value)) = flip {
            let at = at % traced.stream.len();
            traced.stream[at] ^= value;
        }
        let cpu = model.map(|model| Cpu { family: 6, model, stepping: 3 });
        let settings = Settings { no_retcomp, no_tnt, cpu, ..Plan::default().settings() };
        check(&traced, settings)?;
    }
}
