//! A memo of short paths: several transitions are followed at once if they have been followed before.
//!
//! An entry is a path of five blocks, identified by their numbers, with a summary of its four transitions:
//! instructions, TNT bits, and a call or return at the end. Blocks never change, so an entry is always right; it is
//! replaced when another path needs its slot.

use rtit_unit::CallTracker;

use crate::thread::block_arena::{BlockArena, BlockId};
use crate::thread::translation_block::{is_interrupted_inside, BlockExit, TranslationBlock};

/// Transitions of an entry.
pub(super) const MEMO_STEPS: usize = 4;
const MEMO_BITS: u32 = 13;
const MEMO_ENTRIES: usize = 1 << MEMO_BITS;

/// The numbers of the first two blocks; of the next two; and of the last one, with the `PathSummary` in the upper half.
type MemoEntry = [u64; 3];

/// The entries, indexed by a hash of their path.
#[derive(Default)]
pub(crate) struct PathMemo(Vec<MemoEntry>);

/// The effect of the first transitions of a path. Bits 0 to 2: how many; 3 and 4: `CALL`, `RETURN`; 5 to 7: number of
/// TNT bits; 8 to 11: the TNT bits, last one lowest; from 12 on: retired instructions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct PathSummary(u32);

/// The last transition is a call, which pushes a return address.
const CALL: u32 = 1 << 3;
/// The last transition is a return, which is a TNT bit if it returns to the last call.
const RETURN: u32 = 1 << 4;
const RESULTS: u32 = 5;
const TAKEN: u32 = 8;
const INSTRUCTIONS: u32 = 12;

impl PathSummary {
    /// Returns whether the summary covers all transitions, without call or return.
    #[inline(always)]
    pub(super) fn covers_whole_path(self) -> bool {
        self.0 & (CALL | RETURN | 7) == MEMO_STEPS as u32
    }

    #[inline(always)]
    pub(super) fn step_count(self) -> usize {
        self.0 as usize & 7
    }

    /// Applies the call or return at the end, from the first block to the second, to `calls`. False if the return is no
    /// TNT bit.
    #[inline(always)]
    pub(super) fn apply_call<'a>(
        self,
        calls: &mut CallTracker,
        step: impl FnOnce() -> [&'a TranslationBlock; 2],
    ) -> bool {
        if self.0 & (CALL | RETURN) == 0 {
            return true;
        }
        let [block, next] = step();
        if self.0 & RETURN != 0 {
            return calls.pop_return(next.start);
        }
        calls.push_call(block.next, next.start);
        true
    }

    #[inline(always)]
    pub(super) fn instruction_count(self) -> u64 {
        (self.0 >> INSTRUCTIONS).into()
    }

    /// Returns number and values of the TNT bits, as `TraceUnit::add_results` takes them.
    #[inline(always)]
    pub(super) fn tnt_bits(self) -> (u8, u64) {
        let taken = self.0 >> TAKEN & 15;
        ((self.0 >> RESULTS & 7) as u8, taken.into())
    }

    /// Computes the summary of a path.
    #[cold]
    #[inline(never)]
    fn summarize_path(path: &[BlockId; MEMO_STEPS + 1], arena: BlockArena) -> PathSummary {
        let (mut summary, mut taken, mut results) = (0, 0, 0);
        for step in path.windows(2) {
            let [block, next] = [0, 1].map(|index| arena.block_of_id(step[index]));
            let Some((end, count, result)) = summarize_step(block, next) else {
                break;
            };
            summary += 1 + end + (count << INSTRUCTIONS);
            if let Some(result) = result {
                results += 1;
                taken = taken << 1 | u32::from(result);
            }
            if end != 0 {
                break;
            }
        }
        PathSummary(summary | results << RESULTS | taken << TAKEN)
    }
}

