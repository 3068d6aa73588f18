"""Events of a processor that optional features of its trace unit tell of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rtit.unit import TraceUnit
from rtit.unit.enables import steering
from rtit.unit.events import power
from rtit.unit.events.blocks import Items
from rtit.unit.events.event_trace import Cfe, Report
from rtit.unit.events.power import C0, C1
from rtit.unit.refusal import require


class Instrumentation:
    """Transactions, PTWRITE, power, PEBS, task switches that fail."""

    __slots__ = ()
    unit: TraceUnit

    # Transactions (section 33.2.9.1)

    def begin_transaction(self, ip: int, next_ip: int) -> None:
        """XBEGIN or XACQUIRE lock at `ip`, executed transactionally; nested: nothing to tell."""
        if self.unit.state.arch.in_tx:
            self.unit.state.ip = steering.address(self.unit, next_ip)
        else:
            self.unit.begin_transaction(ip, next_ip)

    def end_transaction(self, ip: int, next_ip: int, *, outermost: bool = True) -> None:
        """XEND or XRELEASE lock at `ip`, which commits if it is the outermost one.

        IllegalEvent outside a transaction.
        """
        if outermost:
            self.unit.commit_transaction(ip, next_ip)
        else:
            require(self.unit.state.arch.in_tx, "no transaction is under way")
            self.unit.state.ip = steering.address(self.unit, next_ip)

    def abort_transaction(self, ip: int, target: int) -> None:
        """XABORT at `ip`, or another cause of an abort before it; goes on at `target`.

        IllegalEvent outside a transaction.
        """
        self.unit.abort_transaction(ip, target)

    # PTWRITE (section 33.2.2)

    def ptwrite(self, ip: int, next_ip: int, value: int, size: int = 8) -> None:
        """PTWRITE at `ip` of 4 or 8 bytes. Raises UndefinedOpcode where there is none."""
        self.unit.ptwrite(ip, next_ip, value, size)

    # Power (section 33.2.3)

    def mwait(
        self, ip: int, next_ip: int, hints: int, extensions: int = 0, *, entered: bool = True
    ) -> None:
        """MWAIT at `ip`, or an I/O read that becomes one; `hints` is EAX, `extensions` ECX.

        `entered` False: it does not sleep, since the monitor is not armed, a virtual interrupt is
        delivered, or because of a fault or VM exit.
        """
        if entered:
            asked = hints & 0xFF, extensions & 3
            self.unit.sleep(ip, hints >> 4 & 15, hints & 15, mwait=asked)
        self.unit.state.ip = steering.address(self.unit, next_ip)

    def umwait(self, ip: int, next_ip: int, register: int, *, entered: bool = True) -> None:
        """UMWAIT or TPAUSE at `ip`; bit 0 of `register` asks for C0.1, else C0.2."""
        if entered:
            sub_state = 1 if register & 1 else 2
            self.unit.sleep(ip, C0, sub_state, mwait=(0, register & 3))
        self.unit.state.ip = steering.address(self.unit, next_ip)

    def halt(self, ip: int, next_ip: int) -> None:
        """HLT at `ip`: C1. IllegalEvent if it sleeps."""
        power.require_awake(self.unit, "HLT is executed by a processor")
        self.unit.sleep(ip, C1)
        self.unit.state.ip = steering.address(self.unit, next_ip)

    def shutdown(self, ip: int) -> None:
        """Shutdown, as after a triple fault, with `ip` not completed: C1."""
        self.unit.shutdown(ip)
        self.unit.sleep(ip, C1)

    def duty_cycle(self, ip: int, state: int, *, ticks: int = 0) -> None:
        """Hardware duty cycling puts the core to sleep before `ip`, and wakes it."""
        self.unit.sleep(ip, state, hardware=True)
        self.unit.wake(last=state, deepest=state, reason=8, ticks=ticks)

    def resolve_deeper(self, state: int, sub_state: int = 0) -> None:
        """The sleeping thread goes to another C-state. IllegalEvent unless it sleeps."""
        sleeps = self.unit.state.asleep or self.unit.state.dozing
        require(sleeps, "a C-state resolves to another, but the processor does not sleep")
        self.unit.sleep(self.unit.state.ip, state, sub_state)

    def wake(self, *, last: int, deepest: int, reason: int = 1, ticks: int = 0) -> None:
        """Back to C0; see `TraceUnit.wake`."""
        self.unit.wake(last=last, deepest=deepest, reason=reason, ticks=ticks)

    def stop_clocks(self, ip: int, *, ticks: int = 0, ratio: int | None = None) -> None:
        """TM1, TM2, STPCLK# or a frequency change stops execution; see `TraceUnit.stop_clocks`."""
        self.unit.stop_clocks(ip, ticks=ticks, ratio=ratio)

    def change_frequency(self, ratio: int) -> None:
        """A frequency change that stops nothing."""
        self.unit.change_frequency(ratio)

    # PEBS (section 33.4.2.26)

    def pebs(
        self,
        ip: int,
        groups: Mapping[int, Items],
        *,
        four_bytes: bool = False,
        clocks: Mapping[int, int] | None = None,
        output: bool = True,
    ) -> None:
        """A PEBS record of the event at `ip`; see `TraceUnit.pebs`.

        `output` False: IA32_PEBS_ENABLE selects no output to the trace.
        """
        if output:
            self.unit.pebs(ip, groups, four_bytes=four_bytes, clocks=clocks)

    # Task switches that fail (section 33.4.2.6)

    def task_switch_fault(self, ip: int, handler: int, *, vector: int = 10, **changes: Any) -> None:
        """A task switch that began at `ip` faults after it has committed: FUP has `ip`.

        The stack has the new task's IP, which no packet tells. `changes` are what the new task and
        the handler have changed, CR3 for one.
        """
        self.unit.transfer(
            handler,
            replace(self.unit.state.arch, **changes),
            event_ip=ip,
            report=Report(Cfe.INTR, vector),
        )
