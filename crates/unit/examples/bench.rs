//! How many branches a second: `cargo run --release -p rtit-unit --example bench [millions]`.
//!
//! A loop of 20 branches: 16 conditional, 2 returns, a direct and an indirect call. Each branch has its own address, as
//! in a translated program; its behaviour is random: whether a conditional is taken, where an indirect call goes, how
//! many other instructions lie between.

use std::hint::black_box;
use std::time::Instant;

use rtit_unit::{Error, Settings, TraceUnit};

const BRANCHES_PER_ITERATION: u64 = 20;
const CODE: u64 = 0x5555_5555_1000;
const LIBRARY: u64 = 0x7FFF_F7C0_0000;

/// Random words, made beforehand: more than a processor learns to predict.
fn words(count: usize) -> Vec<u64> {
    let mut seed = 0x9E37_79B9_7F4A_7C15u64;
    let next = |_| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    (0..count).map(next).collect()
}

#[inline(always)]
fn conditional(unit: &mut TraceUnit, clock: &mut u64, word: u64, site: u64) -> Result<(), Error> {
    *clock += 1 + (word >> (2 * site) & 7);
    unit.advance_clock(*clock)?;
    let next = CODE + 32 * site;
    unit.conditional(next, next + 0x400, word >> (44 + site) & 1 == 1);
    Ok(())
}

#[inline(always)]
fn iteration(unit: &mut TraceUnit, clock: &mut u64, word: u64) -> Result<(), Error> {
    for site in 0..4 {
        conditional(unit, clock, word, site)?;
    }
    *clock += 2;
    unit.advance_clock(*clock)?;
    unit.call(CODE + 0x205, CODE + 0x900);
    for site in 4..8 {
        conditional(unit, clock, word, site)?;
    }
    *clock += 1;
    unit.advance_clock(*clock)?;
    unit.ret(CODE + 0x205);
    for site in 8..12 {
        conditional(unit, clock, word, site)?;
    }
    *clock += 1;
    unit.advance_clock(*clock)?;
    unit.indirect_call(CODE + 0x302, LIBRARY + (word & 0xFFF0));
    for site in 12..16 {
        conditional(unit, clock, word, site)?;
    }
    *clock += 1;
    unit.advance_clock(*clock)?;
    unit.ret(CODE + 0x302);
    Ok(())
}

fn run(name: &str, settings: &Settings, words: &[u64], iterations: u64) -> Result<(), Error> {
    let mut unit = TraceUnit::new(settings)?;
    unit.switch_thread_in(CODE);
    let (mut bytes, mut clock) = (0, 0);
    let start = Instant::now();
    let begin = cpu_seconds(start);
    for (_, word) in (0..iterations).zip(words.iter().cycle()) {
        iteration(&mut unit, &mut clock, *word)?;
        if unit.untaken_output().len() >= 1 << 16 {
            bytes += black_box(unit.untaken_output()).len();
            unit.discard_output();
        }
    }
    let seconds = cpu_seconds(start) - begin;
    let branches = (iterations * BRANCHES_PER_ITERATION) as f64;
    println!(
        "{name:12} {:6.1} million branches a second, {:.2} ns each, {:.2} bits each",
        branches / seconds / 1e6,
        seconds / branches * 1e9,
        8.0 * bytes as f64 / branches
    );
    Ok(())
}

/// Seconds that this thread ran, without those when others did; elapsed time where the system does not report it.
fn cpu_seconds(start: Instant) -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let ran = text.split(' ').next();
    ran.and_then(|first| first.parse::<u64>().ok())
        .map_or(start.elapsed().as_secs_f64(), |ran| ran as f64 / 1e9)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let argument = std::env::args().nth(1);
    let millions: u64 = argument.map_or(Ok(200), |text| text.parse())?;
    let words = words(1 << 14);
    for (name, changes) in [
        ("default", [].as_slice()),
        ("mixed TNT", &[("tnt_form", "mixed")]),
        ("cyc", &[("ctl", "0x300e60a")]),
        ("no time", &[("ctl", "0x3002008")]),
        ("noretcomp", &[("ctl", "0x300ee08")]),
    ] {
        let mut settings = Settings::default();
        for (setting, value) in changes {
            settings.set_by_name(setting, value)?;
        }
        run(
            name,
            &settings,
            &words,
            millions * 1_000_000 / BRANCHES_PER_ITERATION,
        )?;
    }
    Ok(())
}
