//! Whether a lost program may be picked up at a TIP, although TIPs may be deferred (section 33.4.2.3).
//!
//! A processor that defers TIPs sends them directly after the TNT: the last results of that TNT may be of branches after
//! the TIPs. Only the code shows which, and it is lost. So a TIP with a TNT directly before it (or before the TIPs before
//! it) does not say where the program is, unless it leads into the kernel or out of it: far transfers are not deferred.
//! Or the stream shows that its processor does not defer TIPs: many were followed since the last PSB, and none was
//! deferred.

use rtit_packet::PacketKind;

/// TIPs without a deferred one that show that the processor does not defer TIPs.
const ENOUGH: u8 = 32;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Deferral {
    /// TIPs that were followed since the last PSB, up to `ENOUGH`. Counted from there so that decoders that begin at
    /// different PSBs agree.
    followed: u8,
    /// While the program is lost: a TNT came directly before the packet, but for TIPs, CYCs and PADs between them.
    pub after_tnt: bool,
    /// LastIP before the packet.
    last_ip: u64,
}

impl Deferral {
    pub fn follow(&mut self, tips: u64) {
        let all = u64::from(self.followed).saturating_add(tips);
        self.followed = all.min(ENOUGH.into()) as u8;
    }

    /// A packet is next, while the program is lost.
    pub fn pass(&mut self, packet: &PacketKind, last_ip: u64) {
        self.last_ip = last_ip;
        self.after_tnt = match packet {
            PacketKind::Tnt(_) | PacketKind::Tnt64(_) => true,
            PacketKind::Tip(_) | PacketKind::Cyc { .. } | PacketKind::Pad => self.after_tnt,
            _ => false,
        };
    }

    /// Whether results before a TIP to `target` may be of branches after it. `seen`: TIPs were deferred in the stream.
    pub fn may_defer(&self, target: u64, seen: bool) -> bool {
        let is_near = (self.last_ip ^ target) >> 63 == 0;
        self.after_tnt && is_near && (seen || self.followed < ENOUGH)
    }
}
