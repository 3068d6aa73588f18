//! The return stack of RET compression (section 33.4.2.2): 64 entries; a push onto a full stack drops the oldest.
//!
//! An entry is a call site of the code cache, with the address after the call and, once it was needed, its node. When
//! the cache is emptied or exchanged, entries become addresses (`replace_sites_by_addresses`), and call sites again
//! when the transition tables need them (`assign_call_sites`).

use crate::code_cache::CodeCache;

const ENTRIES: usize = 64;

/// An entry of the return stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StackEntry {
    /// The call site in the code cache, with the address after the call.
    Site(u32),
    /// The address after the call: the code cache was emptied since.
    Ip(u64),
}

pub(crate) const NO_SITE: u32 = u32::MAX;

#[derive(Clone, Debug)]
pub(crate) struct ReturnStack {
    /// Call sites; `NO_SITE`: the address is in `ips`.
    sites: [u32; ENTRIES],
    ips: [u64; ENTRIES],
    /// Number of the entry that the next call takes, modulo 64.
    top: u32,
    depth: u32,
    /// Entries without a call site may be among those in use.
    has_ips: bool,
}

impl Default for ReturnStack {
    fn default() -> Self {
        ReturnStack {
            sites: [NO_SITE; ENTRIES],
            ips: [0; ENTRIES],
            top: 0,
            depth: 0,
            has_ips: false,
        }
    }
}

impl ReturnStack {
    #[inline(always)]
    pub fn push_call_site(&mut self, site: u32) {
        self.sites[self.top as usize % ENTRIES] = site;
        self.top = self.top.wrapping_add(1);
        self.depth = (self.depth + 1).min(ENTRIES as u32);
    }

    #[inline]
    pub fn pop(&mut self) -> Option<StackEntry> {
        if self.depth == 0 {
            return None;
        }
        self.drop_top();
        let at = self.top as usize % ENTRIES;
        Some(match self.sites[at] {
            NO_SITE => StackEntry::Ip(self.ips[at]),
            site => StackEntry::Site(site),
        })
    }

    /// The call site on top, if every entry has one (`assign_call_sites`).
    #[inline(always)]
    pub fn top_call_site(&self) -> Option<u32> {
        let top = self.top.wrapping_sub(1) as usize % ENTRIES;
        (self.depth != 0).then_some(self.sites[top])
    }

    /// Takes the top off, if there is one.
    #[inline(always)]
    pub fn drop_top(&mut self) {
        let some = u32::from(self.depth != 0);
        self.top = self.top.wrapping_sub(some);
        self.depth -= some;
    }

    /// The oldest fall off until `room` entries are free, 64 at most.
    #[inline(always)]
    pub fn make_room(&mut self, room: u8) {
        self.depth = self.depth.min((ENTRIES as u32).saturating_sub(room.into()));
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.depth == 0
    }

    pub fn clear(&mut self) {
        self.depth = 0;
        self.has_ips = false;
    }

    /// Replaces call sites by addresses, before the code cache is emptied.
    pub fn replace_sites_by_addresses(&mut self, code: &CodeCache) {
        for (site, ip) in self.sites.iter_mut().zip(&mut self.ips) {
            if let Some(call) = code.call_at_site(*site) {
                *ip = call.return_ip;
            }
            *site = NO_SITE;
        }
        self.has_ips = self.depth > 0;
    }

    /// The addresses after the calls, the oldest first.
    pub fn return_addresses(&self, code: &CodeCache) -> Vec<u64> {
        let ip = |back| {
            let at = self.top.wrapping_sub(back) as usize % ENTRIES;
            match code.call_at_site(self.sites[at]) {
                Some(call) => call.return_ip,
                None => self.ips[at],
            }
        };
        (1..=self.depth).rev().map(ip).collect()
    }

    /// A stack with these entries.
    pub fn from_return_addresses(ips: &[u64]) -> ReturnStack {
        let mut stack = ReturnStack::default();
        for &ip in ips.iter().take(ENTRIES) {
            stack.ips[stack.depth as usize] = ip;
            stack.depth += 1;
        }
        stack.top = stack.depth;
        stack.has_ips = stack.depth > 0;
        stack
    }

    /// Gives every entry a call site.
    pub fn assign_call_sites(&mut self, code: &mut CodeCache) {
        if !self.has_ips {
            return;
        }
        self.has_ips = false;
        for back in 1..=self.depth {
            let at = self.top.wrapping_sub(back) as usize % ENTRIES;
            if self.sites[at] == NO_SITE {
                self.sites[at] = code.add_call_site(self.ips[at]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn call_65_drops_the_oldest() {
        let mut stack = ReturnStack::default();
        for site in 0..65 {
            stack.push_call_site(site);
        }
        for site in (1..65).rev() {
            assert_eq!(stack.pop(), Some(StackEntry::Site(site)));
        }
        assert_eq!(stack.pop(), None);
    }

    #[test]
    fn clear_leaves_nothing() {
        let mut stack = ReturnStack::default();
        stack.push_call_site(1);
        stack.clear();
        assert_eq!(stack.pop(), None);
        stack.push_call_site(2);
        assert_eq!(stack.pop(), Some(StackEntry::Site(2)));
    }

    #[test]
    fn many_calls_and_returns_drop_the_oldest_entries() {
        let mut one_by_one = ReturnStack::default();
        let mut at_once = ReturnStack::default();
        for site in 0..63 {
            one_by_one.push_call_site(site);
            at_once.push_call_site(site);
        }
        for site in 100..103 {
            one_by_one.push_call_site(site);
        }
        one_by_one.drop_top();
        one_by_one.drop_top();
        at_once.make_room(3);
        at_once.push_call_site(100);
        loop {
            let entry = one_by_one.pop();
            assert_eq!(at_once.pop(), entry);
            if entry.is_none() {
                break;
            }
        }
    }

    #[test]
    fn an_empty_stack_drops_nothing() {
        let mut stack = ReturnStack::default();
        stack.drop_top();
        assert_eq!(stack.top_call_site(), None);
        stack.push_call_site(3);
        assert_eq!(stack.top_call_site(), Some(3));
    }
}
