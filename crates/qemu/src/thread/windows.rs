//! Short paths that were followed before, and what came of each: a path that comes again is followed at a glance.
//!
//! A window is a path of five blocks, known by their numbers. What it has depends on nothing else, since blocks never
//! change, so it is never wrong; it goes when another takes its place.

use rtit_unit::Calls;

use crate::thread::arena::{Arena, Entry};
use crate::thread::block::{breaks_off, Block, Exit};

/// From one block to the next so many times.
pub(super) const STEPS: usize = 4;
const BITS: u32 = 13;
const COUNT: usize = 1 << BITS;

/// Numbers of the first two blocks, of the next two, and of the last one below its `Gist`.
type Window = [u64; 3];

/// As many windows as there is room for.
#[derive(Default)]
pub(crate) struct Windows(Vec<Window>);

/// What comes of a window's first steps: how many they are (3 bits); whether the last is a call, or a return (2);
/// results for the TNT buffer (3), and which of them are taken, the last in the lowest bit (4); instructions that
/// retire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Gist(u32);

/// The last step is a call, whose return address is to be kept.
const CALL: u32 = 1 << 3;
/// The last step is a return, whose result holds if that is where the last call comes from.
const RETURN: u32 = 1 << 4;
const RESULTS: u32 = 5;
const TAKEN: u32 = 8;
const INSTRUCTIONS: u32 = 12;

impl Gist {
    /// All steps, and nothing is to be done about calls.
    #[inline(always)]
    pub(super) fn is_plain(self) -> bool {
        self.0 & (CALL | RETURN | 7) == STEPS as u32
    }

    #[inline(always)]
    pub(super) fn steps(self) -> usize {
        self.0 as usize & 7
    }

    /// Does what its last step, from the one block to the other, does to `calls`. False if that is no result.
    #[inline(always)]
    pub(super) fn takes_calls<'a>(
        self,
        calls: &mut Calls,
        step: impl FnOnce() -> [&'a Block; 2],
    ) -> bool {
        if self.0 & (CALL | RETURN) == 0 {
            return true;
        }
        let [block, next] = step();
        if self.0 & RETURN != 0 {
            return calls.ret(next.start);
        }
        calls.call(block.next, next.start);
        true
    }

    #[inline(always)]
    pub(super) fn instructions(self) -> u64 {
        (self.0 >> INSTRUCTIONS).into()
    }

    /// As `Unit::add_results` takes them.
    #[inline(always)]
    pub(super) fn results(self) -> (u8, u64) {
        let taken = self.0 >> TAKEN & 15;
        ((self.0 >> RESULTS & 7) as u8, taken.into())
    }

    /// Of a path from its first block to its last.
    #[cold]
    #[inline(never)]
    fn of(path: &[Entry; STEPS + 1], arena: Arena) -> Gist {
        let (mut gist, mut taken, mut results) = (0, 0, 0);
        for step in path.windows(2) {
            let [block, next] = [0, 1].map(|index| arena.block(step[index]));
            let Some((end, count, result)) = step_to(block, next) else {
                break;
            };
            gist += 1 + end + (count << INSTRUCTIONS);
            if let Some(result) = result {
                results += 1;
                taken = taken << 1 | u32::from(result);
            }
            if end != 0 {
                break;
            }
        }
        Gist(gist | results << RESULTS | taken << TAKEN)
    }
}

/// `CALL`, `RETURN` or 0, instructions that retire, and a result; None if more has to be done than `follow_quietly` or
/// `follow_almost_quietly` do.
fn step_to(block: &Block, next: &Block) -> Option<(u32, u32, Option<bool>)> {
    let (start, count) = (next.start, block.count);
    let straight = |count| Some((0, count, None));
    let conditional = || Some((0, count, Some(start != block.next)));
    match block.exit {
        Exit::Conditional if block.leads_to(next).is_some() => conditional(),
        _ if block.leads_to(next).is_some() => straight(count),
        _ if breaks_off(block, next) => None,
        Exit::Conditional if start == block.next || start == block.target => conditional(),
        Exit::Repeat if start == block.next => straight(count),
        Exit::Repeat if start == block.last => straight(count - 1),
        Exit::Call if start == block.target => Some((CALL, count, None)),
        Exit::Return => Some((RETURN, count, Some(true))),
        _ => None,
    }
}

impl Windows {
    /// For a path of `STEPS` steps.
    #[inline(always)]
    pub(super) fn gist(&mut self, path: &[Entry; STEPS + 1], arena: Arena) -> Gist {
        let number = |index: usize| u64::from(path[index].number());
        let (first, second) = (number(0) | number(1) << 32, number(2) | number(3) << 32);
        let last = path[STEPS].number();
        let Some(window) = self.0.get_mut(place(first, second, last)) else {
            return self.begin(path, arena);
        };
        let differs = (window[0] ^ first) | (window[1] ^ second);
        if differs | u64::from(window[2] as u32 ^ last) != 0 {
            *window = [
                first,
                second,
                number(4) | u64::from(Gist::of(path, arena).0) << 32,
            ];
        }
        Gist((window[2] >> 32) as u32)
    }

