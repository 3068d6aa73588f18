"""What a processor may do at any time, on request: PSB+, CYC, PAD, MNT, lost MTCs, overflow
(sections 33.3.6, 33.3.8, 33.4.2.12, 33.4.2.17, 33.4.2.19 and 33.4.2.20).

With TriggerEn=0 none of it does anything.
"""

from __future__ import annotations

from rtit.packets import encode, encoder
from rtit.unit.core import Unit
from rtit.unit.enables import steering
from rtit.unit.packets import generator, overflow, stream, timing
from rtit.unit.refusal import addresses, require, within

_PAD = encode("PAD")


_MNT = encoder("MNT")


def insert_psb(unit: Unit) -> None:
    """An extra PSB+."""
    if unit.state.trigger_en and unit.state.overflow is None:
        stream.send_psb(unit)


def insert_cyc(unit: Unit) -> None:
    """A stand-alone CYC, if CYCEn and past the threshold."""
    if unit.state.cycle >= unit.state.cyc_due:
        generator.flush_tnt(unit)
        timing.cyc(unit)
        stream.commit(unit)


def pad(unit: Unit, count: int = 1) -> None:
    """`count` PADs."""
    require(count >= 0, f"there are {count} PADs")
    _insert(unit, _PAD * count)


def mnt(unit: Unit, payload: int) -> None:
    """An MNT with a payload of 64 bits."""
    within("the payload of MNT", payload, 64)
    _insert(unit, _MNT(payload))


def drop_mtc(unit: Unit, count: int = 1) -> None:
    """The next `count` MTCs get lost."""
    require(count >= 0, f"{count} MTCs get lost")
    unit.state.mtc_drop = count


def begin_overflow(unit: Unit) -> None:
    """The internal buffers are full: what waits and what follows is lost."""
    if unit.state.trigger_en and unit.state.overflow is None:
        overflow.begin(unit)


def end_overflow(unit: Unit, ip: int | None = None) -> None:
    """An overflow, if there is one, resolves; the next instruction is that at `ip`."""
    addresses(ip)
    if ip is not None:
        unit.state.ip = steering.address(unit, ip)
    stream.resolve_overflow(unit)


def _insert(unit: Unit, packet: bytes) -> None:
    if unit.state.trigger_en:
        generator.flush_tnt(unit)
        unit.put(packet)
        stream.commit(unit)