/// Returns `CALL`, `RETURN` or 0, the retired instructions, and a TNT bit; None if the transition needs more than
/// `follow_quietly` or `follow_almost_quietly` do.
fn summarize_step(
    block: &TranslationBlock,
    next: &TranslationBlock,
) -> Option<(u32, u32, Option<bool>)> {
    let (start, count) = (next.start, block.instructions);
    let straight = |count| Some((0, count, None));
    let conditional = || Some((0, count, Some(start != block.next)));
    match block.exit {
        BlockExit::Conditional if block.quiet_branch_to(next).is_some() => conditional(),
        _ if block.quiet_branch_to(next).is_some() => straight(count),
        _ if is_interrupted_inside(block, next) => None,
        BlockExit::Conditional if start == block.next || start == block.target => conditional(),
        BlockExit::Repeat if start == block.next => straight(count),
        BlockExit::Repeat if start == block.last => straight(count - 1),
        BlockExit::Call if start == block.target => Some((CALL, count, None)),
        BlockExit::Return => Some((RETURN, count, Some(true))),
        _ => None,
    }
}

impl PathMemo {
    /// Returns the summary of a path, from the memo if it is there.
    #[inline(always)]
    pub(super) fn memoized_summary(
        &mut self,
        path: &[BlockId; MEMO_STEPS + 1],
        arena: BlockArena,
    ) -> PathSummary {
        let number = |index: usize| u64::from(path[index].block_number());
        let (first, second) = (number(0) | number(1) << 32, number(2) | number(3) << 32);
        let last = path[MEMO_STEPS].block_number();
        let Some(window) = self.0.get_mut(memo_slot(first, second, last)) else {
            return self.allocate_memo(path, arena);
        };
        let differs = (window[0] ^ first) | (window[1] ^ second);
        if differs | u64::from(window[2] as u32 ^ last) != 0 {
            *window = [
                first,
                second,
                number(4) | u64::from(PathSummary::summarize_path(path, arena).0) << 32,
            ];
        }
        PathSummary((window[2] >> 32) as u32)
    }

    #[cold]
    #[inline(never)]
    fn allocate_memo(
        &mut self,
        path: &[BlockId; MEMO_STEPS + 1],
        arena: BlockArena,
    ) -> PathSummary {
        // No block has number 0, so an empty entry matches nothing. Unused pages take no memory.
        self.0 = vec![[0; 3]; MEMO_ENTRIES];
        PathSummary::summarize_path(path, arena)
    }
}

