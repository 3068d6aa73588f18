"""Decoder synchronization: PSB+ (sections 33.3.7 and 33.4.2.17)."""

from __future__ import annotations

from collections.abc import Callable

from rtit.packets import encode
from rtit.unit import generator, timing
from rtit.unit.compression import NO_LAST_IP
from rtit.unit.core import Core

_PAD = encode("PAD")
_PSB = encode("PSB")
_PSBEND = encode("PSBEND")


def insert(core: Core) -> int:
    """Put a PSB+ that tells the present state; returns its bytes.

    Everything that compression relies on is forgotten. Call it between two events only: State.ip,
    which its FUP carries, must be the next instruction to execute.
    """
    state = core.state
    generator.flush_tnt(core)
    content = [(name, send) for name, (applies, send) in _CONTENT.items() if applies(core)]
    if any(name in _CYC_ELIGIBLE for name, _ in content):
        _cyc(core)
    before = len(core.packets)
    if core.parameters.psb_guard_pad:
        core.put(_PAD)
    core.put(_PSB)
    state.last_ip = 0 if core.parameters.compress_after_psb else NO_LAST_IP
    state.ret_stack.clear()
    state.mode_sent = None
    order = core.parameters.psb_plus_places
    for _, send in sorted(content, key=lambda item: order[item[0]]):
        send(core)
    core.put(_PSBEND)
    return len(core.packets) - before


def _cyc(core: Core) -> None:
    """The CYC in front of PSB; with erratum SKL168 it gets lost, and the time that it tells."""
    before = len(core.packets)
    timing.eligible(core)
    if "SKL168" in core.errata:
        del core.packets[before:]


def _current_ip(core: Core) -> None:
    generator.fup(core, core.state.ip)


_Part = tuple[Callable[[Core], bool], Callable[[Core], None]]

# TMA is no entry of its own: it follows its TSC at once.
_CONTENT: dict[str, _Part] = {
    "TSC": (lambda core: core.configuration.tsc_en, timing.timestamp),
    "PIP": (lambda core: core.state.context_en and core.configuration.os, generator.pip),
    "VMCS": (
        lambda core: core.state.context_en and core.state.arch.shows_vmx,
        generator.vmcs,
    ),
    "CBR": (lambda core: True, timing.cbr),
    "MODE.TSX": (
        lambda core: core.state.context_en and core.configuration.branch_en,
        generator.mode_tsx,
    ),
    "MODE.Exec": (lambda core: core.state.packet_en, generator.mode_exec),
    "FUP": (lambda core: core.state.packet_en, _current_ip),
}
"""What PSB+ can hold: when it applies, and how it is sent."""

_CYC_ELIGIBLE = frozenset(("TSC", "PIP", "VMCS", "MODE.TSX", "MODE.Exec"))
