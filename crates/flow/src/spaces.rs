//! Whose code runs: spaces by what PIP and VMCS packets say, and by whose turn it is on the logical processor.

mod turns;

use std::collections::HashMap;
use std::sync::Arc;

use rtit_image::View;

use self::turns::Turns;
pub use self::turns::{Guest, Whose};
use crate::code::Learned;
use crate::watch::Watch;

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
    turns: Arc<Turns>,
    shared: Shared,
    pub(crate) watch: Watch,
    pub(crate) learned: Option<Learned>,
}

/// Code that no process has for itself: numbers of views.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Shared {
    /// The upper half of addresses, in whatever process.
    kernel: Option<usize>,
    /// All that runs while NR is 1.
    guest: Option<usize>,
}

impl Spaces {
    /// `view` is for every CR3 that `add` does not name, and as long as none is known.
    pub fn new(view: View) -> Spaces {
        Spaces {
            views: vec![view],
            keys: Vec::new(),
            turns: Arc::default(),
            shared: Shared::default(),
            watch: Watch::default(),
            learned: None,
        }
    }

    /// Who is asked on long ways through the code whether to give up.
    pub fn watch(&mut self, watch: Watch) {
        self.watch = watch;
    }

    /// A stream of one space begins with what others have learned of the same code, and leaves what it has learned.
    pub fn learn(&mut self, learned: Learned) {
        self.learned = Some(learned);
    }

    /// The kernel is in the upper half of addresses of every process, whatever CR3 is (with page-table isolation it has
    /// two a process), but not in a guest's; a key goes before it.
    pub fn kernel(&mut self, view: View) {
        self.shared.kernel = Some(self.add_view(view));
    }

    /// What a guest runs whose CR3 no key names.
    pub fn guest(&mut self, view: View) {
        self.shared.guest = Some(self.add_view(view));
    }

    /// Moves every view to the beginning of time.
    pub(crate) fn begin(&mut self) {
        for view in &mut self.views {
            view.advance(0);
        }
    }

    /// Whether the same keys have come in the same order.
    pub(crate) fn are_those_of(&self, other: &Spaces) -> bool {
        self.keys == other.keys && self.shared == other.shared
    }

    /// Whether one thread alone may follow a stream: who is asked for pages is asked in order and for none that is not
    /// needed, and turns that anything ran in are told in order.
    pub(crate) fn need_one_thread(&self) -> bool {
        self.views.iter().any(View::asks) || self.has_turns()
    }

    /// Whether all runs in one space, without turns.
    pub(crate) fn are_one(&self) -> bool {
        self.views.len() == 1 && self.turns.is_empty()
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

    /// Somebody who has turns: its number.
    pub fn know(&mut self, whose: Whose) -> u32 {
        Arc::make_mut(&mut self.turns).know(whose)
    }

    /// From `since` (TSC) on the code that no key says otherwise of is that of `whose`, a number of `know`. It takes effect
    /// where the program arrives from somewhere else: at a TIP.PGE, a far transfer or a PSB+. In order of time.
    pub fn turn(&mut self, since: u64, whose: u32) {
        Arc::make_mut(&mut self.turns).put(since, whose);
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

/// CR3[51:12]: what is below tells no page tables apart, but TLB entries.
const PAGE_TABLES: u64 = 0x000f_ffff_ffff_f000;
/// So many ticks of the TSC a stream's time may be behind.
const LAG: u64 = 1 << 18;

/// Whose page tables a CR3 points to: learned where it is certain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Owners {
    /// CR3[51:12], and the view of its process.
    known: HashMap<u64, usize>,
    seen: Option<Seen>,
}

/// User code went on with a CR3 in a turn, after `now`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    cr3: u64,
    view: usize,
    turn: usize,
    now: u64,
}

impl Owners {
    /// It is `now`, in the turn with this number, and the next begins at `until`: what was seen before in the same turn
    /// was certainly its process's, if time has been told since.
    fn confirm(&mut self, turn: usize, now: u64, until: u64) {
        let Some(seen) = self.seen.filter(|seen| seen.turn != turn || seen.now < now) else {
            return;
        };
        self.seen = None;
        if seen.turn == turn && now < until {
            self.known.insert(seen.cr3, seen.view);
        }
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
    turns: Arc<Turns>,
    shared: Shared,
    /// Turns begun so far.
    begun: usize,
    /// The view of the turn, or of the last one that had one.
    view: usize,
    /// What the turn runs while NR is 1.
    guest: Guest,
    /// Turns in which the program came from somewhere else, each once in a row.
    visited: Vec<usize>,
    /// How often it did, if there are turns: without them two that are at the same place are equal, wherever they began.
    arrivals: u64,
    owners: Owners,
    /// A CR3 that should be of another process than the one whose turn it is.
    contradiction: Option<u64>,
}

impl Whereabouts {
    pub fn new(spaces: &Spaces) -> Whereabouts {
        Whereabouts {
            keys: spaces.keys.iter().copied().collect(),
            turns: Arc::clone(&spaces.turns),
            shared: spaces.shared,
            ..Whereabouts::default()
        }
    }

