//! Many results one after the other, where nothing but short TNTs can come of them.

use crate::encode::short_tnt;
use crate::settings::TntForm;
use crate::unit::Unit;

/// The least value of a TNT with its stop bit that fills a short packet.
const FULL: u64 = 1 << RESULTS;
const RESULTS: u32 = 6;
/// Results with their stop bit are sent when they have come to this: seldom, so that it is guessed right.
const GATHERED: u64 = 1 << 60;

impl Unit {
    /// How many results `add_results` may take before something else can follow from their packets.
    #[inline(always)]
    pub fn room_for_results(&self) -> usize {
        if self.config.tnt_full != FULL || self.config.parameters.tnt_form == TntForm::Long {
            return 0;
        }
        self.attention.saturating_sub(self.buffer.position() + 1)
    }

    /// Takes what `next` gives, before `quiet_until` and `room` times at most: conditional branches (1 and whether it is
    /// taken), direct jumps and straight code (0, and false). How many branches they were; `arrive` must follow. Where
    /// branches go is not guessed: no jump depends on it.
    #[inline(always)]
    pub fn add_results(
        &mut self,
        room: usize,
        mut next: impl FnMut() -> Option<(u8, bool)>,
    ) -> u64 {
        if room == 0 {
            return 0;
        }
        let before = self.core.tnt;
        let (mut tnt, mut size) = (before, 0);
        let bytes = self.buffer.room(room);
        while let Some((results, taken)) = next() {
            tnt = tnt << (results & 1) | u64::from(taken);
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
