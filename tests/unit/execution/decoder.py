"""From packets and a program to IPs, by the binding rules of section 33.4.2.

It shares nothing with the unit but the packet table.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from rtit.packets import Packet
from unit.execution.program import STEP, TRANSFERS, Program


class Decoder:
    """From packets and program to IPs. `marks` has len(path) at each PSB."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.ip: int | None = None
        self.last_ip = 0
        self.path: list[int] = []
        self.marks: list[int] = []
        self.calls: deque[int] = deque(maxlen=64)
        self.in_psb = self.event = False

    def feed(self, stream: list[Packet]) -> None:
        for packet in stream:
            fields: dict[str, Any] = dict(packet.fields)
            ip = self.address(fields) if "ip_bytes" in fields else None
            name = packet.name
            if name == "PSB":
                self.in_psb, self.last_ip = True, 0
                self.calls.clear()
            elif name == "PSBEND":
                self.in_psb = False
                self.marks.append(len(self.path))
            elif name.startswith("TNT"):
                for bit in fields["bits"]:
                    self.result(bit == "T")
            elif name == "FUP":
                assert ip is not None
                if self.ip is None:
                    assert self.in_psb
                    self.ip = ip
                self.reach(ip)
                self.event = not self.in_psb
            elif name == "TIP":
                if not self.event:
                    self.transfer()
                self.ip, self.event = ip, False
            elif name == "TIP.PGE":
                assert self.ip is None
                self.ip = ip
                self.calls.clear()
            elif name == "TIP.PGD":
                self.leave(ip)
            elif name == "PIP" and not self.in_psb and self.ip is not None and not self.event:
                self.walk(lambda at, kind, target: kind == "cr3")
                self.pass_by()
            elif name == "TraceStop":
                assert self.ip is None

    def address(self, fields: dict[str, Any]) -> int | None:
        code, payload = fields["ip_bytes"], fields["payload"]
        if code == 0:
            return None
        if code == 3:
            self.last_ip = payload | (0xFFFF << 48 if payload >> 47 else 0)
        else:
            kept = {1: 16, 2: 32, 4: 48, 6: 64}[code]
            self.last_ip = self.last_ip >> kept << kept | payload
        return self.last_ip

    def walk(self, here: Callable[[int, str, int], bool]) -> None:
        """Execute what needs no packet until `here` is true of the instruction that comes next."""
        assert self.ip is not None
        while not here(self.ip, *self.program[self.ip]):
            kind, target = self.program[self.ip]
            assert kind in ("other", "jump", "call"), f"{kind} at {self.ip:#x} lacks its packet"
            if kind == "call" and target != self.ip + STEP:
                self.calls.append(self.ip + STEP)
            self.path.append(self.ip)
            self.ip = self.ip + STEP if kind == "other" else target

    def reach(self, ip: int) -> None:
        self.walk(lambda at, kind, target: at == ip)

    def pass_by(self) -> None:
        assert self.ip is not None
        self.path.append(self.ip)
        self.ip += STEP

    def result(self, taken: bool) -> None:
        self.walk(lambda at, kind, target: kind in ("conditional", "ret"))
        assert self.ip is not None
        kind, target = self.program[self.ip]
        if kind == "ret":
            assert taken
            target = self.calls.pop()
        self.path.append(self.ip)
        self.ip = target if taken else self.ip + STEP

    def transfer(self) -> None:
        self.walk(lambda at, kind, target: kind in TRANSFERS)
        assert self.ip is not None
        kind, _ = self.program[self.ip]
        if kind == "ret" and self.calls:
            self.calls.pop()
        self.path.append(self.ip)
        if kind == "indirect_call":
            self.calls.append(self.ip + STEP)

    def leave(self, ip: int | None) -> None:
        if not self.event:
            if ip is None:
                ends = {"conditional", "cr3"} | TRANSFERS
                self.walk(lambda at, kind, target: kind in ends)
            else:
                self.walk(
                    lambda at, kind, target: (
                        kind in TRANSFERS or (kind in ("jump", "call") and target == ip)
                    )
                )
            self.pass_by()
        self.ip, self.event = None, False
        self.calls.clear()
