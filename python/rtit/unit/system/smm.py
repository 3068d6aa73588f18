"""System management mode: SMI and RSM (sections 33.2.9.3 and 33.8.1).

This is the default treatment; with an STM they are VM exits and entries.
"""

from __future__ import annotations

from dataclasses import replace

from rtit.unit.core import Unit
from rtit.unit.enables import steering, trace_en
from rtit.unit.events import power
from rtit.unit.events.event_trace import Cfe, Report, Reports
from rtit.unit.refusal import Shutdown, addresses, require, require_no_transaction, within
from rtit.unit.state.arch import Arch
from rtit.unit.state.saved import Smram
from rtit.unit.system import enclave

SMI_ENTRY = 0x8000
"""Offset of the handler in SMRAM."""


def smi(unit: Unit, ip: int, smbase: int = 0x3_0000, *, aep: int | None = None) -> None:
    """SMI before the instruction at `ip`: SMRAM takes TraceEn, which is cleared.

    The handler starts in 16-bit code at `smbase` + 8000H. CR3 changes without PIP. An enclave is
    left by an asynchronous exit: SMRAM takes `aep`, the address outside; without it RSM has to say
    where code goes on. Raises IllegalEvent in SMM, where SMI is blocked, while an STM takes SMIs,
    in a transaction that it has not aborted, and for a processor that sleeps or waits for SIPI.
    """
    state = unit.state
    arch = state.arch
    require(not arch.in_smm, "an SMI comes in SMM, where SMIs are blocked")
    require(arch.stm is None, "with an STM an SMI is an SMM VM exit")
    require(not arch.wait_for_sipi, "an SMI comes to a processor that waits for SIPI")
    power.require_awake(unit, "an SMI comes to a processor")
    require_no_transaction(arch, "SMI")
    require(aep is None or arch.in_enclave, "an SMI has an `aep` in an enclave only")
    addresses(ip, aep)
    within("SMBASE", smbase, 32)
    returns_to = aep if arch.in_enclave else ip
    told = ip if aep is None else aep
    trace_en_was = unit.registers.trace_en
    trace_en.clear(unit, ip, ((Report(Cfe.SMI), steering.address(unit, told)),))
    saved = Smram(enclave.left_by_event(unit, ip), returns_to, trace_en_was, state.host)
    state.smram, state.host = saved, None
    steering.go(unit, SMI_ENTRY, replace(Arch.reset(), cs_base=smbase, in_smm=True))


def rsm(unit: Unit, target: int | None = None, arch: Arch | None = None) -> None:
    """RSM: back to what SMRAM holds, or to another `target` or `arch` that the handler put
    there.

    Raises IllegalEvent without a saved state, and without a `target` after an SMI that left an
    enclave and did not say its AEP; Shutdown if TraceEn is 1, or if it would be while LBR is on,
    where the two exclude each other (Parameters.rsm_with_lbr).
    """
    addresses(target)
    state = unit.state
    saved = state.smram
    if saved is None:
        require(False, "RSM is executed, but no SMI has saved a state")
        return
    target = saved.ip if target is None else target
    if target is None:
        require(False, "RSM needs a target: the SMI left an enclave and did not say its AEP")
        return
    if unit.registers.trace_en:
        raise Shutdown("RSM is executed with TraceEn=1")
    exclusive = unit.profile.lbr_exclusive and unit.parameters.rsm_with_lbr == "shutdown"
    if exclusive and saved.trace_en and state.last_branches.enabled:
        raise Shutdown("RSM enables both PT and LBR, which exclude each other")
    state.smram, state.host = None, saved.host
    steering.go(unit, target, saved.arch if arch is None else arch)
    if saved.trace_en:
        reports: Reports = ((Report(Cfe.RSM), None),)
        trace_en.set_again(unit, reports)
