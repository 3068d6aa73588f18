"""`rtit cpuid`: the leaves that describe PT, of a profile or as given, in words."""

from __future__ import annotations

import argparse
from typing import Any

from rtit.cli import options, output
from rtit.cli.parser import CommandParser
from rtit.errors import UsageError
from rtit.registers import ERRATA, LEAVES, PROFILES, Leaf, Profile, describe_fields
from rtit.registers.describe import FieldDescription, format_set_bits, register_of_leaf
from rtit.registers.parse_names import find_profile, parse_address, parse_value

_OUTPUTS = ("eax", "ebx", "ecx", "edx")
_BITMAPS = ("MTCPeriods", "CycThresholds", "PSBPeriods")
_EPILOG = """Examples:
  rtit cpuid --profile skylake
  rtit cpuid 14H 1 --profile alderlake
  rtit cpuid 14H 0 EBX=0x3f ECX=0x80000007
  rtit cpuid --list
"""


def add_arguments(parser: CommandParser) -> None:
    """Declare the options."""
    parser.usage = "rtit cpuid [options] [LEAF [SUBLEAF] [EAX=VALUE ...]]"
    parser.description = (
        "Explain the CPUID leaves of PT, with the values of a known processor or with given values."
    )
    parser.epilog = _EPILOG
    parser.add_argument_group().add_argument(
        "words",
        nargs="*",
        metavar="LEAF",
        help="Number of a CPUID leaf (14H or 0x14, always hexadecimal), optionally followed by the "
        "number of a sub-leaf, and by register values to explain",
    )
    group = parser.add_argument_group("Output")
    options.add_value_option(group, "--profile", "NAME", "Show the values that this processor has")
    options.add_flag_option(group, "--all", "Also show the fields that are 0")
    options.add_flag_option(group, "--list", "List the profiles and the leaves")
    options.add_json_option(group, "Print JSON")
    parser.add_general_options()


def run(arguments: argparse.Namespace) -> int:
    """Decode the leaves; return 0."""
    if arguments.list:
        _print_all_leaves(as_json=arguments.json)
        return 0
    profile = find_profile(arguments.profile) if arguments.profile else None
    asked, given = _split_leaf_and_values(arguments.words)
    if given and profile is not None:
        raise UsageError("give register values or --profile, not both")
    if not given and profile is None:
        raise UsageError(
            "nothing to explain: give --profile NAME, or a leaf with register values",
            hint="example: rtit cpuid 14H 0 EBX=15",
        )
    if given and asked is None:
        raise UsageError("register values need a leaf", hint="example: rtit cpuid 14H 0 EBX=15")
    keys = [asked] if asked is not None else list(LEAVES)
    answers = {key: profile.cpuid(*key) if profile else Leaf(**given) for key in keys}
    outputs = tuple(given) if given else _OUTPUTS
    if arguments.json:
        output.write_json(_to_json(answers, outputs, profile), indent=2)
        return 0
    notes = _SourceFootnotes(profile)
    if profile is not None and asked is None:
        _show_profile(profile, notes)
    for key, answer in answers.items():
        _print_leaf(key, answer, outputs, notes, everything=arguments.all)
    notes.print_sources()
    return 0


class _SourceFootnotes:
    """The sources of a profile's values, numbered in order of use."""

    def __init__(self, profile: Profile | None) -> None:
        self._profile = profile
        self._numbers: dict[str, int] = {}

    def footnote_of_attribute(self, attribute: str) -> str:
        """Return a reference to the source of an attribute, or ""."""
        if self._profile is None or not attribute:
            return ""
        return self.footnote_number(self._profile.source_of_attribute(attribute))

    def footnote_number(self, source: str) -> str:
        """Return the number of a source, in brackets."""
        return f"  [{self._numbers.setdefault(source, len(self._numbers) + 1)}]"

    def print_sources(self) -> None:
        """Print the sources."""
        if self._numbers:
            output.print_line("where the values come from:")
        for source, number in self._numbers.items():
            output.print_line(f"  [{number}] {source}")


def _split_leaf_and_values(words: list[str]) -> tuple[tuple[int, int] | None, dict[str, int]]:
    """Return the leaf with its sub-leaf, and the values by register."""
    plain = [word for word in words if "=" not in word]
    given: dict[str, int] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals:
            continue
        if name.lower() not in _OUTPUTS:
            raise UsageError(f"{word!r}: CPUID returns EAX, EBX, ECX and EDX")
        given[name.lower()] = parse_value(text, width=32)
    if not plain:
        return None, given
    leaf = parse_address(plain[0])
    if leaf is None or leaf not in {key[0] for key in LEAVES}:
        raise UsageError(f"no leaf {plain[0]!r} describes PT; valid: {_list_known_leaves(leaf)}")
    if len(plain) > 2:
        raise UsageError(f"expected at most one leaf and one sub-leaf, not {' '.join(plain)}")
    subleaf = parse_value(plain[1], width=32) if len(plain) == 2 else 0
    if (leaf, subleaf) not in LEAVES:
        known = ", ".join(str(key[1]) for key in LEAVES if key[0] == leaf)
        raise UsageError(f"no sub-leaf {subleaf} of leaf {leaf:02X}H describes PT; valid: {known}")
    return (leaf, subleaf), given


