"""Packets by hand, and streams that begin in a known state."""

from __future__ import annotations

from rtit.packets import Value, encode


def packet(name: str, **fields: Value) -> bytes:
    return encode(name, **fields)


def ip(name: str, address: int | None = 0x40_1000) -> bytes:
    """An IP packet with six bytes, sign extended; None: without an IP."""
    if address is None:
        return encode(name, ip_bytes=0)
    return encode(name, ip_bytes=3, payload=address & 0xFFFF_FFFF_FFFF)


PSB = packet("PSB")
PSBEND = packet("PSBEND")
OVF = packet("OVF")
CBR = packet("CBR", ratio=10)
TSC = packet("TSC", tsc=1)
TMA = packet("TMA", ctc=1, fast_counter=0)
MTC = packet("MTC", ctc=1)
CYC = packet("CYC", cycles=7)
TNT = packet("TNT", bits="T")
EXEC = packet("MODE.Exec", csl=1, csd=0, iflag=0)
NO_TX = packet("MODE.TSX", in_tx=0, tx_abort=0)
BEGIN = packet("MODE.TSX", in_tx=1, tx_abort=0)
ABORT = packet("MODE.TSX", in_tx=0, tx_abort=1)
BBP = packet("BBP", sz=0, type=4)
BIP = b"\x04" + bytes(8)
BEP = packet("BEP", ip=1)
PTW = packet("PTW", ip=1, payload_bytes=0, payload=5)
MWAIT = packet("MWAIT", hints=0x20, ext=0)
PWRE = packet("PWRE", hw=0, state=2, sub_state=0)
EXSTOP = packet("EXSTOP", ip=1)
PWRX = packet("PWRX", last=2, deepest=2, wake=1)
INTERRUPT = packet("CFE", ip=0, type=1, vector=32)
INTERRUPT_IP = packet("CFE", ip=1, type=1, vector=32)
PAGE_FAULT = packet("EVD", type=0, payload=0x1234)
PIP = packet("PIP", nr=0, cr3=0x1000)
STOP = packet("TraceStop")
FUP, TIP, PGE = ip("FUP"), ip("TIP"), ip("TIP.PGE")
PGD = ip("TIP.PGD", None)

OFF = PSB + CBR + PSBEND
"""PSB+ while tracing is off."""
ON = PSB + CBR + NO_TX + EXEC + FUP + PSBEND
"""PSB+ while tracing is on."""
AWAKE = ON + TNT
"""PSB+ while tracing is off and the processor runs."""
