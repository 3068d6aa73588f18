"""Data that software or the PMU adds to the trace: PTWRITE, and PEBS records as packet blocks
(sections 33.2.2, 33.4.1.1, 33.4.2.21, 33.4.2.26 to 33.4.2.28).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rtit.errors import UndefinedOpcode
from rtit.packets import encoder, item_name
from rtit.unit.control_flow_packets import emit_fup, flush_tnt
from rtit.unit.core import Unit
from rtit.unit.enables import linear_address
from rtit.unit.illegal_events import require, require_addresses
from rtit.unit.stream import commit, write_packets
from rtit.unit.timing_packets import advance_to_cycle, emit_cyc_if_due

_PTW = encoder("PTW")


_PAYLOAD_BYTES = {4: 0, 8: 1}


def ptwrite(unit: Unit, ip: int, next_ip: int, value: int, size: int = 8) -> None:
    """Execute PTWRITE at `ip` with an operand of `size` bytes, 4 or 8.

    Raises UndefinedOpcode where CPUID.(14H,0):EBX[4] is 0; IllegalEvent for another size, or a
    value that does not fit it.
    """
    if not unit.profile.ptwrite:
        raise UndefinedOpcode("PTWRITE is not supported: CPUID.(14H,0):EBX[4] is 0")
    require(
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
    """A PEBS record of the event at `ip`: items by BBP type (Table 33-45).

    `four_bytes`: only the low half of each value is sent. `clocks` says for a type when, in
    retired instructions, its block begins: timing packets can lie in a block. Groups come in
    the order of Parameters.pebs_block_order; results and the like go before them, PSB after
    (Table 33-15). In an overflow the rest of the record is lost. IllegalEvent for a type or
    ID that is reserved, and for clocks that go back.
    """
    blocks = {kind: tuple(items) for kind, items in groups.items()}
    for kind, items in blocks.items():
        for number, _ in items:
            named = item_name(kind, number) is not None
            require(named, f"a block of type {kind:#x} has no item {number:#x}")
    order = unit.parameters.pebs_block_order
    require(set(blocks) <= set(order), f"a PEBS record has no blocks of types {sorted(blocks)}")
    clocks = clocks or {}
    begins = [clocks[kind] * unit.time.cpi for kind in order if kind in clocks]
    now = [unit.state.cycle, *begins]
    require(sorted(now) == now, "a block of a PEBS record begins before what precedes it")
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
            # A buffer with a bound takes a block item by item, and may overflow in it. What
            # follows is dropped then: an overflow resolves between events only.
            if unit.has_bounded_buffer:
                write_packets(unit)
            unit.emit(_BIP(number, size, value & mask))
    if unit.has_bounded_buffer:
        write_packets(unit)
    unit.emit(_BEP(int(unit.state.context_en)))
    if unit.state.context_en:
        emit_fup(unit, linear_address(unit, ip))
