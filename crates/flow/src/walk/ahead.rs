//! The rest of a way through code, of which a sink that was full is told later.

use super::stamp::Stamp;
use super::walker::Walker;
use crate::ahead::Ahead;
use crate::code::Code;
use crate::counts::Counts;
use crate::sink::Sink;
use crate::watch::Watched;

/// Bytes of code that are kept at once.
const KEPT: usize = 1 << 21;

impl Walker {
    /// Runs through nodes of which the sink is told later.
    #[cold]
    pub(super) fn hold_back<S: Sink>(
        &mut self,
        first: u32,
        nodes: u32,
        sink: &mut S,
        counts: &mut Counts,
        stamp: Stamp,
    ) {
        let node = self.code.node(first);
        let (ip, mode) = (node.start, node.mode);
        let before = counts.instructions;
        let mut index = first;
        for _ in 0..nodes {
            self.run_node(index, counts);
            match self.follow(index) {
                Ok(next) => index = next,
                Err(_) => break,
            }
        }
        sink.hold_back(Ahead {
            view: self.view.clone(),
            space: self.code.space(),
            ip,
            mode,
            instructions: counts.instructions - before,
            time: self.time,
            offset: stamp.offset,
        });
    }
}

impl Ahead {
    /// Tells a sink until it is full; whether of all. After `watched` has given up nothing more needs to be told.
    pub(crate) fn tell<S: Sink>(&mut self, sink: &mut S, watched: &mut Watched) -> bool {
        let mut code = Code::new(KEPT, self.space);
        while self.instructions > 0 && !watched.passes() {
            if sink.is_full() {
                return false;
            }
            if code.is_over_limit() {
                code.clear();
            }
            let Ok(index) = code.lookup(&self.view, self.ip, self.mode) else {
                break;
            };
            let node = code.node(index);
            match code.nth(node, self.instructions) {
                // pages that were asked for later made it longer
                Some((place, _)) => {
                    code.tell_part(index, place, self.time, self.offset, sink);
                    self.instructions = 0;
                }
                None => {
                    code.tell(index, self.time, self.offset, sink);
                    self.instructions -= u64::from(node.instructions);
                    self.ip = node.next;
                }
            }
        }
        true
    }
}
