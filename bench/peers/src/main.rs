//! Decodes one trace into a bitmap of 64 KB, by rtit and by others: with a fresh decoder, and repeatedly. The decoder
//! `edges` is rtit with exact totals of edges in place of the bitmap.
//!
//! usage: peers DECODERS TRACE OTHER REPETITIONS AGAIN FILE@ADDRESS... (DECODERS: names with commas between them;
//! addresses hexadecimal; the code). Prints a line for each decoder: its name, nanoseconds of CPU time of the
//! first run, of a later run, and of the run of OTHER, another trace of the same code, after TRACE; or its name and an
//! error. Each time has its quartiles and median. The decoders alternate.

use std::error::Error;
use std::fmt::Display;

use cpu_time::ProcessTime;
use iptr_decoder::DecodeOptions;
use iptr_edge_analyzer::control_flow_handler::fuzz_bitmap::FuzzBitmapControlFlowHandler;
use iptr_edge_analyzer::{EdgeAnalyzer, ReadMemory};
use ptcov::{PtCoverageDecoderBuilder, PtImage};
use rtit_flow::{add_saturating_at_255, BitmapHash, EdgeCounter, EdgeFilter, ReusableDecoder, Settings, Totals};

const MAP: usize = 1 << 16;

struct Bench {
    trace: Vec<u8>,
    other: Vec<u8>,
    /// By address.
    code: Vec<(u64, Vec<u8>)>,
    again: u32,
}

/// A decoder: a run into an empty map.
trait Decoder {
    fn run(&mut self, trace: &[u8], map: &mut [u8]) -> Result<(), String>;
}

struct Ours {
    decoder: ReusableDecoder,
    hits: EdgeCounter,
}

impl Decoder for Ours {
    fn run(&mut self, trace: &[u8], map: &mut [u8]) -> Result<(), String> {
        self.decoder.decode_whole_stream(trace, &mut self.hits);
        let mask = map.len() as u64 - 1;
        self.hits
            .for_each_bitmap_slot(BitmapHash::Afl, EdgeFilter::Decided, mask, |cell, count| {
                let cell = &mut map[cell as usize];
                *cell = add_saturating_at_255(*cell, count);
            });
        self.hits.clear();
        match self
            .decoder
            .coverage_ledger()
            .closed_spans()
            .iter()
            .find_map(|span| span.error.as_ref())
        {
            None => Ok(()),
            Some(error) => Err(error.to_string()),
        }
    }
}

/// Exact totals of edges (and of runs), sorted.
struct Edges(ReusableDecoder);

impl Decoder for Edges {
    fn run(&mut self, trace: &[u8], _map: &mut [u8]) -> Result<(), String> {
        let mut totals = Totals::default();
        self.0.decode_whole_stream(trace, &mut totals);
        self.0.take_totals(&mut totals);
        std::hint::black_box(totals.iter_edges().len());
        Ok(())
    }
}

struct Code<'a>(&'a [(u64, Vec<u8>)]);

impl ReadMemory for Code<'_> {
    type Error = std::io::Error;

    fn at_decode_begin(&mut self) -> Result<(), Self::Error> {
        Ok(())
    }

    fn read_memory<T>(
        &mut self,
        address: u64,
        size: usize,
        callback: impl FnOnce(&[u8]) -> T,
    ) -> Result<T, Self::Error> {
        let place = self.0.partition_point(|(start, _)| *start <= address);
        let bytes = place.checked_sub(1).map_or(&[][..], |place| {
            let (start, bytes) = &self.0[place];
            bytes.get((address - start) as usize..).unwrap_or(&[])
        });
        Ok(callback(&bytes[..size.min(bytes.len())]))
    }
}

struct Iptr<'a>(EdgeAnalyzer<FuzzBitmapControlFlowHandler<Vec<u8>>, Code<'a>>);

impl Decoder for Iptr<'_> {
    fn run(&mut self, trace: &[u8], _map: &mut [u8]) -> Result<(), String> {
        // counts go on from run to run: its map is its own
        iptr_decoder::decode(trace, DecodeOptions::default(), &mut self.0).map_err(text)
    }
}

struct PtCov<'a>(ptcov::PtCoverageDecoder<'a>);

