"""Decoder synchronization: PSB+ (sections 33.3.7 and 33.4.2.17)."""

from __future__ import annotations

from collections.abc import Callable

from rtit.packets import encode
from rtit.unit.core import Unit
from rtit.unit.packets import generator, timing
from rtit.unit.packets.compression import NO_LAST_IP

_PAD = encode("PAD")
_PSB = encode("PSB")
_PSBEND = encode("PSBEND")


def insert(unit: Unit) -> int:
    """Put a PSB+ that tells the present state; returns its bytes.

    Everything that compression relies on is forgotten. Call it between two events only: State.ip,
    which its FUP carries, must be the next instruction to execute.
    """
    state = unit.state
    generator.flush_tnt(unit)
    content = [(name, send) for name, (applies, send) in _CONTENT.items() if applies(unit)]
    if any(name in _CYC_ELIGIBLE for name, _ in content):
        _cyc(unit)
    before = len(unit.packets)
    if unit.parameters.psb_guard_pad:
        unit.put(_PAD)
    unit.put(_PSB)
    state.last_ip = 0 if unit.parameters.compress_after_psb else NO_LAST_IP
    state.ret_stack.clear()
    unit.telling = unit.telling._replace(mode=None)
    order = unit.parameters.psb_plus_places
    for _, send in sorted(content, key=lambda item: order[item[0]]):
        send(unit)
    unit.put(_PSBEND)
    return len(unit.packets) - before


def _cyc(unit: Unit) -> None:
    """The CYC in front of PSB; with erratum SKL168 it gets lost, and the time that it tells."""
    before = len(unit.packets)
    timing.eligible(unit)
    if "SKL168" in unit.errata:
        del unit.packets[before:]


def _current_ip(unit: Unit) -> None:
    generator.fup(unit, unit.state.ip)


_Part = tuple[Callable[[Unit], bool], Callable[[Unit], None]]

# TMA is no entry of its own: it follows its TSC at once.
_CONTENT: dict[str, _Part] = {
    "TSC": (lambda unit: unit.configuration.tsc_en, timing.timestamp),
    "PIP": (lambda unit: unit.state.context_en and unit.configuration.os, generator.pip),
    "VMCS": (
        lambda unit: unit.state.context_en and unit.state.arch.shows_vmx,
        generator.vmcs,
    ),
    "CBR": (lambda unit: True, timing.cbr),
    "MODE.TSX": (
        lambda unit: unit.state.context_en and unit.configuration.branch_en,
        generator.mode_tsx,
    ),
    "MODE.Exec": (lambda unit: unit.state.packet_en, generator.mode_exec),
    "FUP": (lambda unit: unit.state.packet_en, _current_ip),
}
"""What PSB+ can hold: when it applies, and how it is sent."""

_CYC_ELIGIBLE = frozenset(("TSC", "PIP", "VMCS", "MODE.TSX", "MODE.Exec"))
