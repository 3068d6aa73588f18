//! Compression of IPs and RETs (section 33.4.2.2), and the rules of compression as a whole.
//!
//! Compression relies on state that the decoder rebuilds from the packets:
//!
//! * **IP compression** (33.4.2.2): a TIP or FUP carries only the low bytes of its IP if the high bytes equal those of
//!   LastIP, the IP of the packet before. `IpCompressionTable` maps the number of equal 16-bit groups, and whether the
//!   IP is canonical at 48 bits, to the shortest IPBytes encoding that the settings allow.
//! * **RET compression** (33.4.2.2): a RET to the address after the last open CALL is a taken TNT bit instead of a TIP.
//!   `ReturnStack` holds the last 64 return addresses, as the decoder does. Every PSB, TIP.PGE, TIP.PGD and OVF empties
//!   it.
//! * **MODE.Exec**: a TIP.PGE needs none if the decoder knows the mode since the last PSB.
//!
//! A PSB resets all three, so that a decoder can start there.

use crate::packet_bytes::ip_header_bits_and_size;
use crate::settings::IpCompression;

/// CALLs that a decoder remembers.
const DEPTH: usize = 64;

/// The IPBytes encoding for each number of equal 16-bit groups (0 to 3) and canonical form (0, 1).
#[derive(Clone)]
pub(crate) struct IpCompressionTable([(u8, u8); 8]);

impl IpCompressionTable {
    pub(crate) fn new(policy: IpCompression) -> IpCompressionTable {
        let in_use: &[u8] = match policy {
            IpCompression::Shortest => &[1, 2, 3, 4, 6],
            IpCompression::None => &[6],
            IpCompression::Sext48Only => &[3, 6],
            IpCompression::Bdw => &[1, 2, 3, 6],
        };
        let mut forms = [ip_header_bits_and_size(6); 8];
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
                *form = ip_header_bits_and_size(*code);
            }
        }
        IpCompressionTable(forms)
    }

    /// Returns the bits for the header byte and the size of the payload. `differs` is the IP XOR LastIP; all ones if
    /// there is no LastIP.
    #[inline(always)]
    pub(crate) fn encoding_for_ip(&self, ip: u64, differs: u64) -> (u8, u8) {
        let equal = (differs.leading_zeros() as usize >> 4).min(3);
        let canonical = usize::from((ip as i64) << 16 >> 16 == ip as i64);
        self.0[(equal << 1 | canonical) & 7]
    }
}

/// The return addresses of the last CALLs. A full stack drops the oldest.
#[derive(Clone)]
pub(crate) struct ReturnStack {
    entries: [u64; DEPTH],
    next: usize,
    count: usize,
    depth: usize,
}

impl ReturnStack {
    /// Creates a stack; with depth 0 no RET is compressed.
    pub(crate) fn new(depth: usize) -> ReturnStack {
        ReturnStack {
            entries: [0; DEPTH],
            next: 0,
            count: 0,
            depth: depth.min(DEPTH),
        }
    }

    pub(crate) fn max_depth(&self) -> usize {
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

    /// Returns what `pop` would return.
    #[inline(always)]
    pub(crate) fn top_entry(&self) -> Option<u64> {
        (self.count > 0).then(|| self.entries[(self.next + DEPTH - 1) % DEPTH])
    }

    pub(crate) fn clear(&mut self) {
        self.count = 0;
    }

    /// Returns the addresses, oldest first.
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

    fn ip_encoding(policy: IpCompression, ip: u64, last: u64) -> (u8, u8) {
        let (bits, size) = IpCompressionTable::new(policy).encoding_for_ip(ip, ip ^ last);
        (bits >> 5, size)
    }

    #[test]
    fn shortest_policy_takes_the_first_encoding_that_fits() {
        let shortest = |ip, last| ip_encoding(IpCompression::Shortest, ip, last);
        assert_eq!(shortest(0x7fff_1234_5678, 0x7fff_1234_5678), (1, 2));
        assert_eq!(shortest(0x7fff_1234_5678, 0x7fff_1234_0000), (1, 2));
        assert_eq!(shortest(0x7fff_1234_5678, 0x7fff_0000_0000), (2, 4));
        assert_eq!(shortest(0x7fff_1234_5678, 0x1), (3, 6));
        assert_eq!(shortest(0x0000_8000_1234_5678, 0x1), (4, 6));
        assert_eq!(shortest(0x0123_8000_1234_5678, 0x1), (6, 8));
        assert_eq!(shortest(0xffff_8000_1234_5678, 0x1), (3, 6));
    }

    #[test]
    fn other_policies_leave_out_encodings() {
        assert_eq!(ip_encoding(IpCompression::None, 5, 5), (6, 8));
        assert_eq!(ip_encoding(IpCompression::Sext48Only, 5, 5), (3, 6));
        assert_eq!(
            ip_encoding(IpCompression::Bdw, 0x8000_0000_0000, 0x1),
            (6, 8)
        );
        assert_eq!(
            ip_encoding(IpCompression::Bdw, 0x8000_0000_0000, 0x8000_0000_0001),
            (1, 2)
        );
    }

    #[test]
    fn full_return_stack_drops_its_oldest_entry() {
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
