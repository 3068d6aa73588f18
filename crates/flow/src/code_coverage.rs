//! Coverage of code: how often each instruction ran, and all conditional branches, whether they ran or not.
//!
//! Runs overlap, so the count of an instruction is a sum over runs.

use rtit_image::SpaceView;
use rtit_x86::{decode, CodeMode, Instruction, InstructionClass, MAX_LENGTH};

use crate::hash::AddressMap;
use crate::totals::RunTotal;

/// An instruction and how often it ran.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InstructionCount {
    pub ip: u64,
    /// Bytes.
    pub length: u8,
    /// `rtit_x86::Class` as a number.
    pub class: u8,
    pub count: u64,
}

/// The instructions of some runs, with counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InstructionCounts {
    /// Sorted by IP. One for each IP.
    pub instructions: Vec<InstructionCount>,
    /// IP of the last instruction of each run; `u64::MAX` where code is missing.
    pub lasts: Vec<u64>,
    /// Sum of the counts of instructions without known code.
    pub unknown: u64,
}

/// Counts how often each instruction ran. `view`: the code of the runs.
pub fn count_instructions(
    view: &SpaceView,
    mode: CodeMode,
    runs: impl Iterator<Item = RunTotal>,
) -> InstructionCounts {
    let mut result = InstructionCounts::default();
    let mut indices: AddressMap<usize> = AddressMap::default();
    for run in runs {
        let mut ip = run.start;
        let mut last = u64::MAX;
        for done in 0..run.instructions {
            let index = match indices.get(&ip) {
                Some(&index) => Some(index),
                None => {
                    decode_and_append(view, mode, ip, &mut result.instructions).inspect(|&index| {
                        indices.insert(ip, index);
                    })
                }
            };
            let found = index.and_then(|index| result.instructions.get_mut(index));
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
            ip = mode.truncate_ip(ip.wrapping_add(found.length.into()));
        }
        result.lasts.push(last);
    }
    result.instructions.sort_unstable_by_key(|each| each.ip);
    result
}

/// Decodes the instruction at `ip`; `None` if there is none.
fn decode_from_view(view: &SpaceView, mode: CodeMode, ip: u64) -> Option<Instruction> {
    let mut bytes = [0; 16];
    let known = view.read_instruction_bytes(ip, &mut bytes).min(MAX_LENGTH);
    decode(bytes.get(..known)?, ip, mode).ok()
}

/// Decodes the instruction at `ip`, appends it to `instructions`, and returns its index.
fn decode_and_append(
    view: &SpaceView,
    mode: CodeMode,
    ip: u64,
    instructions: &mut Vec<InstructionCount>,
) -> Option<usize> {
    let decoded = decode_from_view(view, mode, ip)?;
    instructions.push(InstructionCount {
        ip,
        length: decoded.length,
        class: decoded.class as u8,
        count: 0,
    });
    Some(instructions.len() - 1)
}

/// A conditional branch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConditionalBranch {
    /// Index of its range.
    pub range: u32,
    pub ip: u64,
    /// The next instruction if it is not taken, and if it is.
    pub fall_through: u64,
    pub target: u64,
}

/// Returns the conditional branches in ranges, given as start and size, of the code that `view` has now. A range ends
/// before its first byte that is no instruction. After `max_instructions` instructions the search stops; then the
/// second result is the range in which to continue, and the offset in it.
pub fn find_conditional_branches(
    view: &SpaceView,
    mode: CodeMode,
    ranges: impl Iterator<Item = (u64, u64)>,
    max_instructions: usize,
) -> (Vec<ConditionalBranch>, Option<(u32, u64)>) {
    let (mut found, mut seen) = (Vec::new(), 0);
    for ((start, size), range) in ranges.zip(0..) {
        let mut done = 0;
        while done < size {
            if seen == max_instructions {
                return (found, Some((range, done)));
            }
            seen += 1;
            let ip = start.wrapping_add(done);
            let Some(decoded) = decode_from_view(view, mode, ip) else {
                break;
            };
            let length = u64::from(decoded.length);
            if decoded.class == InstructionClass::Conditional {
                found.push(ConditionalBranch {
                    range,
                    ip,
                    fall_through: ip.wrapping_add(length),
                    target: decoded.target,
                });
            }
            done = done.saturating_add(length);
        }
    }
    (found, None)
}

#[cfg(test)]
mod tests {
    use rtit_image::Space;
    use rtit_x86::InstructionClass;

    use super::*;

    fn run(start: u64, instructions: u32, count: u64) -> RunTotal {
        RunTotal {
            start,
            instructions,
            count,
        }
    }

    #[test]
    fn overlapping_runs_add_up() {
        let mut space = Space::new();
        // jz +2; nop; nop; jmp rax
        space.map_bytes(0, 0x1000, b"\x74\x02\x90\x90\xff\xe0".as_slice().into());
        let runs = [run(0x1000, 1, 5), run(0x1002, 3, 2), run(0x1004, 1, 3)];
        let found = count_instructions(&space.view_at_start(), CodeMode::Bits64, runs.into_iter());
        let rows: Vec<_> = found
            .instructions
            .iter()
            .map(|each| (each.ip, each.length, each.class, each.count))
            .collect();
        let conditional = InstructionClass::Conditional as u8;
        let indirect = InstructionClass::IndirectJump as u8;
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
    fn instructions_without_code_are_counted() {
        let mut space = Space::new();
        space.map_bytes(0, 0x1000, b"\x90\x0f".as_slice().into());
        let runs = [run(0x1000, 3, 7), run(0x9000, 2, 1)];
        let found = count_instructions(&space.view_at_start(), CodeMode::Bits64, runs.into_iter());
        assert_eq!(found.instructions.len(), 1);
        assert_eq!(found.lasts, [u64::MAX, u64::MAX]);
        assert_eq!(found.unknown, 2 * 7 + 2);
    }

    #[test]
    fn conditionals_are_found_in_code_that_did_not_run() {
        let mut space = Space::new();
        // jz +2; nop; loop -5; then what is no instruction, and another jz
        let code = b"\x74\x02\x90\xe2\xfb\x06\x74\x00";
        space.map_bytes(0, 0x1000, code.as_slice().into());
        let whole = [(0x1000, 3), (0x1002, u64::MAX), (0x1005, 3), (0x9000, 2)];
        let view = space.view_at_start();
        let (found, next) =
            find_conditional_branches(&view, CodeMode::Bits64, whole.into_iter(), 9);
        assert_eq!(next, None);
        let rows: Vec<_> = found
            .iter()
            .map(|each| (each.range, each.ip, each.fall_through, each.target))
            .collect();
        assert_eq!(
            rows,
            [(0, 0x1000, 0x1002, 0x1004), (1, 0x1003, 0x1005, 0x1000),]
        );
        let (part, next) = find_conditional_branches(&view, CodeMode::Bits64, whole.into_iter(), 3);
        assert_eq!((part.as_slice(), next), (&found[..1], Some((1, 1))));
    }
}
