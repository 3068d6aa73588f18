//! Runs told apart into their instructions.

use rtit_image::View;
use rtit_x86::{decode, Mode};

use crate::hash::AddressMap;
use crate::totals::RunTotal;

/// One instruction, and how often it ran.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InstructionTotal {
    pub ip: u64,
    /// Bytes.
    pub length: u8,
    /// `rtit_x86::Class` as a number.
    pub class: u8,
    pub count: u64,
}

/// The instructions of some runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unrolled {
    /// Sorted by IP. Those at one IP are one.
    pub instructions: Vec<InstructionTotal>,
    /// IP of the last instruction of each run; `u64::MAX` where the code is not known that far.
    pub lasts: Vec<u64>,
    /// Instructions that ran, with their counts, where no code is known.
    pub unknown: u64,
}

/// Adds up how often each instruction ran, of runs in the code that `view` has now.
pub fn unrolled(view: &View, mode: Mode, runs: impl Iterator<Item = RunTotal>) -> Unrolled {
    let mut result = Unrolled::default();
    let mut places: AddressMap<usize> = AddressMap::default();
    for run in runs {
        let mut ip = run.start;
        let mut last = u64::MAX;
        for done in 0..run.instructions {
            let place = match places.get(&ip) {
                Some(&place) => Some(place),
                None => learn(view, mode, ip, &mut result.instructions).inspect(|&place| {
                    places.insert(ip, place);
                }),
            };
            let found = place.and_then(|place| result.instructions.get_mut(place));
            let Some(found) = found else {
                let left = u64::from(run.instructions - done);
                result.unknown = result
                    .unknown
                    .saturating_add(left.saturating_mul(run.count));
                last = u64::MAX;
                break;
            };
            found.count = found.count.saturating_add(run.count);
            last = ip;
            ip = mode.truncate(ip.wrapping_add(found.length.into()));
        }
        result.lasts.push(last);
    }
    result.instructions.sort_unstable_by_key(|each| each.ip);
    result
}

/// Decodes what is at `ip` and puts it behind the others; its place.
fn learn(view: &View, mode: Mode, ip: u64, all: &mut Vec<InstructionTotal>) -> Option<usize> {
    let mut bytes = [0; 16];
    let known = view.read(ip, &mut bytes);
    let decoded = decode(bytes.get(..known)?, ip, mode).ok()?;
    all.push(InstructionTotal {
        ip,
        length: decoded.length,
        class: decoded.class as u8,
        count: 0,
    });
    Some(all.len() - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rtit_image::Space;
    use rtit_x86::Class;

    fn run(start: u64, instructions: u32, count: u64) -> RunTotal {
        RunTotal {
            start,
            instructions,
            count,
        }
    }

    #[test]
    fn runs_that_overlap_add_up() {
        let mut space = Space::new();
        // jz +2; nop; nop; jmp rax
        space.map(0, 0x1000, b"\x74\x02\x90\x90\xff\xe0".as_slice().into());
        let runs = [run(0x1000, 1, 5), run(0x1002, 3, 2), run(0x1004, 1, 3)];
        let found = unrolled(&space.view(), Mode::Bits64, runs.into_iter());
        let rows: Vec<_> = found
            .instructions
            .iter()
            .map(|each| (each.ip, each.length, each.class, each.count))
            .collect();
        let conditional = Class::Conditional as u8;
        let indirect = Class::IndirectJump as u8;
        assert_eq!(
            rows,
            [
                (0x1000, 2, conditional, 5),
                (0x1002, 1, 0, 2),
                (0x1003, 1, 0, 2),
                (0x1004, 2, indirect, 5),
            ]
        );
        assert_eq!(found.lasts, [0x1000, 0x1004, 0x1004]);
        assert_eq!(found.unknown, 0);
    }

    #[test]
    fn what_has_no_code_is_counted() {
        let mut space = Space::new();
        space.map(0, 0x1000, b"\x90\x0f".as_slice().into());
        let runs = [run(0x1000, 3, 7), run(0x9000, 2, 1)];
        let found = unrolled(&space.view(), Mode::Bits64, runs.into_iter());
        assert_eq!(found.instructions.len(), 1);
        assert_eq!(found.lasts, [u64::MAX, u64::MAX]);
        assert_eq!(found.unknown, 2 * 7 + 2);
    }
}
