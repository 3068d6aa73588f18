//! Decode speed: `bench STREAM IMAGE BASE [--tnt-free] [--print]`, or `bench` alone for a synthetic loop.
//!
//! STREAM is a file of PT bytes, IMAGE a file of code that is mapped at address BASE (hexadecimal). Prints megabytes
//! and branches a second for each sink; with `--print` the instructions, events and ledger instead.

use std::time::Instant;

use rtit_flow::{CountingSink, Decoder, RunIterator, Settings, StreamDecoder, StreamWindow};
use rtit_image::{Space, View};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (stream, view) = match arguments.as_slice() {
        [stream, image, base, ..] => given(stream, image, base),
        _ => synthetic(),
    };
    if arguments.iter().any(|argument| argument == "--print") {
        return print(&stream, view);
    }
    let settings = Settings::default();
    measure("count", &stream, &view, |stream, view| {
        let mut decoder = Decoder::new(view, StreamWindow::whole(stream), &settings);
        while decoder.decode(StreamWindow::whole(stream), &mut CountingSink) {}
        branches(&decoder.counts())
    });
    measure("hashed runs", &stream, &view, |stream, view| {
        let mut runs = StreamDecoder::hashed(stream, view, &settings);
        while runs.next_batch(4096).is_some() {}
        branches(&runs.counts())
    });
    measure("runs, one by one", &stream, &view, |stream, view| {
        let mut runs = RunIterator::new(stream, view, &settings);
        while runs.next().is_some() {}
        branches(&runs.flow().counts())
    });
    measure("rows", &stream, &view, |stream, view| {
        let mut flow = StreamDecoder::new(stream, view, &settings);
        while flow.next_batch(65536).is_some() {}
        branches(&flow.counts())
    });
    measure("instructions", &stream, &view, |stream, view| {
        let mut flow = StreamDecoder::instructions(stream, view, &settings);
        while flow.next_batch(65536).is_some() {}
        branches(&flow.counts())
    });
}

fn branches(counts: &rtit_flow::Counts) -> u64 {
    counts.conditional + counts.indirect + counts.returns
}

fn measure(name: &str, stream: &[u8], view: &View, decode: impl Fn(&[u8], View) -> u64) {
    let mut best = f64::INFINITY;
    let mut branches = 0;
    for _ in 0..5 {
        let started = Instant::now();
        branches = decode(stream, view.clone());
        best = best.min(started.elapsed().as_secs_f64());
    }
    let bytes = stream.len() as f64 / best / 1e6;
    println!(
        "{name:18} {bytes:9.1} MB/s {:9.1} M branches/s",
        branches as f64 / best / 1e6
    );
}

fn given(stream: &str, image: &str, base: &str) -> (Vec<u8>, View) {
    let read = |path: &str| std::fs::read(path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let base = u64::from_str_radix(base.trim_start_matches("0x"), 16).expect("BASE is hexadecimal");
    let mut space = Space::new();
    space.map(0, base, read(image).into());
    (read(stream), space.view())
}

/// A loop of a call, a compressed return and two conditional branches.
fn synthetic() -> (Vec<u8>, View) {
    let code: &[u8] = &[
        0xe8, 0x09, 0, 0, 0, // 1000: call 100e
        0x75, 0x02, // 1005: jnz 1009
        0x90, 0x90, // 1007: nop nop
        0x75, 0xf5, // 1009: jnz 1000
        0x90, 0xeb, 0xf2, // 100b: nop; jmp 1000
        0x90, 0xc3, // 100e: nop; ret
    ];
    let mut space = Space::new();
    space.map(0, 0x1000, code.into());
    let mut stream = Vec::new();
    for psb in 0..4096u32 {
        stream.extend([0x02, 0x82].repeat(8));
        stream.extend([0x99, 0x01, 0x7d, 0x00, 0x10, 0, 0, 0, 0, 0x02, 0x23]);
        if psb == 0 {
            stream.truncate(stream.len() - 11);
            stream.extend([0x02, 0x23, 0x99, 0x01, 0x71, 0x00, 0x10, 0, 0, 0, 0]);
        }
        // six results: ret, jnz, jnz, ret, jnz, jnz
        for byte in 0..2048u32 {
            let jnz = (byte ^ psb).wrapping_mul(0x9e37_79b9) >> 28;
            let bits = 0x24 | jnz & 3 | (jnz >> 2 & 3) << 3;
            stream.push(((0x40 | bits) << 1) as u8);
        }
    }
    (stream, space.view())
}

fn print(stream: &[u8], view: View) {
    let settings = Settings::default();
    let mut instructions = StreamDecoder::instructions(stream, view.clone(), &settings);
    while let Some(batch) = instructions.next_batch(4096) {
        batch.ips.iter().for_each(|ip| println!("{ip:016x}"));
    }
    let mut flow = StreamDecoder::new(stream, view, &settings);
    while let Some(rows) = flow.next_batch(4096) {
        for run in rows.runs() {
            println!("{run:x?}");
        }
        for event in &rows.events {
            println!("{event:x?}");
        }
    }
    for span in flow.ledger().spans() {
        let error = span
            .error
            .map(|error| error.to_string())
            .unwrap_or_default();
        println!(
            "ledger {:x}..{:x} {} {error}",
            span.from,
            span.to,
            span.status.name()
        );
    }
}
