"""Measured launch (section 33.2.9.6)."""

from __future__ import annotations

from rtit.processor.core import Cpu


def getsec(cpu: Cpu, ip: int, next_ip: int) -> None:
    """GETSEC[SENTER] or GETSEC[ENTERACCS]."""
    cpu.unit.getsec(ip, next_ip)


def senter_sleep(cpu: Cpu, ip: int) -> None:
    """The SENTER sleep state of a responding processor."""
    cpu.unit.senter_sleep(ip)


def acm_begin(cpu: Cpu, ip: int) -> None:
    """An authenticated code module is set up."""
    cpu.unit.acm_begin(ip)


def acm_end(cpu: Cpu, target: int) -> None:
    """It has ended."""
    cpu.unit.acm_end(target)
