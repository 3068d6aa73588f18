//! Near branches (sections 33.2.1.1, 33.2.1.2 and 33.4.2.1 to 33.4.2.5), which are nearly all events of a trace; far
//! transfers and events, which leave and enter user mode (section 33.7; Tables 33-55 and 33-56). `system` has the far
//! transfers of a system in which the kernel is traced too.
//!
//! Each near branch has a fast path and a general one. The fast path applies while `CoreState::plain` is set: then a
//! near branch can only emit its own packet. The general path adds address filters, TraceStop and the disabled states.
//! There are also variants that return false instead of doing anything unusual (`try_...`), and one that takes many TNT
//! bits at once (`add_tnt_bits`); `tests/fast_paths.rs` compares all of them with the plain events.
//!
//! No packet carries the address of the branch itself.

use crate::compression::ReturnStack;
use crate::packet_bytes::short_tnt;
use crate::saved_state::NEVER;
use crate::settings::TntForm;
use crate::system::ProcessorState;
use crate::unit::TraceUnit;

impl TraceUnit {
    /// Returns the clock below which the `try_...` functions and `add_tnt_bits` may be called, without `advance_clock`
    /// before each: no timing packet is due, and a near branch can only emit its own packet. 0 if there is no such
    /// clock.
    #[inline(always)]
    pub fn next_packet_clock(&self) -> u64 {
        if !self.core.plain || self.core.cyc_due != NEVER {
            return 0;
        }
        match self.clocks.cpi {
            1 => self.core.due,
            cpi => self.core.due.div_ceil(cpi),
        }
    }

    /// Handles a conditional branch (`results` 1), or a direct jump or fall-through (0), that continues at `ip`, before
    /// `next_packet_clock`. Changes nothing and returns false if it emits a packet.
    #[inline(always)]
    pub fn try_quiet_branch(&mut self, results: u8, taken: bool, ip: u64) -> bool {
        let tnt = self.core.tnt << results | u64::from(taken) & u64::from(results);
        if tnt >= self.config.tnt_full {
            return false;
        }
        self.core.tnt = tnt;
        self.core.ip = ip;
        true
    }

    /// Handles a conditional branch that emits nothing or one short TNT; otherwise changes nothing and returns false.
    #[inline(always)]
    pub fn try_conditional_branch(&mut self, taken: bool, ip: u64) -> bool {
        if self.try_quiet_branch(1, taken, ip) {
            return true;
        }
        let tnt = self.core.tnt << 1 | u64::from(taken);
        let (word, size) = short_tnt(tnt);
        let short = tnt < 128 && self.config.parameters.tnt_form != TntForm::Long;
        if !short || !self.buffer.has_room() || self.buffer.position() + size >= self.attention {
            return false;
        }
        self.buffer.put_packet((word, size));
        self.core.tnt = 1;
        self.core.ip = ip;
        true
    }

    /// Handles a near RET that is one more TNT bit; otherwise changes nothing and returns false.
    #[inline(always)]
    pub fn try_compressed_return(&mut self, target: u64) -> bool {
        let quiet =
            self.ret_stack.top_entry() == Some(target) && self.try_quiet_branch(1, true, target);
        if quiet {
            self.ret_stack.pop();
        }
        quiet
    }

    /// Jcc, J*CXZ or LOOP*: continues at `target` if `taken`, otherwise at `next_ip`.
    #[inline(always)]
    pub fn conditional(&mut self, next_ip: u64, target: u64, taken: bool) {
        if !self.core.plain {
            return self.apply_conditional_branch_with_ranges(next_ip, target, taken);
        }
        self.core.ip = if taken { target } else { next_ip };
        if self.add_tnt_bit(taken) {
            self.finish_event();
        }
    }

    /// Direct JMP: a decoder finds the target in the code.
    #[inline(always)]
    pub fn jump(&mut self, target: u64) {
        if self.arrive_at_branch_target(target, false) && !self.core.plain {
            self.finish_event();
        }
    }

    /// Direct CALL. One with displacement 0 (`target` is `next_ip`) expects no RET.
    #[inline(always)]
    pub fn call(&mut self, next_ip: u64, target: u64) {
        if self.arrive_at_branch_target(target, false) {
            if target != next_ip {
                self.ret_stack.push(next_ip);
            }
            if !self.core.plain {
                self.finish_event();
            }
        }
    }

