"""Decodes packets of known programs to IPs, by the binding rules of section 33.4.2."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from rtit.packets import Packet, iterate_packets
from unit.world.program import STEP, STRAIGHT, TIMING, TIPS, WITH_FUP, Program


class Reader:
    """Decodes packets to IPs. `psb_positions` has len(path) at each PSB, `packet_ips` every full
    IP.
    """

    def __init__(self, program: Program, *, after_overflow: bool = False) -> None:
        self.program = program
        self.ip: int | None = None
        # The first IP after an overflow does not follow from earlier packets.
        self.last_ip = 0x1234_5678_9ABC_DEF0 if after_overflow else 0
        self.resumes = after_overflow
        self.path: list[int] = []
        self.psb_positions: list[int] = []
        self.packet_ips: list[int] = []
        self.calls: deque[int] = deque(maxlen=64)
        # TIPs can be deferred: results of later branches precede them.
        self.bits: deque[bool] = deque()
        self.tips: deque[int | None] = deque()
        self.in_psb = self.event = self.alone = self.aborts = False

    def feed(self, stream: list[Packet]) -> None:
        for packet in stream:
            if packet.name not in TIMING:
                self.take(packet)
                self.resumes = False
        self.settle()

    def take(self, packet: Packet) -> None:
        fields: dict[str, Any] = dict(packet.fields)
        name = packet.name
        ip = self.address(fields) if "ip_bytes" in fields else None
        if name.startswith("TNT"):
            if self.tips:
                self.settle()
            self.bits.extend(bit == "T" for bit in fields["bits"])
            return
        if name == "TIP" and not self.event:
            self.tips.append(ip)
            self.alone = False
            return
        self.settle()
        if name == "PSB":
            self.in_psb, self.last_ip = True, 0
            self.calls.clear()
        elif name == "PSBEND":
            self.in_psb = False
            self.psb_positions.append(len(self.path))
        elif name == "FUP":
            assert ip is not None
            self.fup(ip)
        elif name in ("TIP", "TIP.PGD"):
            self.arrive(name, ip)
        elif name == "TIP.PGE":
            assert self.ip is None
            self.ip, self.alone = ip, False
            self.calls.clear()
        elif name == "PIP":
            self.paging()
        elif name == "MODE.Exec" and not self.in_psb:
            # Before a TIP, or with its own FUP.
            self.alone = not self.event
        elif name == "MODE.TSX" and not self.in_psb:
            self.aborts = bool(fields["tx_abort"])
            self.alone = not self.aborts
        elif name in ("PTW", "EXSTOP", "BEP", "CFE"):
            self.alone = bool(fields["ip"])

    def address(self, fields: dict[str, Any]) -> int | None:
        code, payload = fields["ip_bytes"], fields["payload"]
        if code == 0:
            return None
        if code == 3:
            self.last_ip = payload | (0xFFFF << 48 if payload >> 47 else 0)
        else:
            kept = {1: 16, 2: 32, 4: 48, 6: 64}[code]
            self.last_ip = self.last_ip >> kept << kept | payload
        self.packet_ips.append(self.last_ip)
        return self.last_ip

    def fup(self, ip: int) -> None:
        if self.ip is None:
            assert self.in_psb or self.resumes
            self.ip = ip
        self.walk(lambda at, kind: at == ip)
        self.event = not (self.in_psb or self.alone or self.resumes)
        self.alone = False

    def walk(self, here: Callable[[int, str], bool]) -> None:
        """Execute code that needs no packet, until `here` is true for the next instruction."""
        assert self.ip is not None
        while not here(self.ip, self.program[self.ip][0]):
            kind, target = self.program[self.ip]
            assert kind in STRAIGHT or kind in ("jump", "call"), f"{kind} at {self.ip:#x}"
            if kind == "call" and target != self.ip + STEP:
                self.calls.append(self.ip + STEP)
            self.path.append(self.ip)
            self.ip = self.ip + STEP if kind in STRAIGHT else target

    def paging(self) -> None:
        """Handle a PIP: it belongs to a MOV CR3, unless an event or a VM entry is in progress."""
        if self.in_psb or self.ip is None or self.event:
            return
        self.walk(lambda at, kind: kind in ("cr3", "vm_entry"))
        if self.program[self.ip][0] == "cr3":
            self.path.append(self.ip)
            self.ip += STEP

    def settle(self) -> None:
        """Consume the pending results and TIPs."""
        while self.bits or self.tips:
            self.walk(lambda at, kind: kind == "conditional" or kind in TIPS)
            assert self.ip is not None
            kind, target = self.program[self.ip]
            if kind == "conditional" or (kind == "ret" and self.bits):
                taken = self.bits.popleft()
                if kind == "ret":
                    assert taken
                    target = self.calls.pop()
                self.path.append(self.ip)
                self.ip = target if taken else self.ip + STEP
            else:
                self.branch()
                self.ip = self.tips.popleft()

    def branch(self) -> None:
        """Follow the branch at `ip` by its TIP or TIP.PGD."""
        assert self.ip is not None
        kind, _ = self.program[self.ip]
        if kind == "ret" and self.calls:
            self.calls.pop()
        self.path.append(self.ip)
        if kind == "indirect_call":
            self.calls.append(self.ip + STEP)

    def arrive(self, name: str, ip: int | None) -> None:
        assert self.ip is not None
        if not self.event:
            self.walk(lambda at, kind: kind in TIPS)
            self.branch()
        elif self.program[self.ip][0] in WITH_FUP and not self.aborts:
            self.path.append(self.ip)
        self.aborts = self.alone = False
        self.ip, self.event = ip, False
        if name == "TIP.PGD":
            self.ip = None
            self.calls.clear()


def split(out: bytes) -> list[list[Packet]]:
    """Return the packets between overflows."""
    parts: list[list[Packet]] = [[]]
    for packet in iterate_packets(out):
        if packet.name == "OVF":
            parts.append([])
        else:
            parts[-1].append(packet)
    return parts
