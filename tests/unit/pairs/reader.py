"""A reader of packets for random programs with address filters."""

from __future__ import annotations

from rtit.packets import Packet
from unit.world.program import TIPS, WITH_FUP
from unit.world.reader import Reader


class FilterReader(Reader):
    """Follows branches that leave a range, and packets from outside of one."""

    def take(self, packet: Packet) -> None:
        super().take(packet)
        if packet.name == "TIP.PGE":
            self.aborts = False

    def fup(self, ip: int) -> None:
        if self.ip is None and self.alone:
            # Outside the ranges: PTW, power, blocks and event trace still have one.
            self.alone = False
            return
        super().fup(ip)

    def arrive(self, name: str, ip: int | None) -> None:
        if name != "TIP.PGD" or self.event:
            super().arrive(name, ip)
            return
        ends = TIPS | WITH_FUP
        if ip is None:
            self.walk(lambda at, kind: kind in {"conditional", "cr3"} | ends)
        else:
            self.walk(
                lambda at, kind: (
                    kind in ends or (kind in ("jump", "call") and self.program[at][1] == ip)
                )
            )
        self.branch()
        self.aborts = self.alone = False
        self.ip = None
        self.calls.clear()
