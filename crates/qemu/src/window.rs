//! From where to where the recording is traced.
//!
//! All recorded processes share the phase (before the start, traced, after the stop) and the number of retired
//! instructions. A thread that passes an edge moves the phase on and follows at that very instruction; the others of its
//! process follow at their next block, those of other processes when they next look.

use std::sync::atomic::Ordering;

use crate::block::{Block, START, STOP};
use crate::config::Truth;
use crate::process::{process, Process};
use crate::ranges::Part;
use crate::space::Mapped;
use crate::thread::{Thread, EDGE};

/// A record of a truth file.
const TRACING: u32 = 7;

const BEFORE: u64 = 0;
const TRACED: u64 = 1;

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

/// A thread's part.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watch {
    /// That it acts by.
    phase: u64,
    /// A TraceStop ended its trace before exec, or before packets were lost.
    pub(crate) stopped: bool,
    /// Of its retired instructions, those that all have been told of.
    counted: u64,
    /// The number of its retired instructions at the next edge.
    due: u64,
    /// Which instructions of the block that runs are edges.
    inside: [Option<u32>; 2],
}

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

    fn phase(&self, process: &Process) -> u64 {
        let from = if self.edges[0].is_some() {
            BEFORE
        } else {
            TRACED
        };
        process.clock.phase().max(from)
    }

    /// How many instructions all threads have retired at the end of a phase, if that decides.
    fn limit(&self, process: &Process, phase: u64) -> Option<u64> {
        match self.edges.get(phase as usize)? {
            Some(Edge::After(count)) => Some(*count),
            Some(Edge::AfterStart(count)) => Some(process.clock.started() + count),
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
                block.marks.fetch_or(mark, Ordering::Relaxed);
            }
        }
    }

    fn inside(&self, block: &Block) -> [Option<u32>; 2] {
        self.0.map(|point| block.index_of(point?))
    }
}

impl Watch {
    pub(crate) fn new(window: &Window) -> Watch {
        Watch {
            phase: u64::from(window.edges[0].is_none()),
            stopped: false,
            counted: 0,
            due: u64::MAX,
            inside: [None; 2],
        }
    }

    pub(crate) fn tracing(&self) -> bool {
        self.phase == TRACED && !self.stopped
    }

    /// The next edge in the block that runs, by the number of instructions before it: more than `done`.
    fn next(&self, done: u32, count: u32, retired: u64) -> Option<u32> {
        let inside = self.inside.get(self.phase as usize).copied().flatten();
        let due = u32::try_from(self.due.wrapping_sub(retired)).ok();
        let edges = [inside, due].into_iter().flatten();
        edges.filter(|&at| done < at && at < count).min()
    }
}

impl Thread {
    /// What the truth says first.
    pub(crate) fn watch(&mut self) {
        self.note_tracing(self.watch.tracing());
    }

    fn note_tracing(&mut self, on: bool) {
        if self.truth != Truth::None && process().config.window.used() {
            let record = [TRACING, 8, self.tid, on.into()].map(u32::to_le_bytes);
            self.path.note(&record.concat(), self.tid);
        }
    }

    /// Tells the others of what has retired here, and learns when the next edge comes.
    pub(crate) fn count(&mut self, process: &Process) {
        let window = &process.config.window;
        if !window.used() {
            return;
        }
        let own = self.retired();
        let total = process.clock.count(own - self.watch.counted);
        self.watch.counted = own;
        let limit = window.limit(process, self.watch.phase);
        self.watch.due = limit.map_or(u64::MAX, |limit| own + limit.saturating_sub(total));
        if self.watch.due != u64::MAX {
            let ahead = self.watch.due - own;
            self.next_look = self.next_look.min(self.now() + ahead);
        }
    }

