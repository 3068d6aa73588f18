"""What a processor may do at any time, on request: PSB+, CYC, PAD, MNT, lost MTCs, overflow
(sections 33.3.6, 33.3.8, 33.4.2.12, 33.4.2.17, 33.4.2.19 and 33.4.2.20).

With TriggerEn=0 none of it does anything.
"""

from __future__ import annotations

from rtit.packets import encode, encoder
from rtit.unit import overflow
from rtit.unit.control_flow_packets import flush_tnt
from rtit.unit.core import Unit
from rtit.unit.enables import linear_address
from rtit.unit.illegal_events import require, require_addresses, require_bits
from rtit.unit.stream import commit, insert_psb_now, resolve_overflow
from rtit.unit.timing_packets import emit_cyc

_PAD = encode("PAD")


_MNT = encoder("MNT")


def insert_psb(unit: Unit) -> None:
    """An extra PSB+."""
    if unit.state.trigger_en and unit.state.overflow is None:
        insert_psb_now(unit)


def insert_cyc(unit: Unit) -> None:
    """A stand-alone CYC, if CYCEn and past the threshold."""
    if unit.state.cycle >= unit.state.cyc_allowed_at:
        flush_tnt(unit)
        emit_cyc(unit)
        commit(unit)


def pad(unit: Unit, count: int = 1) -> None:
    """`count` PADs."""
    require(count >= 0, f"there are {count} PADs")
    _insert_packet(unit, _PAD * count)


def mnt(unit: Unit, payload: int) -> None:
    """An MNT with a payload of 64 bits."""
    require_bits("the payload of MNT", payload, 64)
    _insert_packet(unit, _MNT(payload))


def drop_mtc(unit: Unit, count: int = 1) -> None:
    """The next `count` MTCs get lost."""
    require(count >= 0, f"{count} MTCs get lost")
    unit.state.mtcs_to_drop = count


def begin_overflow(unit: Unit) -> None:
    """The internal buffers are full: what waits and what follows is lost."""
    if unit.state.trigger_en and unit.state.overflow is None:
        overflow.start_overflow(unit)


def end_overflow(unit: Unit, ip: int | None = None) -> None:
    """An overflow, if there is one, resolves; the next instruction is that at `ip`."""
    require_addresses(ip)
    if ip is not None:
        unit.state.ip = linear_address(unit, ip)
    resolve_overflow(unit)


def _insert_packet(unit: Unit, packet: bytes) -> None:
    if unit.state.trigger_en:
        flush_tnt(unit)
        unit.emit(packet)
        commit(unit)
