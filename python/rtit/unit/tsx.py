"""Transactions: MODE.TSX (sections 33.2.9.1, 33.2.9.2 and 33.4.2.8, Table 33-10).

Packets of instructions inside a transaction are sent as these complete, whatever becomes of it.
HLE and RTM look the same.
"""

from __future__ import annotations

from dataclasses import replace

from rtit.unit import generator, timing
from rtit.unit.refusal import require
from rtit.unit.transfers import Transfers


class Transactions(Transfers):
    """Changes of InTX. Nested begins and ends that are not the outermost are no events."""

    __slots__ = ()

    def begin_transaction(self, ip: int, next_ip: int) -> None:
        """The XBEGIN or XACQUIRE lock at `ip` begins a transaction. IllegalEvent inside one."""
        self._change(ip, next_ip, in_tx=True)

    def commit_transaction(self, ip: int, next_ip: int) -> None:
        """The outermost XEND or XRELEASE lock, at `ip`, commits. IllegalEvent outside."""
        self._change(ip, next_ip, in_tx=False)

    def abort_transaction(self, ip: int, target: int) -> None:
        """XABORT at `ip`, or anything else before it, aborts. IllegalEvent outside a transaction.

        `target` is the fallback handler (RTM) or the XACQUIRE lock (HLE).
        """
        state, source = self.state, self.address(ip)
        self._set(in_tx=False)
        state.ip = target = self.address(target)
        if not state.trigger_en:
            return
        was = state.packet_en
        stops = self.steer(target)
        if self._mode_tsx(aborted=True) and was:
            generator.fup(self, source)
        self._arrive(was, target, stops)

    def _change(self, ip: int, next_ip: int, *, in_tx: bool) -> None:
        source = self.address(ip)
        self._set(in_tx=in_tx)
        self.state.ip = self.address(next_ip)
        if self._mode_tsx():
            if self.state.packet_en:
                generator.fup(self, source)
            self.commit()

    def _set(self, *, in_tx: bool) -> None:
        arch = self.state.arch
        under_way = "a transaction" if in_tx else "no transaction"
        require(arch.in_tx != in_tx, f"{under_way} is under way")
        self.state.arch = replace(arch, in_tx=in_tx)

    def _mode_tsx(self, *, aborted: bool = False) -> bool:
        """MODE.TSX, if due: FilterEn does not matter."""
        state = self.state
        if not (state.trigger_en and state.context_en and self.configuration.branch_en):
            return False
        generator.flush_tnt(self)
        timing.eligible(self)
        generator.mode_tsx(self, aborted=aborted)
        return True
