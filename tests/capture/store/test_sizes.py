"""Sizes as perf spells them."""

from __future__ import annotations

import pytest

from rtit.capture.request import format_size, parse_size
from rtit.errors import UsageError


@pytest.mark.parametrize(
    ("text", "size"),
    [("4096", 4096), ("4096B", 4096), ("8k", 8192), ("4M", 4 << 20), ("1G", 1 << 30),
     ("0x1000", 4096), (" 64K ", 64 << 10)],
)  # fmt: skip
def test_parse_size_accepts_perfs_units(text: str, size: int) -> None:
    assert parse_size(text) == size
    assert parse_size(format_size(size)) == size


BAD = ["", "K", "-1", "1.5M", "4MB", "1T", "0", "0K", str(1 << 62), "9e9"]


@pytest.mark.parametrize("text", BAD)
def test_parse_size_rejects_malformed_text(text: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_size(text, "--snapshot")
    assert str(error.value).startswith("--snapshot must be ")
