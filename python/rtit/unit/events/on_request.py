"""Events that a processor may produce at any time: extra PSB+, CYC, PAD, MNT, lost MTCs, overflow
(sections 33.3.6, 33.3.8, 33.4.2.12, 33.4.2.17, 33.4.2.19 and 33.4.2.20).

With TriggerEn=0 they have no effect.
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
    require(count >= 0, f"there are {count} PADs")
    _insert_packet(unit, _PAD * count)


def mnt(unit: Unit, payload: int) -> None:
    """Insert an MNT with a 64-bit payload."""
    require_bits("the payload of MNT", payload, 64)
    _insert_packet(unit, _MNT(payload))


def drop_mtc(unit: Unit, count: int = 1) -> None:
    """Lose the next `count` MTCs."""
    require(count >= 0, f"{count} MTCs get lost")
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
