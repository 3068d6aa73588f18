//! Many results one after the other, where nothing but short TNTs can come of them.

use crate::compression::ReturnStack;
use crate::encode::short_tnt;
use crate::settings::TntForm;
use crate::unit::Unit;

/// The least value of a TNT with its stop bit that fills a short packet.
const FULL: u64 = 1 << RESULTS;
const RESULTS: u32 = 6;
/// Results with their stop bit are sent when they have come to this: seldom, so that it is guessed right, and before
/// four more would not fit.
const GATHERED: u64 = 1 << 60;

/// Calls that a decoder remembers, among the results of `Unit::add_results`.
pub struct Calls<'a>(&'a mut ReturnStack);

impl Calls<'_> {
    /// Direct CALL, which makes no packet; with displacement 0 no RET is expected.
    #[inline(always)]
    pub fn call(&mut self, next_ip: u64, target: u64) {
        if target != next_ip {
            self.0.push(next_ip);
        }
    }

    /// Near RET: whether it is a taken result. If not nothing has changed.
    #[inline(always)]
    pub fn ret(&mut self, target: u64) -> bool {
        let known = self.0.top() == Some(target);
        if known {
            self.0.pop();
        }
        known
    }
}

impl Unit {
    /// How many results `add_results` may take before something else can follow from their packets.
    #[inline(always)]
    pub fn room_for_results(&self) -> usize {
        if self.config.tnt_full != FULL || self.config.parameters.tnt_form == TntForm::Long {
            return 0;
        }
        self.attention.saturating_sub(self.buffer.position() + 1)
    }

    /// Takes what `next` gives, before `quiet_until` and of `room` blocks at most: a number of results, four at most,
    /// and which of them are taken, the last one in the lowest bit; none of direct jumps and straight code. Calls and
    /// returns go to what it gets. How many results they were; `arrive` must follow. Where branches go is not guessed:
    /// no jump depends on it.
    #[inline(always)]
    pub fn add_results(
        &mut self,
        room: usize,
        mut next: impl FnMut(&mut Calls) -> Option<(u8, u64)>,
    ) -> u64 {
        if room == 0 {
            return 0;
        }
        let before = self.core.tnt;
        let (mut tnt, mut size) = (before, 0);
        let bytes = self.buffer.room(room);
        let mut calls = Calls(&mut self.ret_stack);
        while let Some((results, taken)) = next(&mut calls) {
            tnt = tnt << (results & 7) | taken;
            if tnt >= GATHERED {
                tnt = put_full(tnt, bytes, &mut size);
            }
        }
        self.core.tnt = put_full(tnt, bytes, &mut size);
        self.buffer.fill(size);
        6 * size as u64 + u64::from(before.leading_zeros())
            - u64::from(self.core.tnt.leading_zeros())
    }

    /// Where the program goes on after `add_results`.
    #[inline(always)]
    pub fn arrive(&mut self, ip: u64) {
        self.core.ip = ip;
    }
}

/// Stores the results below a stop bit as full packets, the first result in the first; those that are left.
#[inline(always)]
fn put_full(tnt: u64, bytes: &mut [u8], size: &mut usize) -> u64 {
    let mut waiting = tnt.ilog2();
    while waiting >= RESULTS {
        waiting -= RESULTS;
        if let Some(place) = bytes.get_mut(*size) {
            *place = short_tnt(FULL | tnt >> waiting & (FULL - 1)).0 as u8;
        }
        *size += 1;
    }
    1 << waiting | tnt & ((1 << waiting) - 1)
}
