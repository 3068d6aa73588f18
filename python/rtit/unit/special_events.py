"""INIT, SIPI, shutdown, user interrupts (Table 33-50; Table 33-55 rows 22 to 24, 26, 27)."""

from __future__ import annotations

from dataclasses import replace

from rtit.unit import enables, event_trace, generator, timing
from rtit.unit.arch import Arch
from rtit.unit.event_trace import Cfe, Report
from rtit.unit.refusal import require
from rtit.unit.transfers import Transfers

UIRET_LENGTH = 4
"""Bytes of the instruction: F3 0F 01 EC."""


class SpecialEvents(Transfers):
    """Events that are no ordinary transfer."""

    __slots__ = ()

    def init_wait(self, ip: int) -> None:
        """INIT on an application processor, before the instruction at `ip`: it waits for SIPI.

        FUP without TIP: there is no target. PacketEn counts as 0 while it waits, without TIP.PGD
        unless the context is left.
        """
        state = self.state
        before, source = state.arch, self.address(ip)
        state.arch = replace(Arch.reset(), wait_for_sipi=True)
        if not state.trigger_en:
            return
        was, was_context = state.packet_en, state.context_en
        state.context_en = enables.context_en(self.configuration, state.arch)
        self._settle()
        paging = before.cr3 != 0 and state.context_en and self.configuration.os
        generator.flush_tnt(self)
        if paging or (was and not state.context_en):
            timing.eligible(self)
        event_trace.send(
            self,
            Report(Cfe.INIT),
            before=was_context,
            after=state.context_en,
            ip=source,
            branch_fup=was,
        )
        if was:
            generator.fup(self, source)
        if paging:
            generator.pip(self)
        if was and not state.context_en:
            generator.pgd(self, None)
        state.ret_stack.clear()
        self.commit()

    def sipi(self, vector: int) -> None:
        """SIPI: goes on in real mode at `vector` (0 to 255) x 4096.

        IllegalEvent for another vector, and unless the processor waits for SIPI.
        """
        require(0 <= vector <= 255, f"a SIPI vector is 0 to 255, not {vector}")
        require(self.state.arch.wait_for_sipi, "a SIPI comes to a processor that waits for none")
        arch = replace(Arch.reset(), cs_base=vector << 12)
        self.transfer(0, arch, report=Report(Cfe.SIPI, vector))

    def shutdown(self, ip: int) -> None:
        """The processor shuts down; the instruction at `ip` has not completed.

        It sleeps then: see `Power.sleep`.
        """
        state = self.state
        event_trace.send(
            self,
            Report(Cfe.SHUTDOWN),
            before=state.context_en,
            after=state.context_en,
            ip=self.address(ip),
            branch_fup=False,
        )
        self.commit()

    def user_interrupt(self, ip: int, handler: int, vector: int) -> None:
        """A user interrupt is delivered before the instruction at `ip`.

        Row 26 shows its FUP alone, from which nobody could tell where it goes:
        Parameters.uintr_literal.
        """
        if self._literal():
            self._stand_alone(ip, handler, Report(Cfe.UINTR, vector))
            return
        arch = self.state.arch
        self.transfer(handler, arch, event_ip=ip, report=Report(Cfe.UINTR, vector))

    def uiret(self, ip: int, target: int) -> None:
        """UIRET at `ip`; row 27 shows a FUP alone, and with its next IP."""
        if self._literal():
            self._stand_alone(ip + UIRET_LENGTH, target, Report(Cfe.UIRET))
            return
        self.transfer(target, self.state.arch, report=Report(Cfe.UIRET), report_ip=ip)

    def _literal(self) -> bool:
        return self.parameters.uintr_literal == "table" and self.state.packet_en

    def _stand_alone(self, ip: int, target: int, report: Report) -> None:
        generator.flush_tnt(self)
        source = self.address(ip)
        event_trace.send(self, report, before=True, after=True, ip=source, branch_fup=True)
        generator.fup(self, source)
        self.state.ip = self.address(target)
        self.commit()
