"""Packet blocks: PEBS records in the trace (sections 33.4.1.1 and 33.4.2.26 to 33.4.2.28)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rtit.packets import encoder, item_name
from rtit.unit.core import Unit
from rtit.unit.enables import steering
from rtit.unit.output import writing
from rtit.unit.packets import generator, stream, timing
from rtit.unit.refusal import addresses, require

_BBP = encoder("BBP")


_BIP = encoder("BIP")


_BEP = encoder("BEP")


Items = Iterable[tuple[int, int]]
"""(ID of Table 33-47, value of 64 bits)."""


def pebs(
    unit: Unit,
    ip: int,
    groups: Mapping[int, Items],
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
    addresses(ip)
    if unit.state.trigger_en:
        generator.flush_tnt(unit)
        _record(unit, ip, blocks, int(four_bytes), clocks)
        stream.commit(unit)


def _record(
    unit: Unit, ip: int, blocks: Mapping[int, Items], size: int, clocks: Mapping[int, int]
) -> None:
    mask = 0xFFFF_FFFF if size else 0xFFFF_FFFF_FFFF_FFFF
    for kind in unit.parameters.pebs_block_order:
        if kind not in blocks:
            continue
        if kind in clocks:
            timing.catch_up(unit, clocks[kind] * unit.time.cpi)
        unit.put(_BBP(size, kind))
        for number, value in blocks[kind]:
            # A buffer with a bound takes a block item by item, and may overflow in it. What
            # follows is dropped then: an overflow resolves between events only.
            if unit.bounded:
                writing.write(unit)
            unit.put(_BIP(number, size, value & mask))
    if unit.bounded:
        writing.write(unit)
    unit.put(_BEP(int(unit.state.context_en)))
    if unit.state.context_en:
        generator.fup(unit, steering.address(unit, ip))
