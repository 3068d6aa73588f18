"""Parse names of registers, leaves and profiles, and numbers, as users type them.

Unknown names and bad numbers raise UsageError; it lists the valid names, the most similar first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from rtit.errors import UsageError
from rtit.registers.fields import Register
from rtit.registers.msr import MSRS, Msr
from rtit.registers.profiles import PROFILES, Profile

_NUMBER = re.compile(r"0[xX][0-9a-fA-F]+|0[bB][01]+|[0-9]+|[0-9][0-9a-fA-F]*[hH]")
_HEXADECIMAL = re.compile(r"(?:0[xX])?([0-9a-fA-F]+)[hH]?")


def parse_value(text: str, *, width: int = 64) -> int:
    """Return a number of `width` bits: decimal, 0x2401, 2401H or 0b1; `_` may separate digits."""
    digits = re.sub(r"(?<=[0-9a-fA-F])_(?=[0-9a-fA-F])", "", text)
    if not _NUMBER.fullmatch(digits) or len(digits) > 100:
        raise UsageError(f"{text!r} is no number: write 9217, 0x2401, 2401H or 0b10010000000001")
    value = (
        int(digits[:-1], 16)
        if digits[-1] in "hH"
        else int(digits, {"0x": 16, "0b": 2}.get(digits[:2].lower(), 10))
    )
    if value >> width:
        raise UsageError(f"{text} does not fit in {width} bits")
    return value


def parse_address(text: str) -> int | None:
    """Return the address of an MSR or number of a leaf, always hexadecimal: 570H, 0x570, 570."""
    match = _HEXADECIMAL.fullmatch(text)
    return int(match[1], 16) if match else None


def find_register(text: str) -> Register:
    """Return the register of an MSR: IA32_RTIT_CTL, RTIT_CTL or CTL in any case, or its address."""
    for register in MSRS.values():
        if _without_prefix(text) == _without_prefix(register.name):
            return register
    address = parse_address(text)
    if address in MSRS:
        return MSRS[Msr(address)]
    if address is not None and text[:1].isdigit():
        nearest = sorted(MSRS, key=lambda msr: abs(int(msr) - address))
        listed = ", ".join(f"{int(msr):X}H {MSRS[msr].name}" for msr in nearest)
        raise UsageError(f"no PT MSR has the address {address:X}H; valid: {listed}")
    raise UsageError(
        unknown_name_message("register", text, [register.name for register in MSRS.values()])
    )


def find_profile(text: str) -> Profile:
    """Return the profile with this name, in any case."""
    if (profile := PROFILES.get(text.lower())) is None:
        raise UsageError(unknown_name_message("profile", text, PROFILES))
    return profile


def unknown_name_message(kind: str, text: str, names: Iterable[str]) -> str:
    """Return an error text for an unknown name: the valid names, the most similar first."""
    return f"there is no {kind} {text!r}; valid: {', '.join(sort_by_similarity(text, names))}"


def sort_by_similarity(text: str, names: Iterable[str]) -> list[str]:
    """Return `names` by similarity to `text`, without regard to case and prefix IA32_RTIT_."""
    import difflib

    def similarity_to_word(name: str) -> float:
        return max(
            difflib.SequenceMatcher(None, _without_prefix(text), _without_prefix(name)).ratio(),
            difflib.SequenceMatcher(None, text.lower(), name.lower()).ratio(),
        )

    return sorted(names, key=similarity_to_word, reverse=True)


def _without_prefix(name: str) -> str:
    return re.sub(r"^(msr_)?(ia32_)?(rtit_)?", "", name.lower())
