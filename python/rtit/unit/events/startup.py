"""INIT, SIPI, shutdown (Table 33-50; Table 33-55 rows 22 to 24)."""

from __future__ import annotations

from dataclasses import replace

from rtit.unit.core import Unit
from rtit.unit.enables import conditions, steering
from rtit.unit.events import event_trace, transfers
from rtit.unit.events.event_trace import Cfe, Report
from rtit.unit.packets import generator, stream, timing
from rtit.unit.refusal import addresses, require, require_no_transaction
from rtit.unit.state.arch import Arch
from rtit.unit.system import enclave


def init_wait(unit: Unit, ip: int) -> None:
    """INIT on an application processor, before the instruction at `ip`: it waits for SIPI.

    FUP without TIP: there is no target. PacketEn counts as 0 while it waits, without TIP.PGD
    unless the context is left.
    """
    addresses(ip)
    require_no_transaction(unit.state.arch, "INIT")
    state = unit.state
    before, source = enclave.left_by_event(unit, ip), steering.address(unit, ip)
    state.arch = replace(Arch.reset(), wait_for_sipi=True)
    if not state.trigger_en:
        return
    was, was_context = state.packet_en, state.context_en
    state.context_en = conditions.context_en(unit.configuration, state.arch)
    steering.settle(unit)
    paging = before.cr3 != 0 and state.context_en and unit.configuration.os
    generator.flush_tnt(unit)
    if paging or (was and not state.context_en):
        timing.eligible(unit)
    event_trace.send(
        unit,
        Report(Cfe.INIT),
        before=was_context,
        after=state.context_en,
        ip=source,
        branch_fup=was,
    )
    if was:
        generator.fup(unit, source)
    if paging:
        generator.pip(unit)
    if was and not state.context_en:
        generator.pgd(unit, None)
    state.ret_stack.clear()
    stream.commit(unit)


def sipi(unit: Unit, vector: int) -> None:
    """SIPI: goes on in real mode at `vector` (0 to 255) x 4096.

    IllegalEvent for another vector, and unless the processor waits for SIPI.
    """
    require(0 <= vector <= 255, f"a SIPI vector is 0 to 255, not {vector}")
    require(unit.state.arch.wait_for_sipi, "a SIPI comes to a processor that waits for none")
    arch = replace(Arch.reset(), cs_base=vector << 12)
    transfers.transfer(unit, 0, arch, report=Report(Cfe.SIPI, vector))


def shutdown(unit: Unit, ip: int) -> None:
    """The processor shuts down; the instruction at `ip` has not completed.

    It sleeps then: see `power.sleep`.
    """
    addresses(ip)
    state = unit.state
    event_trace.send(
        unit,
        Report(Cfe.SHUTDOWN),
        before=state.context_en,
        after=state.context_en,
        ip=steering.address(unit, ip),
        branch_fup=False,
    )
    stream.commit(unit)
