"""What VM entry and exit share with those of an STM (sections 33.5.2 and 33.6)."""

from __future__ import annotations

from rtit.unit.core import Unit
from rtit.unit.enables import steering
from rtit.unit.events import transfers
from rtit.unit.events.event_trace import announce
from rtit.unit.events.transfers import Transition
from rtit.unit.packets import generator, stream, timing
from rtit.unit.refusal import Shutdown, require, require_no_transaction
from rtit.unit.state.arch import Arch
from rtit.unit.system import msr_loads
from rtit.unit.system.msr_loads import Loads


def leave(
    unit: Unit,
    guest_ip: int,
    target: int,
    host: Arch,
    loads: Loads,
    transition: Transition,
    *,
    aborts: bool = False,
) -> None:
    """VM exit from the instruction at `guest_ip` to `target`. Raises Shutdown if it ends in VMX
    abort.

    It `aborts`, or one of `loads` is what WRMSR would refuse.
    """
    count, ends = msr_loads.rehearse(unit, loads)
    aborts |= count < len(loads)
    if aborts and unit.parameters.vmx_abort_drop == "tip":
        _abort(unit, guest_ip, target, host, loads[:count], transition)
    else:
        cross(unit, guest_ip, target, host, loads[:count], transition, ends=ends, source=guest_ip)
    if aborts:
        raise Shutdown("a VM exit ended in VMX abort")


def cross(
    unit: Unit,
    ip: int,
    target: int,
    arch: Arch,
    loads: Loads,
    transition: Transition,
    *,
    ends: bool,
    source: int | None = None,
) -> None:
    """Go to the other side; `source` is what FUP carries, None if the code tells where."""
    if unit.registers.trace_en and not ends:
        transfers.transfer(unit, target, arch, event_ip=source, transition=transition)
        return
    told = unit.parameters.vmentry_disable_fup or "SKD022" in unit.errata
    fup = source is not None or told
    arriving = tuple((report, None) for report, _ in transition.reports)
    msr_loads.switch(
        unit, ip, target, arch, loads, leaving=transition.reports, arriving=arriving, fup=fup
    )


def _abort(
    unit: Unit, guest_ip: int, target: int, host: Arch, loads: Loads, transition: Transition
) -> None:
    """FUP and PIP of a VM exit whose end is lost (33.5.2.6)."""
    state = unit.state
    source, was, was_context = steering.address(unit, guest_ip), state.packet_en, state.context_en
    steering.go(unit, target, host)
    if state.trigger_en:
        steering.steer(unit, state.ip)
        _abort_packets(unit, source, transition, was=was, was_context=was_context)
    msr_loads.load_silently(unit, loads)


def _abort_packets(
    unit: Unit, source: int, transition: Transition, *, was: bool, was_context: bool
) -> None:
    state = unit.state
    generator.flush_tnt(unit)
    timing.eligible(unit)
    announce(
        unit,
        transition.reports,
        before=was_context,
        after=state.context_en,
        branch_fup=was,
    )
    if was:
        generator.fup(unit, source)
    if transition.pip and state.context_en and unit.configuration.os:
        generator.pip(unit)
    stream.commit(unit)


def in_root(unit: Unit, what: str) -> Arch:
    """The present state. IllegalEvent unless it is VMX root operation at CPL 0."""
    arch = unit.state.arch
    require(arch.vmx == "root", f"{what} is executed outside VMX root operation")
    require(arch.privilege == 0, f"{what} is executed at CPL {arch.privilege}")
    require_no_transaction(arch, what)
    return arch
