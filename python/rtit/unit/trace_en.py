"""Operations other than WRMSR that clear or set TraceEn, and MSR-load areas (33.2.8.1, 33.5.2)."""

from __future__ import annotations

from rtit.errors import GeneralProtection
from rtit.registers import CTL, Msr, wrmsr
from rtit.unit.announce import Reports
from rtit.unit.arch import Arch
from rtit.unit.state import NEVER
from rtit.unit.transfers import Transfers

TRACE_EN = CTL["TraceEn"].mask

Loads = tuple[tuple[int, int], ...]
"""(MSR, value) in order; PT MSRs only."""


class TraceEnEvents(Transfers):
    """What SMI, RSM, VM entry, VM exit and the like have in common."""

    __slots__ = ()

    def _clear_trace_en(self, ip: int, reports: Reports = ()) -> None:
        """TraceEn, if set, is cleared by the processor: FUP(`ip`) and TIP.PGD() where due."""
        self._publish()
        if self.registers.trace_en:
            self.registers.ctl &= ~TRACE_EN
            self._disable(self.address(ip), reports)

    def _set_trace_en(self, reports: Reports = ()) -> None:
        """TraceEn is set again by the processor, with the registers as they stand."""
        self._publish()
        if not self.registers.trace_en:
            self.registers.ctl |= TRACE_EN
            self._enable(reports)

    def _off(self) -> None:
        """TraceEn is cleared without a packet; what internal buffers hold is lost."""
        state = self.state
        self.registers.ctl &= ~TRACE_EN
        state.held = b""
        self.put, state.overflow, state.overflow_until = self.packets.extend, None, NEVER
        self._trigger_off()
        self._output_off()
        state.level = 0

    def _load_silently(self, loads: Loads) -> None:
        """`loads`, which are legal, for a processor that shuts down: nothing is sent."""
        for msr, value in loads:
            if msr == Msr.CTL and self.registers.trace_en and not value & TRACE_EN:
                self._off()
            wrmsr(self.registers, msr, value, profile=self.profile, vmx=True)
            if msr == Msr.STATUS:
                self._take_status()

    def _go(self, target: int, arch: Arch) -> None:
        """The processor is in another context; nothing is sent."""
        self.state.arch = arch
        self.state.ip = self.address(target)

    def _rehearse(self, loads: Loads) -> tuple[int, bool]:
        """How many of `loads` succeed, and whether they end what is being traced; no effect."""
        self._publish()
        registers = self.registers.copy()
        ends = False
        for number, (msr, value) in enumerate(loads):
            traced = registers.trace_en
            try:
                wrmsr(registers, msr, value, profile=self.profile, vmx=True)
            except GeneralProtection:
                return number, ends
            ends |= traced and not registers.trace_en
        return len(loads), ends

    def _switch(
        self,
        ip: int,
        target: int,
        arch: Arch,
        loads: Loads,
        *,
        leaving: Reports,
        arriving: Reports,
        fup: bool = True,
    ) -> None:
        """Go to another context while `loads`, which are legal, clear or set TraceEn.

        What is traced ends in the old context, at `ip`; what begins does so in the new one, at
        `target`. `leaving` is told at the end, `arriving` at a beginning that has no end before it.
        """
        arrived = False
        for msr, value in loads:
            ends = msr == Msr.CTL and self.registers.trace_en and not value & TRACE_EN
            if ends and not arrived:
                self._write_msr(msr, value, ip=ip, reports=leaving, fup=fup)
                arriving = ()
            elif not self.registers.trace_en and not arrived:
                self._go(target, arch)
                arrived = True
            if not ends or arrived:
                self._write_msr(msr, value, reports=arriving)
                if self.registers.trace_en:
                    arriving = ()
        if not arrived:
            self._go(target, arch)
