"""Near branches: direct, indirect, CALL and RET (sections 33.2.1.1, 33.2.1.2 and 33.4.2.1 to
33.4.2.5).

These are nearly all events of a trace, so each begins with the case that nothing but its own packet
can happen (State.plain). The other case is the whole rule, and gives the same packets.
"""

from __future__ import annotations

from rtit.unit import generator, timing
from rtit.unit.compression import returns_to
from rtit.unit.control import Control


class Branches(Control):
    """The near branches as events. All addresses are effective IPs.

    `ip` is the branch's own address; no packet carries it.
    """

    __slots__ = ()

    def conditional(self, ip: int, next_ip: int, target: int, taken: bool) -> None:
        """Jcc, J*CXZ, LOOP*: one TNT result."""
        state = self.state
        if state.plain:
            tnt = state.tnt
            timed = tnt == 1 and state.cycle >= state.cyc_due
            if timed:
                timing.cyc(self)
            if taken:
                state.ip = target
                state.tnt = tnt = tnt << 1 | 1
            else:
                state.ip = next_ip
                state.tnt = tnt = tnt << 1
            if tnt >= self.tnt_full:
                generator.flush_tnt(self)
                self.commit()
            elif timed:
                self.commit()
            return
        if not taken:
            state.ip = self.address(next_ip)
            if state.packet_en:
                self._result(0)
            elif not state.filter_en:
                self._fall()
        elif self._lands(target, conditional=True):
            self._result(1)

    def retire(self, next_ip: int) -> None:
        """Instructions that change nothing have brought the processor to `next_ip`."""
        state = self.state
        state.ip = self.address(next_ip)
        if not state.filter_en:
            self._fall()

    def jump(self, ip: int, target: int) -> None:
        """A direct JMP: the code tells where it goes."""
        if self.state.plain:
            self.state.ip = target
        elif self._lands(target, direct=True):
            self.commit()

    def call(self, ip: int, next_ip: int, target: int) -> None:
        """A direct CALL; with displacement 0 (`target` is `next_ip`) no RET is expected."""
        state = self.state
        if state.plain:
            state.ip = target
            if target != next_ip:
                state.ret_stack.append(next_ip)
        elif self._lands(target, direct=True):
            if target != next_ip:
                state.ret_stack.append(self.address(next_ip))
            self.commit()

    def indirect_jump(self, ip: int, target: int) -> None:
        """An indirect JMP: TIP."""
        state = self.state
        if state.plain:
            state.ip = target
            self._indirect(target)
        elif self._lands(target):
            self._indirect(state.ip)

    def indirect_call(self, ip: int, next_ip: int, target: int) -> None:
        """An indirect CALL: TIP."""
        state = self.state
        if state.plain:
            state.ip = target
            state.ret_stack.append(next_ip)
            self._indirect(target)
        elif self._lands(target):
            state.ret_stack.append(self.address(next_ip))
            self._indirect(state.ip)

    def ret(self, ip: int, target: int, operand_size: int | None = None) -> None:
        """A near RET: a taken result if the CALL that it belongs to is known to the decoder, else
        TIP.

        `operand_size` in bits, None for the width of the code. The call stack is popped either way.
        """
        state = self.state
        if state.plain:
            state.ip = target
        elif not self._lands(target):
            return
        if state.ret_stack:
            expected = state.ret_stack.pop()
            to = state.ip
            if expected == to or returns_to(expected, to, operand_size or state.arch.bits):
                self._result(1)
                return
        self._tip(state.ip)

    def _fall(self) -> None:
        """Sequential execution outside the ranges has reached State.ip, perhaps inside one.

        With Parameters.filter_sequential `at_boundary` that sets FilterEn.
        """
        state, ranges = self.state, self.configuration.ranges
        if self.parameters.filter_sequential == "never" or not ranges.filter:
            return
        if state.trigger_en and state.context_en and ranges.filter_en(state.ip):
            state.filter_en = True
            self._settle()
            if state.packet_en:
                timing.eligible(self)
                generator.pge(self, state.ip)
                self.commit()

    def _lands(self, target: int, *, conditional: bool = False, direct: bool = False) -> bool:
        """A taken branch ends at `target`; it is `conditional`, `direct`, or indirect.

        True if its own packet follows: PacketEn is and was 1. Otherwise TIP.PGE, TIP.PGD and
        TraceStop have been sent, as far as due.
        """
        state, configuration = self.state, self.configuration
        state.ip = target = self.address(target)
        if not state.trigger_en or not state.context_en:
            return False
        was = state.packet_en
        if not configuration.ranges.used:
            return was
        stops = self.steer(target)
        if was and state.packet_en:
            return True
        if was:
            # With erratum SKL014 the IP of a direct branch is missing as well.
            hidden = conditional or (direct and "SKL014" in self.errata)
            hidden |= stops and self.parameters.tracestop_pgd_ip == "suppressed"
            generator.flush_tnt(self)
            timing.eligible(self)
            generator.pgd(self, None if hidden else target)
        elif state.packet_en:
            timing.eligible(self)
            generator.pge(self, target)
        if stops:
            self.trace_stop()
        self.commit()
        return False

    def _result(self, taken: int) -> None:
        """One more result for the TNT buffer."""
        state = self.state
        if not self.configuration.dis_tnt:
            if state.tnt == 1:
                timing.eligible(self)
            state.tnt = state.tnt << 1 | taken
            if state.tnt >= self.tnt_full:
                generator.flush_tnt(self)
        self.commit()

    def _indirect(self, target: int) -> None:
        """The TIP of an indirect JMP or CALL, which may be deferred."""
        if self.defers:
            generator.defer_tip(self, target)
        else:
            generator.flush_tnt(self)
            timing.eligible(self)
            generator.tip(self, target)
        self.commit()

    def _tip(self, target: int) -> None:
        """The TIP of a RET, which forces out what is deferred."""
        generator.flush_tnt(self)
        timing.eligible(self)
        generator.tip(self, target)
        self.commit()
