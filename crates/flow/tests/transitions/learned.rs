//! Streams that begin with what others have learned of the code: each gives what a walker gives that knows nothing.

use proptest::prelude::*;
use rtit_flow::{CodeCachePool, CountingSink, Settings, StreamDecoder, TransitionLimits};
use rtit_image::Space;

use super::config;
use super::program::{plan, Traced};
use super::same::results;

/// A stream: how the program runs, what is damaged, with which of the programs so far it is read, and whether with
/// what a child has that was forked from it at a time.
type Turn = (
    Vec<u8>,
    Option<(usize, u8)>,
    usize,
    Option<u16>,
    Option<usize>,
);

fn turn() -> impl Strategy<Value = Turn> {
    (
        prop::collection::vec(any::<u8>(), 1..60),
        prop::option::weighted(0.3, (any::<usize>(), any::<u8>())),
        any::<usize>(),
        prop::option::weighted(0.3, any::<u16>()),
        prop::option::weighted(0.3, any::<usize>()),
    )
}

proptest! {
    #![proptest_config(config(300))]

    #[test]
    fn nothing_of_what_others_learned_shows(
        mut now in plan(),
        turns in prop::collection::vec(turn(), 1..6),
        limit in prop_oneof![3 => Just(1 << 20), 1 => Just(2000)],
        eager in any::<bool>(),
    ) {
        let fusion_warm_up = if eager { 0 } else { TransitionLimits::default().fusion_warm_up };
        let transitions = TransitionLimits { fusion_warm_up, ..TransitionLimits::default() };
        let settings = Settings { cache_limit: limit, transitions, ..now.settings() };
        let walked = Settings { transitions: TransitionLimits::NONE, ..settings };
        let learned = CodeCachePool::default();
        let mut spaces: Vec<Space> = vec![now.trace().space];
        for (choices, flip, which, forked, change) in turns {
            if let Some((changed, ..)) = change.and_then(|at| now.changed(at)) {
                now = changed;
                spaces.push(now.trace().space);
            }
            let mut traced = now.otherwise(choices).trace();
            traced.damage(flip);
            let space = &spaces[which % spaces.len()];
            traced.space = forked.map_or_else(|| space.clone(), |time| space.fork(time.into()));
            let expected = results(&traced, &walked, usize::MAX, usize::MAX);
            traced.learned = Some(learned.clone());
            let found = results(&traced, &settings, 200, 30);
            let differs = found.differs(&expected);
            prop_assert!(differs.is_none(), "{:?}", differs);
        }
    }
}

/// What one has learned another begins with, and nobody else meanwhile.
#[test]
fn code_is_handed_on() {
    let mut stream = [0x02, 0x82].repeat(8);
    stream.extend([0x99, 0x01, 0x7d, 0x00, 0x10, 0, 0, 0, 0, 0x02, 0x23, 0xfe]);
    // 1000: jnz 1000
    let mut traced = Traced::of(stream, 0x1000, &[0x75, 0xfe]);
    let learned = CodeCachePool::default();
    traced.learned = Some(learned.clone());
    let mut sizes = Vec::new();
    for _ in 0..3 {
        let (stream, spaces) = (&traced.stream[..], traced.spaces());
        let mut flow = StreamDecoder::with_sink(stream, spaces, &Settings::default(), CountingSink);
        while flow.advance() {}
        assert_eq!(flow.counts().conditional, 6);
        sizes.push(learned.size());
        drop(flow);
        sizes.push(learned.size());
    }
    assert!(sizes[1] > 0);
    assert_eq!(sizes, [0, sizes[1]].repeat(3));
}
