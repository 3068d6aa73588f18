//! Spaces other than the one in which the program is: what was learned of their code waits for its return.

use rtit_image::View;
use rtit_memory::gathered;

use crate::code::Code;
use crate::settings::Settings;
use crate::spaces::{Spaces, Whereabouts};
use crate::steps::Steps;

pub(super) struct Parked {
    pub code: Code,
    pub view: View,
    pub steps: Steps,
    /// As counted when it was left.
    bytes: usize,
}

/// All spaces of a stream but the current one, whose place is empty.
pub(crate) struct Others {
    pub whereabouts: Whereabouts,
    pub current: usize,
    pub parked: Vec<Option<Parked>>,
    /// Of all that are parked.
    bytes: usize,
    /// When there are more, nothing is kept of any.
    limit: usize,
}

impl Others {
    /// The first space is in use; its view is handed back.
    pub fn new(spaces: Spaces, settings: &Settings) -> (Others, Option<View>) {
        let whereabouts = Whereabouts::new(&spaces);
        let mut views = spaces.views.into_iter();
        let first = views.next();
        let park = |(index, view)| {
            Some(Parked {
                code: Code::new(settings.cache_limit, index + 1),
                view,
                steps: Steps::new(settings, false),
                bytes: 0,
            })
        };
        let others = Others {
            whereabouts,
            current: 0,
            parked: gathered(std::iter::once(None).chain((0u32..).zip(views).map(park))),
            bytes: 0,
            limit: settings.cache_limit,
        };
        (others, first)
    }

    /// What is kept of a space, which becomes the current one; None: there is none.
    pub fn take(&mut self, index: usize) -> Option<Parked> {
        let taken = self.parked.get_mut(index)?.take()?;
        self.bytes -= taken.bytes;
        Some(taken)
    }

    /// Leaves the current space for `next`.
    pub fn leave(&mut self, mut left: Parked, next: usize) {
        left.bytes = left.code.size() + left.steps.size();
        self.bytes += left.bytes;
        if let Some(place) = self.parked.get_mut(self.current) {
            *place = Some(left);
        }
        self.current = next;
        if self.bytes > self.limit {
            for Parked {
                code, steps, bytes, ..
            } in self.parked.iter_mut().flatten()
            {
                steps.let_go(code);
                code.clear();
                *bytes = 0;
            }
            self.bytes = 0;
        }
    }
}
