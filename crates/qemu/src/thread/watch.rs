//! From where to where the recording is traced, as one thread has it: the next edge, and whether it is past the last.

/// Before the recording's start.
pub(crate) const BEFORE: u64 = 0;
pub(crate) const TRACED: u64 = 1;
/// Nothing is traced, and no edge comes.
pub(crate) const NEVER: u64 = u64::MAX;

/// A thread's part in the recording's edges.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watch {
    /// That it acts by: before the start, traced, or a later number after the stop.
    pub(crate) phase: u64,
    /// A TraceStop ended its trace before exec, or before packets were lost.
    pub(crate) stopped: bool,
    /// Of its retired instructions, those that all have been told of.
    pub(crate) counted: u64,
    /// The number of its retired instructions at the next edge.
    pub(crate) due: u64,
    /// Which instructions of the block that runs are edges.
    pub(crate) inside: [Option<u32>; 2],
}

impl Watch {
    pub(crate) fn new(phase: u64) -> Watch {
        Watch {
            phase,
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
    pub(crate) fn next(&self, done: u32, count: u32, retired: u64) -> Option<u32> {
        let inside = self.inside.get(self.phase as usize).copied().flatten();
        let due = u32::try_from(self.due.wrapping_sub(retired)).ok();
        let edges = [inside, due].into_iter().flatten();
        edges.filter(|&at| done < at && at < count).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_edge_of_a_block() {
        let mut watch = Watch::new(BEFORE);
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
