"""The unit's registers and output: enabling, disabling, PSB by byte count, operational errors.

Sections 33.2.8.3 (TraceEn), 33.2.8.4 (STATUS), 33.3.3 (flush), 33.3.4 (reset), 33.3.10 (errors),
33.4.2.17 (PSB).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rtit.registers import CTL, STATUS, Msr, Profile, RegisterFile, rdmsr, wrmsr
from rtit.unit import enables, generator, overflow, psb, timing
from rtit.unit.announce import Reports, announce
from rtit.unit.compression import NO_LAST_IP, new_ret_stack
from rtit.unit.core import Core
from rtit.unit.last_branches import NO_BRANCHES
from rtit.unit.memory import Memory
from rtit.unit.output import OK, Output, OutputResult, OutputState
from rtit.unit.parameters import Parameters
from rtit.unit.state import NEVER, State
from rtit.unit.time_model import TimeModel

IA32_PERF_GLOBAL_STATUS = 0x38E
IA32_PERF_GLOBAL_STATUS_RESET = 0x390
TRACE_TOPA_PMI = 1 << 55
"""In both (section 33.2.7.2)."""

_TRACE_EN = CTL["TraceEn"].mask


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A unit between two events, by value; what lies in memory is no part of it."""

    state: State
    registers: RegisterFile
    output: OutputState
    time: TimeModel


