//! Spaces other than the one in which the program is: what was learned of their code waits for its return.

use std::mem::{replace, size_of};

use rtit_image::View;

use crate::code::Code;
use crate::settings::Settings;
use crate::spaces::{Spaces, Whereabouts};
use crate::transitions::Transitions;

/// A part of the limit of a code, for all that are parked.
const PARKED: usize = 2;

/// What is known of the code of a space.
pub(super) struct Known {
    pub code: Code,
    pub steps: Transitions,
}

pub(super) struct Parked {
    pub view: View,
    /// Made when the program first comes there: most of many spaces it never sees.
    pub known: Option<Box<Known>>,
    /// As counted when it was left.
    bytes: usize,
}

/// All spaces of a stream but the current one, whose place is empty.
pub(crate) struct Others {
    pub whereabouts: Whereabouts,
    pub current: usize,
    pub parked: Vec<Option<Parked>>,
    /// Those that were left since `take_left`, each once, and whether each of all is one of them.
    left: Vec<usize>,
    is_left: Vec<bool>,
    settings: Settings,
    /// Of all that are parked.
    bytes: usize,
}

impl Others {
    /// The first space is in use; its view is handed back.
    pub fn new(spaces: Spaces, settings: &Settings) -> (Others, Option<View>) {
        let whereabouts = Whereabouts::new(&spaces);
        let mut views = spaces.views.into_iter();
        let first = views.next();
        let park = |view| {
            Some(Parked {
                view,
                known: None,
                bytes: 0,
            })
        };
        let parked: Vec<_> = std::iter::once(None).chain(views.map(park)).collect();
        let others = Others {
            whereabouts,
            current: 0,
            left: Vec::new(),
            is_left: vec![false; parked.len()],
            parked,
            settings: *settings,
            bytes: 0,
        };
        (others, first)
    }

    /// What is kept of a space, which becomes the current one; None: there is none.
    pub fn take(&mut self, index: usize) -> Option<(View, Box<Known>)> {
        let taken = self.parked.get_mut(index)?.take()?;
        self.bytes -= taken.bytes;
        let known = taken.known.unwrap_or_else(|| {
            Box::new(Known {
                code: Code::new(self.settings.cache_limit, index as u32),
                steps: Transitions::new(&self.settings, false),
            })
        });
        Some((taken.view, known))
    }

    /// Leaves the current space for `next`. When all together are too large nothing is kept of any, but what was counted,
    /// which `sum` takes.
    pub fn leave(&mut self, view: View, known: Box<Known>, next: usize, sum: &mut Transitions) {
        let bytes = size_of::<Known>() + known.code.size() + known.steps.size();
        self.bytes += bytes;
        if let Some(place) = self.parked.get_mut(self.current) {
            *place = Some(Parked {
                view,
                known: Some(known),
                bytes,
            });
        }
        if let Some(is_left) = self.is_left.get_mut(self.current) {
            if !replace(is_left, true) {
                self.left.push(self.current);
            }
        }
        self.current = next;
        if self.bytes > self.settings.cache_limit / PARKED {
            for Parked { known, bytes, .. } in self.parked.iter_mut().flatten() {
                if let Some(known) = known.take() {
                    let Known { code, steps } = *known;
                    sum.add_counts_of(steps, &code);
                }
                *bytes = 0;
            }
            self.bytes = 0;
        }
    }

    /// What is known of each space that the program has been in, but the current one.
    pub fn known(&self) -> impl Iterator<Item = &Known> + '_ {
        let all = self.parked.iter().flatten();
        all.filter_map(|parked| parked.known.as_deref())
    }

    pub fn known_mut(&mut self) -> impl Iterator<Item = &mut Known> + '_ {
        let all = self.parked.iter_mut().flatten();
        all.filter_map(|parked| parked.known.as_deref_mut())
    }

    /// Tells `each` of those that were left since this was asked for last, and are not the current one.
    pub fn take_left(&mut self, mut each: impl FnMut(&mut Known)) {
        for index in self.left.drain(..) {
            if let Some(is_left) = self.is_left.get_mut(index) {
                *is_left = false;
            }
            let parked = self.parked.get_mut(index).and_then(Option::as_mut);
            if let Some(known) = parked.and_then(|parked| parked.known.as_deref_mut()) {
                each(known);
            }
        }
    }
}