    /// Indirect JMP.
    #[inline(always)]
    pub fn indirect_jump(&mut self, target: u64) {
        if self.arrive_at_branch_target(target, false) {
            self.put_tip_for_target(target);
        }
    }

    /// Indirect CALL.
    #[inline(always)]
    pub fn indirect_call(&mut self, next_ip: u64, target: u64) {
        if self.arrive_at_branch_target(target, false) {
            self.ret_stack.push(next_ip);
            self.put_tip_for_target(target);
        }
    }

    /// Near RET: a taken TNT bit if it returns to a CALL that the decoder remembers, otherwise a TIP.
    #[inline(always)]
    pub fn ret(&mut self, target: u64) {
        if !self.arrive_at_branch_target(target, false) {
            return;
        }
        if self.ret_stack.pop() == Some(target) {
            self.add_tnt_bit(true);
            self.finish_event();
        } else {
            self.put_tip_for_target(target);
        }
    }

    /// Moves to the target of a taken branch. Returns whether its ordinary packet follows: PacketEn was and stays 1.
    #[inline(always)]
    fn arrive_at_branch_target(&mut self, target: u64, conditional: bool) -> bool {
        self.core.ip = target;
        if self.core.plain {
            return true;
        }
        if self.core.context_en && !self.core.filter_en && self.ranges.is_far_from(target) {
            self.finish_event();
            return false;
        }
        self.arrive_at_branch_target_with_ranges(target, conditional)
    }

    #[inline(never)]
    fn apply_conditional_branch_with_ranges(&mut self, next_ip: u64, target: u64, taken: bool) {
        if !taken {
            self.core.ip = next_ip;
            if !self.core.packet_en {
                return;
            }
            self.add_tnt_bit(false);
        } else if self.arrive_at_branch_target(target, true) {
            self.add_tnt_bit(true);
        } else {
            return;
        }
        self.finish_event();
    }

    #[inline(never)]
    fn arrive_at_branch_target_with_ranges(&mut self, target: u64, conditional: bool) -> bool {
        if !self.core.trigger_en || !self.core.context_en {
            return false;
        }
        let was = self.core.packet_en;
        if !self.ranges.has_ranges() {
            return was;
        }
        let stops = self.update_enables(target);
        let now = self.core.packet_en;
        if was && now {
            return true;
        }
        if was {
            let hidden = conditional || (stops && !self.config.parameters.tracestop_pgd_target);
            self.flush_tnt();
            self.put_cyc_if_due();
            self.put_tip_pgd((!hidden).then_some(target));
        } else if now {
            self.put_cyc_if_due();
            self.put_tip_pge(target);
        }
        if stops {
            self.stop_trace();
        }
        self.finish_event();
        false
    }

    /// Adds a TNT bit; returns whether that emitted packets.
    #[inline(always)]
    fn add_tnt_bit(&mut self, taken: bool) -> bool {
        if self.config.dis_tnt {
            return false;
        }
        let timed = self.core.tnt == 1 && self.core.cycle >= self.core.cyc_due;
        if timed {
            self.put_cyc_if_due();
        }
        self.core.tnt = self.core.tnt << 1 | u64::from(taken);
        if self.core.tnt >= self.config.tnt_full {
            self.flush_tnt();
            return true;
        }
        timed
    }

    #[inline(always)]
    fn put_tip_for_target(&mut self, target: u64) {
        self.flush_tnt();
        self.put_cyc_if_due();
        self.put_tip(target);
        self.finish_event();
    }
}

/// A short TNT is full when its value, stop bit included, reaches this.
const FULL: u64 = 1 << RESULTS;
const RESULTS: u32 = 6;
/// `add_tnt_bits` emits packets when the bits reach this: seldom, so that the jump is predicted, and before four more
/// bits would overflow.
const TNT_LIMIT: u64 = 1 << 60;

/// The return addresses that a decoder remembers, for calls and returns among `TraceUnit::add_tnt_bits`.
pub struct CallTracker<'a>(&'a mut ReturnStack);

