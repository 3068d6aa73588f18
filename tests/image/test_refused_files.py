"""Memory that is refused while a file is read or a list is taken in: each part of it is small."""

from __future__ import annotations

import array
import hashlib
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from compressed import FRAME, raw
from elf_files import with_segments, with_symbols
from refusals import digest, tried

core = pytest.importorskip("rtit._core", reason="the native module is not built")


def check(work: Callable[[], str]) -> None:
    """Refused under the least limit, whole under the last, and nothing else between."""
    ended = tried(work, clean=True)
    assert {code for _, code in ended} == {0, 1}, ended
    assert ended[-1][1] == 0, ended


def test_an_elf_file_of_many_long_names(tmp_path: Path) -> None:
    names, places = bytearray(b"\0"), []
    for number in range(50_000):
        places.append(len(names))
        names += b"_ZN5space%0150dEv\0" % number
    path = tmp_path / "p"
    path.write_bytes(with_symbols(bytes(names), places))
    check(lambda: digest(core.ElfFile(path).symbols()))


def test_an_elf_file_of_many_segments(tmp_path: Path) -> None:
    path = tmp_path / "p"
    path.write_bytes(with_segments(150_000))

    def work() -> str:
        elf = core.ElfFile(path)
        core.Functions(elf)
        return digest([len(elf.segments), elf.segments[-1]])

    check(work)


def record(kind: int, payload: bytes) -> bytes:
    return struct.pack("<II", kind, len(payload)) + payload


def test_a_compressed_stream() -> None:
    """A window of 1 KB, so that who unpacks keeps little of it; pieces that are much longer."""
    piece = b"".join(raw(bytes([number]) * 1024) for number in range(250)) * 40
    frame = FRAME[:-1] + b"\0"

    def work() -> str:
        found = hashlib.sha256()
        size = core.unzstd([frame, *[piece] * 4], found.update, 1 << 30)
        return f"{size} {found.hexdigest()}"

    assert work().startswith(f"{250 * 1024 * 40 * 4} ")
    check(work)


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of 200,000 threads that did nothing."""
    path = tmp_path_factory.mktemp("truth") / "truth"
    threads = [record(1, struct.pack("<II", tid, 1)) for tid in range(200_000)]
    ends = [record(4, struct.pack("<IIQQ", tid, 0, 0, 0)) for tid in range(200_000)]
    path.write_bytes(b"rtit-truth\0\0" + struct.pack("<I", 1) + b"".join(threads + ends))
    return str(path)


def test_a_truth_of_many_threads(truth: str) -> None:
    check(lambda: digest(core.TruthFile(truth).threads()))


def test_a_list_of_names() -> None:
    rows = [(at * 16, 16, f"function_{at:0100}") for at in range(60_000)]
    check(lambda: digest(core.Functions.listed(0, 1 << 40, rows).owned()))


def test_many_regions() -> None:
    rows = [(at * 4096, at * 4096 + 10, 0, 1, 0, f"/{at:0100}", None) for at in range(60_000)]
    check(lambda: digest([type(core.Names(rows))]))


def test_a_table_of_many_lines() -> None:
    numbers = array.array("Q", [0, 1] * (1 << 15))
    columns = [("words", numbers, ["a" * 150, "b"]), ("places", numbers, numbers, [("c", True)])]
    check(lambda: digest([core.table_lines(columns)]))


def test_columns_that_are_copied(truth: str) -> None:
    numbers = array.array("Q", [0]) * (1 << 20)
    columns = (numbers, array.array("I", [0]) * (1 << 20), numbers)
    check(lambda: digest([core.TruthFile(truth).compare(1, columns)]))


def test_many_turns() -> None:
    space = core.Space()
    numbers = range(1 << 18)
    whose = [(None, False, None, None)] * len(numbers)
    turns = array.array("Q", numbers), array.array("I", numbers), whose
    check(lambda: digest([core.Flow(b"", space, turns=turns).next(1)]))
