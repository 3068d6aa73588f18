//! A fuzzer's loop: run the program, decode its trace, keep the input if it took an edge that none before it took.
//!
//! `ReusableDecoder` keeps what it has learned of the code from run to run; `EdgeCounter` counts the edges of one. The
//! program here compares three bytes, and what runs it and traces it is made up: a processor with Intel PT and
//! something that reads its buffer take the place of `execute_program`.

use rtit_flow::{
    add_saturating_at_255, afl_count_class, BitmapHash, ByteStatus, EdgeCounter, EdgeFilter,
    ReusableDecoder, Settings,
};
use rtit_image::Space;

const BASE: u64 = 0x1000;
const CODE: [u8; 33] = [
    0x80, 0x3f, b'P', 0x75, 0x1b, // 1000 cmp byte [rdi], 'P'; jne 1020
    0x80, 0x7f, 1, b'T', 0x75, 0x15, // 1005 cmp byte [rdi + 1], 'T'; jne 1020
    0x80, 0x7f, 2, b'!', 0x75, 0x0f, // 100b cmp byte [rdi + 2], '!'; jne 1020
    0xc3, // 1011 ret: this is what the fuzzer is to find
    0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, //
    0xc3, // 1020 ret
];
const MAP: usize = 1 << 12;

fn main() {
    match fuzz_until_crash(100_000) {
        Some((input, runs)) => {
            println!("{:?} found in {runs} runs", String::from_utf8_lossy(&input))
        }
        None => println!("nothing found"),
    }
}

/// The input that the program was waiting for, and the number of runs that it took to find it.
pub fn fuzz_until_crash(most: usize) -> Option<(Vec<u8>, usize)> {
    let mut space = Space::new();
    space.map_bytes(0, BASE, CODE[..].into());
    let mut decoder = ReusableDecoder::new(space.view_at_start(), &Settings::default());
    let mut hits = EdgeCounter::default();
    let mut map = vec![0u8; MAP];
    let mut seen = vec![0u8; MAP];
    let mut corpus = vec![b"???".to_vec()];
    let mut random = 1u64;
    for runs in 1..=most {
        let mut input = corpus[random_below(&mut random, corpus.len())].clone();
        let at = random_below(&mut random, input.len());
        input[at] = random_below(&mut random, 256) as u8;
        let (trace, found) = execute_program(&input);

        decoder.decode_whole_stream(&trace, &mut hits);
        let lost = decoder.coverage_ledger().byte_count(ByteStatus::Lost);
        assert_eq!(lost, 0, "{:?}", decoder.coverage_ledger().closed_spans());
        map.fill(0);
        hits.for_each_edge(|from, to, kind, count| {
            if EdgeFilter::Decided.accepts_edge(kind) {
                let at = BitmapHash::Afl.bitmap_slot(from, to, MAP as u64 - 1) as usize;
                map[at] = add_saturating_at_255(map[at], count);
            }
        });
        hits.clear();

        let mut is_new = false;
        for (count, seen) in map.iter().zip(&mut seen) {
            is_new |= afl_count_class(*count) & !*seen != 0;
            *seen |= afl_count_class(*count);
        }
        if found {
            return Some((input, runs));
        }
        if is_new {
            corpus.push(input);
        }
    }
    None
}

fn random_below(random: &mut u64, below: usize) -> usize {
    *random = random
        .wrapping_mul(6364136223846793005)
        .wrapping_add(1442695040888963407);
    (*random >> 33) as usize % below
}

/// Runs the program: its trace, and whether it came to where it should not.
fn execute_program(input: &[u8]) -> (Vec<u8>, bool) {
    let right = input.iter().zip(b"PT!").take_while(|(a, b)| a == b).count();
    let mut trace = [0x02, 0x82].repeat(8); // PSB
    trace.extend([0x02, 0x23, 0x99, 0x01]); // PSBEND; MODE.Exec, 64 bits
    trace.push(0x71); // TIP.PGE with six bytes of IP
    trace.extend(&BASE.to_le_bytes()[..6]);
    // a result for each JNE: not taken while the bytes are right
    let results = (0..3.min(right + 1)).map(|at| at == right);
    let bits = results.fold(1, |bits, taken| bits << 1 | u8::from(taken));
    trace.push(bits << 1); // TNT
    trace.push(0x01); // TIP.PGD
    (trace, right == 3)
}