    /// Nothing has been said.
    pub fn start_again(&mut self) {
        *self = Whereabouts {
            keys: std::mem::take(&mut self.keys),
            turns: std::mem::take(&mut self.turns),
            shared: self.shared,
            ..Whereabouts::default()
        };
    }

    /// The number of the kernel's view.
    pub fn kernel(&self) -> Option<usize> {
        self.shared.kernel
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
        self.turns.since(self.begun).unwrap_or(u64::MAX)
    }

    /// How often the program has come from somewhere else; 0 without turns.
    pub fn arrivals(&self) -> u64 {
        self.arrivals
    }

    /// The turn is nobody's.
    pub fn is_idle(&self) -> bool {
        self.last().is_some_and(|turn| turn.idle)
    }

    /// How many turns of threads are to begin up to `time`.
    pub fn due(&self, time: u64) -> usize {
        self.turns.due(self.begun, time)
    }

    /// Turns up to `now` begin. Whether what runs from here on is followed.
    pub fn take_turns(&mut self, now: u64) -> bool {
        if !self.turns.is_empty() {
            self.arrivals += 1;
        }
        let until = self.next_turn();
        self.owners.confirm(self.begun, now, until);
        while self
            .turns
            .since(self.begun)
            .is_some_and(|since| since <= now)
        {
            self.begun += 1;
        }
        self.visit();
        let Some(turn) = self.last() else {
            return true;
        };
        self.view = turn.view.unwrap_or(self.view);
        self.guest = turn.guest;
        turn.view.is_some()
    }

    /// Whose turn the last one is that has begun.
    fn last(&self) -> Option<Whose> {
        self.turns.whose(self.begun.checked_sub(1)?)
    }

    fn visit(&mut self) {
        if self.visited.last() != Some(&self.begun) {
            self.visited.push(self.begun);
        }
    }

    /// User code goes on with `cr3` at `now`: the time is a lower bound, so that the next turn may have begun, which shows
    /// if CR3 is that of its process.
    fn match_cr3(&mut self, cr3: u64, now: u64) {
        let cr3 = cr3 & PAGE_TABLES;
        match self.owners.known.get(&cr3) {
            None => {
                self.owners.seen = Some(Seen {
                    cr3,
                    view: self.view,
                    turn: self.begun,
                    now,
                });
            }
            Some(&view) if view == self.view => {}
            Some(&view) => {
                let next = self.turns.whose(self.begun).unwrap_or_default();
                let soon = self.next_turn().saturating_sub(now) <= LAG;
                if next.view == Some(view) && soon {
                    self.guest = next.guest;
                    self.begun += 1;
                    self.view = view;
                    self.visit();
                } else {
                    // page tables of a process that has ended are used again
                    self.owners.known.remove(&cr3);
                    self.contradiction = Some(cr3);
                }
            }
        }
    }

    /// Of the last arrival: a CR3 that contradicts the turns.
    pub fn take_contradiction(&mut self) -> Option<u64> {
        self.contradiction.take()
    }

    /// The program comes to `ip`, where the last PIP holds, and with `entry` the last VMCS packet, too: the number of the
    /// space. `now`: it comes from somewhere else, and turns have been taken.
    pub fn arrive(&mut self, ip: u64, entry: bool, now: Option<u64>) -> usize {
        self.paging = self.next_paging.take().or(self.paging);
        if entry {
            self.vmcs = self.next_vmcs.take().or(self.vmcs);
        }
        let found = self.paging.and_then(|(cr3, nr)| {
            let find = |vmcs| self.keys.get(&SpaceKey::new(cr3, nr, vmcs)).copied();
            let guests = self.vmcs.and_then(|pointer| find(Some(pointer)));
            guests.or_else(|| find(None))
        });
        let Shared { kernel, guest } = self.shared;
        let shared = match self.paging {
            Some((_, true)) if ip >> 63 != 0 => self.guest.kernel.or(guest),
            Some((_, true)) => self.guest.process.or(guest),
            _ if ip >> 63 != 0 => kernel,
            _ => None,
        };
        if let (None, None, Some((cr3, false)), Some(now)) = (found, shared, self.paging, now) {
            if kernel.is_some() && !self.turns.is_empty() {
                self.match_cr3(cr3, now);
            }
        }
        found.or(shared).unwrap_or(self.view)
    }
}
