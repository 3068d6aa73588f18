"""Packets that do not report control flow.

Software and the PMU add data: PTWRITE, and PEBS records as packet blocks (sections 33.2.2,
33.4.1.1, 33.4.2.21, 33.4.2.26 to 33.4.2.28). A processor may at any time insert a PSB+, CYC, PAD or
MNT, lose an MTC, or overflow (sections 33.3.6, 33.3.8, 33.4.2.12, 33.4.2.17, 33.4.2.19 and
33.4.2.20). With TriggerEn=0 nothing is inserted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rtit.errors import UndefinedOpcode
from rtit.packets import encode, encoder, item_name
from rtit.unit import overflow
from rtit.unit.control_flow_packets import emit_fup, flush_tnt
from rtit.unit.core import Unit
from rtit.unit.enables import linear_address
from rtit.unit.illegal_events import require_addresses, require_bits, require_legal
from rtit.unit.packet_commit import commit, insert_psb_now, resolve_overflow, write_packets
from rtit.unit.timing_packets import advance_to_cycle, emit_cyc, emit_cyc_if_due

_PTW = encoder("PTW")
_PAYLOAD_BYTES = {4: 0, 8: 1}


def ptwrite(unit: Unit, ip: int, next_ip: int, value: int, size: int = 8) -> None:
    """Execute PTWRITE at `ip` with an operand of `size` bytes, 4 or 8.

    Raises UndefinedOpcode where CPUID.(14H,0):EBX[4] is 0; IllegalEvent for another size, or a
    value that does not fit it.
    """
    if not unit.profile.ptwrite:
        raise UndefinedOpcode("PTWRITE is not supported: CPUID.(14H,0):EBX[4] is 0")
    require_legal(
        size in _PAYLOAD_BYTES and not value >> 8 * size,
        f"PTWRITE has an operand of 4 or 8 bytes, not {value:#x} in {size}",
    )
    require_addresses(ip, next_ip)
    state, configuration = unit.state, unit.configuration
    source = linear_address(unit, ip)
    state.ip = linear_address(unit, next_ip)
    if not (configuration.ptw_en and state.trigger_en and state.context_en and state.filter_en):
        return
    flush_tnt(unit)
    emit_cyc_if_due(unit)
    unit.emit(_PTW(int(configuration.fup_on_ptw), _PAYLOAD_BYTES[size], value))
    if configuration.fup_on_ptw:
        emit_fup(unit, source)
    commit(unit)


_BBP = encoder("BBP")
_BIP = encoder("BIP")
_BEP = encoder("BEP")
BlockItems = Iterable[tuple[int, int]]
"""(ID of Table 33-47, value of 64 bits)."""


def pebs(
    unit: Unit,
    ip: int,
    groups: Mapping[int, BlockItems],
    *,
    four_bytes: bool = False,
    clocks: Mapping[int, int] | None = None,
) -> None:
    """Add a PEBS record of the event at `ip`: items by BBP type (Table 33-45).

    `four_bytes`: only the low half of each value is sent. `clocks` says for a type when, in
    retired instructions, its block begins: timing packets can lie in a block. Groups come in
    the order of Parameters.pebs_block_order; pending packets precede them, a PSB follows (Table
    33-15). An overflow loses the rest of the record. Raises IllegalEvent for a reserved type or
    ID, and for clocks that decrease.
    """
    blocks = {kind: tuple(items) for kind, items in groups.items()}
    for kind, items in blocks.items():
        for number, _ in items:
            named = item_name(kind, number) is not None
            require_legal(named, f"a block of type {kind:#x} has no item {number:#x}")
    order = unit.parameters.pebs_block_order
    require_legal(
        set(blocks) <= set(order), f"a PEBS record has no blocks of types {sorted(blocks)}"
    )
    clocks = clocks or {}
    begins = [clocks[kind] * unit.time.cpi for kind in order if kind in clocks]
    now = [unit.state.cycle, *begins]
    require_legal(sorted(now) == now, "a block of a PEBS record begins before what precedes it")
    require_addresses(ip)
    if unit.state.trigger_en:
        flush_tnt(unit)
        _emit_blocks(unit, ip, blocks, int(four_bytes), clocks)
        commit(unit)


def _emit_blocks(
    unit: Unit, ip: int, blocks: Mapping[int, BlockItems], size: int, clocks: Mapping[int, int]
) -> None:
    mask = 0xFFFF_FFFF if size else 0xFFFF_FFFF_FFFF_FFFF
    for kind in unit.parameters.pebs_block_order:
        if kind not in blocks:
            continue
        if kind in clocks:
            advance_to_cycle(unit, clocks[kind] * unit.time.cpi)
        unit.emit(_BBP(size, kind))
        for number, value in blocks[kind]:
            # A bounded buffer takes a block item by item, and may overflow within it. The rest
            # is dropped then: an overflow resolves only between events.
            if unit.has_bounded_buffer:
                write_packets(unit)
            unit.emit(_BIP(number, size, value & mask))
    if unit.has_bounded_buffer:
        write_packets(unit)
    unit.emit(_BEP(int(unit.state.context_en)))
    if unit.state.context_en:
        emit_fup(unit, linear_address(unit, ip))


_PAD = encode("PAD")
_MNT = encoder("MNT")


def insert_psb(unit: Unit) -> None:
    """Insert an extra PSB+."""
    if unit.state.trigger_en and unit.state.overflow is None:
        insert_psb_now(unit)


def insert_cyc(unit: Unit) -> None:
    """Insert a stand-alone CYC, if CYCEn=1 and the threshold has passed."""
    if unit.state.cycle >= unit.state.cyc_allowed_at:
        flush_tnt(unit)
        emit_cyc(unit)
        commit(unit)


def pad(unit: Unit, count: int = 1) -> None:
    """Insert `count` PADs."""
    require_legal(count >= 0, f"there are {count} PADs")
    _insert_packet(unit, _PAD * count)


def mnt(unit: Unit, payload: int) -> None:
    """Insert an MNT with a 64-bit payload."""
    require_bits("the payload of MNT", payload, 64)
    _insert_packet(unit, _MNT(payload))


def drop_mtc(unit: Unit, count: int = 1) -> None:
    """Lose the next `count` MTCs."""
    require_legal(count >= 0, f"{count} MTCs get lost")
    unit.state.mtcs_to_drop = count


def begin_overflow(unit: Unit) -> None:
    """Start an overflow: the internal buffers are full."""
    if unit.state.trigger_en and unit.state.overflow is None:
        overflow.start_overflow(unit)


def end_overflow(unit: Unit, ip: int | None = None) -> None:
    """Resolve the overflow, if there is one. The instruction at `ip` is next."""
    require_addresses(ip)
    if ip is not None:
        unit.state.ip = linear_address(unit, ip)
    resolve_overflow(unit)


def _insert_packet(unit: Unit, packet: bytes) -> None:
    if unit.state.trigger_en:
        flush_tnt(unit)
        unit.emit(packet)
        commit(unit)
