//! Whose code runs: spaces by what PIP and VMCS packets say.

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
    /// The first is for whatever has no key.
    pub(crate) views: Vec<View>,
    keys: Vec<(SpaceKey, usize)>,
}

impl Spaces {
    /// `view` is for every CR3 that `add` does not name, and as long as none is known.
    pub fn new(view: View) -> Spaces {
        Spaces {
            views: vec![view],
            keys: Vec::new(),
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

    /// Where `key` holds, `view` has the code. A key with a VMCS pointer goes before one without.
    pub fn add(&mut self, key: SpaceKey, view: View) {
        self.keys.push((key, self.views.len()));
        self.views.push(view);
    }
}

impl From<View> for Spaces {
    fn from(view: View) -> Spaces {
        Spaces::new(view)
    }
}

/// What the packets have said, and from where on it holds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Whereabouts {
    keys: HashMap<SpaceKey, usize>,
    /// CR3 and NR.
    paging: Option<(u64, bool)>,
    vmcs: Option<u64>,
    pub next_paging: Option<(u64, bool)>,
    pub next_vmcs: Option<u64>,
}

impl Whereabouts {
    pub fn new(spaces: &Spaces) -> Whereabouts {
        Whereabouts {
            keys: spaces.keys.iter().copied().collect(),
            ..Whereabouts::default()
        }
    }

    /// Nothing has been said.
    pub fn start_again(&mut self) {
        *self = Whereabouts {
            keys: std::mem::take(&mut self.keys),
            ..Whereabouts::default()
        };
    }

    /// The program comes to where the last PIP holds, and with `entry` the last VMCS packet, too: the number of the space.
    pub fn arrive(&mut self, entry: bool) -> usize {
        self.paging = self.next_paging.take().or(self.paging);
        if entry {
            self.vmcs = self.next_vmcs.take().or(self.vmcs);
        }
        let Some((cr3, nr)) = self.paging else {
            return 0;
        };
        let find = |vmcs| self.keys.get(&SpaceKey::new(cr3, nr, vmcs));
        let found = self.vmcs.and_then(|pointer| find(Some(pointer)));
        found.or_else(|| find(None)).copied().unwrap_or(0)
    }
}
