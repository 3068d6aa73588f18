//! The loop that decodes packets by table lookup.
//!
//! The loop handles short TNT, TIP, CYC and MTC packets and stops before any other packet, and before a packet without
//! a transition ([`StopReason`]). It has no error handling: the caller adds the missing transition and resumes, or has
//! the interpreter decode the packet. Whenever it stops, offset, node, LastIP and return stack are what the interpreter
//! would have at this point.
//!
//! The next lookup needs the result of the last one, so the latency of one load decides. Packets are taken off the
//! front of a slice that is longer than any packet: one comparison serves as the end condition and as the bounds check
//! of all reads.

use rtit_packet::table::IP_PAYLOAD;
use rtit_packet::{Kind, PSB};

use super::node_visits::{IdCounters, OpenIdCounters};
use super::packet_path::{CallSitePushes, StackEffects};
use super::table::{
    find_slot, tnt_slot, CallSite, NodeKey, ShortTnt, TipTarget, Transition, TransitionInput,
};
use crate::return_stack::ReturnStack;

/// Bytes that must be readable after `end`, so that any packet can be read without a bounds check.
pub(crate) const READ_AHEAD: usize = 16;

/// Entries of the log that are timing packets. The ids of transitions are below these values.
pub(crate) struct TimingEntry;

impl TimingEntry {
    /// With the low byte of the CTC.
    pub const MTC: u32 = 1 << 30;
    /// With a number of core cycles below 2^31.
    pub const CYC: u32 = 1 << 31;

    #[inline(always)]
    pub fn is_timing(entry: u32) -> bool {
        entry & (TimingEntry::CYC | TimingEntry::MTC) != 0
    }
}

/// Why the loop stopped. `DecodeCursor::offset` is at the packet that was not, or not wholly, decoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum StopReason {
    /// Another packet, the end of the bytes, or a full log.
    NotHandled,
    /// No transition for this TNT byte, or for the bits of it that are pending.
    MissingTnt(u8),
    MissingTip(u64),
    /// Before a RET: no transition for this call site. `pending_tnt` follows the RET.
    MissingReturn(CallSite),
    /// Before a RET for which the return stack has no call. `pending_tnt` follows the RET.
    ReturnWithoutCall,
    /// The next packets have occurred often enough to be fused.
    FusionDue,
}

/// Where decoding is: in the packets, in the code, and within a TNT byte.
pub(crate) struct DecodeCursor {
    /// Of the next packet.
    pub offset: usize,
    pub node: NodeKey,
    pub last_ip: u64,
    /// Bits of the TNT at `offset` that are left after a RET, as a short TNT byte; 0: none.
    pub pending_tnt: u8,
    pub tip_count: u64,
    pub cyc_count: u64,
    pub mtc_count: u64,
    /// Bytes of all packets but the TNTs.
    pub non_tnt_bytes: u64,
    /// Core cycles that are not in the log.
    pub unlogged_cycles: u64,
    /// End of the last CYC and of the MTCs that directly follow it; `NONE` if there was no CYC.
    pub cyc_end: usize,
    /// Stop at MTCs, because the interpreter must see the time that they report.
    pub stops_at_mtc: bool,
}

impl DecodeCursor {
    pub const NONE: usize = usize::MAX;

    pub fn new(node: NodeKey, last_ip: u64) -> DecodeCursor {
        DecodeCursor {
            offset: 0,
            node,
            last_ip,
            pending_tnt: 0,
            tip_count: 0,
            cyc_count: 0,
            mtc_count: 0,
            non_tnt_bytes: 0,
            unlogged_cycles: 0,
            cyc_end: DecodeCursor::NONE,
            stops_at_mtc: false,
        }
    }

    /// Whether a packet with this first byte may have a transition.
    pub fn may_have_transition(first: u8) -> bool {
        is_short_tnt(first) || first & TIP_MASK == TIP || first & CYC_MASK == CYC || first == MTC
    }

