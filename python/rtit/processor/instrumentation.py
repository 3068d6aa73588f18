"""PTWRITE (section 33.2.2) and PEBS (section 33.4.2.26)."""

from __future__ import annotations

from collections.abc import Mapping

from rtit.processor.core import Cpu
from rtit.processor.sanity import require_instruction
from rtit.unit.events.instrumentation import BlockItems


def ptwrite(cpu: Cpu, ip: int, next_ip: int, value: int, size: int = 8) -> None:
    """PTWRITE at `ip` of 4 or 8 bytes. Raises UndefinedOpcode where there is none."""
    require_instruction(cpu, ip, next_ip)
    cpu.unit.ptwrite(ip, next_ip, value, size)


def pebs(
    cpu: Cpu,
    ip: int,
    groups: Mapping[int, BlockItems],
    *,
    four_bytes: bool = False,
    clocks: Mapping[int, int] | None = None,
    output: bool = True,
) -> None:
    """A PEBS record of the event at `ip`; see `TraceUnit.pebs`.

    `output` False: IA32_PEBS_ENABLE selects no output to the trace.
    """
    if output:
        cpu.unit.pebs(ip, groups, four_bytes=four_bytes, clocks=clocks)
