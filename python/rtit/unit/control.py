"""The unit's registers: enabling, disabling, reset, snapshots.

Sections 33.2.8.3 (TraceEn), 33.2.8.4 (STATUS), 33.3.4 (reset).
"""

from __future__ import annotations

from dataclasses import dataclass

from rtit.registers import CTL, STATUS, Msr, RegisterFile, rdmsr, wrmsr
from rtit.unit import enables, generator, overflow, timing
from rtit.unit.announce import Reports, announce
from rtit.unit.compression import NO_LAST_IP, new_ret_stack
from rtit.unit.last_branches import NO_BRANCHES
from rtit.unit.output import OutputState
from rtit.unit.pmi import CLEARABLE, IA32_PERF_GLOBAL_STATUS, IA32_PERF_GLOBAL_STATUS_RESET
from rtit.unit.state import NEVER, State
from rtit.unit.stream import Stream
from rtit.unit.time_model import TimeModel

_TRACE_EN = CTL["TraceEn"].mask


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A unit between two events, by value; what lies in memory is no part of it."""

    state: State
    registers: RegisterFile
    output: OutputState
    time: TimeModel


class Control(Stream):
    """A trace unit without the events that it traces: MSRs, and what TraceEn starts and ends."""

    __slots__ = ()

    # Registers

    def rdmsr(self, msr: int) -> int:
        """The value of an MSR, 64 bits. Raises GeneralProtection for one that is not there."""
        if msr == IA32_PERF_GLOBAL_STATUS:
            return self.state.global_status
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
            state.global_status &= ~(value & CLEARABLE)
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
        self.drain()
        self.put, self.state.overflow = self.packets.extend, None
        self.state.overflow_until = NEVER
        self._trigger_off()
        self._output_off()
        if cold or not self.profile.ip_filtering:
            self.registers.reset_cold()
            self._take_status()
            self.state.context_en = self.state.filter_en = False
            self.state.global_status = 0
        else:
            self.registers.reset_warm(self.profile)
        state = self.state
        state.host = state.smram = state.executive = state.acm_trace_en = None
        state.asleep, state.dozing, state.ssa = False, False, ()
        state.xss, state.last_branches = 0, NO_BRANCHES

    def _publish(self) -> None:
        """Bring the registers that the unit writes up to date."""
        state, registers = self.state, self.registers
        count = state.packet_byte_count & 0x1FFFF if self.profile.psb_cyc else 0
        registers.status = STATUS.encode(
            FilterEn=state.filter_en,
            ContextEn=state.context_en,
            TriggerEn=state.trigger_en,
            Error=state.error and state.cycle >= state.error_shown,
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
        result = self.output.enable(self.registers)
        if result.error is not None and not state.error:
            state.error_shown = state.cycle + self.parameters.error_latency
        self._output_result(result)
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
            or "enable" in self.parameters.psb_extra
        )
        if with_psb and self.parameters.psb_on_enable_order == "after_pge":
            self._start_packets(stops, reports)
            self._put_psb()
        else:
            packet_en, state.packet_en = state.packet_en, False
            if with_psb:
                # With the erratum PSB+ tells what holds only after the TIP.PGE behind it. Decoders
                # skip its FUP, so that TIP.PGE is not compressed against it.
                state.packet_en = packet_en and "BDM70" in self.errata
                self._put_psb()
                if state.packet_en:
                    state.last_ip = NO_LAST_IP
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
        cut = state.overflow is not None and "APL11" in self.errata
        if state.overflow is not None:
            state.ip = ip
            self._resolve_overflow(ends=cut)
        if cut and state.trigger_en and state.packet_en:
            # With the erratum the end of the trace follows OVF at once.
            generator.pgd(self, None)
            self._trigger_off()
        elif state.trigger_en:
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
        self.drain()
        self._output_off()
        if self.profile.lbr_exclusive:
            state.last_branches = state.last_branches.cleared()
        if self.parameters.clear_enables_on_disable:
            state.context_en = state.filter_en = False

    def _output_off(self) -> None:
        if self.state.pmi_left is not None:
            self._pmi()
        self.state.error_shown = 0
        if self.output.state.enabled:
            self.output.disable()
            self.registers.output_base, self.registers.output_mask_ptrs = self.output.msrs()
