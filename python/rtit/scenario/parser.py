"""Parse scenario files. `FORMAT` documents the syntax."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

from rtit.errors import ScenarioError, UsageError
from rtit.registers import CTL, PROFILES
from rtit.scenario.model import (
    FAULTS,
    MAX_PADS,
    REST,
    ChapterTableRow,
    ExpectedPackets,
    PacketLine,
    Scenario,
    ScenarioEvent,
    parse_hexadecimal_bytes,
    parse_packet_lines,
)
from rtit.scenario.vocabulary import (
    OTHER_SETTINGS,
    EventSignature,
    event_signatures,
    parse_assignments,
    parse_number,
    setting_fields,
    suggest_names,
)
from rtit.unit.arch_state import ArchState
from rtit.unit.parameters.table import Parameters
from rtit.unit.time_model import TimeModel

FORMAT = """\
A scenario file has comments (`#`), settings, and events. The indented lines below an event are the
packets that this event produces; an event without indented lines produces no packets. `PAD * 222`
stands for 222 PAD packets, `= 04 2d 08 13` for exact bytes, `#GP` and `#UD` for faults, and
`...` for any packets up to the end of the event. `shutdown` after the packets means that the event
ends in the shutdown state. All IPs are full addresses.

Settings: `section 33.4.2.6` (the section of the SDM), `table 33-55 row 2 3`, `example 33-1`,
`spec ID...`, `profile NAME field=value...`, `parameters name=value...`, `arch field=value...`,
`time name=value...` (default: the profile's clock), `ctl Field Field=value...` (the fields that
`enable` writes together with TraceEn), `fabric` (collect the bytes from the trace transport), `code
ADDRESS BYTE...` (the program that the events execute).

