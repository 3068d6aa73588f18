//! Whose code runs: spaces by what PIP and VMCS packets say, and by whose turn it is on the logical processor.

use std::collections::HashMap;

use rtit_image::View;

/// What tells address spaces apart (section 33.5): CR3, whether it is a guest's (NR), and whose guest it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct SpaceKey {
    /// CR3[51:5] in place; the other bits are not in a PIP.
    cr3: u64,
    nr: bool,
    vmcs: Option<u64>,
}

const CR3_IN_PIP: u64 = 0x000f_ffff_ffff_ffe0;

impl SpaceKey {
    /// `vmcs`: the VMCS pointer, where CR3 and NR alone do not tell guests apart.
    pub fn new(cr3: u64, nr: bool, vmcs: Option<u64>) -> SpaceKey {
        SpaceKey {
            cr3: cr3 & CR3_IN_PIP,
            nr,
            vmcs,
        }
    }
}

/// The code of a stream: one view for all of it, and others for where a key says so.
#[derive(Clone, Debug)]
pub struct Spaces {
    /// The first is for whatever has no key and no turn.
    pub(crate) views: Vec<View>,
    keys: Vec<(SpaceKey, usize)>,
    turns: Vec<Turn>,
}

/// From `since` (TSC) on a thread has the logical processor. It takes effect where the program arrives from somewhere
/// else: at a TIP.PGE, a far transfer or a PSB+.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Turn {
    since: u64,
    /// Where its code is; `None`: what it does is passed over.
    view: Option<usize>,
}

impl Spaces {
    /// `view` is for every CR3 that `add` does not name, and as long as none is known.
    pub fn new(view: View) -> Spaces {
        Spaces {
            views: vec![view],
            keys: Vec::new(),
            turns: Vec::new(),
        }
    }

    /// Moves every view to the beginning of time.
    pub(crate) fn begin(&mut self) {
        for view in &mut self.views {
            view.advance(0);
        }
    }

    /// Whether the same keys have come in the same order.
    pub(crate) fn are_those_of(&self, other: &Spaces) -> bool {
        self.keys == other.keys
    }

    /// Whether there are turns.
    pub(crate) fn has_turns(&self) -> bool {
        !self.turns.is_empty()
    }

    /// Code for turns: its number.
    pub fn add_view(&mut self, view: View) -> usize {
        self.views.push(view);
        self.views.len() - 1
    }

    /// From `since` (TSC) on the code that no key says otherwise of is that of the view `view`, a number of `add_view` or
    /// 0; `None`: what runs is passed over. In order of time.
    pub fn turn(&mut self, since: u64, view: Option<usize>) {
        self.turns.push(Turn { since, view });
    }

    /// Where `key` holds, `view` has the code. A key with a VMCS pointer goes before one without.
    pub fn add(&mut self, key: SpaceKey, view: View) {
        let number = self.add_view(view);
        self.keys.push((key, number));
    }
}

impl From<View> for Spaces {
    fn from(view: View) -> Spaces {
        Spaces::new(view)
    }
}

/// What the packets have said, and from where on it holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Whereabouts {
    keys: HashMap<SpaceKey, usize>,
    /// CR3 and NR.
    paging: Option<(u64, bool)>,
    vmcs: Option<u64>,
    pub next_paging: Option<(u64, bool)>,
    pub next_vmcs: Option<u64>,
    turns: Vec<Turn>,
    /// Turns begun so far.
    begun: usize,
    /// The view of the turn, or of the last one that had one.
    view: usize,
    /// Turns in which the program came from somewhere else, each once in a row.
    visited: Vec<usize>,
}

impl Whereabouts {
    pub fn new(spaces: &Spaces) -> Whereabouts {
        Whereabouts {
            keys: spaces.keys.iter().copied().collect(),
            turns: spaces.turns.clone(),
            ..Whereabouts::default()
        }
    }

    /// Nothing has been said.
    pub fn start_again(&mut self) {
        *self = Whereabouts {
            keys: std::mem::take(&mut self.keys),
            turns: std::mem::take(&mut self.turns),
            ..Whereabouts::default()
        };
    }

    /// The number of turns that have begun.
    pub fn turns(&self) -> usize {
        self.begun
    }

    /// The turns in which anything ran, in order; 0 is what was before the first.
    pub fn visited(&self) -> &[usize] {
        &self.visited
    }

    /// When the next turn begins; past all times if there is none.
    pub fn next_turn(&self) -> u64 {
        self.turns
            .get(self.begun)
            .map_or(u64::MAX, |turn| turn.since)
    }

    /// Turns up to `now` begin. Whether what runs from here on is followed.
    pub fn take_turns(&mut self, now: u64) -> bool {
        while self
            .turns
            .get(self.begun)
            .is_some_and(|turn| turn.since <= now)
        {
            self.begun += 1;
        }
        if self.visited.last() != Some(&self.begun) {
            self.visited.push(self.begun);
        }
        let Some(turn) = self.begun.checked_sub(1).and_then(|at| self.turns.get(at)) else {
            return true;
        };
        self.view = turn.view.unwrap_or(self.view);
        turn.view.is_some()
    }

    /// The program comes to where the last PIP holds, and with `entry` the last VMCS packet, too: the number of the space.
    pub fn arrive(&mut self, entry: bool) -> usize {
        self.paging = self.next_paging.take().or(self.paging);
        if entry {
            self.vmcs = self.next_vmcs.take().or(self.vmcs);
        }
        let Some((cr3, nr)) = self.paging else {
            return self.view;
        };
        let find = |vmcs| self.keys.get(&SpaceKey::new(cr3, nr, vmcs));
        let found = self.vmcs.and_then(|pointer| find(Some(pointer)));
        found.or_else(|| find(None)).copied().unwrap_or(self.view)
    }
}