    /// Decodes the CYC or MTC at the start of `left` and returns its length, at most 3; 0 if it is another packet, or
    /// one that the interpreter must see. `IS_ORDERED`: each CYC goes into the log; else cycles add up in
    /// `unlogged_cycles`.
    #[inline(always)]
    fn decode_timing_packet<const IS_ORDERED: bool>(
        &mut self,
        left: &[u8],
        offset: usize,
        max_log: usize,
        log: &mut Vec<(u32, u32)>,
    ) -> usize {
        let Some(&first) = left.first() else {
            return 0;
        };
        if first & CYC_MASK == CYC {
            let Some((cycles, length)) = parse_short_cyc(left) else {
                return 0;
            };
            if IS_ORDERED {
                log.push((TimingEntry::CYC | cycles as u32, offset as u32));
            } else {
                self.unlogged_cycles += cycles;
            }
            self.cyc_count += 1;
            self.non_tnt_bytes += length as u64;
            self.cyc_end = offset + length;
            return length;
        }
        if first != MTC
            || self.stops_at_mtc
            || log.len() >= max_log
            || may_continue_as_psb(&left[2..])
        {
            return 0;
        }
        // The clock needs CYCs and MTCs in their order.
        while self.unlogged_cycles > 0 {
            let part = self.unlogged_cycles.min(u64::from(TimingEntry::CYC - 1));
            log.push((TimingEntry::CYC | part as u32, offset as u32));
            self.unlogged_cycles -= part;
        }
        log.push((TimingEntry::MTC | u32::from(left[1]), offset as u32));
        self.mtc_count += 1;
        self.non_tnt_bytes += 2;
        if self.cyc_end == offset {
            self.cyc_end += 2;
        }
        2
    }
}

pub(super) struct TransitionTables<'a> {
    pub tnt: &'a mut [Transition<ShortTnt>],
    pub tip: &'a mut [Transition<TipTarget>],
    pub ret: &'a mut [Transition<CallSite>],
    pub stack_effects: &'a StackEffects,
    pub counters: &'a mut IdCounters,
    /// Pairs of a transition id or `TimingEntry`, and the offset of its packet in `bytes`.
    pub log: &'a mut Vec<(u32, u32)>,
}

/// What the loop records for every transition that it takes.
pub(super) trait TransitionRecorder {
    const IS_ORDERED: bool = false;

    fn record_transition(
        count_or_id: &mut u32,
        offset: usize,
        log: &mut Vec<(u32, u32)>,
        counters: &mut OpenIdCounters<'_>,
    );
}

/// Counts in the table entry.
pub(super) struct CountInPlace;

impl TransitionRecorder for CountInPlace {
    #[inline(always)]
    fn record_transition(
        count: &mut u32,
        _: usize,
        _: &mut Vec<(u32, u32)>,
        _: &mut OpenIdCounters<'_>,
    ) {
        *count = count.wrapping_add(1);
    }
}

/// Logs id and offset, for sinks that need the order.
pub(super) struct LogInOrder;

impl TransitionRecorder for LogInOrder {
    const IS_ORDERED: bool = true;

    #[inline(always)]
    fn record_transition(
        id: &mut u32,
        offset: usize,
        log: &mut Vec<(u32, u32)>,
        _: &mut OpenIdCounters<'_>,
    ) {
        log.push((*id, offset as u32));
    }
}

/// Counts by id, for sinks that add up many short streams.
pub(super) struct CountById;

impl TransitionRecorder for CountById {
    #[inline(always)]
    fn record_transition(
        id: &mut u32,
        _: usize,
        _: &mut Vec<(u32, u32)>,
        counters: &mut OpenIdCounters<'_>,
    ) {
        counters.increment_count(*id);
    }
}

/// Records nothing: the results up to a segment's cut are discarded.
pub(super) struct RecordNothing;

impl TransitionRecorder for RecordNothing {
    #[inline(always)]
    fn record_transition(
        _: &mut u32,
        _: usize,
        _: &mut Vec<(u32, u32)>,
        _: &mut OpenIdCounters<'_>,
    ) {
    }
}

