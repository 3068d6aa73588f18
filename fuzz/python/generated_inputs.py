"""Readers of inputs as choices that build nearly valid files, settings, changing code, or API
calls.

Each takes the input and a folder for its files, like those of `readers`. The built data depends on
the bytes alone, so that an input can be replayed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from rtit.errors import RtitError, UsageError
from rtit.image import Image
from rtit.packets import encode
from rtit.perfdata import Writer

T = TypeVar("T")

BASES = (0x1000, 0x401000, 0x7F00_0000_0000)
CODES = (
    # jne +2; call; call rax; je back; jmp back; nop; rep movsb; ret; jmp [rax]; syscall; int3
    bytes.fromhex("7502e806000000ffd074f5ebf390f3a4c3ff200f05cc8ed00f22d8c3") * 20,
    bytes.fromhex("9090ebfc74faebfcc3") * 40,
    bytes(range(256)),
)
_MOST = 40
"""Records, packets, runs or calls of one input."""


class WrongError(Exception):
    """An impossible result."""


def require(condition: bool, what: str) -> None:
    """Raise WrongError unless the condition holds."""
    if not condition:
        raise WrongError(what)


class Choices:
    """The bytes of an input as choices; after its end every choice is the first."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> bool:
        """Return whether bytes are left."""
        return self._at < len(self._data)

    def byte(self) -> int:
        """Return the next byte."""
        self._at += 1
        return self._data[self._at - 1] if self._at <= len(self._data) else 0

    def number(self) -> int:
        """Return a number: small, at the limit of some width, or any of 64 bits."""
        kind = self.byte()
        if kind < 128:
            return kind
        if kind < 192:
            return (1 << kind - 128) - (kind & 1)
        return int.from_bytes(bytes(self.byte() for _ in range(8)), "little")

    def pick(self, values: Sequence[T]) -> T:
        """Return one of `values`."""
        return values[self.byte() % len(values)]

    def some(self) -> range:
        """Return a small range from 0 on."""
        return range(self.byte() % _MOST)


def packets(choose: Choices, base: int) -> bytes:
    """Return packets with addresses near `base`, after a PSB+."""

    def ip() -> dict[str, int]:
        size = choose.pick((2, 1, 6, 3, 4, 0))
        address = base + choose.byte() % 64
        return {"ip_bytes": size} | ({"payload": address & _WIDTHS[size]} if size else {})

    parts = [encode("PSB"), encode("TSC", tsc=choose.byte() << 4), b"\x99\x01"]
    parts += [encode("FUP", ip_bytes=6, payload=base), encode("PSBEND")]
    for _ in choose.some():
        kind = choose.byte() % 12
        if kind < 4:
            parts.append(bytes([(choose.byte() % 63 + 2) << 1]))
        elif kind < 8:
            parts.append(encode(("TIP", "TIP.PGE", "TIP.PGD", "FUP")[kind - 4], **ip()))
        elif kind == 8:
            parts.append(encode("TSC", tsc=choose.number() & (1 << 56) - 1))
        elif kind == 9:
            parts.append(choose.pick((encode("OVF"), encode("PAD"), encode("CYC", cycles=9))))
        elif kind == 10:
            parts.append(encode("PSB") + encode("FUP", **ip()) + encode("PSBEND"))
        else:
            parts.append(bytes([choose.byte()]))
    return b"".join(parts)


_WIDTHS = {1: 0xFFFF, 2: 0xFFFF_FFFF, 3: (1 << 48) - 1, 4: (1 << 48) - 1, 6: (1 << 64) - 1}


def read_recording(data: bytes, folder: Path) -> None:
    """Read a perf.data file with sideband, existing or changing files, and matching streams."""
    from rtit.trace import Trace

    choose = Choices(data)
    files = [folder / f"code{number}" for number in range(len(CODES))]
    for path, code in zip(files, CODES, strict=True):
        path.write_bytes(code)
    path = folder / "perf.data"
    snapshot = choose.byte() == 255
    with Writer(path, config=0x2601, cpuid="GenuineIntel,6,94,3", snapshot=snapshot) as out:
        for _ in choose.some():
            _record(out, choose, [*files, folder / "none"])
    if choose.byte() % 4 == 0:
        _damage(path, choose)
    with Trace(path) as trace:
        total = 0
        for stream in trace.threads:
            try:
                total += _whole(stream)
            except RtitError:
                continue
        repr(trace)


