//! The truth from a callback at each instruction.

use crate::thread::block::Step;
use crate::thread::path::Path;

/// The path of a thread from a callback at each instruction, before it executes.
#[derive(Default)]
pub(crate) struct Steps {
    last: Option<&'static Step>,
}

impl Steps {
    /// The callback. An instruction that comes twice in a row was restarted, or is an iteration of a REP: it counts
    /// once, unless it is a branch to itself.
    pub(crate) fn step(&mut self, step: &'static Step, path: &mut Path) {
        if let Some(last) = self.last {
            if last.ip != step.ip || last.branch {
                retire(last, step.ip, path);
            }
        }
        self.last = Some(step);
    }

    /// User code is left by the last instruction itself.
    pub(crate) fn leave(&mut self, path: &mut Path) {
        if let Some(last) = self.last.take() {
            retire(last, last.ip, path);
        }
    }

    /// User code is left before the instruction at `ip`; `faulted` if that one had been begun.
    pub(crate) fn interrupt(&mut self, ip: u64, faulted: bool, path: &mut Path) {
        if let Some(last) = self.last.take() {
            if last.ip != ip || (last.branch && !faulted) {
                retire(last, ip, path);
            }
        }
    }

    /// Nobody knows where user code was left.
    pub(crate) fn forget(&mut self) {
        self.last = None;
    }
}

fn retire(step: &Step, next: u64, path: &mut Path) {
    if !step.interrupt {
        path.step(step, step.next != next || step.transfers);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::thread::block::Block;

    fn loop_block() -> &'static Block {
        // nop; jmp to the nop
        Box::leak(Box::new(Block::new(
            0x1000,
            &[1, 2],
            &[0x90, 0xeb, 0xfd],
            true,
        )))
    }

    #[test]
    fn blocks_and_steps_give_one_chain() {
        let block = loop_block();
        let (mut by_block, mut by_step) = (Path::new(2048), Path::new(2048));
        let mut steps = Steps::default();
        for _ in 0..5000 {
            by_block.block(block, 0, true);
            block
                .steps
                .iter()
                .for_each(|step| steps.step(step, &mut by_step));
        }
        by_block.part(block, 0..1);
        steps.step(&block.steps[0], &mut by_step);
        steps.step(&block.steps[1], &mut by_step);
        steps.interrupt(0x1001, true, &mut by_step);
        assert_eq!(by_block.chain(), by_step.chain());
        assert_eq!(by_block.chain().0, 10_001);
    }
}
