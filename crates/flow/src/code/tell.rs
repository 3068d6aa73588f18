//! What a sink is told of a node.

use super::cache::Code;
use super::node::Place;
use crate::sink::{End, Sink};

impl Code {
    /// Hands a whole node to a sink.
    #[inline]
    pub fn tell<S: Sink>(&self, index: u32, time: u64, offset: u64, sink: &mut S) {
        let node = self.node(index);
        for (at, piece) in self.pieces(node).iter().enumerate() {
            sink.append(&self.sequence(piece, node.mode), time);
            if piece.end != End::Cut {
                sink.close(piece.end, offset);
                if S::EDGES {
                    sink.edge(piece.last, self.after_piece(node, at), piece.end);
                }
            }
        }
    }

    /// Hands the beginning of a node to a sink.
    pub fn tell_part<S: Sink>(
        &self,
        index: u32,
        place: Place,
        time: u64,
        offset: u64,
        sink: &mut S,
    ) {
        let node = self.node(index);
        let pieces = self.pieces(node);
        for (at, piece) in pieces.iter().take(place.pieces).enumerate() {
            sink.append(&self.sequence(piece, node.mode), time);
            sink.close(piece.end, offset);
            if S::EDGES {
                sink.edge(piece.last, self.after_piece(node, at), piece.end);
            }
        }
        if let (Some(piece), true) = (pieces.get(place.pieces), place.instructions > 0) {
            sink.append(&self.prefix(piece, place.instructions, node.mode), time);
        }
    }
}
