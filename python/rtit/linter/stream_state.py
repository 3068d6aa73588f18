"""The state of a stream that the rules use; None means unknown."""

from __future__ import annotations

from dataclasses import dataclass

from rtit.packets import FORBIDDEN_IN_BLOCK, Packet

IP_PACKETS = frozenset({"TIP", "TIP.PGE", "TIP.PGD", "FUP"})
TIMING_PACKETS = frozenset({"TSC", "TMA", "MTC", "CYC", "CBR"})
"""Timing packets; they may occur anywhere (section 33.4.1)."""
CONTEXT_FREE = TIMING_PACKETS | {"PAD", "MNT"}
"""Packets that may stand within any sequence: timing and padding."""
PSB_PLUS_PACKETS = frozenset({"TSC", "TMA", "PIP", "VMCS", "CBR", "MODE.TSX", "MODE.Exec", "FUP"})
"""Packets that report the state in a PSB+ (section 33.3.7)."""

_IP_BITS = {1: 16, 2: 32, 4: 48}
"""Low bits of LastIP that IPBytes replaces (Table 33-18)."""

_ENDS_EVENT = frozenset({"TNT", "TNT.64", "TIP", "TIP.PGE", "TIP.PGD", "PSBEND", "OVF"})


@dataclass(slots=True)
class StreamState:
    """State before a packet.

    psb_period: bytes between PSBs, None if not known. psb: offset of the last PSB. tracing:
    PacketEn. psb_plus: the packets of the open PSB+, None outside. block: BBP.Type of the open
    block, None outside. last_ip: LastIP. overflowed: only timing packets since an OVF. in_tx: in
    a transaction. in_event: a FUP has begun an event that has not ended. asleep: between PWRE and
    PWRX. mtc: payload of the last MTC, if the time has not stopped since. tsc: a TMA can follow the
    last TSC. previous: the last packet other than PAD and MNT, "" at the beginning.
    """

    psb_period: int | None = None
    psb: int | None = None
    tracing: bool | None = None
    psb_plus: set[str] | None = None
    block: int | None = None
    last_ip: int | None = None
    overflowed: bool = False
    in_tx: bool | None = None
    in_event: bool = False
    asleep: bool | None = None
    mtc: int | None = None
    tsc: bool | None = None
    previous: str = ""

    def is_steady(self) -> bool:
        """Return whether code runs and nothing is open: TNT, TIP and CYC change only `previous` and
        LastIP.

        The top byte of LastIP is known and canonical, so that each compressed IP is canonical.
        """
        return (
            self.tracing is True
            and self.psb_plus is None
            and not self.in_event
            and self.asleep is False
            and self.tsc is False
            and self.last_ip is not None
            and self.last_ip >> 56 in (0, 0xFF)
        )

    def ip_of_packet(self, packet: Packet) -> int | None:
        """Return the IP of a packet, joined with LastIP (Table 33-18); None if unknown."""
        if packet.fields["payload"] is None:
            return None
        ip_bytes, payload = int_field(packet, "ip_bytes"), int_field(packet, "payload")
        if ip_bytes == 3:
            return payload | (0xFFFF << 48 if payload >> 47 else 0)
        if (low := _IP_BITS.get(ip_bytes)) is None:
            return payload
        return None if self.last_ip is None else self.last_ip >> low << low | payload

    def apply_packet(self, packet: Packet, *, begins_event: bool) -> None:
        """Update the state after a packet; `begins_event`: it is a FUP that no packet binds."""
        name = packet.name
        if name in IP_PACKETS and (ip := self.ip_of_packet(packet)) is not None:
            self.last_ip = ip
        if name in CONTEXT_FREE:
            self._update_time(packet)
        elif self.psb_plus is not None and name in PSB_PLUS_PACKETS:
            if name == "MODE.TSX":
                self.in_tx = bool(packet.fields["in_tx"])
        else:
            self._update_tracing(packet, begins_event=begins_event)
        if self.psb_plus is not None and name != "PSB":
            self.psb_plus.add(name)
        if name not in ("PAD", "MNT"):
            self.previous = name

    def _update_time(self, packet: Packet) -> None:
        if packet.name == "MTC":
            self.mtc = int_field(packet, "ctc")
        elif packet.name in ("CBR", "TSC"):
            self.mtc = None
        if packet.name in ("TSC", "TMA"):
            self.tsc = packet.name == "TSC"

    def _update_tracing(self, packet: Packet, *, begins_event: bool) -> None:
        name = packet.name
        if name == "PSBEND" and self.psb_plus is not None:
            self.tracing = "FUP" in self.psb_plus
            self.overflowed = False
        self.psb_plus, self.tsc = None, False
        if self.overflowed and name != "PSB":
            self.tracing, self.overflowed = name == "FUP", False
        if name in FORBIDDEN_IN_BLOCK or name == "BEP":
            self.block = None
        if name in _ENDS_EVENT:
            self.in_event = False
        match name:
            case "PSB":
                self.psb, self.psb_plus, self.last_ip = packet.offset, set(), 0
            case "OVF":
                self.tracing = self.in_tx = self.asleep = self.mtc = self.block = None
                self.overflowed = True
            case "BBP":
                self.block = int_field(packet, "type")
            case "TNT" | "TNT.64" | "TIP":
                self.tracing, self.asleep = True, False
            case "TIP.PGE":
                self.tracing, self.asleep = True, None
            case "TIP.PGD" | "TraceStop":
                self.tracing, self.asleep, self.in_tx = False, None, None
            case "FUP" if begins_event:
                self.tracing = self.in_event = True
            case "MODE.TSX":
                self.in_tx = bool(packet.fields["in_tx"])
            case "PWRE":
                self.asleep = True
            case "PWRX":
                self.asleep = False


def int_field(packet: Packet, name: str) -> int:
    """Return an integer field."""
    value = packet.fields[name]
    return value if isinstance(value, int) else 0
