"""Decoder settings from a perf.data file."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count, repeat
from pathlib import Path
from typing import Any

import pytest

from rtit.errors import UsageError
from rtit.image import Image
from rtit.perfdata import PerfData
from rtit.trace import Decoder, decode
from rtit.trace.recording.decoder_settings import parse_perf_cpuid, settings_from_perf


@pytest.mark.parametrize(
    ("cpuid", "cpu"),
    [
        ("GenuineIntel,6,94,3", (6, 94, 3)),
        ("GenuineIntel,6,151,2,1", (6, 151, 2)),
        ("AuthenticAMD,25,1,1", None),
        ("GenuineIntel,6,94", None),
        ("GenuineIntel,6,x,3", None),
        ("GenuineIntel,6,99999,3", None),
        ("", None),
        (None, None),
    ],
)
def test_perf_cpuid_text_is_parsed(cpuid: str | None, cpu: tuple[int, int, int] | None) -> None:
    assert parse_perf_cpuid(cpuid) == cpu


@pytest.mark.parametrize(
    ("name", "cpu"),
    [("loopy-skylake", (6, 94, 3)), ("loopy-broadwell-snapshot", (6, 61, 4))],
)
def test_settings_have_the_processor_of_the_recording(
    name: str, cpu: tuple[int, int, int], traces: Path
) -> None:
    with PerfData(traces / "hase" / f"{name}.perf.data") as data:
        assert settings_from_perf(data, 0).cpu == cpu


@pytest.mark.parametrize(
    "settings",
    [
        *({"cpu": cpu} for cpu in ([6], (6, 94, 3, 1), 7, ("6", 94, 3))),
        {"guest_tsc": ""},
        {"guest_tsc": {}},
        {"guest_tsc": (1.5, 1)},
        {"guest_tsc": (1,)},
        {"ranges": [1]},
        {"ranges": [(1, 2, 3)]},
        {"cpuid_15": (None, 1)},
    ],
)
def test_settings_of_wrong_shape_raise_usage_error(settings: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="whole numbers"):
        decode(b"", **settings)


@pytest.mark.parametrize("consumer", [decode, lambda _, **given: Decoder(Image(), **given)])
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ranges": repeat((0, 1))}, "5 filter ranges: at most 4 are supported"),
        ({"ranges": [count()]}, "a filter range .* 2 whole numbers"),
        ({"cpu": count()}, "cpu .* 3 whole numbers"),
    ],
)
def test_endless_settings_raise_usage_error(
    consumer: Callable[..., object], settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        consumer(b"", **settings)
