"""The enables of section 33.2.6, computed literally from the events of a processor."""

from __future__ import annotations

from typing import Any

from rtit.processor import Processor
from rtit.registers import CTL, Msr

TARGETS = {
    **dict.fromkeys(("jump", "indirect_jump", "ret", "far", "syscall", "iret"), 1),
    **dict.fromkeys(("interrupt", "exception", "abort_transaction", "eenter", "eexit"), 1),
    **dict.fromkeys(("vm_entry", "vm_exit", "smm_vm_exit", "smm_vm_entry"), 1),
    **dict.fromkeys(("call", "indirect_call", "aex"), 2),
    "resume": 0,
}
"""Events with a target address, and the position of that argument."""

MATCH = 0x5000
"""IA32_RTIT_CR3_MATCH."""

Range = tuple[int, int]
"""First and last address."""


class Watched:
    """A processor whose events are observed.

    `triggered`, `context` and `inside` are TriggerEn, ContextEn and FilterEn. `cut`: the end of the
    trace is lost, because output stopped or failed (possible if it `ends`), or after SENTER.
    `active`: cycles of each period with TriggerEn=1.
    """

    def __init__(
        self,
        cpu: Processor,
        ctl: dict[str, int],
        filters: list[Range],
        stops: list[Range],
        *,
        ends: bool,
    ) -> None:
        self.processor, self.ctl = cpu, ctl
        self.filters, self.stops = filters, stops
        self.triggered = self.context = self.inside = False
        self.stopped = self.cut = False
        self.ends = ends
        self.active: list[int] = []
        self.started = 0
        self.kept: list[bool] = []

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.processor, name)
        watch = getattr(Watched, f"_{name}", None)
        if watch is None and name not in TARGETS:
            return found

        def event(*plain: Any, **named: Any) -> Any:
            was = self.processor.unit.registers.trace_en
            result = found(*plain, **named)
            if watch is not None:
                watch(self, was, *plain, **named)
            else:
                self.land(plain[TARGETS[name]])
            self.look()
            return result

        return event

    @property
    def visible(self) -> bool:
        """Return whether an instruction that begins now is traced."""
        return self.triggered and self.context and self.inside

    def look(self) -> None:
        """Read the state of the output, which is not predicted."""
        status, output = self.processor.unit.state, self.processor.unit.output.state
        # Also at the end of the trace, when internal buffers are flushed.
        ended = (status.stopped and output.stopped) or (status.error and output.error)
        if self.ends and ended:
            self.cut = True
            self.trigger(on=False)

    def trigger(self, *, on: bool) -> None:
        now = self.processor.unit.state.cycle
        if self.triggered and not on:
            self.active.append(now - self.started)
        elif on and not self.triggered:
            self.started = now
        self.triggered = on

    def begin(self, ip: int) -> None:
        """TraceEn is set, with the current registers."""
        if self.stopped or self.cut:
            return
        self.trigger(on=True)
        self.inside = not self.filters
        self.land(ip)

    def allowed(self) -> bool:
        """Return ContextEn."""
        arch, ctl = self.processor.arch, self.ctl
        level = ctl["OS"] if arch.privilege == 0 else ctl["User"]
        matches = not ctl.get("CR3Filter") or arch.cr3 >> 12 == MATCH >> 12
        return bool(level) and matches and not arch.opted_out_enclave

    def land(self, ip: int) -> None:
        """Update the enables after a branch or event to `ip`."""
        if not self.triggered:
            return
        self.context = self.allowed()
        if self.context:
            hit = any(first <= ip <= last for first, last in self.stops)
            self.inside = not self.filters or any(a <= ip <= b for a, b in self.filters)
            if hit:
                self.stopped = True
                self.trigger(on=False)

    def _conditional(self, was: bool, ip: int, next_ip: int, target: int, taken: bool) -> None:
        if taken:
            self.land(target)

    def _mov_cr3(self, was: bool, ip: int, next_ip: int, value: int) -> None:
        before = self.context
        if self.allowed() and not before:
            self.land(next_ip)
        elif self.triggered:
            self.context = self.allowed()

    def _set_msr(self, was: bool, msr: int, value: int, **where: int) -> None:
        if msr == Msr.STATUS:
            self.stopped = self.cut = False
        if msr != Msr.CTL:
            return
        on = bool(value & CTL["TraceEn"].mask)
        if on and not was:
            self.begin(where["next_ip"])
        elif was and not on:
            self.trigger(on=False)

    def _suspend(self, was: bool, *_: Any, **named: Any) -> None:
        self.kept.append(was)
        self.trigger(on=False)

    _smi = _xsaves = _acm_begin = _suspend

    def _getsec(self, was: bool, *_: int) -> None:
        self.cut |= was
        self.trigger(on=False)

    def _resume_at(self, was: bool, ip: int, *_: Any) -> None:
        if self.kept.pop():
            self.begin(ip)

    _xrstors = _acm_end = _resume_at

    def _rsm(self, was: bool) -> None:
        if self.kept.pop():
            self.begin(self.processor.ip)
