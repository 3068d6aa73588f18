"""The packet stream: the packets of an event go to the output, and a PSB+ comes by byte count.

Sections 33.2.6 (the enables that an event changes), 33.2.7.2 (ToPA PMI), 33.3.3 (flush), 33.3.10
(errors), 33.4.2.17 (PSB).
"""

from __future__ import annotations

from collections.abc import Callable

from rtit.errors import IllegalEvent
from rtit.registers import Profile, RegisterFile
from rtit.unit import enables, generator, overflow, pmi, psb, timing
from rtit.unit.core import Core
from rtit.unit.memory import Memory
from rtit.unit.output import OK, Output, OutputResult
from rtit.unit.parameters import Parameters
from rtit.unit.time_model import TimeModel


class Stream(Core):
    """What every event ends in. `on_pmi`, if set, is called for each ToPA PMI."""

    __slots__ = ("on_pmi", "output", "registers")

    def __init__(
        self,
        profile: Profile,
        memory: Memory,
        time: TimeModel,
        parameters: Parameters,
        fabric: Callable[[bytes], None] | None = None,
    ) -> None:
        super().__init__(profile, time, parameters)
        self.registers = RegisterFile()
        self.output = Output(
            memory,
            profile=profile,
            fabric=fabric,
            follow=parameters.topa_follow,
            pmi_margin=parameters.topa_pmi_margin,
            smrr_policy=parameters.smrr_policy,
            cache=parameters.topa_cache,
        )
        self.on_pmi: Callable[[], None] | None = None

    # Time

    def at(self, clock: int) -> None:
        """`clock` instructions have retired by now. IllegalEvent if that is fewer than before."""
        state = self.state
        cycle = clock * self.time.cpi
        if cycle < state.cycle:
            raise IllegalEvent(
                f"the clock went back to {clock}, it was {state.cycle / self.time.cpi}"
            )
        if cycle < state.due:
            state.cycle = cycle
            return
        timing.catch_up(self, cycle)
        # Between two events the current IP is not known: a PSB+ that tells it waits for the next.
        if state.packet_en:
            self.write()
        else:
            self.commit()

    def flush(self) -> None:
        """Send what waits in the TNT buffer, as clearing TraceEn does (33.3.3, 33.4.2.1)."""
        generator.flush_tnt(self)
        self.write()

    # What the events use

    def address(self, ip: int) -> int:
        """An effective IP of the present code as packets and ranges have it (section 33.3.1.1)."""
        if self.state.arch.linear_base and self.profile.lip:
            return self.state.arch.linear(ip)
        return ip

    def steer(self, ip: int) -> bool:
        """Set the enables for a branch or event that lands at `ip`; True if it meets TraceStop."""
        state, configuration = self.state, self.configuration
        state.context_en = enables.context_en(configuration, state.arch)
        stops = False
        if state.context_en:
            stops = configuration.ranges.stops(ip)
            state.filter_en = not stops and configuration.ranges.filter_en(ip)
        self._settle()
        return stops

    def trace_stop(self) -> None:
        """The TraceStop action (section 33.4.2.9); `steer` has cleared FilterEn."""
        timing.last_cyc(self)
        generator.trace_stop(self)
        overflow.stopped(self)
        self.state.stopped = True
        self._trigger_off()

    def commit(self) -> None:
        """An event is over: write its packets, and a PSB+ if the byte count says so."""
        if self.packets:
            self.write()
        elif self.state.overflow is not None:
            if self.state.cycle < self.state.overflow_until:
                return
            self._resolve_overflow()
        if self.state.packet_byte_count >= self.configuration.psb_period:
            self._psb_due()

    def write(self, *, drained: bool = False) -> None:
        """Hand the packets to the output, shaped by Parameters.pad_align and held_bytes.

        `drained`: they have been through that, and through the internal buffer.
        """
        data = bytes(self.packets)
        if not data:
            return
        self.packets.clear()
        if not drained:
            if self.bounded and not overflow.has_room(self, len(data)):
                overflow.begin(self, until=overflow.drained_at(self))
                return
            if self.shapes:
                data = self._shaped(data)
        state = self.state
        waits = state.pmi_left is not None
        result = self.output.write(data)
        state.packet_byte_count += len(data)
        if result is not OK:
            state.packet_byte_count -= result.lost
            self._output_result(result)
        if waits and pmi.passed(self, len(data)):
            self._pmi()
        if state.packet_byte_count >= self.configuration.psb_period:
            state.plain = False

    def drain(self) -> None:
        """What internal buffers hold goes to the output (section 33.3.3)."""
        held, self.state.held = self.state.held, b""
        if held and self.output.state.enabled:
            self.packets += held
            self.write(drained=True)

    def _shaped(self, data: bytes) -> bytes:
        """`data` with PADs behind it, and what is held before it instead of its own end."""
        data = self.state.held + data + bytes(-len(data) % self.parameters.pad_align)
        kept = max(0, len(data) - self.parameters.held_bytes)
        self.state.held = data[kept:]
        return data[:kept]

    def _resolve_overflow(self, *, ends: bool = False) -> None:
        """The overflow is over; State.ip is the next instruction, unless tracing `ends` with it."""
        if self.state.overflow is None:
            return
        if overflow.resolve(self, ends=ends):
            self._put_psb()
        self.write()
        self._settle()

    def _settle(self) -> None:
        state, configuration = self.state, self.configuration
        state.packet_en = enables.packet_en(state, configuration)
        state.plain = enables.is_plain(state, configuration)

    def _trigger_off(self) -> None:
        state = self.state
        state.trigger_en = state.packet_en = state.plain = False
        generator.forget(self)
        timing.stop(self)

    def _output_result(self, result: OutputResult) -> None:
        if result.stopped:
            self.state.stopped = True
        if result.error is not None:
            self.state.error = True
        ended = result.stopped or result.error is not None
        if ended:
            self.packets.clear()
            self.state.held = b""
            self._trigger_off()
        # The handler of a PMI finds Stopped set (section 33.2.7.2).
        if result.pmi and self.parameters.pmi_skid and not ended:
            pmi.pend(self)
        elif result.pmi or (ended and self.state.pmi_left is not None):
            self._pmi()

    def _pmi(self) -> None:
        pmi.signal(self)
        if self.on_pmi is not None:
            self.on_pmi()

    # PSB

    def _psb_due(self) -> None:
        state, configuration = self.state, self.configuration
        if configuration.inject:
            state.pend_psb = True
        if not state.trigger_en:
            return
        if state.packet_byte_count >= configuration.psb_period + self.parameters.psb_delay:
            state.packet_byte_count %= configuration.psb_period
            self._insert_psb()
            self._settle()

    def extra_psb(self, event: str) -> None:
        """The PSB+ that Parameters.psb_extra puts after an `event`."""
        state = self.state
        if event in self.parameters.psb_extra and state.trigger_en and state.overflow is None:
            self._insert_psb()

    def _insert_psb(self) -> None:
        self._put_psb()
        self.write()

    def _put_psb(self) -> None:
        size = psb.insert(self)
        self.state.pend_psb = False
        if not self.parameters.psb_counts_itself:
            self.state.packet_byte_count -= size