impl CallTracker<'_> {
    /// Notes a direct CALL, which emits no packet. One with displacement 0 expects no RET.
    #[inline(always)]
    pub fn push_call(&mut self, next_ip: u64, target: u64) {
        if target != next_ip {
            self.0.push(next_ip);
        }
    }

    /// Takes a near RET as a TNT bit if it returns to the last CALL; otherwise changes nothing and returns false.
    #[inline(always)]
    pub fn pop_return(&mut self, target: u64) -> bool {
        let known = self.0.top_entry() == Some(target);
        if known {
            self.0.pop();
        }
        known
    }
}

impl TraceUnit {
    /// Returns how many TNT bits `add_tnt_bits` may take before other packets are due.
    #[inline(always)]
    pub fn room_for_tnt_bits(&self) -> usize {
        if self.config.tnt_full != FULL || self.config.parameters.tnt_form == TntForm::Long {
            return 0;
        }
        self.attention.saturating_sub(self.buffer.position() + 1)
    }

    /// Adds TNT bits of at most `room` blocks, before `next_packet_clock`. For each block, `next` returns a number of
    /// bits (0 to 4) and their values, the last one lowest; it reports calls and returns to the tracker. Returns the
    /// total number of bits. The caller sets the IP afterwards (`set_ip`). No jump depends on the values of the bits,
    /// which cannot be predicted.
    #[inline(always)]
    pub fn add_tnt_bits(
        &mut self,
        room: usize,
        mut next: impl FnMut(&mut CallTracker) -> Option<(u8, u64)>,
    ) -> u64 {
        if room == 0 {
            return 0;
        }
        let before = self.core.tnt;
        let (mut tnt, mut size) = (before, 0);
        let bytes = self.buffer.reserve_bytes(room);
        let mut calls = CallTracker(&mut self.ret_stack);
        while let Some((results, taken)) = next(&mut calls) {
            tnt = tnt << (results & 7) | taken;
            if tnt >= TNT_LIMIT {
                tnt = put_full_tnt_packets(tnt, bytes, &mut size);
            }
        }
        self.core.tnt = put_full_tnt_packets(tnt, bytes, &mut size);
        self.buffer.advance_position(size);
        6 * size as u64 + u64::from(before.leading_zeros())
            - u64::from(self.core.tnt.leading_zeros())
    }

    /// Sets the IP after `add_tnt_bits`.
    #[inline(always)]
    pub fn set_ip(&mut self, ip: u64) {
        self.core.ip = ip;
    }
}

/// Stores the bits below a stop bit as full packets, first bits first. Returns those that are left, with a stop bit.
#[inline(always)]
fn put_full_tnt_packets(tnt: u64, bytes: &mut [u8], size: &mut usize) -> u64 {
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

/// The kernel is not traced in these events, so its IP does not matter.
const KERNEL: u64 = 0;

impl TraceUnit {
    /// Far JMP, CALL, RET or IRET that stays in user mode.
    pub fn emit_far_branch(&mut self, target: u64) {
        self.emit_transfer(target, self.core.user, None);
    }

    /// SYSCALL or SYSENTER.
    pub fn syscall(&mut self) {
        self.emit_transfer(KERNEL, false, None);
    }

    /// The kernel returns to user code at `target`.
    pub fn resume_user_code(&mut self, target: u64) {
        self.emit_transfer(target, true, None);
    }

    /// An interrupt or a trap before the instruction at `ip`.
    pub fn interrupt(&mut self, ip: u64) {
        self.emit_transfer(KERNEL, false, Some(ip));
    }

    /// An exception at the instruction at `ip`.
    pub fn exception(&mut self, ip: u64) {
        self.emit_transfer(KERNEL, false, Some(ip));
    }

    /// INT n, INT3, INT1 or INTO at `ip`.
    pub fn software_interrupt(&mut self, ip: u64) {
        self.emit_transfer(KERNEL, false, Some(ip));
    }

    /// Handles a transfer. `event_ip` is the IP of the FUP; a far branch has none.
    fn emit_transfer(&mut self, target: u64, user: bool, event_ip: Option<u64>) {
        let state = ProcessorState {
            user,
            ..self.processor_state()
        };
        self.transfer(target, state, event_ip, None);
    }
}
