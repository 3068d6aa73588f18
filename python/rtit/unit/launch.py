"""GETSEC[SENTER] and [ENTERACCS], and authenticated code modules (section 33.2.9.6)."""

from __future__ import annotations

from rtit.unit import enables, generator, timing
from rtit.unit.refusal import require
from rtit.unit.trace_en import TRACE_EN, TraceEnEvents


class Launch(TraceEnEvents):
    """Measured launch as events."""

    __slots__ = ()

    def getsec(self, ip: int, next_ip: int) -> None:
        """GETSEC[SENTER] or GETSEC[ENTERACCS] at `ip`: TraceEn is cleared and stays so.

        Parameters.senter_drop says whether what is buffered, and the end of the trace, is lost.
        """
        self._lose(ip)
        self.state.ip = self.address(next_ip)

    def senter_sleep(self, ip: int) -> None:
        """This processor answers another one's SENTER before the instruction at `ip`, and sleeps.

        Its TraceEn is cleared as that of the other.
        """
        self._lose(ip)

    def acm_begin(self, ip: int) -> None:
        """An authenticated code module is set up: TraceEn is cleared, nothing tells it.

        Raises IllegalEvent if one is running already.
        """
        state = self.state
        require(state.acm_trace_en is None, "an authenticated code module starts in another")
        self._publish()
        state.acm_trace_en = self.registers.trace_en
        state.ip = self.address(ip)
        if self.registers.trace_en:
            self._resolve_overflow()
            generator.flush_tnt(self)
            self.commit()
            self.drain()
            self._off()

    def acm_end(self, target: int) -> None:
        """The module ends, code goes on at `target`: TraceEn is what it was, without TIP.PGE.

        TSC, TMA and CBR follow if Parameters.acm_timing_packets. Raises IllegalEvent if none runs.
        """
        state = self.state
        trace_en = state.acm_trace_en
        require(trace_en is not None, "an authenticated code module ends, but none has started")
        state.acm_trace_en = None
        state.ip = self.address(target)
        if trace_en:
            self._publish()
            self.registers.ctl |= TRACE_EN
            self._on()

    def _lose(self, ip: int) -> None:
        self._publish()
        if not self.registers.trace_en:
            return
        if self.parameters.senter_drop == "keep":
            self._clear_trace_en(ip)
        else:
            self._off()

    def _on(self) -> None:
        """Trace again where the stream was left: what the decoder knows still holds."""
        state = self.state
        self._configure()
        self._output_result(self.output.enable(self.registers))
        state.trigger_en = enables.trigger_en(
            trace_en=True, stopped=state.stopped, error=state.error
        )
        if not state.trigger_en:
            return
        state.level_cycle = state.cycle
        timing.start(self)
        self.steer(state.ip)
        if self.parameters.acm_timing_packets:
            timing.timestamp(self)
            timing.cbr(self)
        self.commit()
