//! Where a walker is, as a plain value: without what it learned of the code.

use rtit_image::Changed;
use rtit_x86::Mode;

use super::walker::Walker;
use crate::spaces::{Spaces, Whereabouts};
use crate::stack::ReturnStack;

/// Two walkers of which this is equal go the same way from here on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct WalkerCarry {
    ip: u64,
    mode: Mode,
    time: u64,
    seen: u64,
    /// Addresses after calls, the oldest first.
    stack: Vec<u64>,
    results: u64,
    waiting: u8,
    deferred: bool,
    elsewhere: bool,
    whereabouts: Whereabouts,
    /// The number of the space.
    current: usize,
    /// How many changes of each space are in effect.
    changes: Vec<usize>,
}

impl WalkerCarry {
    /// Without the time of the next instructions, which steps that only add up do not keep.
    pub fn forget_time(&mut self) {
        self.time = 0;
    }

    /// What is known of a place somewhat later in the stream: not where the program is.
    pub fn sometime_later(&self) -> WalkerCarry {
        let mut later = WalkerCarry {
            ip: 0,
            time: 0,
            stack: Vec::new(),
            results: 0,
            waiting: 0,
            ..self.clone()
        };
        later.whereabouts.next_paging = None;
        later.whereabouts.next_vmcs = None;
        later
    }
}

impl Walker {
    pub fn carry(&self) -> WalkerCarry {
        let waiting = 1u64.checked_shl(self.waiting.into());
        let waiting = waiting.map_or(u64::MAX, |above| above - 1);
        let parked = self.others.parked.iter();
        let changes = parked.map(|parked| {
            let view = parked.as_ref().map_or(&self.view, |parked| &parked.view);
            view.changes()
        });
        WalkerCarry {
            ip: self.here(),
            mode: self.mode,
            time: self.time,
            seen: self.seen,
            stack: self.stack.ips(&self.code),
            results: self.results & waiting,
            waiting: self.waiting,
            deferred: self.deferred,
            elsewhere: self.elsewhere,
            whereabouts: self.others.whereabouts.clone(),
            current: self.others.current,
            changes: changes.collect(),
        }
    }

    /// Goes on where another was. `spaces`: the code at the beginning, as `new` was given it.
    pub fn restore(&mut self, carry: &WalkerCarry, spaces: &Spaces) {
        self.stack.clear();
        for (index, (&changes, view)) in carry.changes.iter().zip(&spaces.views).enumerate() {
            self.be_in(index);
            if self.view.changes() > changes {
                self.view = view.clone();
                self.forget_changed(&Changed::All);
            }
            let changed = self.view.advance_to(changes);
            self.forget_changed(&changed);
        }
        self.be_in(carry.current);
        self.others.whereabouts = carry.whereabouts.clone();
        self.stack = ReturnStack::of_ips(&carry.stack);
        self.go_to(carry.ip, carry.time);
        self.mode = carry.mode;
        self.seen = carry.seen;
        self.results = carry.results;
        self.waiting = carry.waiting;
        self.deferred = carry.deferred;
        self.elsewhere = carry.elsewhere;
    }

    fn be_in(&mut self, space: usize) {
        if space != self.others.current {
            self.move_into(space);
        }
    }
}
