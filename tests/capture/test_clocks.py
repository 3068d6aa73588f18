"""Frequencies and cycles an instruction, as options name them."""

from __future__ import annotations

import pytest

from rtit.capture.options import parse_cpi, parse_frequency
from rtit.errors import UsageError


@pytest.mark.parametrize(
    ("text", "hertz"),
    [("1GHz", 10**9), ("3.2G", 3_200_000_000), ("800mhz", 800_000_000), ("100000000", 10**8),
     ("100000 kHz", 10**8), ("25.5GHz", 25_500_000_000)],
)  # fmt: skip
def test_frequency_text_is_converted_to_hertz(text: str, hertz: int) -> None:
    assert parse_frequency(text) == hertz


@pytest.mark.parametrize(
    "text",
    [
        "",
        "GHz",
        "0",
        "50MHz",
        "1.25GHz",
        "25.6GHz",
        "-1GHz",
        "1e9",
        "9" * 5000,
        "1000000\N{KELVIN SIGN}Hz",
    ],
)
def test_malformed_frequency_text_is_rejected(text: str) -> None:
    with pytest.raises(UsageError):
        parse_frequency(text)


def test_parse_cpi_accepts_1_to_1000() -> None:
    assert [parse_cpi(text) for text in ("1", "7", "1000")] == [1, 7, 1000]
    for text in ("0", "1001", "0.5", "", "two"):
        with pytest.raises(UsageError):
            parse_cpi(text)
