use super::*;
use crate::sink::Counting;
use crate::spaces::SpaceKey;
use crate::totals::Totals;

/// What they have may be taken off again.
#[test]
fn parts_have_no_end() {
    let without = Totals::keeping(usize::MAX);
    assert_eq!(format!("{:?}", endless::<Totals>()), format!("{without:?}"));
}

#[test]
fn sound_segments_are_not_decoded_in_vain() {
    let mut space = rtit_image::Space::new();
    // 1000: je 1004; jmp 1000; 1004: syscall
    let code = [0x74, 0x02, 0xeb, 0xfc, 0x0f, 0x05];
    space.map(0x1000, 0x1000, code[..].into());
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
    let division = Division {
        threads: 2,
        segment: 400,
        lead: 200,
        results: 1,
        changes: 100,
    };
    let settings = Settings::default();
    let mut all = Segments::<_, Counting>::new(&stream[..], space.view(), &settings, division);
    let mut rounds = 1;
    while all.advance() {
        rounds += 1;
    }
    assert_eq!(all.ledger().spans().len(), 1);
    assert!(all.counts().instructions > 100 * 240, "{:?}", all.counts());
    // one that fails begins earlier the next time
    assert_eq!((all.patience.lead, rounds), (1, 3));
}

/// Of segments that were decoded in vain, in code at lower addresses, nothing stays, and nothing was cut off for it.
#[test]
fn what_was_in_vain_takes_no_places() {
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
        space.map(0, 0x5000, entry[..].into());
        space.map(0, 0x7000, [0x74, 0, 0xeb, 0xfc][..].into());
        space.map(0, at, branches.concat()[..].into());
        space.view()
    };
    let mut spaces = Spaces::new(view(HIGH));
    spaces.add(SpaceKey::new(0x1000, false, None), view(LOW));
    spaces.add(SpaceKey::new(0x2000, false, None), view(HIGH));
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
    // a round that begins while CR3 is the first takes the low code for what runs later
    let round = [
        ran(0x50).repeat(8),
        goes_on(0x1000),
        ran(0x70).repeat(4),
        goes_on(0x2000),
    ];
    let stream = round.concat().repeat(4);
    let eager = StepLimits {
        phrases: 0,
        ..StepLimits::default()
    };
    let found = |threads: usize, places: usize, steps: StepLimits| {
        let division = Division {
            threads,
            segment: 9000,
            lead: 13_000,
            results: 1,
            changes: 100,
        };
        let settings = Settings {
            places,
            steps,
            ..Settings::default()
        };
        let (stream, spaces) = (&stream[..], spaces.clone());
        let mut all = Segments::<_, Totals>::new(stream, spaces, &settings, division);
        while all.advance() {}
        assert_eq!(all.vain.0.instructions > 0, threads > 1);
        let totals = all.sum();
        let edges_beyond: u64 = totals.other_edges().iter().sum();
        let sums = (totals.other_runs(), edges_beyond);
        (totals.runs(), totals.edges(), sums)
    };
    let (runs, edges, _) = found(1, usize::MAX, StepLimits::NONE);
    for places in [10_000, 60_000] {
        let beyond = (
            runs[places..].iter().map(|run| run.count).sum::<u64>(),
            edges[places..].iter().map(|edge| edge.count).sum::<u64>(),
        );
        for steps in [StepLimits::NONE, eager] {
            let (some, others, sums) = found(2, places, steps);
            assert!(some == runs[..places] && others == edges[..places]);
            assert_eq!(sums, beyond);
        }
    }
}

/// What was walked and what steps have counted are put together before they are two lots of places.
#[test]
fn one_thread_keeps_no_two_lots_of_places() {
    const PLACES: usize = 1000;
    let mut space = rtit_image::Space::new();
    // jmp rax
    space.map(0x1000, 0x1000, [0xff, 0xe0].repeat(1 << 14).into());
    // PSB, MODE.Exec, FUP 1000, PSBEND
    let mut stream = [0x02, 0x82].repeat(8);
    stream.extend([0x99, 0x01, 0x7d, 0x00, 0x10, 0, 0, 0, 0, 0x02, 0x23]);
    // TIPs to 4,000 places, twice
    for place in (0..4000u16).chain(0..4000) {
        let [low, high] = (0x1000 + place * 2).to_le_bytes();
        stream.extend([0x2d, low, high]);
    }
    let division = Division {
        threads: 1,
        segment: 600,
        lead: 200,
        results: 1,
        changes: 100,
    };
    let mut stepped = 0;
    for steps in [StepLimits::NONE, StepLimits::default()] {
        let settings = Settings {
            steps,
            places: PLACES,
            // what steps count is added up by place whenever code is forgotten
            cache_limit: 1 << 14,
            ..Settings::default()
        };
        let mut all = Segments::<_, Totals>::new(&stream[..], space.view(), &settings, division);
        while all.advance() {
            let by_steps = all.decoders[0].places();
            stepped = stepped.max(by_steps);
            // those of runs and of edges, and half as many
            assert!(by_steps + all.sink.places() <= 2 * PLACES + PLACES / 2);
        }
        let totals = all.sum();
        // 8,000 of either: the first place ran three times, the edge from it to itself was taken once
        assert_eq!(
            (totals.runs().len(), totals.other_runs()),
            (PLACES, 8000 - 2001)
        );
        assert_eq!(
            (totals.edges().len(), totals.other_edges().iter().sum()),
            (PLACES, 8000 - 1999)
        );
    }
    assert!(stepped > 0);
}

/// What all segments of a round found is there at once: where that is much the next round is short.
#[test]
fn a_round_that_found_much_is_followed_by_a_short_one() {
    const SEGMENT: usize = 1000;
    let mut space = rtit_image::Space::new();
    // jmp rax
    space.map(0x1000, 0x1000, [0xff, 0xe0].repeat(1 << 14).into());
    // PSB, MODE.Exec, FUP 1000, PSBEND, TIPs to 50 places and back
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
    let division = Division {
        threads: 2,
        segment: SEGMENT,
        lead: 400,
        results: 1,
        changes: 100,
    };
    let settings = Settings {
        places: 2000,
        steps: StepLimits::NONE,
        ..Settings::default()
    };
    let mut all = Segments::<_, Totals>::new(&stream[..], space.view(), &settings, division);
    let mut begin = 0;
    let mut rounds = Vec::new();
    while all.advance() {
        rounds.push((begin, (all.position() - begin).div_ceil(SEGMENT)));
        begin = all.position();
    }
    let longest = |from: usize, until: usize| {
        let within = |&&(at, _): &&(usize, usize)| (from..until).contains(&at);
        let lengths = rounds.iter().filter(within).map(|&(_, length)| length);
        lengths.max().unwrap_or(0)
    };
    let begun = same.len() + 8 * SEGMENT;
    // a segment ends at the first PSB behind it
    assert!((8..=9).contains(&longest(0, same.len())), "{rounds:?}");
    assert!((2..=3).contains(&longest(begun, same.len() + new.len())));
    assert!((8..=9).contains(&longest(same.len() + new.len(), stream.len())));
}
