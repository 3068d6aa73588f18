//! Loops without a packet: how often the program went round before an event is not in the trace.

use super::walker::Walker;
use crate::code::Stop;

/// Instructions of a round; what is longer is not looked at.
const LONGEST: usize = 4096;

impl Walker {
    /// The addresses of one round, if the code leads from the next instruction back to it without a packet. A way that
    /// leaves the filter ranges makes packets.
    pub fn round(&mut self) -> Option<Vec<u64>> {
        let round = self.way_back()?;
        self.first_outside().is_none().then_some(round)
    }

    fn way_back(&mut self) -> Option<Vec<u64>> {
        let here = self.here();
        let mut index = self.resolve().ok()?;
        let mut ips = Vec::new();
        loop {
            let node = self.code.node(index);
            // only these two go on without anything that some setting makes a packet of
            if !matches!(node.stop, Stop::Loop | Stop::Full) {
                return None;
            }
            for piece in self.code.pieces(node) {
                let mut at = piece.start;
                for &length in self.code.sequence(piece, node.mode).lengths {
                    if at == here && !ips.is_empty() {
                        return Some(ips);
                    }
                    if ips.len() == LONGEST {
                        return None;
                    }
                    ips.push(at);
                    at = at.wrapping_add(length.into());
                }
            }
            index = self.follow(index).ok()?;
        }
    }
}