def _record(out: Writer, choose: Choices, files: list[Path]) -> None:
    pid, tid = choose.byte() % 4, choose.byte() % 4
    now = choose.number() & (1 << 62) - 1
    base = choose.pick(BASES)
    kind = choose.byte() % 9
    if kind == 0:
        out.comm(
            pid, tid, now, choose.pick(("name", "", "\x1b[31m", "x" * 40)), bool(choose.byte() & 1)
        )
    elif kind in (1, 2):
        size = choose.pick((0x1000, 0, 1, 1 << 40, choose.number() & (1 << 50) - 1))
        offset = choose.pick((0, 0x1000, choose.number() & (1 << 62) - 1))
        name = str(choose.pick(files)) if kind == 1 else choose.pick(("//anon", "[vdso]", ""))
        out.mmap2(pid, tid, now, base, size, offset, choose.pick((5, 7, 1)), 2, 8, 1, 4711, 0, name)
    elif kind == 3:
        out.fork(pid, choose.byte() % 4, tid, choose.byte() % 4, now)
    elif kind == 4:
        out.exit(pid, pid, tid, tid, now)
    elif kind == 5:
        code = choose.pick(CODES)[: 1 + choose.byte()]
        out.text_poke(pid, tid, now, base + choose.byte(), code)
    elif kind == 6:
        out.itrace_start(pid, tid, now)
    else:
        cpu = choose.pick((-1, -1, 0, 1))
        tsc = choose.pick((None, None, choose.number() & (1 << 40) - 1))
        out.auxtrace(tid, pid, packets(choose, base), tsc, 1 + now, cpu)


def _damage(path: Path, choose: Choices) -> None:
    data = bytearray(path.read_bytes())
    for _ in range(choose.byte() % 4):
        at = choose.number() % len(data)
        data[at] ^= 1 + choose.byte() % 255
    del data[len(data) - choose.byte() % 200 :]
    path.write_bytes(data)


def _whole(stream: Any) -> int:
    """Check that all results of a stream agree; return the number of instructions."""
    found = sum(int(rows.instructions.sum()) for rows in stream.rows())
    ledger = stream.ledger()
    at = 0
    for span in ledger:
        require(span.start == at and span.end >= at, f"a gap in {ledger}")
        at = span.end
    counts = stream.counts()
    require(counts.instructions == found, f"{counts.instructions} counted, {found} in rows")
    require(sum(len(batch) for batch in stream.instructions()) == found, "other instructions")
    for event in stream.events():
        repr(event)
    return found


def read_settings(data: bytes, folder: Path) -> None:
    """Call `rtit.decode` with settings that are in range, at a limit, or invalid."""
    from rtit.trace import decode

    choose = Choices(data)
    base = choose.pick(BASES)
    image = Image().add(base, choose.pick(CODES))
    numbers = ("mtc_freq", "nom_freq", "start_time", "threads")
    settings: dict[str, Any] = {}
    for name in (*numbers, "cpu", "cpuid_15", "guest_tsc", "ranges", "no_tnt", "no_retcomp"):
        if choose.byte() % 3 == 0:
            settings[name] = _setting(name, choose)
    try:
        trace = decode(packets(choose, base), image, **settings)
        (stream,) = trace.streams
        _whole(stream)
    except (TypeError, ValueError, OverflowError) as error:
        require(bool(str(error)), "an error without a message")


