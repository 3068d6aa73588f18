//! Spaces other than the one in which the program is: what was learned of their code waits for its return.

use rtit_image::View;

use crate::code::Code;
use crate::settings::Settings;
use crate::spaces::{Spaces, Whereabouts};
use crate::steps::Steps;

pub(super) struct Parked {
    pub code: Code,
    pub view: View,
    pub steps: Steps,
}

/// All spaces of a stream but the current one, whose place is empty.
pub(crate) struct Others {
    pub whereabouts: Whereabouts,
    pub current: usize,
    pub parked: Vec<Option<Parked>>,
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
                steps: Steps::new(settings.steps, !settings.no_retcomp, false),
            })
        };
        let others = Others {
            whereabouts,
            current: 0,
            parked: std::iter::once(None)
                .chain((0u32..).zip(views).map(park))
                .collect(),
        };
        (others, first)
    }
}
