//! The way of one packet through the code: the meaning of a step.

use rtit_image::View;

use super::how::How;
use super::visit::MAX_NODE;
use crate::code::{Code, Stop};

/// Nodes that let the flow pass before the one at which a packet takes effect: longer ways are left to the walker, which
/// also knows when they never end.
const MAX_CHAIN: usize = 16;

/// The return stack holds this many.
pub(super) const STACK: usize = 64;

/// Where a packet leads from a node, or as much of it as goes without the return stack. Kept to be used again.
#[derive(Default)]
pub(crate) struct Path {
    /// RETs may be compressed.
    returns: bool,
    /// Far transfers stay in this space: there is no other, and no turns, which begin with them.
    alone: bool,
    /// The nodes run through, and how each ended.
    pub visits: Vec<(u32, How)>,
    /// Call sites whose RET has not come; the last 64 matter.
    pub pushes: Vec<u32>,
    /// How many were open at once, 64 at most.
    pub peak: usize,
    /// The node that comes next: the one with the RET if the path ends before a RET.
    pub next: u32,
    /// The path ends before a RET whose call lies before it: the results after that of the RET, a short TNT or 0.
    pub rest: Option<u8>,
}

impl Path {
    pub fn new(returns: bool, alone: bool) -> Path {
        Path {
            returns,
            alone,
            ..Path::default()
        }
    }

    pub fn is_alone(&self) -> bool {
        self.alone
    }

    fn begin(&mut self, node: u32) {
        self.visits.clear();
        self.pushes.clear();
        self.peak = 0;
        self.next = node;
        self.rest = None;
    }

    fn visit(&mut self, code: &Code, node: u32, how: How) -> Option<()> {
        if node > MAX_NODE {
            return None;
        }
        self.visits.push((node, how));
        let (first, calls) = code.calls(code.node(node));
        self.pushes.extend((first..).take(calls.len()));
        self.peak = self.peak.max(self.pushes.len()).min(STACK);
        Some(())
    }

    /// Follows a short TNT from a node. None: the walker must take the packet.
    pub fn of_tnt(&mut self, code: &mut Code, view: &View, start: u32, tnt: u8) -> Option<()> {
        self.begin(start);
        let (bits, count) = results(tnt);
        for left in (0..count).rev() {
            let taken = bits >> left & 1 != 0;
            self.pass(code, view, Stop::passes)?;
            let node = self.next;
            match code.node(node).stop {
                Stop::Conditional => {
                    let how = if taken { How::Taken } else { How::NotTaken };
                    self.visit(code, node, how)?;
                    self.next = code.branch(view, node, taken)?;
                }
                Stop::Return if taken && self.returns => {
                    if self.pushes.is_empty() && code.calls(code.node(node)).1.is_empty() {
                        self.rest = Some(tnt_of(bits, left));
                        return Some(());
                    }
                    self.visit(code, node, How::Pass)?;
                    if self.pushes.len() > STACK {
                        return None;
                    }
                    let site = self.pushes.pop()?;
                    if let Some(last) = self.visits.last_mut() {
                        last.1 = How::Returned(site);
                    }
                    self.next = code.return_node(view, node, site)?;
                }
                _ => return None,
            }
        }
        Some(())
    }

    /// Follows a TIP to `ip`. `rest` is set, to 0, if it is that of a RET whose call lies before the path.
    pub fn of_tip(&mut self, code: &mut Code, view: &View, start: u32, ip: u64) -> Option<()> {
        self.begin(start);
        self.pass(code, view, |stop| stop.passes() && stop != Stop::VmEntry)?;
        let node = self.next;
        let (stop, mode) = (code.node(node).stop, code.node(node).mode);
        match stop {
            Stop::Far | Stop::Syscall if !self.alone => return None,
            Stop::IndirectJump | Stop::IndirectCall | Stop::Far | Stop::Syscall => {
                self.visit(code, node, How::Tip(ip))?;
            }
            Stop::Return => {
                self.visit(code, node, How::TipReturn(ip))?;
                if self.pushes.len() > STACK {
                    return None;
                }
                if self.pushes.pop().is_none() {
                    self.rest = Some(0);
                }
            }
            _ => return None,
        }
        self.next = code.lookup(view, ip, mode).ok()?;
        Some(())
    }

    /// Follows the compressed RET at the end of a node to a call site.
    pub fn of_return(&mut self, code: &mut Code, view: &View, start: u32, site: u32) -> Option<()> {
        self.begin(start);
        self.visit(code, start, How::Returned(site))?;
        self.next = code.return_node(view, start, site)?;
        Some(())
    }

    /// Runs through nodes that let the flow pass.
    fn pass(&mut self, code: &mut Code, view: &View, passes: impl Fn(Stop) -> bool) -> Option<()> {
        for _ in 0..MAX_CHAIN {
            if !passes(code.node(self.next).stop) {
                return Some(());
            }
            let node = self.next;
            self.visit(code, node, How::Pass)?;
            self.next = code.after(view, node)?;
        }
        None
    }
}

/// Results of a short TNT, the oldest on top, and how many.
#[inline]
pub(crate) fn results(tnt: u8) -> (u64, u8) {
    let count = (6 - (tnt | 2).leading_zeros() as i32).max(0) as u8;
    (u64::from(tnt >> 1) & ((1 << count) - 1), count)
}

/// The short TNT of the last `count` of these results; 0 if there is none.
fn tnt_of(bits: u64, count: u8) -> u8 {
    match count {
        0 => 0,
        _ => ((1 << count | bits & ((1 << count) - 1)) << 1) as u8,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_tnt_and_its_results() {
        assert_eq!(results(0b0000_0110), (1, 1));
        assert_eq!(results(0b1010_0110), (0b01_0011, 6));
        assert_eq!(results(0), (0, 0));
        for tnt in (4..=254u8).step_by(2) {
            let (bits, count) = results(tnt);
            assert_eq!(tnt_of(bits, count), tnt);
        }
        assert_eq!(tnt_of(0b101, 0), 0);
        assert_eq!(tnt_of(0b101, 2), 0b1010);
    }
}
