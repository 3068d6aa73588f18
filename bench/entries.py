"""The decoders that `workloads.py` measures: one for each result kind of rtit, and one for each
peer.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import clock
import decoding
from differential.oracles import libipt, raw

REFERENCE = "libipt pt_blk, section cache"
"""The decoder with speed 1."""

Prepared = TypeVar("Prepared")


@dataclass(frozen=True)
class StreamPart:
    """The start of a program's stream: its bytes, also in file `path`. `data` is the recording,
    `whole` the size of its stream, `sections` the code.
    """

    pt: bytes
    path: Path
    data: Path
    whole: int
    sections: list[raw.Section]
    settings: Any

    def image(self) -> Any:
        """Return a new image, so that no decoder uses the code cache of another."""
        import rtit

        image = rtit.Image()
        for section in self.sections:
            image.add(section.address, section.path.read_bytes())
        return image


@dataclass(frozen=True)
class Time:
    """CPU and wall seconds for a part; instructions and errors if the decoder counts them."""

    cpu: float
    wall: float = 0.0
    instructions: int | None = None
    errors: int | None = None


Entry = Callable[[], Time]


def ours(piece: StreamPart, threads: int) -> dict[str, Entry]:
    """Return the decoders of rtit: new decoders of a new image; results are discarded. One thread
    decodes packets.
    """
    from rtit import _core

    settings = piece.settings

    def flow() -> _core.StreamDecoder:
        return _core.StreamDecoder(
            piece.pt,
            piece.image().native,
            jobs=threads,
            mtc_freq=settings.mtc_freq,
            tsc_ctc=settings.tsc_ctc,
            max_nonturbo_ratio=settings.max_nonturbo_ratio,
            no_retcomp=settings.no_retcomp,
        )

    decoders: dict[str, Callable[[_core.StreamDecoder], object]] = {
        "counts": lambda flow: flow.count(),
        "edges": lambda flow: flow.totals(),
        "block ids": lambda flow: decoding.drain(flow.block_ids),
        "hashed runs": lambda flow: decoding.drain(flow.runs),
        "rows": lambda flow: decoding.drain(flow.rows),
        "instructions": lambda flow: decoding.drain(flow.instructions),
        "branches": lambda flow: decoding.drain(flow.branches),
    }
    found = {name: _of_this_process(decode, flow) for name, decode in decoders.items()}
    if threads == 1:
        found["packets"] = _of_this_process(
            lambda scan: decoding.drain(scan.next), lambda: _core.PacketScan(piece.pt)
        )
    return found


def bitmaps(piece: StreamPart) -> dict[str, Entry]:
    """Return a reusable decoder, cold and warm."""
    import rtit

    bitmap = bytearray(1 << 16)
    decoder: rtit.Decoder | None = None

    def fresh() -> rtit.Decoder:
        nonlocal decoder
        decoder = rtit.Decoder(piece.image(), index="afl")
        return decoder

    def known() -> rtit.Decoder:
        return decoder or fresh()

    def run(decoder: rtit.Decoder) -> object:
        return decoder.run(piece.pt, bitmap)

    return {
        "bitmap, cold": _of_this_process(run, fresh),
        "bitmap, warm": _of_this_process(run, known),
    }


def _of_this_process(decode: Callable[[Prepared], object], fresh: Callable[[], Prepared]) -> Entry:
    """Measure `way` on the result of `fresh`, without the time of `fresh`."""

    def measured() -> Time:
        of = fresh()
        begin = time.perf_counter()
        cpu, _ = clock.own_cpu(lambda: decode(of))
        return Time(cpu, time.perf_counter() - begin)

    return measured


def peers(piece: StreamPart) -> dict[str, Entry]:
    """Return libipt's three decoders, and `perf script`, which lists errors only."""

    def by_libipt(what: Literal["blocks", "instructions", "packets"]) -> Entry:
        def measured() -> Time:
            (found,) = libipt.measure(piece.path, piece.sections, 1, what=what)
            return Time(found.seconds, 0, found.instructions, found.errors)

        return measured

    entries = {
        REFERENCE: by_libipt("blocks"),
        "libipt pt_insn": by_libipt("instructions"),
        "libipt pt_pkt": by_libipt("packets"),
    }
    if shutil.which("perf"):
        entries["perf script --itrace=e"] = lambda: _by_perf(piece)
    return entries


def _by_perf(piece: StreamPart) -> Time:
    """Measure perf on the whole recording, and return the share of the piece."""
    command: list[str | Path] = ["perf", "script", "-f", "-i", piece.data, "--itrace=e"]
    with tempfile.TemporaryDirectory() as home:
        cpu = clock.process_cpu(command, {**os.environ, "HOME": home})
    return Time(cpu * len(piece.pt) / piece.whole)