    #[cold]
    #[inline(never)]
    fn begin(&mut self, path: &[Entry; STEPS + 1], arena: Arena) -> Gist {
        // No block has the number 0. What is not used takes no memory.
        self.0 = vec![[0; 3]; COUNT];
        Gist::of(path, arena)
    }
}

#[inline(always)]
fn place(first: u64, second: u64, last: u32) -> usize {
    let sum = first.wrapping_mul(0x9E37_79B9_7F4A_7C15)
        ^ (second ^ u64::from(last) << 13).wrapping_mul(0xC2B2_AE3D_27D4_EB4F);
    (sum >> (u64::BITS - BITS)) as usize
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use rtit_unit::settings::ctl;
    use rtit_unit::{Settings, Unit};

    use super::*;
    use crate::interface::cpu::Cpu;
    use crate::thread::arena;
    use crate::thread::path::Truth;
    use crate::thread::state::{Thread, Wanted, LOOK};
    use crate::thread::watch::Watch;

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

    struct Random(u64);

    impl Random {
        fn below(&mut self, limit: usize) -> usize {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0 as usize % limit
        }
    }

    fn look(thread: &mut Thread, count: u32) -> u32 {
        let clock = thread.now() + u64::from(count);
        thread.next_look = clock + LOOK;
        thread.clock.store(clock, Ordering::Relaxed);
        thread.catch_up();
        0
    }

    fn thread(block: &'static Block, ctl: u64) -> Thread {
        let settings = Settings {
            ctl,
            ..Settings::default()
        };
        let wanted = Wanted {
            truth: Truth::None,
            joined: 1,
            snapshot: false,
            look,
        };
        let mut unit = Unit::new(&settings).unwrap();
        unit.run(block.start);
        let cpu = Cpu::new(std::ptr::null());
        let mut thread = Thread::new(wanted, Watch::new(0), unit, cpu, 1);
        thread.block = block;
        thread.settle();
        thread
    }

    fn at_once(thread: &mut Thread, next: &'static Block) {
        assert!(thread.follow(next));
        thread.block = next;
        thread.settle();
    }

    /// Where a program goes on that returns to somewhere else now and then.
    fn go_on(block: &Block, returns: &mut Vec<u64>, random: &mut Random) -> u64 {
        match block.exit {
            Exit::Conditional => [block.next, block.target][random.below(2)],
            Exit::Repeat => [block.next, block.last][random.below(2)],
            Exit::Return => match returns.pop() {
                Some(ip) if random.below(10) > 0 => ip,
                _ => 0x1000,
            },
            Exit::Call => {
                returns.push(block.next);
                block.target
            }
            Exit::Jump => block.target,
            _ => block.next,
        }
    }

    #[test]
    fn many_blocks_are_as_one_after_the_other() {
        assert!(arena::prepare());
        let kept =
            BLOCKS.map(|(start, sizes, code)| arena::keep(Block::new(start, sizes, code, false)));
        let at = |ip| *kept.iter().find(|block| block.start == ip).unwrap();
        let branches = ctl::USER | ctl::BRANCH_EN;
        for ctl in [branches, branches | ctl::TSC_EN | ctl::DIS_RETC] {
            let mut random = Random(0x9E37_79B9_7F4A_7C15);
            let [mut slow, mut fast] = [0; 2].map(|_| thread(at(0x1000), ctl));
            let (mut returns, mut together) = (Vec::new(), 0);
            for _ in 0..300 {
                let mut entries = Vec::new();
                for _ in 0..1 + random.below(800) {
                    let next = at(go_on(slow.block, &mut returns, &mut random));
                    at_once(&mut slow, next);
                    let number = next.entry.load(Ordering::Relaxed);
                    // SAFETY: it is one word.
                    entries.push(unsafe { std::mem::transmute::<u32, Entry>(number) });
                }
                let mut index = 0;
                loop {
                    let from = index;
                    index = fast.follow_many(&entries, from, Arena::get());
                    together += index - from;
                    let Some(&entry) = entries.get(index) else {
                        break;
                    };
                    let next = Arena::get().block(entry);
                    if fast.follow_almost_quietly(next) {
                        fast.block = next;
                    } else {
                        at_once(&mut fast, next);
                    }
                    index += 1;
                }
                assert!(std::ptr::eq(fast.block, slow.block));
                assert_eq!((fast.now(), fast.branches), (slow.now(), slow.branches));
                for thread in [&mut slow, &mut fast] {
                    thread.catch_up();
                    thread.settle();
                }
                assert_eq!(fast.unit.output(), slow.unit.output());
                let waits = |thread: &Thread| {
                    let state = thread.unit.state();
                    (state.core.tnt, state.ret_stack.clone())
                };
                assert_eq!(waits(&fast), waits(&slow));
                slow.unit.discard();
                fast.unit.discard();
            }
            assert!(together > 50_000);
        }
    }
}