    /// Before `count` instructions of the block that runs are retired: acts at the edges among them. How many of them
    /// have been accounted for.
    pub(crate) fn pass_edges(&mut self, count: u32) -> u32 {
        let process = process();
        if !process.config.window.used() {
            return 0;
        }
        let (block, clock, retired) = (self.block, self.now(), self.retired());
        let mut done = 0;
        while let Some(at) = self.watch.next(done, count, retired) {
            let now = clock + u64::from(at);
            self.clock.store(now, Ordering::Relaxed);
            if self.truth == Truth::Blocks {
                self.path.part(block, done..at);
            }
            done = at;
            self.pass_edge(process, Some(block.start + block.offset(at)));
        }
        self.watch.inside = [None; 2];
        self.clock
            .store(clock + u64::from(count), Ordering::Relaxed);
        self.count(process);
        self.clock.store(clock, Ordering::Relaxed);
        let phase = process.config.window.phase(process);
        if phase != self.watch.phase || self.watch.due <= retired + u64::from(count) {
            self.attention.fetch_or(EDGE, Ordering::AcqRel);
        }
        done
    }

    /// A block starts, whose start or inside is an edge, or something else asked for a look.
    pub(crate) fn look_for_edges(&mut self, block: &Block) {
        let process = process();
        if self.attention.load(Ordering::Relaxed) & EDGE != 0 {
            self.attention.fetch_and(!EDGE, Ordering::AcqRel);
            self.follow_phase(process, Some(block.start));
            if self.watch.due <= self.retired() {
                return self.pass_edge(process, Some(block.start));
            }
        }
        let inside = process.with(|shared| shared.points.inside(block));
        if inside.get(self.watch.phase as usize) == Some(&Some(0)) {
            self.pass_edge(process, Some(block.start));
        }
        if inside.iter().flatten().any(|&at| at > 0) {
            self.watch.inside = inside;
            self.next_look = 0;
        }
    }

    /// In the kernel, before user code goes on.
    pub(crate) fn follow_in_kernel(&mut self) {
        let process = process();
        if !process.config.window.used() {
            return;
        }
        self.attention.fetch_and(!EDGE, Ordering::AcqRel);
        self.follow_phase(process, None);
        self.count(process);
        if self.watch.due <= self.retired() {
            self.pass_edge(process, None);
        }
    }

    /// The phase ends here: in user code before the instruction at `ip`, or in the kernel.
    fn pass_edge(&mut self, process: &Process, ip: Option<u64>) {
        let own = self.retired() - self.watch.counted;
        if process.clock.leave_phase(self.watch.phase, own) {
            process.alert(EDGE);
        }
        self.follow_phase(process, ip);
    }

    fn follow_phase(&mut self, process: &Process, ip: Option<u64>) {
        let phase = process.config.window.phase(process);
        let was = self.watch.tracing();
        if phase == self.watch.phase {
            return;
        }
        self.watch.phase = phase;
        self.count(process);
        let on = self.watch.tracing();
        if on == was {
            return;
        }
        self.note_tracing(on);
        self.catch_up();
        if on {
            self.unit.switch(ip);
            return;
        }
        if let Some(ip) = ip {
            self.unit.interrupt(ip);
        }
        self.unit.disable();
        if let Some(ip) = ip {
            self.unit.resume(ip);
        }
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

    #[test]
    fn the_next_edge_of_a_block() {
        let mut window = Window::default();
        window.set(false, "after 103").unwrap();
        let mut watch = Watch::new(&window);
        watch.due = 103;
        assert_eq!(watch.next(0, 5, 100), Some(3));
        assert_eq!(watch.next(0, 3, 100), None);
        assert_eq!(watch.next(3, 5, 100), None);
        watch.inside = [Some(2), Some(4)];
        assert_eq!(watch.next(0, 5, 100), Some(2));
        watch.phase = TRACED;
        watch.due = u64::MAX;
        assert_eq!(watch.next(2, 5, 100), Some(4));
        watch.phase += 1;
        assert_eq!(watch.next(0, 5, 100), None);
    }
}
