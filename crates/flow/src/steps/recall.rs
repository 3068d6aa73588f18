//! Passages where they are known, and steps that may become one where they are not.

use std::mem::size_of;

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
                self.hits.trail.reserve(bytes * 8);
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
mod tests;
