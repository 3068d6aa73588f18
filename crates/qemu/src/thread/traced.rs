//! How much of what a thread executes is traced: counted where PacketEn changes, not as instructions retire.

/// Instructions and branches of a thread that retired while PacketEn was 1.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Traced {
    pub(crate) on: bool,
    /// What had retired when that last changed.
    since: [u64; 2],
    before: [u64; 2],
}

impl Traced {
    /// Of all that retired so far, `now`.
    pub(crate) fn so_far(&self, now: [u64; 2]) -> [u64; 2] {
        let [mut instructions, mut branches] = self.before;
        if self.on {
            instructions += now[0] - self.since[0];
            branches += now[1] - self.since[1];
        }
        [instructions, branches]
    }

    /// PacketEn is another one when `now` have retired.
    #[cold]
    #[inline(never)]
    pub(crate) fn change(&mut self, now: [u64; 2]) {
        self.before = self.so_far(now);
        self.since = now;
        self.on = !self.on;
    }
}