def _setting(name: str, choose: Choices) -> object:
    if choose.byte() % 16 == 0:
        return choose.pick((None, "", -1, 1.5, (), [1], {}, "x/y/z", 1 << 70, b"\xff"))
    if name == "cpu":
        return choose.pick(("6/94/3", "6/61/4", "6/92/9", (6, 85, 4), (0, 0, 0), (6, 999, 99)))
    if name in ("cpuid_15", "guest_tsc"):
        return choose.number(), choose.number()
    if name == "ranges":
        pairs = [(choose.number(), choose.number()) for _ in range(choose.byte() % 6)]
        return [(min(pair), max(pair)) for pair in pairs] if choose.byte() & 1 else pairs
    if name.startswith("no_"):
        return bool(choose.byte() & 1)
    return choose.number() & 0xFF if choose.byte() & 1 else choose.number()


def read_scenario(data: bytes, folder: Path) -> None:
    """Run a scenario from text: errors name a line; valid scenarios run."""
    from rtit.scenario.parser import parse
    from rtit.scenario.runner import run_steps

    text = data.decode(errors="replace")[:4000]
    for number, step in enumerate(run_steps(parse(text, "fuzz"))):
        repr(step)
        if number > _MOST:
            break


def read_reused_decoder(data: bytes, folder: Path) -> None:
    """Check that a `Decoder` with changing code gives the results of a new one."""
    from rtit.trace import Decoder

    choose = Choices(data)
    image = Image()
    code = {base: bytearray(choose.pick(CODES)) for base in BASES[:2]}
    for base, bytes_now in code.items():
        image.add(base, bytes(bytes_now))
    most = choose.pick((1 << 22, 100, 1))
    decoder = Decoder(image, max_instructions=most)
    for _ in range(1 + choose.byte() % 8):
        base = choose.pick(BASES[:2])
        if choose.byte() & 1:
            at = choose.byte() % len(code[base])
            code[base][at] = choose.byte()
            image.add(base, bytes(code[base]))
            whole = choose.byte() & 1
            decoder.invalidate() if whole else decoder.invalidate(base + at, 1)
        trace = packets(choose, base)
        one, two = bytearray(1 << 10), bytearray(1 << 10)
        found = decoder.run(trace, one)
        fresh = Decoder(image)
        expected = fresh.run(trace, two)
        require(found == expected, f"{found} again, {expected} by a new decoder")
        require(one == two, "other edges than a new decoder has")
        require(list(decoder.ledger()) == list(fresh.ledger()), "another ledger")


def read_api_calls(data: bytes, folder: Path) -> None:
    """Call functions of the API in any order, with any arguments."""
    from rtit.trace import Selection, decode

    choose = Choices(data)
    base = choose.pick(BASES)
    image = Image()
    trace = decode(packets(choose, base), image.add(base, choose.pick(CODES)))
    running: list[Any] = []
    for _ in choose.some():
        stream = trace.streams[0]
        kind = choose.byte() % 14
        try:
            if kind == 0:
                image.add(choose.number(), choose.pick(CODES), time=choose.number())
            elif kind == 1:
                image.remove(choose.number(), choose.number(), time=choose.number())
            elif kind == 2:
                image.forget(choose.number(), choose.number())
            elif kind == 3:
                require(len(image.read(choose.number(), choose.byte())) < 256, "too many bytes")
            elif kind == 4:
                running.append(stream.rows())
            elif kind == 5:
                running.append(stream.instructions(Selection(head=choose.number())))
            elif kind == 6:
                low, high = choose.number(), choose.number()
                running.append(trace.branches(Selection(ranges=((low, high),))))
            elif kind == 7:
                running.append(stream.events())
            elif kind == 8 and running:
                next(running[choose.byte() % len(running)], None)
            elif kind == 9:
                stream.discard_decoder()
            elif kind == 10:
                repr(stream.ledger()), repr(stream.counts())
            elif kind == 11:
                running.append(trace.blocks(timing=bool(choose.byte() & 1)))
            elif kind == 12:
                list(stream.edges(Selection(head=choose.byte())))
            else:
                image = image.fork(choose.number())
        except (UsageError, TypeError, ValueError, OverflowError):
            continue


READERS = {
    "recording": read_recording,
    "settings": read_settings,
    "scenario": read_scenario,
    "reused_decoder": read_reused_decoder,
    "api_calls": read_api_calls,
}
