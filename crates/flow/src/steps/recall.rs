//! Passages where they are known, and steps that may become one where they are not.

use std::mem::size_of;

use rtit_memory::MakeRoom;

use super::follow::Run;
use super::kernel::{Exit, Lane, AHEAD};
use super::store::Steps;
use crate::code::Code;
use crate::stack::ReturnStack;

impl Steps {
    /// As `run`, of `kernel`, with passages.
    #[allow(clippy::too_many_arguments)] // as the kernel's, and the code
    pub(super) fn run_by_passages(
        &mut self,
        kernel: [Run; 2],
        code: &Code,
        stack: &mut ReturnStack,
        bytes: &[u8],
        end: usize,
        room: usize,
        lane: &mut Lane,
    ) -> Exit {
        loop {
            let from = lane.at;
            let pause = self.passages.pause(lane);
            if pause == 0 && !self.passages.is_begun() {
                self.take_passages(code, stack, bytes, end, room, lane);
            }
            if lane.at >= end {
                self.passages.took(lane.at - from);
                return Exit::Leave;
            }
            let (stop, leaves_trail) = match pause {
                0 => {
                    let trail = &self.hits.trail;
                    self.passages.begin(bytes, end, lane, trail, self.log.len())
                }
                _ => (end.min(lane.at.saturating_add(pause)), false),
            };
            self.hits.leaves_trail = leaves_trail;
            if leaves_trail {
                // a TNT of six RETs, in a byte, takes seven steps
                let bytes = stop.saturating_sub(lane.at) + AHEAD;
                self.hits.trail.room(bytes * 8);
            }
            let kernel = kernel[usize::from(leaves_trail)];
            let (mut tables, phrases) = self.tables();
            let exit = kernel(&mut tables, Some(phrases), stack, bytes, stop, room, lane);
            self.passages.took(lane.at - from);
            if exit != Exit::Leave {
                return exit;
            }
            self.end_passage(bytes, lane);
            if lane.at < stop || lane.at >= end || self.log.len() >= room {
                return Exit::Leave;
            }
        }
    }

    fn take_passages(
        &mut self,
        code: &Code,
        stack: &mut ReturnStack,
        bytes: &[u8],
        end: usize,
        room: usize,
        lane: &mut Lane,
    ) {
        loop {
            let left = room.saturating_sub(self.log.len());
            let (trail, effects, visits) = (&self.hits.trail, &mut self.effects, &self.visits);
            let returns = self.returns;
            let may = |number: usize, (from, to): (u32, u32)| {
                let steps = trail.get(from as usize..to as usize).unwrap_or(&[]);
                !returns || effects.apply(number, steps, visits, code, stack)
            };
            let Some(number) = self.passages.find(bytes, end, left, lane, may) else {
                return;
            };
            self.passages.take(number, lane, &mut self.log);
            if !self.sums.count(number as u32, self.passages.limit()) {
                self.spread();
            }
        }
    }

    /// The passage that has begun, if there is one, ends here, if this is between packets.
    pub fn end_passage(&mut self, bytes: &[u8], lane: &Lane) {
        let more = (self.effects.words() + self.sums.words()) * size_of::<u32>();
        self.passages
            .end(bytes, lane, &mut self.hits.trail, &self.log, more);
        self.hits.leaves_trail = false;
    }

    /// What was taken since a passage began is none, nor what the last stream left.
    pub fn begin_passage(&mut self) {
        self.passages.abandon(&mut self.hits.trail);
        self.hits.leaves_trail = false;
    }
}

#[cfg(test)]
mod tests {
    use rtit_image::{Space, View};
    use rtit_x86::Mode;

    use super::super::table::base_of;
    use super::*;
    use crate::counts::Counts;
    use crate::settings::StepLimits;
    use crate::sink::Wants;

    const LIMIT: usize = 1 << 14;

    /// A program whose packets all have steps.
    struct Program {
        view: View,
        code: Code,
        steps: Steps,
        stack: ReturnStack,
        base: u32,
    }

