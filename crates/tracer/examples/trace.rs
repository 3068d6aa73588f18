//! Traces a program, counts its events, and checks that they describe one path: `trace [-v] [-n] -- PROGRAM ARGUMENTS`.

use std::time::Duration;

use rtit_tracer::{Options, Tracer};
use support::Walker;

#[path = "../tests/support/mod.rs"]
mod support;

fn main() {
    let mut arguments: Vec<_> = std::env::args_os().skip(1).collect();
    let mut verbose = false;
    let mut pin = true;
    while let Some(first) = arguments.first().and_then(|a| a.to_str()) {
        match first {
            "-v" => verbose = true,
            "-n" => pin = false,
            "--" => {
                arguments.remove(0);
                break;
            }
            _ => break,
        }
        arguments.remove(0);
    }
    let truth = std::env::temp_dir().join(format!("rtit-trace-{}.truth", std::process::id()));
    let options = Options {
        truth: Some(truth.clone()),
        pin,
        ..Options::new(arguments)
    };
    let tracer = match Tracer::start(&options) {
        Ok(tracer) => tracer,
        Err(error) => {
            eprintln!("trace: {error}");
            std::process::exit(error.exit_code().into());
        }
    };
    let mut walker = Walker::default();
    while let Some(batch) = tracer.next_batch(Duration::from_secs(1)) {
        if verbose {
            for record in batch.iter() {
                eprintln!("{record:x?}");
            }
        }
        walker.batch(&batch);
    }
    let stats = tracer.stats();
    let instructions = walker.check(&truth);
    for text in walker
        .warnings
        .iter()
        .map(|w| format!("warning: {w}"))
        .chain(walker.errors.iter().cloned())
    {
        eprintln!("{text}");
    }
    eprintln!("{:?}", walker.counts);
    eprintln!(
        "{} instructions, {} stops, {:.2} s, {:.1} us a stop; truth {instructions}; status {:#x}; {} errors",
        stats.retired,
        stats.stops,
        stats.seconds,
        stats.seconds * 1e6 / stats.stops.max(1) as f64,
        walker.status,
        walker.errors.len(),
    );
    // It is in the directory for temporary files in any case.
    let _ = std::fs::remove_file(truth);
    std::process::exit(i32::from(!walker.errors.is_empty()));
}
