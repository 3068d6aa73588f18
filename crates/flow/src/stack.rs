//! The return stack of RET compression (section 33.4.2.2): 64 entries, the oldest falls off.

const ENTRIES: usize = 64;

/// What a near call leaves behind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Entry {
    /// The address after the call.
    pub ip: u64,
    /// The call site in the code cache, which remembers the node at `ip`; `u32::MAX` if there is none.
    pub site: u32,
}

pub(crate) const NO_SITE: u32 = u32::MAX;

#[derive(Clone, Debug)]
pub(crate) struct ReturnStack {
    entries: [Entry; ENTRIES],
    top: usize,
    depth: usize,
}

impl Default for ReturnStack {
    fn default() -> Self {
        ReturnStack {
            entries: [Entry::default(); ENTRIES],
            top: 0,
            depth: 0,
        }
    }
}

impl ReturnStack {
    #[inline]
    pub fn push(&mut self, entry: Entry) {
        self.entries[self.top % ENTRIES] = entry;
        self.top = (self.top + 1) % ENTRIES;
        self.depth = (self.depth + 1).min(ENTRIES);
    }

    #[inline]
    pub fn pop(&mut self) -> Option<Entry> {
        if self.depth == 0 {
            return None;
        }
        self.depth -= 1;
        self.top = (self.top + ENTRIES - 1) % ENTRIES;
        Some(self.entries[self.top % ENTRIES])
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.depth == 0
    }

    pub fn clear(&mut self) {
        self.depth = 0;
    }

    /// The code cache was emptied: the addresses hold, the call sites are gone.
    pub fn forget_sites(&mut self) {
        for entry in &mut self.entries {
            entry.site = NO_SITE;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(ip: u64) -> Entry {
        Entry { ip, site: NO_SITE }
    }

    #[test]
    fn the_65th_call_pushes_the_oldest_off() {
        let mut stack = ReturnStack::default();
        for ip in 0..65 {
            stack.push(entry(ip));
        }
        for ip in (1..65).rev() {
            assert_eq!(stack.pop(), Some(entry(ip)));
        }
        assert_eq!(stack.pop(), None);
    }

    #[test]
    fn clear_leaves_nothing() {
        let mut stack = ReturnStack::default();
        stack.push(entry(1));
        stack.clear();
        assert_eq!(stack.pop(), None);
        stack.push(entry(2));
        assert_eq!(stack.pop(), Some(entry(2)));
    }
}
