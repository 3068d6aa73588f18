//! One stream after the other, of one decoder or of several: what was learned of the code stays, all else begins anew.

use rtit_image::{Changed, View};
use rtit_x86::Mode;

use super::walker::Walker;
use crate::code::Code;
use crate::spaces::Spaces;
use crate::transitions::Transitions;
use crate::watch::Watched;

impl Walker {
    /// The program is known to be somewhere before the first packet.
    pub fn begin(&mut self) {
        self.advance_view();
    }

    /// Takes up what other decoders have left of this code, if nothing is known of it yet.
    pub(super) fn take_up(&mut self) {
        if !self.code.is_empty() {
            return;
        }
        let learned = self.learned.as_ref();
        if let Some(code) = learned.and_then(|all| all.take(&self.view, &self.code)) {
            self.code = code;
        }
    }

    /// Before the first packet of another stream. `spaces`: the code as it is where a stream begins.
    pub fn start_again(&mut self, spaces: &Spaces) {
        self.reset();
        self.go_to(0, 0);
        if self.others.current != 0 {
            self.move_into(0);
        }
        self.others.whereabouts.start_again();
        self.seen = 0;
        self.mode = Mode::Bits64;
        self.deferred = false;
        self.elsewhere = false;
        self.came = None;
        self.watched.start_again();
        self.of_each(spaces, |known, _, _| {
            if let Some((_, steps)) = known {
                steps.reset_counts();
            }
        });
        self.rewind(spaces);
    }

    /// Every space is as it is where a stream begins.
    fn rewind(&mut self, spaces: &Spaces) {
        self.of_each(spaces, |known, view, first| {
            // a space is followed forward in time alone
            if view.next_change() == first.next_change() {
                return;
            }
            *view = first.clone();
            if let Some((code, steps)) = known {
                steps.invalidate_all(code);
                code.clear();
            }
        });
    }

    /// Code has changed, or is to be asked for anew: `spaces` have what holds, `before` what held.
    pub fn forget(&mut self, before: &Spaces, spaces: &Spaces, changed: &Changed) {
        self.watched = Watched::new(spaces.watch.clone());
        // more may have changed than is told: what stays is not for others
        self.learned = None;
        // no number of a node is kept
        self.go_to(0, 0);
        // what the last stream learned may be of a later time
        self.rewind(before);
        self.of_each(spaces, |known, view, first| {
            *view = first.clone();
            let Some((code, steps)) = known else {
                return;
            };
            if *changed == Changed::All {
                steps.invalidate_all(code);
            }
            code.forget(changed);
            let dead = code.take_dead();
            steps.invalidate(&dead);
        });
    }

    /// Every space, what is known of it if the program has been there, with its view as it is where a stream begins.
    fn of_each(
        &mut self,
        spaces: &Spaces,
        mut each: impl FnMut(Option<(&mut Code, &mut Transitions)>, &mut View, &View),
    ) {
        let current = self.others.current;
        for (index, first) in spaces.views.iter().enumerate() {
            if index == current {
                let known = (&mut self.code, &mut self.steps);
                each(Some(known), &mut self.view, first);
            } else if let Some(Some(parked)) = self.others.parked.get_mut(index) {
                let known = parked.known.as_deref_mut();
                let known = known.map(|known| (&mut known.code, &mut known.steps));
                each(known, &mut parked.view, first);
            }
        }
    }
}

impl Drop for Walker {
    fn drop(&mut self) {
        let Some(learned) = self.learned.take() else {
            return;
        };
        if !self.watched.gave_up() && !self.code.is_over_limit() {
            let none = Code::new(0, 0);
            let code = std::mem::replace(&mut self.code, none);
            learned.leave(self.view.clone(), code);
        }
    }
}
