"""`rtit msr REGISTER VALUE`: a register value in words, and whether a write of it is legal."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

from rtit.cli import options, output
from rtit.cli.parser import CommandParser
from rtit.errors import UsageError
from rtit.registers import CTL, MSRS, Msr, Profile, Register, RegisterFile, describe_fields, wrmsr
from rtit.registers.access_rules import wrmsr_faults
from rtit.registers.describe import format_set_bits
from rtit.registers.parse_names import (
    find_profile,
    find_register,
    parse_value,
    unknown_name_message,
)

_EPILOG = """Examples:
  rtit msr IA32_RTIT_CTL 0x2401
  rtit msr CTL TraceEn=1 BranchEn=1 MTCEn=1 MTCFreq=3 --profile skylake
  rtit msr 571H 0x20 --profile goldmont-plus --tracing
  rtit msr --list

Exit codes: 0 for success, 1 if the write faults on the processor of --profile, 2 for an invalid
command line.
"""


@dataclass(frozen=True, slots=True)
class WriteResult:
    """Result of a write on `profile`: the reasons for #GP(0), or the new value of the MSR.

    `changes` are the fields that the write changes: name, before, after.
    """

    profile: Profile
    faults: tuple[str, ...]
    after: int | None
    changes: tuple[tuple[str, int, int], ...]


def add_arguments(parser: CommandParser) -> None:
    """Declare the options."""
    parser.usage = "rtit msr [options] REGISTER [VALUE...]"
    parser.description = (
        "Explain a value of a PT control register (MSR). --profile checks a write of this value."
    )
    parser.epilog = _EPILOG
    group = parser.add_argument_group()
    group.add_argument(
        "register",
        nargs="?",
        metavar="REGISTER",
        help="Name or address of the register, such as IA32_RTIT_CTL, CTL, 570H or 0x570",
    )
    group.add_argument(
        "value",
        nargs="*",
        metavar="VALUE",
        help=(
            "Value as a number (9217, 0x2401, 2401H) or as fields (TraceEn=1 MTCFreq=3) "
            "(default: the reset value)"
        ),
    )
    group = parser.add_argument_group("Check a write")
    options.add_value_option(
        group, "--profile", "NAME", "Check whether the processor NAME accepts the value"
    )
    options.add_value_option(
        group,
        "--current",
        "VALUE",
        "Value of the register before the write (default: the reset value)",
    )
    options.add_flag_option(
        group, "--tracing", "Assume that tracing is enabled (TraceEn=1) during the write"
    )
    options.add_flag_option(
        group, "--vmx", "Assume that the processor is in VMX operation during the write"
    )
    group = parser.add_argument_group("Output")
    options.add_flag_option(group, "--all", "Also show the fields that are 0")
    options.add_flag_option(group, "--list", "List the registers")
    options.add_json_option(group, "Print JSON")
    parser.add_general_options()


def run(arguments: argparse.Namespace) -> int:
    """Explain the value; return 1 if the write faults on the profile."""
    if arguments.list:
        _print_all_msrs(as_json=arguments.json)
        return 0
    if arguments.register is None:
        raise UsageError("no register given", hint="rtit msr --list shows the registers")
    register = find_register(arguments.register)
    profile = find_profile(arguments.profile) if arguments.profile else None
    if profile is None and (arguments.current or arguments.vmx or arguments.tracing):
        raise UsageError("--current, --vmx and --tracing need --profile")
    if arguments.tracing and register is CTL:
        raise UsageError("--tracing does not apply to IA32_RTIT_CTL: give --current instead")
    value = _parse_register_value(register, arguments.value)
    result = None
    if profile is not None:
        current = register.reset
        if arguments.current is not None:
            current = parse_value(arguments.current)
        result = _check_write(register, value, current, profile, arguments)
    if arguments.json:
        output.write_json(_to_json(register, value, profile, result), indent=2)
    else:
        _print_register_fields(register, value, profile, everything=arguments.all)
        if result is not None:
            _show_result(result)
    return int(result is not None and bool(result.faults))


def _parse_register_value(register: Register, words: list[str]) -> int:
    """Return the number given, or the reset value with the fields given."""
    if not words:
        return register.reset
    if len(words) == 1 and "=" not in words[0]:
        return parse_value(words[0], width=register.width)
    names = {row.name.lower(): row.name for row in register.fields}
    contents = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals:
            raise UsageError(f"{word!r}: give one number, or fields as NAME=VALUE")
        if name.lower() not in names:
            raise UsageError(
                unknown_name_message(f"field of {register.name}", name, names.values())
            )
        name = names[name.lower()]
        contents[name] = parse_value(text, width=register[name].width)
    return register.encode(**contents)


def _check_write(
    register: Register, value: int, current: int, profile: Profile, arguments: argparse.Namespace
) -> WriteResult:
    msr = _msr_of_register(register)
    before = RegisterFile(ctl=int(arguments.tracing))
    before.write(msr, current)
    faults = wrmsr_faults(msr, value, current=before, profile=profile, vmx=arguments.vmx)
    if faults:
        return WriteResult(profile, faults, None, ())
    current = before.read(msr)
    wrmsr(before, msr, value, profile=profile, vmx=arguments.vmx)
    after = before.read(msr)
    old, new = register.decode(current), register.decode(after)
    changes = tuple((name, old[name], new[name]) for name in new if old[name] != new[name])
    return WriteResult(profile, (), after, changes)


def _print_register_fields(
    register: Register, value: int, profile: Profile | None, *, everything: bool
) -> None:
    output.print_line(
        f"{register.name} ({_msr_of_register(register):X}H, {register.source}) = {value:#x}"
    )
    rows = describe_fields(register, value, profile)
    shown = [row for row in rows if row.shown or everything]
    width = max((len(row.name) for row in shown), default=0)
    for row in shown:
        output.print_line(
            f"  {row.bits:>5}  {row.name:{width}}  {row.content:#x}  {row.words} ({row.source})"
        )
    if hidden := [row.name for row in rows if row not in shown]:
        output.print_line(f"  0: {', '.join(hidden)}")
    if reserved := value & register.reserved_mask:
        output.print_line(
            f"  reserved bits that are set: {format_set_bits(reserved)} ({reserved:#x})"
        )


def _show_result(result: WriteResult) -> None:
    name = result.profile.name
    if result.faults:
        output.print_line(f"on {name}, WRMSR faults with #GP(0):")
        for reason in result.faults:
            output.print_line(f"  {reason}")
        return
    output.print_line(f"on {name}, WRMSR is legal; the new value of the MSR is {result.after:#x}")
    for field, before, after in result.changes:
        output.print_line(f"  {field}: {before:#x} -> {after:#x}")


def _to_json(
    register: Register, value: int, profile: Profile | None, result: WriteResult | None
) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "register": register.name,
        "address": f"{_msr_of_register(register):#x}",
        "source": register.source,
        "value": f"{value:#x}",
        "fields": [row.as_json() for row in describe_fields(register, value, profile)],
        "reserved": f"{value & register.reserved_mask:#x}",
    }
    if result is not None:
        answer["write"] = {
            "profile": result.profile.name,
            "legal": not result.faults,
            "faults": list(result.faults),
            "after": None if result.after is None else f"{result.after:#x}",
            "changes": [
                {"field": name, "before": before, "after": after}
                for name, before, after in result.changes
            ],
        }
    return answer


def _msr_of_register(register: Register) -> Msr:
    return Msr(register.address or 0)


def _print_all_msrs(*, as_json: bool) -> None:
    if as_json:
        listed = [
            {"register": each.name, "address": f"{int(msr):#x}", "source": each.source}
            for msr, each in MSRS.items()
        ]
        output.write_json(listed, indent=2)
        return
    for msr, each in MSRS.items():
        fields = ", ".join(row.name for row in each.fields)
        output.print_line(f"{int(msr):X}H  {each.name:27}  {each.source:16}  {fields}")
