use super::*;
use crate::address_spaces::SpaceKey;
use crate::sink::CountingSink;
use crate::totals::Totals;

/// Results in it may be subtracted again.
#[test]
fn sink_of_a_segment_is_unlimited() {
    let without = Totals::with_max_counters(usize::MAX);
    assert_eq!(
        format!("{:?}", unlimited_sink::<Totals>()),
        format!("{without:?}")
    );
}

#[test]
fn segments_of_a_stream_without_errors_are_not_discarded() {
    let mut space = rtit_image::Space::new();
    // 1000: je 1004; jmp 1000; 1004: syscall
    let code = [0x74, 0x02, 0xeb, 0xfc, 0x0f, 0x05];
    space.map_bytes(0x1000, 0x1000, code[..].into());
    let mut stream = Vec::new();
    for _ in 0..100 {
        // PSB, MODE.Exec, FUP 1000, PSBEND
        stream.extend([0x02, 0x82].repeat(8));
        stream.extend([0x99, 0x01, 0x7d, 0x00, 0x10, 0, 0, 0, 0, 0x02, 0x23]);
        // TNTs, the last one to the system call; TIP.PGD; TIP.PGE 1000, TNTs
        stream.extend([0x80; 20]);
        stream.extend([0x06, 0x01, 0x71, 0x00, 0x10, 0, 0, 0, 0]);
        stream.extend([0x80; 20]);
    }
    let config = ParallelConfig::for_test(2, 400, 200);
    let settings = Settings::default();
    let mut all = AdditiveDecoder::<_, CountingSink>::new(
        &stream[..],
        space.view_at_start(),
        &settings,
        config,
    );
    let mut rounds = 1;
    while all.decode_round() {
        rounds += 1;
    }
    assert_eq!(all.coverage_ledger().closed_spans().len(), 1);
    assert!(all.counts().instructions > 100 * 240, "{:?}", all.counts());
    // No segment was discarded, so the lead-in did not grow.
    assert_eq!((all.backoff.lead_in_psbs, rounds), (1, 3));
}

/// Discarded segments counted code at lower addresses. None of their counts remain, and no counter was cut off for
/// them.
#[test]
fn discarded_segments_take_no_counters() {
    const BRANCHES: usize = 70_000;
    const LOW: u64 = 0x1_0000;
    const HIGH: u64 = 0x8_0000;
    // 5000: jmp to where the branches are: je to the next; then jmp to the first. 7000: je 7002; jmp 7000
    let view = |at: u64| {
        let to = |from: i64| (at as i64 - from) as i32;
        let back = -(BRANCHES as i32 * 2 + 5);
        let entry = [&[0xe9][..], &to(0x5005).to_le_bytes()].concat();
        let branches = [
            [0x74, 0].repeat(BRANCHES),
            vec![0xe9],
            back.to_le_bytes().to_vec(),
        ];
        let mut space = rtit_image::Space::new();
        space.map_bytes(0, 0x5000, entry[..].into());
        space.map_bytes(0, 0x7000, [0x74, 0, 0xeb, 0xfc][..].into());
        space.map_bytes(0, at, branches.concat()[..].into());
        space.view_at_start()
    };
    let mut spaces = AddressSpaces::new(view(HIGH));
    spaces.add_space(SpaceKey::new(0x1000, false, None), view(LOW));
    spaces.add_space(SpaceKey::new(0x2000, false, None), view(HIGH));
    // TIP.PGD; PIP; TIP.PGE 7000
    let goes_on = |cr3: u64| {
        let pip = &(cr3 >> 4).to_le_bytes()[..6];
        [
            &[0x01, 0x02, 0x43][..],
            pip,
            &[0x71, 0x00, 0x70, 0, 0, 0, 0],
        ]
        .concat()
    };
    // PSB, MODE.Exec, FUP, PSBEND, and branches that were taken
    let ran = |at: u8| {
        let psb = [0x02, 0x82].repeat(8);
        let there = [0x99, 0x01, 0x7d, 0x00, at, 0, 0, 0, 0, 0x02, 0x23];
        [&psb[..], &there, &[0xfe].repeat(BRANCHES / 6)].concat()
    };
    // A round that begins with the first CR3 takes the code at low addresses for code that runs later.
    let round = [
        ran(0x50).repeat(8),
        goes_on(0x1000),
        ran(0x70).repeat(4),
        goes_on(0x2000),
    ];
    let stream = round.concat().repeat(4);
    let eager = TransitionLimits {
        fusion_warm_up: 0,
        ..TransitionLimits::default()
    };
    let found = |threads: usize, max_counters: usize, transitions: TransitionLimits| {
        let config = ParallelConfig::for_test(threads, 9000, 13_000);
        let settings = Settings {
            max_counters,
            transitions,
            ..Settings::default()
        };
        let (stream, spaces) = (&stream[..], spaces.clone());
        let mut all = AdditiveDecoder::<_, Totals>::new(stream, spaces, &settings, config);
        while all.decode_round() {}
        assert_eq!(all.discarded.0.instructions > 0, threads > 1);
        let totals = all.take_result();
        let edges_beyond: u64 = totals.uncounted_edges().iter().sum();
        let sums = (totals.uncounted_runs(), edges_beyond);
        (totals.sorted_runs(), totals.sorted_edges(), sums)
    };
    let (runs, edges, _) = found(1, usize::MAX, TransitionLimits::NONE);
    for max_counters in [10_000, 60_000] {
        let beyond = (
            runs[max_counters..]
                .iter()
                .map(|run| run.count)
                .sum::<u64>(),
            edges[max_counters..]
                .iter()
                .map(|edge| edge.count)
                .sum::<u64>(),
        );
        for transitions in [TransitionLimits::NONE, eager] {
            let (some, others, sums) = found(2, max_counters, transitions);
            assert!(some == runs[..max_counters] && others == edges[..max_counters]);
            assert_eq!(sums, beyond);
        }
    }
}