class Control(Core):
    """A trace unit without the events that it traces.

    `on_pmi`, if set, is called for each ToPA PMI.
    """

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
        )
        self.on_pmi: Callable[[], None] | None = None

    # Registers

    def rdmsr(self, msr: int) -> int:
        """The value of an MSR, 64 bits. Raises GeneralProtection for one that is not there."""
        if msr == IA32_PERF_GLOBAL_STATUS:
            return TRACE_TOPA_PMI if self.state.global_status_topa_pmi else 0
        self._publish()
        return rdmsr(self.registers, msr, profile=self.profile)

    def wrmsr(
        self, msr: int, value: int, *, ip: int | None = None, next_ip: int | None = None
    ) -> None:
        """Write an MSR. Raises GeneralProtection, and then nothing has changed (section 33.2.8).

        `ip` and `next_ip` are those of the WRMSR: what FUP carries when it ends tracing, and
        TIP.PGE when it starts it; both default to the current IP.
        """
        state = self.state
        if msr == IA32_PERF_GLOBAL_STATUS_RESET:
            if value & TRACE_TOPA_PMI:
                state.global_status_topa_pmi = False
            return
        self._write_msr(msr, value, ip=ip, next_ip=next_ip)

    def _write_msr(
        self,
        msr: int,
        value: int,
        *,
        ip: int | None = None,
        next_ip: int | None = None,
        reports: Reports = (),
        fup: bool = True,
    ) -> None:
        """Write a PT MSR by an instruction or by an operation that loads it: the same rules hold.

        `reports` and `fup` (whether `ip` is told) matter for an operation that clears or sets
        TraceEn.
        """
        state = self.state
        self._publish()
        was = self.registers.trace_en
        vmx = state.arch.vmx != "off"
        wrmsr(self.registers, msr, value, profile=self.profile, vmx=vmx)
        if msr == Msr.CTL:
            if was and not value & _TRACE_EN:
                self._disable(state.ip if ip is None else self.address(ip), reports, fup=fup)
            if next_ip is not None:
                state.ip = self.address(next_ip)
            if not was and value & _TRACE_EN:
                self._enable(reports)
        elif msr == Msr.STATUS:
            self._take_status()

    @property
    def stopped(self) -> bool:
        """IA32_RTIT_STATUS.Stopped."""
        return self.state.stopped

    @property
    def error(self) -> bool:
        """IA32_RTIT_STATUS.Error; `output.state.error` says why."""
        return self.state.error

    def reset(self, *, cold: bool) -> None:
        """Power-on or warm RESET (section 33.3.4).

        Packets made so far go out; the end of the trace is not reported.
        """
        self.flush()
        self.put, self.state.overflow = self.packets.extend, None
        self.state.overflow_until = NEVER
        self._trigger_off()
        self._output_off()
        if cold or not self.profile.ip_filtering:
            self.registers.reset_cold()
            self._take_status()
            self.state.context_en = self.state.filter_en = False
            self.state.global_status_topa_pmi = False
        else:
            self.registers.reset_warm(self.profile)
        state = self.state
        state.host = state.smram = state.executive = state.acm_trace_en = None
        state.xss, state.last_branches = 0, NO_BRANCHES

    def _publish(self) -> None:
        """Bring the registers that the unit writes up to date."""
        state, registers = self.state, self.registers
        count = state.packet_byte_count & 0x1FFFF if self.profile.psb_cyc else 0
        registers.status = STATUS.encode(
            FilterEn=state.filter_en,
            ContextEn=state.context_en,
            TriggerEn=state.trigger_en,
            Error=state.error,
            Stopped=state.stopped,
            PendPSB=state.pend_psb,
            PendTopaPMI=state.pend_topa_pmi,
            PacketByteCnt=count,
        )
        if self.output.state.enabled:
            registers.output_base, registers.output_mask_ptrs = self.output.msrs()

    def _take_status(self) -> None:
        status, state = STATUS.decode(self.registers.status), self.state
        state.error = bool(status.Error)
        state.stopped = bool(status.Stopped)
        state.pend_psb = bool(status.PendPSB)
        state.pend_topa_pmi = bool(status.PendTopaPMI)
        state.packet_byte_count = status.PacketByteCnt

    # Snapshots

    def snapshot(self) -> Snapshot:
        """The unit as it is now, by value."""
        self._publish()
        return Snapshot(self.state.copy(), self.registers.copy(), self.output.snapshot(), self.time)

    def restore(self, snapshot: Snapshot) -> None:
        """Become what the snapshot says; the unit goes on exactly as the one it was taken from."""
        self.registers.restore(snapshot.registers)
        self.output.restore(snapshot.output)
        self.state.assign(snapshot.state)
        self.time = snapshot.time
        self.packets.clear()
        self.put = self.packets.extend if self.state.overflow is None else overflow.drop
        self._configure()

    # Time

    def at(self, clock: int) -> None:
        """`clock` instructions have retired by now. ValueError if that is fewer than before."""
        state = self.state
        cycle = clock * self.time.cpi
        if cycle < state.cycle:
            raise ValueError(
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

    def write(self) -> None:
        """Hand the packets to the output."""
        data = bytes(self.packets)
        if not data:
            return
        self.packets.clear()
        if self.bounded and not overflow.has_room(self, len(data)):
            overflow.begin(self, until=overflow.drained_at(self))
            return
        result = self.output.write(data)
        self.state.packet_byte_count += len(data)
        if result is not OK:
            self.state.packet_byte_count -= result.lost
            self._output_result(result)
        if self.state.packet_byte_count >= self.configuration.psb_period:
            self.state.plain = False

    def _resolve_overflow(self) -> None:
        """The overflow is over; State.ip is the next instruction."""
        if self.state.overflow is None:
            return
        if overflow.resolve(self):
            self._put_psb()
        self.write()
        self._settle()

    def _settle(self) -> None:
        state, configuration = self.state, self.configuration
        state.packet_en = enables.packet_en(state, configuration)
        state.plain = enables.is_plain(state, configuration)

    # TraceEn

    def _configure(self) -> None:
        self.configuration = enables.configuration_of(self.registers)
        counter = (1 << self.parameters.cyc_counter_bits) - 1
        self.cyc_limit = max(counter, self.configuration.cyc_gap)
        self.bounded = self.parameters.buffer_bytes > 0
        self.defers = self.parameters.deferred_tips > 0 and not self.configuration.cyc_en

    def _enable(self, reports: Reports = ()) -> None:
        self._configure()
        state, configuration = self.state, self.configuration
        state.level, state.level_cycle = 0, state.cycle
        depth = 0 if configuration.dis_retc else self.parameters.ret_compression_depth
        state.ret_stack = new_ret_stack(depth)
        # Software may have put another buffer or another thread's registers in place.
        state.last_ip = NO_LAST_IP
        state.mode_sent = None
        self._output_result(self.output.enable(self.registers))
        if configuration.inject and state.pend_topa_pmi:
            self._pmi()
        state.trigger_en = enables.trigger_en(
            trace_en=True, stopped=state.stopped, error=state.error
        )
        if not state.trigger_en:
            return
        state.filter_en = not configuration.ranges.filter
        timing.start(self)
        stops = self.steer(state.ip)
        with_psb = (
            state.packet_byte_count == 0
            or (configuration.inject and state.pend_psb)
            or not self.profile.psb_cyc
        )
        if with_psb and self.parameters.psb_on_enable_order == "after_pge":
            self._start_packets(stops, reports)
            self._put_psb()
        else:
            packet_en, state.packet_en = state.packet_en, False
            if with_psb:
                self._put_psb()
            else:
                if configuration.tsc_en:
                    timing.eligible(self)
                timing.timestamp(self)
                timing.cbr(self)
            state.packet_en = packet_en
            self._start_packets(stops, reports)
        self.commit()

    def _start_packets(self, stops: bool, reports: Reports) -> None:
        announce(self, reports, before=False, after=self.state.context_en, branch_fup=False)
        if stops:
            self.trace_stop()
        elif self.state.packet_en:
            timing.eligible(self)
            generator.pge(self, self.state.ip)

    def _disable(self, ip: int, reports: Reports = (), *, fup: bool = True) -> None:
        state = self.state
        state.level = 0
        if state.overflow is not None:
            state.ip = ip
            self._resolve_overflow()
        if state.trigger_en:
            was = state.packet_en
            generator.flush_tnt(self)
            if was:
                timing.eligible(self)
            announce(self, reports, before=state.context_en, after=False, branch_fup=was and fup)
            if was:
                if fup:
                    generator.fup(self, ip)
                generator.pgd(self, None)
            else:
                timing.last_cyc(self)
            self._trigger_off()
        self.commit()
        self._output_off()
        if self.profile.lbr_exclusive:
            state.last_branches = state.last_branches.cleared()
        if self.parameters.clear_enables_on_disable:
            state.context_en = state.filter_en = False

    def _trigger_off(self) -> None:
        state = self.state
        state.trigger_en = state.packet_en = state.plain = False
        generator.forget(self)
        timing.stop(self)

    def _output_off(self) -> None:
        if self.output.state.enabled:
            self.output.disable()
            self.registers.output_base, self.registers.output_mask_ptrs = self.output.msrs()

    def _output_result(self, result: OutputResult) -> None:
        if result.stopped:
            self.state.stopped = True
        if result.error is not None:
            self.state.error = True
        if result.stopped or result.error is not None:
            self.packets.clear()
            self._trigger_off()
        # The handler of a PMI finds Stopped set (section 33.2.7.2).
        if result.pmi:
            self._pmi()

    def _pmi(self) -> None:
        state = self.state
        state.pmis += 1
        state.global_status_topa_pmi = True
        if self.configuration.inject:
            state.pend_topa_pmi = True
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

    def _insert_psb(self) -> None:
        self._put_psb()
        self.write()

    def _put_psb(self) -> None:
        size = psb.insert(self)
        self.state.pend_psb = False
        if not self.parameters.psb_counts_itself:
            self.state.packet_byte_count -= size
