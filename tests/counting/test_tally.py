"""The file that a counted process writes: any other content is refused."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from rtit.counting.process_counts import read_process_counts
from rtit.counting.program_totals import MAGIC
from rtit.errors import InputError

WHOLE = (1 << 26) + (1 << 24)
"""Up to the end of the first table."""
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
Made = Callable[..., int]


@pytest.fixture
def made() -> Made:
    """A file in memory with these words at its beginning."""

    def make(*words: int, size: int, seals: int = SEALS) -> int:
        file = os.memfd_create("counts", os.MFD_ALLOW_SEALING)
        os.ftruncate(file, size)
        os.pwrite(file, b"".join(word.to_bytes(8, "little") for word in words), 0)
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, seals)
        return file

    return make


def test_counts_file_without_executed_blocks_is_empty(made: Made) -> None:
    found = read_process_counts(made(MAGIC, 1, 0, 1, size=WHOLE))
    assert len(found.start) == 0
    assert found.threads == {}


@pytest.mark.parametrize(
    ("words", "size", "seals", "says"),
    [
        ((MAGIC, 1, 0, 1), WHOLE, fcntl.F_SEAL_GROW, "a file that may shrink"),
        ((MAGIC, 1, 0, 1), WHOLE - 1, SEALS, f"cut off at offset {WHOLE - 1:#x}"),
        ((MAGIC, 1, 0, 2), WHOLE, SEALS, f"cut off at offset {WHOLE:#x}"),
        ((MAGIC, 1, 0, 1), 32, SEALS, "cut off at offset 0x20"),
        ((MAGIC,), 8, SEALS, "cut off at offset 0x8"),
        ((MAGIC + 1, 1, 0, 1), WHOLE, SEALS, f"at offset 0x0 ({MAGIC + 1:#x})"),
        ((MAGIC, (1 << 20) + 1, 0, 1), WHOLE, SEALS, "no counts of a process"),
        ((MAGIC, 1, 0, 1025), WHOLE, SEALS, "no counts of a process"),
        ((), 0, SEALS, "cut off at offset 0x0"),
    ],
)  # fmt: skip
def test_malformed_counts_file_is_refused(
    words: tuple[int, ...], size: int, seals: int, says: str, made: Made
) -> None:
    with pytest.raises(InputError) as raised:
        read_process_counts(made(*words, size=size, seals=seals))
    assert says in str(raised.value)


def test_counts_file_on_disk_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "counts").open("w+b") as file:
        file.truncate(WHOLE)
        with pytest.raises(InputError, match="may shrink"):
            read_process_counts(file.fileno())
