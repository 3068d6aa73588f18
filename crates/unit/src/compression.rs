//! IP compression, and the call stack for compressed RETs (section 33.4.2.2).

use crate::encode::ip_form;
use crate::settings::IpCompression;

/// Calls that a decoder remembers.
const DEPTH: usize = 64;

/// How a target is sent, by how many of its high bytes LastIP has too, and whether it is canonical at 48 bits.
#[derive(Clone)]
pub(crate) struct IpForms([(u8, u8); 8]);

impl IpForms {
    pub(crate) fn new(policy: IpCompression) -> IpForms {
        let in_use: &[u8] = match policy {
            IpCompression::Shortest => &[1, 2, 3, 4, 6],
            IpCompression::None => &[6],
            IpCompression::Sext48Only => &[3, 6],
            IpCompression::Bdw => &[1, 2, 3, 6],
        };
        let mut forms = [ip_form(6); 8];
        for (index, form) in forms.iter_mut().enumerate() {
            let (equal, canonical) = (index >> 1, index & 1 == 1);
            let fits = |code: u8| match code {
                1 => equal == 3,
                2 => equal >= 2,
                3 => canonical,
                4 => equal >= 1,
                _ => true,
            };
            if let Some(code) = in_use.iter().find(|code| fits(**code)) {
                *form = ip_form(*code);
            }
        }
        IpForms(forms)
    }

    /// What the header byte gets, and the bytes of the payload. `differs` is the target XOR LastIP, all ones if there
    /// is no LastIP.
    #[inline(always)]
    pub(crate) fn of(&self, ip: u64, differs: u64) -> (u8, u8) {
        let equal = (differs.leading_zeros() as usize >> 4).min(3);
        let canonical = usize::from((ip as i64) << 16 >> 16 == ip as i64);
        self.0[(equal << 1 | canonical) & 7]
    }
}

/// Return addresses of the last CALLs; a full stack drops its oldest.
#[derive(Clone)]
pub(crate) struct ReturnStack {
    entries: [u64; DEPTH],
    next: usize,
    count: usize,
    depth: usize,
}

impl ReturnStack {
    /// Depth 0 compresses no RET.
    pub(crate) fn new(depth: usize) -> ReturnStack {
        ReturnStack {
            entries: [0; DEPTH],
            next: 0,
            count: 0,
            depth: depth.min(DEPTH),
        }
    }

    pub(crate) fn depth(&self) -> usize {
        self.depth
    }

    #[inline(always)]
    pub(crate) fn push(&mut self, ip: u64) {
        self.entries[self.next % DEPTH] = ip;
        self.next = (self.next + 1) % DEPTH;
        self.count = (self.count + 1).min(self.depth);
    }

    #[inline(always)]
    pub(crate) fn pop(&mut self) -> Option<u64> {
        if self.count == 0 {
            return None;
        }
        self.count -= 1;
        self.next = (self.next + DEPTH - 1) % DEPTH;
        Some(self.entries[self.next])
    }

    /// What `pop` would give.
    #[inline(always)]
    pub(crate) fn top(&self) -> Option<u64> {
        (self.count > 0).then(|| self.entries[(self.next + DEPTH - 1) % DEPTH])
    }

    pub(crate) fn clear(&mut self) {
        self.count = 0;
    }

    /// Oldest first.
    pub(crate) fn to_vec(&self) -> Vec<u64> {
        let first = self.next + DEPTH - self.count;
        (0..self.count)
            .map(|at| self.entries[(first + at) % DEPTH])
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(policy: IpCompression, ip: u64, last: u64) -> (u8, u8) {
        let (bits, size) = IpForms::new(policy).of(ip, ip ^ last);
        (bits >> 5, size)
    }

    #[test]
    fn shortest_takes_the_first_that_fits() {
        let shortest = |ip, last| form(IpCompression::Shortest, ip, last);
        assert_eq!(shortest(0x7fff_1234_5678, 0x7fff_1234_5678), (1, 2));
        assert_eq!(shortest(0x7fff_1234_5678, 0x7fff_1234_0000), (1, 2));
        assert_eq!(shortest(0x7fff_1234_5678, 0x7fff_0000_0000), (2, 4));
        assert_eq!(shortest(0x7fff_1234_5678, 0x1), (3, 6));
        assert_eq!(shortest(0x0000_8000_1234_5678, 0x1), (4, 6));
        assert_eq!(shortest(0x0123_8000_1234_5678, 0x1), (6, 8));
        assert_eq!(shortest(0xffff_8000_1234_5678, 0x1), (3, 6));
    }

    #[test]
    fn other_policies_leave_encodings_out() {
        assert_eq!(form(IpCompression::None, 5, 5), (6, 8));
        assert_eq!(form(IpCompression::Sext48Only, 5, 5), (3, 6));
        assert_eq!(form(IpCompression::Bdw, 0x8000_0000_0000, 0x1), (6, 8));
        assert_eq!(
            form(IpCompression::Bdw, 0x8000_0000_0000, 0x8000_0000_0001),
            (1, 2)
        );
    }

    #[test]
    fn a_full_stack_drops_its_oldest() {
        let mut stack = ReturnStack::new(3);
        (1..=70).for_each(|ip| stack.push(ip));
        assert_eq!(stack.to_vec(), [68, 69, 70]);
        assert_eq!(
            [stack.pop(), stack.pop(), stack.pop(), stack.pop()],
            [Some(70), Some(69), Some(68), None]
        );
        let mut none = ReturnStack::new(0);
        none.push(1);
        assert_eq!(none.pop(), None);
    }
}