/// Decodes packets from `cursor.offset` on, while it is below `end` and the log is shorter than `max_log`.
///
/// `bytes` continue for `READ_AHEAD` bytes after `end`. `RETC`: RETs may be compressed; a const parameter, so that
/// traces without RET compression get a loop without a return stack.
#[inline(never)]
pub(super) fn decode_packets<const RETC: bool, R: TransitionRecorder>(
    tables: &mut TransitionTables<'_>,
    stack: &mut ReturnStack,
    bytes: &[u8],
    end: usize,
    max_log: usize,
    cursor: &mut DecodeCursor,
) -> StopReason {
    let (tnt, tip_table, ret) = (&mut *tables.tnt, &mut *tables.tip, &mut *tables.ret);
    let (effects, log) = (tables.stack_effects, &mut *tables.log);
    let mut counters = tables.counters.open_for_loop();
    let Some(bytes) = bytes.get(..end + READ_AHEAD) else {
        return StopReason::NotHandled;
    };
    let mut left = bytes.get(cursor.offset..).unwrap_or(&[]);
    if tnt.is_empty() || tip_table.is_empty() || ret.is_empty() {
        return StopReason::NotHandled;
    }
    let (tnt_mask, tip_mask, ret_mask) = (tnt.len() - 1, tip_table.len() - 1, ret.len() - 1);
    // The part of the cursor that every packet changes stays in registers.
    let (mut node, mut last_ip, mut pending) = (cursor.node, cursor.last_ip, cursor.pending_tnt);
    let (mut tip_count, mut tip_bytes) = (0u64, 0u64);
    let reason = loop {
        // One comparison for the end and for the bounds of every read below.
        if left.len() <= READ_AHEAD {
            break StopReason::NotHandled;
        }
        // Never within a TNT byte: after `NotHandled` the caller expects a packet boundary.
        if R::IS_ORDERED && log.len() >= max_log && pending == 0 {
            break StopReason::NotHandled;
        }
        let mut byte = left[0];
        let offset = bytes.len() - left.len();
        if is_short_tnt(byte) {
            if RETC && pending != 0 {
                byte = pending;
            }
            let Some(slot) = find_slot(tnt, tnt_slot(node, byte >> 1, tnt_mask), node, ShortTnt)
            else {
                break StopReason::MissingTnt(byte);
            };
            let transition = &mut tnt[slot];
            R::record_transition(&mut transition.count_or_id, offset, log, &mut counters);
            node = transition.next;
            if !RETC || transition.stack_effect == 0 {
                pending = 0;
                left = &left[1..];
                continue;
            }
            let (effect, pushes) = effects.decode_stack_effect(transition.stack_effect);
            apply_call_pushes(stack, effect.peak, pushes);
            if !effect.pops {
                pending = 0;
                left = &left[1..];
                continue;
            }
            // The transition ended before a RET to an earlier call.
            pending = effect.pending_tnt;
            let Some(site) = stack.top_call_site().map(CallSite) else {
                break StopReason::ReturnWithoutCall;
            };
            let Some(slot) = find_slot(ret, site.first_slot(node, 0, ret_mask), node, site) else {
                break StopReason::MissingReturn(site);
            };
            let transition = &mut ret[slot];
            stack.drop_top();
            R::record_transition(&mut transition.count_or_id, offset, log, &mut counters);
            node = transition.next;
            left = &left[usize::from(pending == 0)..];
        } else if byte & TIP_MASK == TIP {
            let Some((length, _, ip)) = parse_tip(left, last_ip) else {
                break StopReason::NotHandled;
            };
            let after = &left[length..];
            // Its last bytes may be the start of a PSB that it has swallowed. The interpreter finds out.
            if may_continue_as_psb(after) {
                break StopReason::NotHandled;
            }
            let target = TipTarget(ip);
            let slot = target.first_slot(node, 0, tip_mask);
            let Some(slot) = find_slot(tip_table, slot, node, target) else {
                break StopReason::MissingTip(ip);
            };
            let transition = &mut tip_table[slot];
            R::record_transition(&mut transition.count_or_id, offset, log, &mut counters);
            last_ip = ip;
            node = transition.next;
            left = after;
            tip_count += 1;
            tip_bytes += length as u64;
            if RETC && transition.stack_effect != 0 {
                let (effect, pushes) = effects.decode_stack_effect(transition.stack_effect);
                apply_call_pushes(stack, effect.peak, pushes);
                if effect.pops {
                    stack.drop_top();
                }
            }
        } else {
            let length = if R::IS_ORDERED {
                cursor.decode_timing_packet::<true>(left, offset, max_log, log)
            } else {
                cursor.decode_timing_packet::<false>(left, offset, max_log, log)
            };
            if length == 0 {
                break StopReason::NotHandled;
            }
            left = &left[length..];
        }
    };
    counters.close();
    cursor.offset = bytes.len() - left.len();
    cursor.node = node;
    cursor.last_ip = last_ip;
    cursor.pending_tnt = pending;
    cursor.tip_count += tip_count;
    cursor.non_tnt_bytes += tip_bytes;
    reason
}

/// Pushes the calls of a transition that are still open at its end.
///
/// `peak`: how many were open at once. Calls nested deeper than 64 push the oldest entries off the stack even if all of
/// them return within the transition.
#[inline(always)]
pub(super) fn apply_call_pushes(stack: &mut ReturnStack, peak: u8, pushes: CallSitePushes<'_>) {
    stack.make_room(peak);
    match pushes {
        CallSitePushes::None => {}
        CallSitePushes::One(site) => stack.push_call_site(site),
        CallSitePushes::Many(sites) => sites.iter().for_each(|&site| stack.push_call_site(site)),
    }
}

// Parsing of the packets that the loop handles. Each function gives up where the packet scanner would have to look
// closer: long CYCs, and packets that may have swallowed the start of a PSB. The interpreter then decodes the packet.