Events: `enable [IP]`, `disable [IP]`, `write MSR VALUE` (a write at any CPL; `wrmsr` is the
instruction), `read MSR [VALUE] [Field=value...]`, `state field=value...`, `vmcs name=value...` (the
VMX controls of all later VM entries and SMM VM exits; MSR-load areas as `CTL:0x2009,STATUS:0`),
`pebs IP TYPE:ID=VALUE... [at_TYPE=CLOCK]`, and `ctl` (another value for the next `enable`). All
other events are methods of `Processor`, with the arguments in order or as NAME=VALUE. `pip_at=`,
`mode_exec_at=` and `target_at=` say when the parts of a long event happen.
"""

MAXIMUM_BYTES = 1 << 18
"""A scenario is a page of text; a larger file is something else."""

_REPEATED = ("spec", "table", "example", "code")
_SECTION = re.compile(r"33(\.\d+)+")
_TABLE = re.compile(r"33-\d+")


def load(path: str | os.PathLike[str]) -> Scenario:
    """Return the scenario in a file. Raises ScenarioError, OSError."""
    with Path(path).open("rb") as file:
        data = file.read(MAXIMUM_BYTES + 1)
    source = os.fspath(path)
    if len(data) > MAXIMUM_BYTES:
        raise ScenarioError(f"larger than {MAXIMUM_BYTES} bytes", source=source, line=1)
    try:
        return parse(data.decode(), source)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ScenarioError(
            f"byte {data[error.start]:#04x} is no UTF-8 text", source=source, line=line
        ) from None


def parse(text: str, source: str) -> Scenario:
    """Return the scenario in a text; `source` names it in errors. Raises ScenarioError."""
    return _ScenarioParser(source).parse(text)


class _ScenarioParser:
    def __init__(self, source: str) -> None:
        self.scenario = Scenario(source)
        self.line = 0
        self.seen: set[str] = set()
        self.code: dict[int, tuple[bytes, int]] = {}
        self.lines: list[PacketLine] = []
        self.raw: bytes | None = None
        self.ended = ""
        self.padding = 0

    def parse(self, text: str) -> Scenario:
        remark: list[str] = []
        for self.line, raw in enumerate(text.split("\n"), 1):
            if raw.startswith("#") and not self.seen and not self.scenario.events:
                remark.append(raw.strip("# \r\t"))
            content = _strip_comment(raw)
            if not content.strip():
                continue
            try:
                if content[0].isspace():
                    self._parse_packet(content.strip())
                else:
                    self._end_event()
                    self._parse_line(content.split())
            except (UsageError, ValueError) as error:
                self._raise_scenario_error(str(error))
        self._end_event()
        self._store_code()
        self.scenario.remark = "\n".join(remark)
        return self.scenario

    def _raise_scenario_error(self, message: str) -> NoReturn:
        raise ScenarioError(message, source=self.scenario.source, line=self.line) from None

    def _parse_packet(self, text: str) -> None:
        """Parse an indented line, which belongs to the event above it."""
        if not self.scenario.events:
            raise ValueError(f"there is no event above this indented line: {text[:40]!r}")
        if self.ended:
            raise ValueError(f"no line can follow {self.ended}: {text[:40]!r}")
        if text.startswith("="):
            if self.lines:
                raise ValueError("an event has packets or exact bytes, not both")
            self.raw, self.ended = parse_hexadecimal_bytes(text[1:]), "exact bytes"
        elif text == REST:
            self.ended = REST
        else:
            lines = parse_packet_lines(text)
            self.padding += len(lines) - 1
            if self.padding > MAX_PADS:
                raise ValueError(f"a scenario has at most {MAX_PADS} PADs")
            self.lines += lines

    def _end_event(self) -> None:
        """Store the indented lines of the last event."""
        events = self.scenario.events
        if self.lines or self.ended:
            expected = ExpectedPackets(tuple(self.lines), self.ended == REST, self.raw)
            events[-1] = replace(events[-1], expected=expected)
        self.lines, self.raw, self.ended = [], None, ""

    def _parse_line(self, words: list[str]) -> None:
        name, *rest = words
        known = event_signatures()
        is_setting = name in setting_fields() or name in OTHER_SETTINGS
        if is_setting and not (name == "ctl" and self.scenario.events):
            if self.scenario.events:
                raise ValueError(f"{name} is a setting: it comes before all events")
            if name in self.seen and name not in _REPEATED:
                raise ValueError(f"{name} is given twice")
            self.seen.add(name)
            self._parse_setting(name, rest)
        elif name in known:
            self.scenario.events.append(self._parse_event(name, rest, known[name]))
        else:
            names = {*known, *setting_fields(), *OTHER_SETTINGS}
            raise ValueError(
                f"there is no event or setting {name[:40]!r}{suggest_names(name, names)}"
            )

    # Settings

    def _parse_setting(self, name: str, words: list[str]) -> None:
        scenario = self.scenario
        if name in setting_fields():
            self._parse_fields(name, words)
        elif name == "spec":
            scenario.spec += tuple(words)
        elif name == "section":
            _require_words(words, 1, "section 33.4.2.6", _SECTION)
            scenario.section = words[0]
        elif name == "table":
            scenario.rows += _parse_rows(words)
        elif name == "example":
            _require_words(words, 1, "example 33-1", _TABLE)
            scenario.examples += (words[0],)
        elif name == "code":
            self._parse_code(words)
        elif words:
            raise ValueError(f"{name} takes no arguments, not {words[0][:40]!r}")
        else:
            scenario.fabric = True

    def _parse_fields(self, name: str, words: list[str]) -> None:
        scenario = self.scenario
        if name == "profile":
            if not words or words[0] not in PROFILES:
                word = words[0] if words else ""
                raise ValueError(
                    f"there is no profile {word[:40]!r}{suggest_names(word, PROFILES)}"
                )
            values = parse_assignments(words[1:], setting_fields()[name], "a profile")
            errata = values.pop("errata", ())
            profile = replace(PROFILES[words[0]], **values)
            scenario.profile = profile.with_errata(*errata) if errata else profile
            return
        values = parse_assignments(words, setting_fields()[name], name)
        if name == "parameters":
            scenario.parameters = Parameters(**values)
        elif name == "time":
            scenario.time = TimeModel(**values)
        elif name == "arch":
            scenario.arch = ArchState(**values)
        else:
            scenario.ctl = parse_ctl_fields(values)

    def _parse_code(self, words: list[str]) -> None:
        if len(words) < 2:
            raise ValueError("code has an address and bytes: code 0x1000 74 0e")
        address = parse_number(words[0])
        data = parse_hexadecimal_bytes(" ".join(words[1:]))
        if address in self.code:
            raise ValueError(f"code at {address:#x} is given twice")
        if address + len(data) > 1 << 64:
            raise ValueError(f"code at {address:#x} goes beyond 2^64")
        self.code[address] = data, self.line

    def _store_code(self) -> None:
        """Store the program. Raises ScenarioError if a byte is given twice."""
        spans = sorted(self.code.items())
        for (first, (data, before)), (second, (_, after)) in pairwise(spans):
            if first + len(data) > second:
                self.line = max(before, after)
                self._raise_scenario_error(f"code at {second:#x} overlaps that at {first:#x}")
        self.scenario.code = {address: data for address, (data, _) in spans}

    # Events

    def _parse_event(self, name: str, words: list[str], signature: EventSignature) -> ScenarioEvent:
        plain = [word for word in words if "=" not in word]
        assigned = [word for word in words if "=" in word]
        if name in ("ctl", "vmcs", "state"):
            plain, assigned = [], words
        items: dict[str, int] = {}
        if signature.block_items:
            keys = [word for word in assigned if _is_field_of_packet_block(word)]
            assigned = [word for word in assigned if not _is_field_of_packet_block(word)]
            items = parse_assignments(
                keys, {word.partition("=")[0]: parse_number for word in keys}, name
            )
        if len(plain) > len(signature.positional):
            extra = plain[len(signature.positional)]
            raise ValueError(
                f"{extra[:40]!r} is one argument too many: write {_format_usage(name, signature)}"
            )
        positional = []
        for (key, kind), word in zip(signature.positional.items(), plain, strict=False):
            try:
                positional.append(kind(word))
            except ValueError as error:
                raise ValueError(f"{key.upper()}: {error}") from None
        named = parse_assignments(assigned, signature.named, name)
        for key in list(signature.positional)[: len(plain)]:
            if key in named:
                raise ValueError(f"{name}: {key} is given twice")
        given = {*named, *list(signature.positional)[: len(plain)]}
        known = {**signature.positional, **signature.named}
        if missing := [key for key in known if key in signature.required - given]:
            raise ValueError(
                f"{missing[0].upper()} is missing: write {_format_usage(name, signature)}"
            )
        if name == "ctl":
            named = parse_ctl_fields(named)
        return ScenarioEvent(
            self.line, " ".join([name, *words]), name, tuple(positional), named | items
        )


def parse_ctl_fields(values: dict[str, int]) -> dict[str, Any]:
    """Return fields of IA32_RTIT_CTL. Raises ValueError for one that does not fit."""
    CTL.encode(**values)
    return values


def _format_usage(name: str, signature: EventSignature) -> str:
    return f"{name} {signature.usage_text}".rstrip()


def _is_field_of_packet_block(word: str) -> bool:
    return re.match(r"(\w+:\w+|at_\w+)=", word) is not None


def _require_words(words: list[str], count: int, usage: str, pattern: re.Pattern[str]) -> None:
    if len(words) != count or not pattern.fullmatch(words[0]):
        raise ValueError(f"{' '.join(words)[:40]!r} is invalid: write {usage}")


def _parse_rows(words: list[str]) -> tuple[ChapterTableRow, ...]:
    usage = "table 33-55 row 2 3"
    _require_words(words[:1], 1, usage, _TABLE)
    if len(words) == 1:
        return (ChapterTableRow(words[0]),)
    if words[1] != "row" or len(words) == 2:
        raise ValueError(f"{' '.join(words[1:])[:40]!r} is invalid: write {usage}")
    return tuple(ChapterTableRow(words[0], word) for word in words[2:])


def _strip_comment(raw: str) -> str:
    """Return a line without its comment; `#GP` and `#UD` at the start of an indented line stay."""
    stripped = raw.lstrip()
    for fault in FAULTS:
        if stripped.startswith(fault) and raw[:1].isspace():
            at = raw.index(fault) + len(fault)
            return raw[:at] + raw[at:].split("#", maxsplit=1)[0]
    return raw.split("#", maxsplit=1)[0].rstrip()
