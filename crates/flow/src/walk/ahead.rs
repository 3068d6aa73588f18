//! The rest of a way through code, of which a sink that was full is told later.

use crate::ahead::Ahead;
use crate::code::Code;
use crate::sink::Sink;
use crate::watch::Watched;

/// Instructions of which the code is kept at once.
const KEPT: usize = 1 << 16;

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
