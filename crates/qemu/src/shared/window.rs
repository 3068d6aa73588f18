//! From where to where the recording is traced: the edges that were asked for, and where in the code they are.

use crate::shared::clock::SharedClock;
use crate::shared::maps::Mapped;
use crate::shared::ranges::Part;
use crate::thread::block::{Block, START, STOP};
use crate::thread::watch::{BEFORE, TRACED};

/// Where an edge is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Edge {
    /// Before the first byte of it is executed.
    Code(Part),
    /// After so many instructions of all threads.
    After(u64),
    /// After so many since the start.
    AfterStart(u64),
}

/// What the recording asks for. Start, then stop.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(crate) struct Window {
    edges: [Option<Edge>; 2],
}

/// The addresses of those edges that are code, once its file is mapped.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Points([Option<u64>; 2]);

impl Window {
    /// Takes `start` or `stop`: `at PART`, `after N` or `plus N`.
    pub(crate) fn set(&mut self, stop: bool, text: &str) -> Result<(), String> {
        let edge = match text.split_once(' ') {
            Some(("at", part)) => Part::parse(part).map(Edge::Code),
            Some(("after", number)) => number.parse().ok().map(Edge::After),
            Some(("plus", number)) => number.parse().ok().map(Edge::AfterStart),
            _ => None,
        };
        let edge = edge.ok_or_else(|| format!("settings: no edge: {text}"))?;
        self.edges[usize::from(stop)] = Some(edge);
        Ok(())
    }

    pub(crate) fn used(&self) -> bool {
        self.edges != [None, None]
    }

    /// The phase of a recording that has just begun.
    pub(crate) fn first_phase(&self) -> u64 {
        if self.edges[0].is_some() {
            BEFORE
        } else {
            TRACED
        }
    }

    pub(crate) fn phase(&self, clock: &SharedClock) -> u64 {
        clock.phase().max(self.first_phase())
    }

    /// How many instructions all threads have retired at the end of a phase, if that decides.
    pub(crate) fn limit(&self, clock: &SharedClock, phase: u64) -> Option<u64> {
        match self.edges.get(phase as usize)? {
            Some(Edge::After(count)) => Some(*count),
            Some(Edge::AfterStart(count)) => Some(clock.started() + count),
            _ => None,
        }
    }
}

impl Points {
    /// Code of a file can run from now on.
    pub(crate) fn mapped(&mut self, window: &Window, mapped: &Mapped) {
        for (point, edge) in self.0.iter_mut().zip(&window.edges) {
            if let Some(Edge::Code(part)) = edge {
                *point = part.within(mapped).map(|(first, _)| first).or(*point);
            }
        }
    }

    /// Marks a new block that has one in it.
    pub(crate) fn mark(&self, block: &Block) {
        for (index, mark) in self.inside(block).iter().zip([START, STOP]) {
            if index.is_some() {
                block.mark(mark);
            }
        }
    }

    /// Which of its instructions they are.
    pub(crate) fn inside(&self, block: &Block) -> [Option<u32>; 2] {
        self.0.map(|point| block.index_of(point?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edges_are_read() {
        let mut window = Window::default();
        assert!(!window.used());
        window.set(false, "at 16 4 2f61").unwrap();
        window.set(true, "plus 1000").unwrap();
        let Some(Edge::Code(part)) = &window.edges[0] else {
            panic!("{window:?}");
        };
        assert_eq!((part.offset, &part.path[..]), (16, &b"/a"[..]));
        assert_eq!(window.edges[1], Some(Edge::AfterStart(1000)));
        for bad in ["", "at", "at 1", "after x", "plus -1", "when 7"] {
            assert!(window.set(true, bad).is_err(), "{bad}");
        }
    }
}
