//! Whose turn it is on a logical processor, by time.

/// Who has the logical processor in a turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Whose {
    /// Where its code is, a number of `Spaces::add_view` or 0; `None`: what it does is passed over.
    pub view: Option<usize>,
    /// What it runs while NR is 1.
    pub guest: Guest,
    /// Nothing runs that is traced, or something else tells whose turn it is: when it begins is no matter of doubt.
    pub idle: bool,
}

/// What a thread runs that is a processor of a virtual machine: numbers of views, `None` where nothing is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Guest {
    /// The lower half of addresses: the process that has the machine's processor.
    pub process: Option<usize>,
    /// The upper half: the machine's kernel.
    pub kernel: Option<usize>,
}

/// Turns in order of time. There are millions of them, of few.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Turns {
    since: Vec<u64>,
    /// Numbers of `known`.
    whose: Vec<u32>,
    known: Vec<Whose>,
}

impl Turns {
    pub fn is_empty(&self) -> bool {
        self.since.is_empty()
    }

    /// Somebody who has turns: its number.
    pub fn know(&mut self, whose: Whose) -> u32 {
        self.known.push(whose);
        (self.known.len() - 1) as u32
    }

    /// From `since` on it is the turn of a number of `know`; nobody's that is known of any other.
    pub fn put(&mut self, since: u64, whose: u32) {
        self.since.push(since);
        self.whose.push(whose);
    }

    /// When turn `at` begins.
    pub fn since(&self, at: usize) -> Option<u64> {
        self.since.get(at).copied()
    }

    /// Whose turn `at` is.
    pub fn whose(&self, at: usize) -> Option<Whose> {
        let number = usize::try_from(*self.whose.get(at)?).ok()?;
        self.known.get(number).copied()
    }

    /// How many turns from `at` on begin up to `time`, without those that are no matter of doubt.
    pub fn due(&self, at: usize, time: u64) -> usize {
        let coming = self.since.get(at..).unwrap_or(&[]);
        let count = coming.iter().take_while(|&&since| since <= time).count();
        let matters = |&at: &usize| !self.whose(at).is_some_and(|whose| whose.idle);
        (at..at + count).filter(matters).count()
    }
}