#[inline(always)]
fn memo_slot(first: u64, second: u64, last: u32) -> usize {
    let sum = first.wrapping_mul(0x9E37_79B9_7F4A_7C15)
        ^ (second ^ u64::from(last) << 13).wrapping_mul(0xC2B2_AE3D_27D4_EB4F);
    (sum >> (u64::BITS - MEMO_BITS)) as usize
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use rtit_unit::settings::ctl;
    use rtit_unit::{Settings, TraceUnit};

    use crate::interface::guest_state::CpuState;
    use crate::thread::block_arena;
    use crate::thread::executed_path::ExecutedPathSource;
    use crate::thread::thread_state::WindowPosition;
    use crate::thread::thread_state::{RecordedThread, ThreadOptions, CHECK_INTERVAL};

    use super::*;

    /// Start, sizes and code of each block.
    const BLOCKS: [(u64, &[usize], &[u8]); 11] = [
        // nop; je 0x1010
        (0x1000, &[1, 2], &[0x90, 0x74, 0x0d]),
        // call 0x1100
        (0x1003, &[5], &[0xe8, 0xf8, 0, 0, 0]),
        // nop; jmp 0x1010
        (0x1008, &[1, 2], &[0x90, 0xeb, 0x05]),
        // nop; rep movsb
        (0x1010, &[1, 2], &[0x90, 0xf3, 0xa4]),
        // its iterations
        (0x1011, &[2], &[0xf3, 0xa4]),
        // nop; nop; jne 0x1014, into itself
        (0x1013, &[1, 1, 2], &[0x90, 0x90, 0x75, 0xfd]),
        (0x1014, &[1, 2], &[0x90, 0x75, 0xfd]),
        // jmp 0x1000
        (0x1017, &[2], &[0xeb, 0xe7]),
        // nop; je 0x1105
        (0x1100, &[1, 2], &[0x90, 0x74, 0x02]),
        // nop; nop
        (0x1103, &[1, 1], &[0x90, 0x90]),
        // ret
        (0x1105, &[1], &[0xc3]),
    ];

    struct PseudoRandom(u64);

    impl PseudoRandom {
        fn random_below(&mut self, limit: usize) -> usize {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0 as usize % limit
        }
    }

    fn run_periodic_check(thread: &mut RecordedThread, count: u32) -> u32 {
        let clock = thread.clock_in_instructions() + u64::from(count);
        thread.next_check = clock + CHECK_INTERVAL;
        thread.clock.store(clock, Ordering::Relaxed);
        thread.sync_unit_clock();
        0
    }

    fn test_thread(block: &'static TranslationBlock, ctl: u64) -> RecordedThread {
        let settings = Settings {
            ctl,
            ..Settings::default()
        };
        let wanted = ThreadOptions {
            truth: ExecutedPathSource::None,
            min_run: 1,
            snapshot: false,
            periodic_check: run_periodic_check,
        };
        let mut unit = TraceUnit::new(&settings).unwrap();
        unit.switch_thread_in(block.start);
        let cpu = CpuState::new(std::ptr::null());
        let mut thread = RecordedThread::new(wanted, WindowPosition::new(0), unit, cpu, 1);
        thread.block = block;
        thread.update_quiet_limit();
        thread
    }

    fn follow_blocks_at_once(thread: &mut RecordedThread, next: &'static TranslationBlock) {
        assert!(thread.follow_transition(next));
        thread.block = next;
        thread.update_quiet_limit();
    }

    /// Chooses the next address; now and then a return goes elsewhere.
    fn choose_next_address(
        block: &TranslationBlock,
        returns: &mut Vec<u64>,
        random: &mut PseudoRandom,
    ) -> u64 {
        match block.exit {
            BlockExit::Conditional => [block.next, block.target][random.random_below(2)],
            BlockExit::Repeat => [block.next, block.last][random.random_below(2)],
            BlockExit::Return => match returns.pop() {
                Some(ip) if random.random_below(10) > 0 => ip,
                _ => 0x1000,
            },
            BlockExit::Call => {
                returns.push(block.next);
                block.target
            }
            BlockExit::Jump => block.target,
            _ => block.next,
        }
    }

    #[test]
    fn following_many_blocks_equals_following_each() {
        assert!(block_arena::reserve_address_space());
        let kept = BLOCKS.map(|(start, sizes, code)| {
            block_arena::keep_block(TranslationBlock::new(start, sizes, code, false))
        });
        let at = |ip| *kept.iter().find(|block| block.start == ip).unwrap();
        let branches = ctl::USER | ctl::BRANCH_EN;
        for ctl in [branches, branches | ctl::TSC_EN | ctl::DIS_RETC] {
            let mut random = PseudoRandom(0x9E37_79B9_7F4A_7C15);
            let [mut slow, mut fast] = [0; 2].map(|_| test_thread(at(0x1000), ctl));
            let (mut returns, mut together) = (Vec::new(), 0);
            for _ in 0..300 {
                let mut entries = Vec::new();
                for _ in 0..1 + random.random_below(800) {
                    let next = at(choose_next_address(slow.block, &mut returns, &mut random));
                    follow_blocks_at_once(&mut slow, next);
                    let number = next.ring_id.load(Ordering::Relaxed);
                    // SAFETY: it is one word.
                    entries.push(unsafe { std::mem::transmute::<u32, BlockId>(number) });
                }
                let mut index = 0;
                loop {
                    let from = index;
                    index = fast.follow_block_ids(&entries, from, BlockArena::load_block_arena());
                    together += index - from;
                    let Some(&entry) = entries.get(index) else {
                        break;
                    };
                    let next = BlockArena::load_block_arena().block_of_id(entry);
                    if fast.follow_almost_quietly(next) {
                        fast.block = next;
                    } else {
                        follow_blocks_at_once(&mut fast, next);
                    }
                    index += 1;
                }
                assert!(std::ptr::eq(fast.block, slow.block));
                assert_eq!(
                    (fast.clock_in_instructions(), fast.branches),
                    (slow.clock_in_instructions(), slow.branches)
                );
                for thread in [&mut slow, &mut fast] {
                    thread.sync_unit_clock();
                    thread.update_quiet_limit();
                }
                assert_eq!(fast.unit.untaken_output(), slow.unit.untaken_output());
                let waits = |thread: &RecordedThread| {
                    let state = thread.unit.save_state();
                    (state.core.tnt, state.ret_stack.clone())
                };
                assert_eq!(waits(&fast), waits(&slow));
                slow.unit.discard_output();
                fast.unit.discard_output();
            }
            assert!(together > 50_000);
        }
    }
}
