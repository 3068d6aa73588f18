"""Measured launch (section 33.2.9.6)."""

from __future__ import annotations

from rtit.processor.core import Cpu
from rtit.processor.sanity import require_cpl, require_here, require_instruction


def getsec(cpu: Cpu, ip: int, next_ip: int) -> None:
    """GETSEC[SENTER] or GETSEC[ENTERACCS], at CPL 0."""
    require_cpl(cpu, 0, "GETSEC")
    require_instruction(cpu, ip, next_ip)
    cpu.unit.getsec(ip, next_ip)


def senter_sleep(cpu: Cpu, ip: int) -> None:
    """The SENTER sleep state of a responding processor."""
    require_here(cpu, ip)
    cpu.unit.senter_sleep(ip)


def acm_begin(cpu: Cpu, ip: int) -> None:
    """An authenticated code module is set up."""
    cpu.unit.acm_begin(ip)


def acm_end(cpu: Cpu, target: int) -> None:
    """It has ended."""
    cpu.unit.acm_end(target)
