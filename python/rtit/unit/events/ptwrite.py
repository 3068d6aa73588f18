"""PTWRITE (sections 33.2.2 and 33.4.2.21, the second of the tables of its kind in 33.7)."""

from __future__ import annotations

from rtit.errors import UndefinedOpcode
from rtit.packets import encoder
from rtit.unit.core import Unit
from rtit.unit.enables import steering
from rtit.unit.packets import generator, stream, timing
from rtit.unit.refusal import addresses, require

_PTW = encoder("PTW")


_PAYLOAD_BYTES = {4: 0, 8: 1}


def ptwrite(unit: Unit, ip: int, next_ip: int, value: int, size: int = 8) -> None:
    """PTWRITE at `ip` of an operand of `size` bytes, 4 or 8.

    Raises UndefinedOpcode where CPUID.(14H,0):EBX[4] is 0; IllegalEvent for another size or a
    value that does not fit it.
    """
    if not unit.profile.ptwrite:
        raise UndefinedOpcode("PTWRITE is not supported: CPUID.(14H,0):EBX[4] is 0")
    require(
        size in _PAYLOAD_BYTES and not value >> 8 * size,
        f"PTWRITE has an operand of 4 or 8 bytes, not {value:#x} in {size}",
    )
    addresses(ip, next_ip)
    state, configuration = unit.state, unit.configuration
    source = steering.address(unit, ip)
    state.ip = steering.address(unit, next_ip)
    if not (configuration.ptw_en and state.trigger_en and state.context_en and state.filter_en):
        return
    generator.flush_tnt(unit)
    timing.eligible(unit)
    unit.put(_PTW(int(configuration.fup_on_ptw), _PAYLOAD_BYTES[size], value))
    if configuration.fup_on_ptw:
        generator.fup(unit, source)
    stream.commit(unit)
