"""What a processor may do at any time, on request: PSB+, CYC, PAD, MNT, lost MTCs, overflow
(sections 33.3.6, 33.3.8, 33.4.2.12, 33.4.2.17, 33.4.2.19 and 33.4.2.20).

With TriggerEn=0 none of it does anything.
"""

from __future__ import annotations

from rtit.packets import encode, encoder
from rtit.unit import generator, overflow, timing
from rtit.unit.control import Control

_PAD = encode("PAD")
_MNT = encoder("MNT")


class Hints(Control):
    """Requests to the unit; no event of a program asks for them."""

    __slots__ = ()

    def insert_psb(self) -> None:
        """An extra PSB+."""
        if self.state.trigger_en and self.state.overflow is None:
            self._insert_psb()

    def insert_cyc(self) -> None:
        """A stand-alone CYC, if CYCEn and past the threshold."""
        if self.state.cycle >= self.state.cyc_due:
            generator.flush_tnt(self)
            timing.cyc(self)
            self.commit()

    def pad(self, count: int = 1) -> None:
        """`count` PADs."""
        self._insert(_PAD * count)

    def mnt(self, payload: int) -> None:
        """An MNT with a payload of 64 bits."""
        self._insert(_MNT(payload))

    def drop_mtc(self, count: int = 1) -> None:
        """The next `count` MTCs get lost."""
        self.state.mtc_drop = count

    def begin_overflow(self) -> None:
        """The internal buffers are full: what waits and what follows is lost."""
        if self.state.trigger_en and self.state.overflow is None:
            overflow.begin(self)

    def end_overflow(self, ip: int | None = None) -> None:
        """An overflow, if there is one, resolves; the next instruction is that at `ip`."""
        if ip is not None:
            self.state.ip = self.address(ip)
        self._resolve_overflow()

    def _insert(self, packet: bytes) -> None:
        if self.state.trigger_en:
            generator.flush_tnt(self)
            self.put(packet)
            self.commit()