/// Counts of the interpreter and of transitions are merged before they take twice the number of counters.
#[test]
fn counters_of_one_thread_are_bounded() {
    const MAX_COUNTERS: usize = 1000;
    let mut space = rtit_image::Space::new();
    // jmp rax
    space.map_bytes(0x1000, 0x1000, [0xff, 0xe0].repeat(1 << 14).into());
    // PSB, MODE.Exec, FUP 1000, PSBEND
    let mut stream = [0x02, 0x82].repeat(8);
    stream.extend([0x99, 0x01, 0x7d, 0x00, 0x10, 0, 0, 0, 0, 0x02, 0x23]);
    // TIPs to 4,000 targets, twice
    for place in (0..4000u16).chain(0..4000) {
        let [low, high] = (0x1000 + place * 2).to_le_bytes();
        stream.extend([0x2d, low, high]);
    }
    let config = ParallelConfig::for_test(1, 600, 200);
    let mut stepped = 0;
    for transitions in [TransitionLimits::NONE, TransitionLimits::default()] {
        let settings = Settings {
            transitions,
            max_counters: MAX_COUNTERS,
            // Counts of transitions are added up by address whenever the code cache is emptied.
            cache_limit: 1 << 14,
            ..Settings::default()
        };
        let mut all = AdditiveDecoder::<_, Totals>::new(
            &stream[..],
            space.view_at_start(),
            &settings,
            config,
        );
        while all.decode_round() {
            let by_steps = all.decoders[0].counters_in_use();
            stepped = stepped.max(by_steps);
            // Those of runs and of edges, and half as many.
            assert!(by_steps + all.sink.counters_in_use() <= 2 * MAX_COUNTERS + MAX_COUNTERS / 2);
        }
        let totals = all.take_result();
        // 8,000 of either: the first place ran three times, the edge from it to itself was taken once
        assert_eq!(
            (totals.sorted_runs().len(), totals.uncounted_runs()),
            (MAX_COUNTERS, 8000 - 2001)
        );
        assert_eq!(
            (
                totals.sorted_edges().len(),
                totals.uncounted_edges().iter().sum()
            ),
            (MAX_COUNTERS, 8000 - 1999)
        );
    }
    assert!(stepped > 0);
}

/// All results of a round exist at once, so a round with many results is followed by a short one.
#[test]
fn round_with_many_counters_is_followed_by_a_short_one() {
    const SEGMENT: usize = 1000;
    let mut space = rtit_image::Space::new();
    // jmp rax
    space.map_bytes(0x1000, 0x1000, [0xff, 0xe0].repeat(1 << 14).into());
    // PSB, MODE.Exec, FUP 1000, PSBEND, TIPs to 50 targets and back
    let psb = |first: u16| {
        let tips = (first..first + 50).chain([0]).flat_map(|place| {
            let [low, high] = (0x1000 + place * 2).to_le_bytes();
            [0x2d, low, high]
        });
        let there = [0x99, 0x01, 0x7d, 0x00, 0x10, 0, 0, 0, 0, 0x02, 0x23];
        Vec::from_iter([0x02, 0x82].repeat(8).into_iter().chain(there).chain(tips))
    };
    let same = psb(0).repeat(200);
    let new = Vec::from_iter((0..200).flat_map(|n| psb(n * 50)));
    let stream = [&same[..], &new, &same].concat();
    let config = ParallelConfig::for_test(2, SEGMENT, 400);
    let settings = Settings {
        max_counters: 2000,
        transitions: TransitionLimits::NONE,
        ..Settings::default()
    };
    let mut all =
        AdditiveDecoder::<_, Totals>::new(&stream[..], space.view_at_start(), &settings, config);
    let mut begin = 0;
    let mut rounds = Vec::new();
    while all.decode_round() {
        rounds.push((begin, (all.position() - begin).div_ceil(SEGMENT)));
        begin = all.position();
    }
    let longest = |from: usize, until: usize| {
        let within = |&&(at, _): &&(usize, usize)| (from..until).contains(&at);
        let lengths = rounds.iter().filter(within).map(|&(_, length)| length);
        lengths.max().unwrap_or(0)
    };
    let begun = same.len() + 8 * SEGMENT;
    // A segment ends at the first PSB after its size.
    assert!((8..=9).contains(&longest(0, same.len())), "{rounds:?}");
    assert!((2..=3).contains(&longest(begun, same.len() + new.len())));
    assert!((8..=9).contains(&longest(same.len() + new.len(), stream.len())));
}