pub(super) const TIP: u8 = header_byte_of_packet(Kind::Tip);
pub(super) const TIP_MASK: u8 = header_mask_of_packet(Kind::Tip);
pub(super) const CYC: u8 = header_byte_of_packet(Kind::Cyc);
pub(super) const CYC_MASK: u8 = header_mask_of_packet(Kind::Cyc);
pub(super) const MTC: u8 = header_byte_of_packet(Kind::Mtc);
/// Exp bit in the first byte of a CYC: another byte follows.
const CYC_EXP: u8 = 4;
/// Within a CYC these bytes may be an OVF packet (erratum SKD007).
const OVF: [u8; 2] = [
    Kind::Ovf.declaration().header[0],
    Kind::Ovf.declaration().header[1],
];
/// PAD and the escape byte are even, too; all larger even bytes are short TNTs.
const MAX_NOT_TNT: u8 = 2;

const fn header_byte_of_packet(kind: Kind) -> u8 {
    kind.declaration().header[0]
}

const fn header_mask_of_packet(kind: Kind) -> u8 {
    kind.declaration().mask[0]
}

/// IP compression of a TIP, by IPBytes (Table 33-17).
#[derive(Clone, Copy)]
struct IpCompression {
    /// Bits of LastIP that the payload replaces.
    replaced: u64,
    /// Length of the packet in bytes; 0 without an IP, for a reserved value, and for the full IP.
    length: usize,
}

const IP_COMPRESSIONS: [IpCompression; 8] = ip_compressions();
const REPLACED: [u64; 8] = [
    0,
    0xffff,
    0xffff_ffff,
    // 48 bits, sign-extended
    u64::MAX,
    0xffff_ffff_ffff,
    0,
    u64::MAX,
    0,
];
/// IPBytes of an IP of eight bytes.
const FULL_IP: usize = 6;

const fn ip_compressions() -> [IpCompression; 8] {
    let mut ip_compressions = [IpCompression {
        replaced: 0,
        length: 0,
    }; 8];
    let mut i = 0;
    while i < 8 {
        if let Some(size) = IP_PAYLOAD[i] {
            if size > 0 && i != FULL_IP {
                ip_compressions[i].replaced = REPLACED[i];
                ip_compressions[i].length = size as usize + 1;
            }
        }
        i += 1;
    }
    ip_compressions
}

/// Whether a packet with this first byte is a short TNT.
#[inline(always)]
pub(super) fn is_short_tnt(first: u8) -> bool {
    first & 1 == 0 && first > MAX_NOT_TNT
}

/// Returns the length of the TIP at the start of `bytes`, the bits of LastIP that it replaces, and its IP. The slice
/// must be longer than any TIP. The length is masked to 15, so that the compiler can drop bounds checks.
#[inline(always)]
pub(super) fn parse_tip(bytes: &[u8], last_ip: u64) -> Option<(usize, u64, u64)> {
    let word = u64::from_le_bytes(*bytes.first_chunk()?);
    let IpCompression { replaced, length } = IP_COMPRESSIONS[(word >> 5 & 7) as usize];
    if length == 0 {
        return parse_full_tip(bytes);
    }
    // Sign-extends 48 bits; `replaced` selects the bits of a shorter payload.
    let payload = ((word << 8) as i64 >> 16) as u64;
    let ip = last_ip ^ (last_ip ^ payload) & replaced;
    Some((length & 15, replaced, ip))
}

/// As `tip`, for an IP of eight bytes.
#[cold]
fn parse_full_tip(bytes: &[u8]) -> Option<(usize, u64, u64)> {
    let (&first, payload) = bytes.split_first()?;
    let ip = u64::from_le_bytes(*payload.first_chunk()?);
    (usize::from(first >> 5) == FULL_IP).then_some((1 + 8, REPLACED[FULL_IP], ip))
}

/// Returns cycles and length of the CYC at the start of `bytes`. `None` if it has more than three bytes, may contain
/// an OVF, or may have swallowed the start of a PSB.
#[inline(always)]
pub(super) fn parse_short_cyc(bytes: &[u8]) -> Option<(u64, usize)> {
    let [first, second, third] = *bytes.first_chunk()?;
    let mut count = u64::from(first >> 3);
    if first & CYC_EXP == 0 {
        return Some((count, 1));
    }
    if [second, third] == OVF {
        return None;
    }
    count |= u64::from(second >> 1) << 5;
    let mut length = 2;
    if second & 1 != 0 {
        if third & 1 != 0 {
            return None;
        }
        count |= u64::from(third >> 1) << 12;
        length = 3;
    }
    (!may_continue_as_psb(&bytes[length..])).then_some((count, length))
}

/// Whether `bytes` may be the rest of a PSB that the packet before them has swallowed the start of.
#[inline(always)]
pub(super) fn may_continue_as_psb(bytes: &[u8]) -> bool {
    let [first, second] = [PSB[0], PSB[1]];
    matches!(bytes.first_chunk(), Some(&pair) if pair == [first, second] || pair == [second, first])
}