def _list_known_leaves(near: int | None) -> str:
    leaves = sorted({key[0] for key in LEAVES}, key=lambda leaf: abs(leaf - (near or 0)))
    return ", ".join(f"{leaf:02X}H" for leaf in leaves)


def _show_profile(profile: Profile, notes: _SourceFootnotes) -> None:
    tsc = f"{profile.tsc_hz / 1e6:g} MHz" if profile.tsc_hz else "not given by CPUID.15H"
    facts = [
        (f"{profile.name}", f"{profile.family:02X}_{profile.model:02X}H {profile.stepping}", ""),
        ("IP payloads", "linear IP" if profile.lip else "effective IP (RIP)", "lip"),
        ("LBR, BTS while tracing", "no" if profile.lbr_exclusive else "yes", "lbr_exclusive"),
        ("IA32_VMX_MISC[14]", str(int(profile.vmx_tracing)), "vmx_tracing"),
        ("TSC", tsc, "crystal_hz"),
        ("physical addresses", f"{profile.maxphyaddr} bits", "maxphyaddr"),
        ("linear addresses", f"{profile.linear_width} bits", "linear_width"),
    ]
    for title, text, attribute in facts:
        output.print_line(f"{title:24} {text}{notes.footnote_of_attribute(attribute)}")
    for name in profile.known_errata:
        switch = "on" if name in profile.active_errata else "off"
        each = ERRATA[name]
        output.print_line(
            f"erratum {name:16} {switch}: {each.effect}{notes.footnote_number(each.source)}"
        )


def _print_leaf(
    key: tuple[int, int],
    answer: Leaf,
    outputs: tuple[str, ...],
    notes: _SourceFootnotes,
    *,
    everything: bool,
) -> None:
    values = "  ".join(f"{name.upper()} {getattr(answer, name):08X}" for name in outputs)
    output.print_line(f"CPUID.({key[0]:02X}H,{key[1]})  {values}")
    for result in outputs:
        value = getattr(answer, result)
        rows, undefined = _decode_register_bits(key, result, value)
        hidden = []
        for row in rows:
            if not (row.shown or everything):
                hidden.append(row.name)
                continue
            where = f"{result.upper()}[{row.bits}]"
            content = f"{row.content:#x}" if row.name in _BITMAPS else f"{row.content}"
            note = notes.footnote_of_attribute(_profile_attribute_of_field(key, result, row.name))
            output.print_line(
                f"  {where:11} {row.name:15} {content:<8}  {row.words} ({row.source}){note}"
            )
        if hidden:
            output.print_line(f"  {result.upper():11} 0: {', '.join(hidden)}")
        if undefined:
            output.print_line(
                f"  {result.upper():11} not about PT, or reserved: {format_set_bits(undefined)}"
            )


def _decode_register_bits(
    key: tuple[int, int], result: str, value: int
) -> tuple[list[FieldDescription], int]:
    """Return the fields of one register, and its bits that belong to no field."""
    register = register_of_leaf(*key, result)
    return describe_fields(register, value), value & register.reserved_mask


def _profile_attribute_of_field(key: tuple[int, int], result: str, name: str) -> str:
    """Return the attribute of `Profile` that a field reports; "" for family and model."""
    capability = register_of_leaf(*key, result)[name].capability
    return {"implemented_ranges": "ranges"}.get(capability or "", capability or "")


def _to_json(
    answers: dict[tuple[int, int], Leaf], outputs: tuple[str, ...], profile: Profile | None
) -> dict[str, Any]:
    leaves = []
    for key, answer in answers.items():
        fields = []
        for result in outputs:
            rows, _ = _decode_register_bits(key, result, getattr(answer, result))
            for row in rows:
                item = {"output": result.upper(), **row.as_json()}
                if profile is not None and (
                    attribute := _profile_attribute_of_field(key, result, row.name)
                ):
                    item["value_source"] = profile.source_of_attribute(attribute)
                fields.append(item)
        values = {name.upper(): f"{getattr(answer, name):#x}" for name in outputs}
        leaves.append({"leaf": f"{key[0]:#x}", "subleaf": key[1], **values, "fields": fields})
    document: dict[str, Any] = {"leaves": leaves}
    if profile is not None:
        document["profile"] = _profile_json(profile)
    return document


def _profile_json(profile: Profile) -> dict[str, Any]:
    return {
        "name": profile.name,
        "family": profile.family,
        "model": profile.model,
        "stepping": profile.stepping,
        "lip": profile.lip,
        "lbr_exclusive": profile.lbr_exclusive,
        "vmx_tracing": profile.vmx_tracing,
        "tsc_hz": profile.tsc_hz,
        "sources": dict(profile.sources),
        "errata": {
            name: {"on": name in profile.active_errata, "effect": ERRATA[name].effect}
            for name in profile.known_errata
        },
    }


def _print_all_leaves(*, as_json: bool) -> None:
    if as_json:
        leaves = [{"leaf": f"{leaf:#x}", "subleaf": subleaf} for leaf, subleaf in LEAVES]
        output.write_json({"profiles": list(PROFILES), "leaves": leaves}, indent=2)
        return
    for name, profile in PROFILES.items():
        output.print_line(f"{name:14} {profile.family:02X}_{profile.model:02X}H")
    for (leaf, subleaf), registers in LEAVES.items():
        fields = [row.name for register in registers.values() for row in register.fields]
        output.print_line(f"CPUID.({leaf:02X}H,{subleaf})  {', '.join(fields)}")
