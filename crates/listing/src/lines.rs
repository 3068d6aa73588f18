//! The sink that makes lines.

use std::collections::VecDeque;
use std::sync::Arc;

use rtit_flow::{AddressMap, Event, RunEnd, RunFragment, Sink};
use rtit_image::{Changed, View};

use crate::layout::{Field, Layout};
use crate::names::{Cursor, Readable};
use crate::stretch::Stretch;

/// Ready text is let go when it takes more memory than this.
const MOST_HELD: usize = 1 << 25;

/// A stretch of which the first instructions ran.
struct TakenTransition {
    stretch: Arc<Stretch>,
    count: u32,
    /// TSC estimate at the start of its run.
    time: u64,
    lines: u64,
}

struct Ready {
    stretch: Arc<Stretch>,
    /// As of which state of the code it is known to be right.
    generation: u64,
}

/// An address space: its code, and the names in it.
struct Space {
    view: View,
    names: Cursor,
    /// By address, for each mode.
    ready: [AddressMap<Ready>; 3],
}

/// Takes the flow and gives it out as lines, in parts. What waits is steps, not text: also a packet that stands for
/// millions of instructions takes little memory.
pub struct Lines {
    layout: Layout,
    /// By their numbers.
    spaces: Vec<Space>,
    readable: Readable,
    held: usize,
    generation: u64,
    /// When the places that are wanted change.
    border: u64,
    steps: VecDeque<TakenTransition>,
    /// Lines of the first step that are not to be given out any more.
    skip: u64,
    bytes: usize,
    lines: u64,
    limits: (usize, u64),
    /// TSC estimate at the start of the run that goes on.
    run: Option<u64>,
    /// Nothing that is wanted can come any more.
    done: bool,
}

/// Some text, and how many lines it is.
pub struct Part {
    pub text: Vec<u8>,
    pub lines: u64,
}

impl Lines {
    /// `spaces` are those that the flow is decoded with, in their order, with the names of each; one at least.
    pub fn new(layout: Layout, spaces: Vec<(View, Cursor)>) -> Lines {
        let space = |(view, names)| Space {
            view,
            names,
            ready: Default::default(),
        };
        Lines {
            spaces: spaces.into_iter().map(space).collect(),
            readable: Readable::default(),
            held: 0,
            generation: 0,
            border: layout.wanted.next_border(0),
            steps: VecDeque::new(),
            skip: 0,
            bytes: 0,
            lines: 0,
            limits: (1, 1),
            run: None,
            done: false,
            layout,
        }
    }

    /// Decoding pauses when so many bytes or lines of text wait. The last lines (`Wanted::tail`) wait for the end.
    pub fn set_limits(&mut self, bytes: usize, lines: u64) {
        self.limits = (bytes.max(1), lines.max(1));
    }

    /// True when all that is wanted has been seen, though the stream may go on.
    pub fn is_done(&self) -> bool {
        self.done
    }

    /// The TSC estimate of the next line that waits.
    pub fn next_time(&self) -> Option<u64> {
        self.steps.front().map(|step| step.time)
    }

    /// The text that waits: about `bytes`, at most `lines`, and nothing later than `until`.
    pub fn take(&mut self, bytes: usize, lines: u64, until: u64) -> Part {
        let shows_time = self.layout.has(Field::Time);
        let scale = self.layout.scale;
        let mut part = Part {
            text: Vec::with_capacity(self.bytes.min(bytes) + (1 << 12)),
            lines: 0,
        };
        while part.text.len() < bytes && part.lines < lines {
            let Some(step) = self.steps.front().filter(|step| step.time <= until) else {
                break;
            };
            let time = scale.map_or(step.time, |scale| scale.nanoseconds(step.time));
            let (count, most) = (step.count as usize, lines - part.lines);
            let time = shows_time.then_some(time);
            let written = step
                .stretch
                .write(&mut part.text, count, self.skip, most, time);
            part.lines += written;
            self.lines -= written;
            self.skip += written;
            if self.skip >= step.lines {
                self.forget_first();
            }
        }
        part
    }

