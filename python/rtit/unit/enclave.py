"""Enclaves: ENCLU[EENTER], [ERESUME], [EEXIT], and asynchronous exits (section 33.2.9.5)."""

from __future__ import annotations

from dataclasses import replace

from rtit.unit import event_trace
from rtit.unit.arch import Arch
from rtit.unit.event_trace import Cfe, Report
from rtit.unit.refusal import require
from rtit.unit.saved import Ssa
from rtit.unit.trace_en import TraceEnEvents


class Enclaves(TraceEnEvents):
    """SGX as events. An enclave is opted out of tracing unless it is a debug enclave that was
    entered with opt-in; opted out it forces ContextEn to 0.
    """

    __slots__ = ()

    def enclave_enter(self, ip: int, target: int, *, debug: bool, opt_in: bool) -> None:
        """EENTER at `ip`; the enclave runs from `target`.

        `opt_in` (TCS.FLAGS.DBGOPTIN) counts in a `debug` enclave only. Raises IllegalEvent in an
        enclave or outside CPL 3.
        """
        self._enter(ip, target, opted_out=not (debug and opt_in))

    def enclave_resume(self, ip: int, target: int | None = None) -> None:
        """ERESUME at `ip`: back to what the last asynchronous exit left, or to another `target`
        that the enclave put there since.

        Raises IllegalEvent in an enclave, outside CPL 3, and without such an exit.
        """
        state = self.state
        require(bool(state.ssa), "ERESUME is executed, but no asynchronous exit has saved a state")
        *rest, saved = state.ssa
        self._enter(ip, saved.ip if target is None else target, opted_out=saved.opted_out)
        state.ssa = tuple(rest)

    def _enter(self, ip: int, target: int, *, opted_out: bool) -> None:
        arch = self.state.arch
        require(not arch.in_enclave, "an enclave is entered from an enclave")
        require(arch.privilege == 3, f"an enclave is entered at CPL {arch.privilege}")
        source = None if opted_out and self.parameters.enclave_entry_fup == "tip_only" else ip
        arch = replace(arch, in_enclave=True, opted_out_enclave=opted_out)
        self.transfer(target, arch, event_ip=source)

    def enclave_exit(self, ip: int, target: int) -> None:
        """EEXIT at `ip`. Raises IllegalEvent outside an enclave."""
        self.transfer(target, self._outside(self.state.arch, "EEXIT"), event_ip=ip)

    def enclave_event(
        self,
        ip: int,
        aep: int,
        handler: int,
        arch: Arch,
        *,
        vector: int,
        cr2: int | None = None,
    ) -> None:
        """AEX or an enclave exiting event: an interrupt or exception leaves the enclave.

        `ip` is the instruction inside that has not completed, `aep` the address outside at which
        the handler returns; `arch` the state of the handler. BranchEn tells `ip` (Table 33-55 row
        17), event trace by itself `aep` (Table 33-59 row 19). Raises IllegalEvent outside an
        enclave.
        """
        left = self.state.arch
        arch = self._outside(arch, "an asynchronous exit")
        self.state.ssa += (Ssa(ip, left.opted_out_enclave),)
        report = Report(Cfe.INTR, vector) if cr2 is None else event_trace.page_fault(cr2)
        self.transfer(handler, arch, event_ip=ip, report=report, report_ip=aep)

    def _outside(self, arch: Arch, what: str) -> Arch:
        require(self.state.arch.in_enclave, f"{what} happens outside an enclave")
        return replace(arch, in_enclave=False, opted_out_enclave=False)
