"""What the options of bare PT say, as values."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from rtit.errors import PerfDataError, UsageError

if TYPE_CHECKING:
    from rtit.trace import Start
    from rtit.trace.guest_time import GuestTsc


def numbers(arguments: argparse.Namespace) -> tuple[int, int, tuple[int, int]]:
    """--mtc-freq, --nom-freq and --cpuid-15 (EAX, EBX); 0 for what is not given. Raises
    UsageError.
    """
    mtc_freq, nom_freq = (named_number(arguments, name) for name in ("mtc_freq", "nom_freq"))
    return mtc_freq, nom_freq, _pair(getattr(arguments, "cpuid_15", None))


def guest_tsc(texts: list[str] | None) -> GuestTsc:
    """--guest-tsc: of all guests, or of each VMCS, or `auto`. Raises UsageError."""
    from rtit.trace.settings import NO_SCALING

    if not texts:
        return NO_SCALING
    if texts == ["auto"]:
        return "auto"
    named = [text.partition(":") for text in texts]
    if any(colon for _, colon, _ in named):
        found: dict[int, tuple[int, int]] = {}
        for vmcs, _, text in named:
            pointer = _number("--guest-tsc", vmcs)
            if pointer in found:
                raise UsageError(f"--guest-tsc {vmcs} twice: a VMCS has one offset")
            found[pointer] = _scaling(text)
        return found
    if len(texts) > 1:
        raise UsageError("--guest-tsc twice: VMCS:OFFSET says of which guest each is")
    return _scaling(texts[0])


def guest_tsc_of_all(texts: list[str] | None) -> tuple[int, int]:
    """--guest-tsc of bare PT. Raises UsageError."""
    found = guest_tsc(texts)
    if not isinstance(found, tuple):
        raise UsageError("--guest-tsc by VMCS is for recordings: bare PT takes OFFSET[,MULTIPLIER]")
    return found


def _scaling(text: str) -> tuple[int, int]:
    """The offset may be negative: it is added in arithmetic of 64 bits."""
    from rtit.trace.settings import NO_SCALING

    try:
        numbers = [int(word, 0) for word in text.split(",")]
        offset, multiplier = numbers if len(numbers) == 2 else (*numbers, NO_SCALING[1])
    except ValueError:
        raise UsageError(f"--guest-tsc takes OFFSET[,MULTIPLIER], not {text!r}") from None
    return offset % (1 << 64), multiplier


def named_number(arguments: argparse.Namespace, name: str) -> int:
    """Of the option with this name, 0 if it is not given. Raises UsageError."""
    text = getattr(arguments, name, None)
    return 0 if text is None else _number(f"--{name.replace('_', '-')}", text)


def filter_ranges(text: str | None) -> list[tuple[int, int]]:
    """First and last address of each range of --filter that is traced. Raises UsageError."""
    from rtit.perfdata.filters import FILTER_EN, parse_kernel_form

    if text is None:
        return []
    try:
        found = parse_kernel_form(text)
    except PerfDataError:
        found = []
    if not found or any(each.path for each in found):
        raise UsageError(f"--filter takes 'filter START/SIZE,...' of addresses, not {text!r}")
    traced = (each for each in found if each.addr_cfg == FILTER_EN)
    return [(each.offset, each.offset + each.size - 1) for each in traced]


def start(text: str | None) -> Start | None:
    """--start. Raises UsageError."""
    from rtit.trace import Start

    if text is None:
        return None
    words = text.split(",")
    try:
        ip = None if words[0] == "off" else int(words[0], 16)
        bits = int(words[1]) if len(words) > 1 else 64
        last_ip = int(words[2], 16) if len(words) > 2 else 0
    except ValueError:
        ip, bits, last_ip = None, 0, 0
    if bits not in (16, 32, 64) or len(words) > 3:
        raise UsageError(f"--start takes IP[,BITS[,LASTIP]], not {text!r}")
    return Start(ip, bits, last_ip)


def _number(option: str, text: str) -> int:
    try:
        return int(text, 0)
    except ValueError:
        raise UsageError(f"{option} takes a number, not {text!r}") from None


def _pair(text: str | None) -> tuple[int, int]:
    if text is None:
        return 0, 0
    words = text.split(",")
    if len(words) != 2:
        raise UsageError(f"--cpuid-15 takes EAX,EBX, not {text!r}")
    eax, ebx = (_number("--cpuid-15", word) for word in words)
    return eax, ebx