impl Decoder for PtCov<'_> {
    fn run(&mut self, trace: &[u8], map: &mut [u8]) -> Result<(), String> {
        self.0
            .coverage(trace, map)
            .map_err(|error| format!("{error:?}"))
    }
}

fn text(error: impl Display) -> String {
    error.to_string()
}

/// The quartiles, as they are printed.
fn quartiles(mut values: Vec<u128>) -> String {
    values.sort_unstable();
    let at = |quarter: usize| values[(values.len() - 1) * quarter / 4].to_string();
    [at(1), at(2), at(3)].join(" ")
}

/// What a decoder took: first, again, the other trace.
#[derive(Default)]
struct Times([Vec<u128>; 3]);

impl Bench {
    /// One round: a decoder is made, and let go.
    fn measure<D: Decoder>(&self, times: &mut Times, fresh: impl Fn() -> D) -> Result<(), String> {
        let mut map = vec![0; MAP];
        let begin = ProcessTime::now();
        let mut decoder = fresh();
        decoder.run(&self.trace, &mut map)?;
        times.0[0].push(begin.elapsed().as_nanos());
        let begin = ProcessTime::now();
        for _ in 0..self.again {
            map.fill(0);
            // what it says was looked at the first time
            let _ = decoder.run(&self.trace, &mut map);
        }
        times.0[1].push(begin.elapsed().as_nanos() / u128::from(self.again.max(1)));
        map.fill(0);
        let begin = ProcessTime::now();
        decoder.run(&self.other, &mut map)?;
        times.0[2].push(begin.elapsed().as_nanos());
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut next = || {
        arguments
            .next()
            .ok_or("usage: peers DECODERS TRACE OTHER REPETITIONS AGAIN FILE@ADDRESS...")
    };
    let names: Vec<String> = next()?.split(',').map(str::to_string).collect();
    let trace = std::fs::read(next()?)?;
    let other = std::fs::read(next()?)?;
    let (repetitions, again) = (next()?.parse()?, next()?.parse()?);
    let mut code = Vec::new();
    for argument in arguments {
        let (file, address) = argument.rsplit_once('@').ok_or("FILE@ADDRESS")?;
        code.push((u64::from_str_radix(address, 16)?, std::fs::read(file)?));
    }
    code.sort();
    let bench = Bench {
        trace,
        other,
        code,
        again,
    };
    let mut space = rtit_image::Space::new();
    for (address, bytes) in &bench.code {
        space.map_bytes(0, *address, bytes[..].into());
    }
    let settings = Settings {
        no_retcomp: true,
        ..Settings::default()
    };
    let images: Vec<_> = bench
        .code
        .iter()
        .map(|(address, bytes)| PtImage::new(bytes, *address))
        .collect();
    let reusable = || ReusableDecoder::new(space.view_at_start(), &settings);
    let round = |name: &str, times: &mut Times| match name {
        "rtit" => bench.measure(times, || Ours {
            decoder: reusable(),
            hits: EdgeCounter::default(),
        }),
        "edges" => bench.measure(times, || Edges(reusable())),
        "iptr" => bench.measure(times, || {
            let handler = FuzzBitmapControlFlowHandler::new(vec![0; MAP], None);
            Iptr(EdgeAnalyzer::new(handler, Code(&bench.code)))
        }),
        "ptcov" => bench.measure(times, || {
            PtCov(PtCoverageDecoderBuilder::new().images(&images).build())
        }),
        _ => Err("unknown decoder".to_string()),
    };
    let mut found: Vec<Result<Times, String>> =
        names.iter().map(|_| Ok(Times::default())).collect();
    for _ in 0..repetitions {
        for (name, found) in names.iter().zip(&mut found) {
            if let Ok(times) = found {
                if let Err(error) = round(name, times) {
                    *found = Err(error);
                }
            }
        }
    }
    for (name, found) in names.iter().zip(found) {
        match found {
            Ok(Times([first, again, other])) => {
                let (first, again) = (quartiles(first), quartiles(again));
                println!("{name} {first} {again} {}", quartiles(other));
            }
            Err(error) => println!("{name} cannot: {error}"),
        }
    }
    Ok(())
}