    fn forget_first(&mut self) {
        if let Some(step) = self.steps.pop_front() {
            self.bytes -= step.stretch.extent(step.count as usize).0;
            self.skip = 0;
        }
    }

    /// Lets go of what is before the last lines that are wanted.
    fn keep_last(&mut self, most: u64) {
        while let Some(first) = self.steps.front() {
            let rest = first.lines - self.skip;
            if self.lines - rest < most {
                break;
            }
            self.lines -= rest;
            self.forget_first();
        }
        let excess = self.lines.saturating_sub(most);
        self.skip += excess;
        self.lines -= excess;
    }

    /// None: a space that nobody has told of.
    fn stretch(&mut self, fragment: &RunFragment<'_>) -> Option<Arc<Stretch>> {
        let space = self.spaces.get_mut(fragment.space as usize)?;
        let ready = &mut space.ready[fragment.mode as usize];
        if let Some(found) = ready.get_mut(&fragment.start) {
            let right = if found.generation == self.generation {
                fragment.lengths.len() <= found.stretch.len()
            } else {
                found.stretch.holds(fragment, &space.view)
            };
            if right {
                found.generation = self.generation;
                return Some(Arc::clone(&found.stretch));
            }
        }
        self.make(fragment)
    }

    #[cold]
    fn make(&mut self, fragment: &RunFragment<'_>) -> Option<Arc<Stretch>> {
        let number = fragment.space as usize;
        let space = self.spaces.get(number)?;
        let stretch = Arc::new(Stretch::new(
            fragment,
            &self.layout,
            &space.view,
            &space.names,
            &mut self.readable,
        ));
        if self.held > MOST_HELD {
            self.forget();
        }
        self.held += stretch.cost();
        let ready = Ready {
            stretch: Arc::clone(&stretch),
            generation: self.generation,
        };
        let space = self.spaces.get_mut(number)?;
        let before = space.ready[fragment.mode as usize].insert(fragment.start, ready);
        self.held -= before.map_or(0, |before| before.stretch.cost());
        Some(stretch)
    }

    fn forget(&mut self) {
        for space in &mut self.spaces {
            space.ready = Default::default();
        }
        self.held = 0;
    }
}

impl Sink for Lines {
    fn extend_run(&mut self, fragment: &RunFragment<'_>, time: u64) {
        let time = *self.run.get_or_insert(time);
        let (first, last) = self.layout.wanted.times;
        self.done |= time > last;
        if self.done || time < first {
            return;
        }
        let Some(stretch) = self.stretch(fragment) else {
            return;
        };
        let (bytes, lines) = stretch.extent(fragment.lengths.len());
        if lines == 0 {
            return;
        }
        self.bytes += bytes;
        self.lines += lines;
        self.steps.push_back(TakenTransition {
            stretch,
            count: fragment.lengths.len() as u32,
            time,
            lines,
        });
        if let Some(most) = self.layout.wanted.tail {
            self.keep_last(most);
        }
    }

    fn end_run(&mut self, _end: RunEnd, _offset: u64) {
        self.run = None;
    }

    fn event(&mut self, _event: &Event) {}

    fn set_code_time(&mut self, time: u64) {
        let mut moved = time >= self.border;
        for space in &mut self.spaces {
            moved |= space.names.advance(time);
            if space.view.advance(time) != Changed::None {
                self.generation += 1;
            }
        }
        if moved {
            self.border = self.layout.wanted.next_border(time);
            self.forget();
        }
    }

    fn is_full(&self) -> bool {
        let (bytes, lines) = self.limits;
        let enough = self.bytes >= bytes || self.lines >= lines;
        self.done || enough && self.layout.wanted.tail.is_none()
    }
}