    impl Program {
        /// At 1000.
        fn of(bytes: &[u8]) -> Program {
            let mut space = Space::new();
            space.map(0, 0x1000, bytes.into());
            let limits = StepLimits {
                phrases: 0,
                passages: LIMIT,
                passages_part: 0,
                ..StepLimits::default()
            };
            let mut program = Program {
                view: space.view(),
                code: Code::new(1 << 20, 0),
                steps: Steps::new(limits, true, true),
                stack: ReturnStack::default(),
                base: 0,
            };
            assert!(program.steps.begin(Wants::Hits));
            let node = program.code.lookup(&program.view, 0x1000, Mode::Bits64);
            program.base = base_of(node.expect("there is code"));
            program
        }

        /// Packets with passages or without.
        fn take(&mut self, packets: &[u8], by_passages: bool) {
            self.steps.passages.start_again(by_passages);
            let bytes = [packets, &[0; AHEAD]].concat();
            let (end, mut lane) = (packets.len(), Lane::new(self.base, 0));
            let (code, view) = (&mut self.code, &self.view);
            let (steps, stack) = (&mut self.steps, &mut self.stack);
            steps.begin_passage();
            loop {
                match steps.run(false, code, stack, &bytes, end, 1 << 13, &mut lane) {
                    Exit::Leave => break,
                    Exit::Tnt(tnt) => assert!(steps.fill_tnt(code, view, lane.base, tnt)),
                    Exit::Return(site) => {
                        let next = steps.fill_return(code, view, lane.base, site, lane.at);
                        lane.base = next.expect("there is code");
                        stack.drop_top();
                        lane.at += usize::from(lane.rest == 0);
                    }
                    Exit::Phrase => steps.fill_phrase(&bytes, &lane),
                    exit => panic!("{exit:?}"),
                }
            }
            assert_eq!((lane.at, lane.rest), (end, 0));
            self.base = lane.base;
        }

        fn counts(&mut self) -> Counts {
            self.steps.spread();
            let mut counts = Counts::default();
            self.steps.add_counts(&mut counts);
            counts
        }
    }

    #[test]
    fn full_ranges_are_added_up_in_the_midst_of_a_stream() {
        // je 1002; jmp 1000
        let mut program = Program::of(&[0x74, 0x00, 0xeb, 0xfc]);
        // which end where they end
        let piece = [0xac, 0xd4, 0x92, 0xfe];
        program.take(&piece, false);
        program.take(&piece, true);
        let pieces = program.steps.passages.all.len();
        // each is a range
        let times = LIMIT - 3;
        program.take(&piece.repeat(times), true);
        assert_eq!(program.steps.passages.all.len(), pieces);
        let waiting = program.steps.sums.waiting() * size_of::<u32>();
        assert!(waiting != 0 && waiting <= LIMIT / 8, "{waiting}");
        assert_eq!(program.counts().conditional, 24 * (times as u64 + 2));
    }

    #[test]
    fn another_piece_is_taken_where_the_stack_differs() {
        let mut code = [0x90; 0x50];
        let mut put = |at: usize, bytes: &[u8]| code[at..at + bytes.len()].copy_from_slice(bytes);
        // 1000: je 1010; call 1040; jmp 1000; 1010: call 1040; jmp 1000; 1040: je 1044; jmp 1040; 1044: ret
        put(0, &[0x74, 0x0e, 0xe8, 0x39, 0, 0, 0, 0xeb, 0xf7]);
        put(0x10, &[0xe8, 0x2b, 0, 0, 0, 0xeb, 0xe9]);
        put(0x40, &[0x74, 0x02, 0xeb, 0xfc, 0xc3]);
        let mut program = Program::of(&code);
        // one branch on and into the loop; the loop and its end, and a RET
        let (here, there, rest) = ([0x08], [0x0c], [0x80, 0x80, 0x0e]);
        for call in [here, there] {
            program.take(&call, false);
            program.take(&rest, false);
        }
        // what is expected where a stream begins
        program.take(&here, true);
        program.take(&rest, true);
        program.take(&there, false);
        program.take(&rest, true);
        let pieces = program.steps.passages.all.len();
        assert_eq!(pieces, 3);
        let times = program.counts();
        for call in [here, there, there, here] {
            program.take(&call, false);
            assert_eq!(program.steps.sums.waiting(), 0);
            program.take(&rest, true);
            assert_eq!(program.steps.passages.all.len(), pieces);
            assert_eq!(program.steps.sums.waiting(), 2);
            program.steps.spread();
        }
        let returns = program.counts().compressed_returns - times.compressed_returns;
        assert_eq!(returns, 4);
        assert!(program.stack.is_empty());
    }
}
