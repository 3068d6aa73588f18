"""The vocabulary of scenario files: events with arguments, settings with fields, values.

Events derive from the signatures of the methods of `Processor`, settings from the fields of
dataclasses, so a new method or field needs no second declaration. A `WordParser` turns one word
into a value, or raises ValueError.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from rtit.processor import Processor
from rtit.registers import CTL, MSRS, Msr, Profile
from rtit.unit.arch_state import ArchState, VmxControls
from rtit.unit.events.far_transfers import OperationTimes
from rtit.unit.parameters.table import Parameters
from rtit.unit.state import UnitState
from rtit.unit.time_model import TimeModel
from rtit.unit.trace_unit import TraceUnit

WordParser = Callable[[str], Any]

_MAX_SHOWN = 100
"""Characters of a number; more are an error."""


def suggest_names(word: str, names: Iterable[str]) -> str:
    """Return the similar names, or all names if they are few, to append to an error; or ""."""
    valid = sorted(names)
    near = difflib.get_close_matches(word, valid, n=3, cutoff=0.6) or [
        name for name in valid if name.lower() == word.lower()
    ]
    if near:
        return f"; did you mean {' or '.join(near)}?"
    return f"; valid: {', '.join(valid)}" if 0 < len(valid) <= 24 else ""


def parse_integer(word: str) -> int:
    """Parse a signed number of at most 64 bits: 12, -3, 0x1f, 0b11."""
    try:
        value = int(word, 0) if len(word) <= _MAX_SHOWN else None
    except ValueError:
        value = None
    if value is None:
        raise ValueError(f"{_shorten_word(word)!r} is no number: write 12, 0x1f or 0b101")
    if value >> 64 not in (0, -1):
        raise ValueError(f"{_shorten_word(word)} does not fit in 64 bits")
    return value


def parse_number(word: str) -> int:
    """Parse an unsigned number of at most 64 bits."""
    value = parse_integer(word)
    if value < 0:
        raise ValueError(f"{word} is negative")
    return value


def parse_bool(word: str) -> bool:
    """Parse True, False, 1 or 0."""
    values = {"True": True, "1": True, "False": False, "0": False}
    if word not in values:
        raise ValueError(f"{_shorten_word(word)!r} is no truth value: write True or False")
    return values[word]


def parse_msr(word: str) -> int:
    """Parse an MSR: CTL, IA32_RTIT_CTL, or an address."""
    name = word.removeprefix("IA32_RTIT_")
    if name in Msr.__members__:
        return Msr[name]
    if not word[:1].isdigit():
        raise ValueError(
            f"there is no MSR {_shorten_word(word)!r}{suggest_names(name, Msr.__members__)}"
        )
    return parse_number(word)


def parse_msr_loads(word: str) -> tuple[tuple[int, int], ...]:
    """Parse an MSR-load area: CTL:0x2009,STATUS:0."""
    pairs = [part.partition(":") for part in word.split(",")]
    if not all(colon for _, colon, _ in pairs):
        raise ValueError(f"{_shorten_word(word)!r} is no list of MSR:VALUE")
    return tuple((parse_msr(name), parse_number(value)) for name, _, value in pairs)


def parser_for_names(names: Iterable[str]) -> WordParser:
    """Return a parser for one of some names."""
    valid = tuple(names)

    def parse(word: str) -> str:
        if word not in valid:
            found = difflib.get_close_matches(word, valid, n=1)
            nearest = f"; did you mean {found[0]}?" if found else ""
            raise ValueError(f"{_shorten_word(word)!r} is none of {', '.join(valid)}{nearest}")
        return word

    return parse


def parser_for_list(kind: WordParser) -> WordParser:
    """Return a parser for words with commas between them."""

    def parse(word: str) -> tuple[Any, ...]:
        return tuple(kind(part) for part in word.split(","))

    return parse


def parser_for_type(hint_: Any) -> WordParser | None:
    """Return the parser for a type annotation; None if no word can express its values."""
    plain: dict[Any, WordParser] = {int: parse_number, bool: parse_bool, str: str}
    if hint_ in plain:
        return plain[hint_]
    if isinstance(hint_, type) and issubclass(hint_, IntEnum):
        return parse_number
    origin, arguments = get_origin(hint_), get_args(hint_)
    if origin is Literal and all(isinstance(each, str) for each in arguments):
        return parser_for_names(arguments)
    if origin in (Union, types.UnionType):
        (*some,) = (each for each in arguments if each is not type(None))
        return parser_for_type(some[0]) if len(some) == 1 else None
    if origin in (tuple, frozenset) and arguments:
        inner = parser_for_type(arguments[0])
        if inner is not None and (origin is frozenset or arguments[1:] == (Ellipsis,)):
            return parser_for_list(inner)
    return None


def parse_assignments(
    words: Iterable[str], kinds: Mapping[str, WordParser], what: str
) -> dict[str, Any]:
    """Return the values of NAME=VALUE words; NAME alone is 1.

    Raises ValueError for a name that is not in `kinds`, or is given twice.
    """
    values: dict[str, Any] = {}
    for word in words:
        name, equals, content = word.partition("=")
        if name not in kinds:
            raise ValueError(f"{what} has no {_shorten_word(name)!r}{suggest_names(name, kinds)}")
        if name in values:
            raise ValueError(f"{name} is given twice")
        try:
            values[name] = kinds[name](content if equals else "1")
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    return values


def _shorten_word(word: str) -> str:
    return word if len(word) <= 40 else f"{word[:37]}..."


_PROCESSOR_EVENTS = (
    *("at", "reset", "retire", "conditional", "jump", "call", "indirect_jump", "indirect_call"),
    *("ret", "far", "syscall", "resume", "iret", "interrupt", "exception", "software_interrupt"),
    *("change_mode", "init", "sipi", "user_interrupt", "uiret", "mov_cr3"),
    *("begin_transaction", "end_transaction", "abort_transaction", "ptwrite"),
    *("mwait", "umwait", "halt", "shutdown", "duty_cycle", "resolve_deeper", "wake"),
    *("stop_clocks", "change_frequency", "task_switch_fault"),
    *("vmxon", "vmxoff", "vmptrld", "vmclear", "vm_entry", "vm_exit", "smi", "rsm"),
    *("smm_vm_exit", "smm_vm_entry", "eenter", "eresume", "eexit", "aex"),
    *("getsec", "senter_sleep", "acm_begin", "acm_end", "xsaves"),
    *("last_branch", "last_exception"),
)
"""Events that are methods of Processor."""

TRACE_UNIT_EVENTS = (
    *("flush", "insert_psb", "insert_cyc", "pad", "mnt", "drop_mtc"),
    *("begin_overflow", "end_overflow"),
)
"""Events that are methods of TraceUnit: a processor may do these at any time."""

OPERATION_TIMES = tuple(f"{name}_at" for name in get_type_hints(OperationTimes))
"""Arguments for the times of the parts of a long event."""

_MAX_LISTED_ARGUMENTS = 16
"""The most arguments that help texts list."""


@dataclass(frozen=True, slots=True)
class EventSignature:
    """Arguments of an event.

    `positional`: may be given by position, in order. `named`: may be given as NAME=VALUE.
    `required`: must be given. `changes`: fields of `ArchState` are among the named ones.
    `block_items`: TYPE:ID=VALUE and at_TYPE=CLOCK may be given.
    """

    positional: Mapping[str, WordParser] = field(default_factory=dict)
    named: Mapping[str, WordParser] = field(default_factory=dict)
    required: frozenset[str] = frozenset()
    changes: bool = False
    block_items: bool = False

    @property
    def usage_text(self) -> str:
        """The arguments, as help texts show them; optional ones in brackets."""
        words = [(name, name.upper()) for name in self.positional]
        words += [(name, f"{name}=") for name in self.named if name not in self.positional]
        if self.block_items:
            words += [("", "TYPE:ID=VALUE..."), ("", "at_TYPE=CLOCK...")]
        if self.changes:
            words = [pair for pair in words if pair[0] not in arch_fields()] + [("", "...")]
        if len(words) > _MAX_LISTED_ARGUMENTS:
            words = [pair for pair in words if pair[0] in self.positional] + [("", "FIELD=...")]
        return " ".join(word if name in self.required else f"[{word}]" for name, word in words)


def _signature_of_method(method: Callable[..., Any]) -> EventSignature:
    hints = get_type_hints(method)
    positional: dict[str, WordParser] = {}
    named: dict[str, WordParser] = {}
    required: set[str] = set()
    changes = False
    for name, parameter in list(inspect.signature(method).parameters.items())[1:]:
        if name == "times":
            named |= dict.fromkeys(OPERATION_TIMES, parse_number)
        elif parameter.kind is inspect.Parameter.VAR_KEYWORD:
            (fields,) = get_args(hints[name])
            named |= {
                key: kind for key, kind in _parsers_of_fields(fields).items() if key not in named
            }
            changes = True
        elif (kind := parser_for_type(hints[name])) is not None:
            named[name] = kind
            if parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD:
                positional[name] = kind
            if parameter.default is inspect.Parameter.empty:
                required.add(name)
    return EventSignature(positional, named, frozenset(required), changes)


def _parsers_of_fields(dataclass_type: type, **special: WordParser) -> dict[str, WordParser]:
    """Return parsers for the fields of a dataclass that a word can set."""
    kinds = {name: parser_for_type(hint) for name, hint in get_type_hints(dataclass_type).items()}
    return {name: kind for name, kind in kinds.items() if kind is not None} | special


@functools.cache
def arch_fields() -> Mapping[str, WordParser]:
    """Return the fields of `ArchState`."""
    return _parsers_of_fields(ArchState)


@functools.cache
def setting_fields() -> Mapping[str, Mapping[str, WordParser]]:
    """Return the settings of the form NAME=VALUE, with the fields of each."""
    return {
        "profile": _parsers_of_fields(Profile),
        "parameters": _parsers_of_fields(Parameters),
        "time": _parsers_of_fields(TimeModel, tsc_adjust=parse_integer),
        "arch": arch_fields(),
        "ctl": dict.fromkeys((row.name for row in CTL.fields), parse_number),
    }


OTHER_SETTINGS = ("spec", "section", "table", "example", "fabric", "code")
"""The other settings."""


@functools.cache
def event_signatures() -> Mapping[str, EventSignature]:
    """Return every event by name."""
    ip = {"ip": parse_number}
    returns = {"returns": str}
    found = {name: _signature_of_method(getattr(Processor, name)) for name in _PROCESSOR_EVENTS}
    found |= {name: _signature_of_method(getattr(TraceUnit, name)) for name in TRACE_UNIT_EVENTS}
    entry = found["vm_entry"]
    fields = {row.name: parse_number for register in MSRS.values() for row in register.fields}
    value = {"msr": parse_msr, "value": parse_number}
    write = EventSignature(
        value, {"ip": parse_number, "next_ip": parse_number}, frozenset(("msr", "value"))
    )
    return found | {
        "vm_entry": replace(entry, named={**entry.named, **returns}),
        "enable": EventSignature(ip, ip),
        "disable": EventSignature(ip, ip),
        "ctl": EventSignature({}, setting_fields()["ctl"]),
        "write": write,
        "wrmsr": write,
        "read": EventSignature(value, fields, frozenset(("msr",))),
        "state": EventSignature({}, _parsers_of_fields(UnitState)),
        "vmcs": EventSignature(
            {},
            _parsers_of_fields(
                VmxControls,
                tsc_offset=parse_integer,
                entry_loads=parse_msr_loads,
                exit_loads=parse_msr_loads,
            ),
        ),
        "pebs": EventSignature(
            ip,
            {"four_bytes": parse_bool, "output": parse_bool},
            frozenset(("ip",)),
            block_items=True,
        ),
    }
