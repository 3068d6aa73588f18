"""Streams of scenarios with one error each: lint finds every error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import dropwhile, islice

import pytest

from lint.streams import PGE, PSBEND, TIP, TMA, TNT
from rtit.linter import lint
from rtit.packets import Packet, iterate_packets
from rtit.packets.packet import reserved_mask
from rtit.packets.table import DECLARATION_BY_NAME
from rtit.scenario import load, run, shipped_scenarios

NEUTRAL = ("TSC", "TMA", "MTC", "CYC", "CBR", "PAD", "MNT")
STATUS = (*NEUTRAL, "PIP", "VMCS", "MODE.TSX", "MODE.Exec", "FUP", "PSBEND")

Stream = list[Packet]


@pytest.fixture(scope="module")
def streams() -> list[Stream]:
    """Return the packets of each scenario."""
    return [[*iterate_packets(run(load(path)).raw)] for path in shipped_scenarios()]


def next_after(stream: Stream, at: int, names: tuple[str, ...] = NEUTRAL) -> str:
    """Return the name of the first packet after `at` that is not in `names`, "" if there is
    none.
    """
    rest = dropwhile(lambda packet: packet.name in names, islice(stream, at + 1, None))
    return next((packet.name for packet in rest), "")


def raw(stream: Stream) -> bytes:
    return b"".join(packet.raw for packet in stream)


def inserted(after: str, more: bytes) -> Callable[[Stream], Iterator[bytes]]:
    def garble(stream: Stream) -> Iterator[bytes]:
        for at, packet in enumerate(stream):
            if packet.name == after:
                yield raw(stream[: at + 1]) + more + raw(stream[at + 1 :])

    return garble


def without_psbend(stream: Stream) -> Iterator[bytes]:
    for at, packet in enumerate(stream):
        if packet.name == "PSBEND" and next_after(stream, at, STATUS) not in ("", "OVF"):
            yield raw(stream[:at]) + raw(stream[at + 1 :])


def without_fup(stream: Stream) -> Iterator[bytes]:
    """Remove the FUP of a packet that announces one."""
    for at, packet in enumerate(stream):
        if packet.fields.get("ip") != 1 or next_after(stream, at) != "FUP":
            continue
        fup = next(index for index in range(at, len(stream)) if stream[index].name == "FUP")
        if next_after(stream, fup) not in ("", "FUP", "OVF", "CFE", "EVD"):
            yield raw(stream[:fup]) + raw(stream[fup + 1 :])


def without_tip_pge(stream: Stream) -> Iterator[bytes]:
    for at, packet in enumerate(stream):
        known = any(before.name in ("PSB", "TIP.PGD") for before in stream[:at])
        lost = any(before.name == "FUP" for before in stream[:at])
        follower = next_after(stream, at)
        if packet.name == "TIP.PGE" and known and not lost and follower in ("TNT", "TIP"):
            yield raw(stream[:at]) + raw(stream[at + 1 :])


def reserved_bit(stream: Stream) -> Iterator[bytes]:
    for at, packet in enumerate(stream):
        mask = reserved_mask(DECLARATION_BY_NAME[packet.name], packet.size)
        if any(mask) and packet.name not in ("TNT", "TNT.64", "CYC"):
            bad = bytes(old | bits for old, bits in zip(packet.raw, mask, strict=True))
            yield raw(stream[:at]) + bad + raw(stream[at + 1 :])


def suppressed(stream: Stream) -> Iterator[bytes]:
    for at, packet in enumerate(stream):
        if packet.name in ("TIP", "TIP.PGE", "FUP") and packet.fields["ip_bytes"]:
            bad = bytes((packet.raw[0] & 0x1F,))
            yield raw(stream[:at]) + bad + raw(stream[at + 1 :])


KINDS: dict[str, Callable[[Stream], Iterator[bytes]]] = {
    "a PSB+ without its end": without_psbend,
    "a PSBEND too many": inserted("PSBEND", PSBEND),
    "a TNT in a block": inserted("BBP", TNT),
    "no packet": inserted("TIP.PGE", b"\x09"),
    "enabled twice": inserted("TIP.PGE", PGE),
    "a branch while tracing is off": inserted("TIP.PGD", TIP),
    "a branch after TraceStop": inserted("TraceStop", TNT),
    "a TMA without TSC": inserted("TIP", TMA),
    "a promised FUP that does not come": without_fup,
    "a branch without TIP.PGE": without_tip_pge,
    "a reserved bit": reserved_bit,
    "an IP suppressed": suppressed,
}


@pytest.mark.parametrize("kind", KINDS)
def test_error_in_every_scenario_is_found(kind: str, streams: list[Stream]) -> None:
    garbled = [data for stream in streams for data in KINDS[kind](stream)]
    assert len(garbled) > 3
    missed = [data.hex() for data in garbled if not any(lint(data))]
    assert missed == []
