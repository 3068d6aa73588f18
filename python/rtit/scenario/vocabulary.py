"""What a scenario can say: events with their arguments, settings with their fields.

Most of it follows from the signatures of the methods of `Processor` and of the fields of the
dataclasses that the settings stand for, so that a new one needs no second declaration.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, get_args, get_type_hints

from rtit.processor import Processor
from rtit.registers import CTL, MSRS, PROFILES, Profile
from rtit.scenario.words import Kind, integer, kind_of, loads, msr, number, text, truth
from rtit.unit.arch_state import ArchState, VmxControls
from rtit.unit.events.transfers import OperationTimes
from rtit.unit.parameters.table import Parameters
from rtit.unit.state import State
from rtit.unit.time_model import TimeModel
from rtit.unit.trace_unit import TraceUnit

_METHODS = (
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

HINTS = (
    *("flush", "insert_psb", "insert_cyc", "pad", "mnt", "drop_mtc"),
    *("begin_overflow", "end_overflow"),
)
"""Events that are methods of TraceUnit: what a processor may do at any time."""

STAMPS = tuple(f"{name}_at" for name in get_type_hints(OperationTimes))
"""When the parts of a long event happen."""


_MANY = 16
"""Names of arguments beyond which nobody wants to read them all."""


@dataclass(frozen=True, slots=True)
class Signature:
    """Arguments of an event.

    `positional`: those that may come by position, in order. `named`: all that may come as
    NAME=VALUE. `required`: those that must come. `changes`: fields of `ArchState` are among the named
    ones. `block_items`: TYPE:ID=VALUE and at_TYPE=CLOCK may
    come as well.
    """

    positional: Mapping[str, Kind] = field(default_factory=dict)
    named: Mapping[str, Kind] = field(default_factory=dict)
    required: frozenset[str] = frozenset()
    changes: bool = False
    block_items: bool = False

    @property
    def usage(self) -> str:
        """The arguments, as help texts show them; in brackets what may be left out."""
        words = [(name, name.upper()) for name in self.positional]
        words += [(name, f"{name}=") for name in self.named if name not in self.positional]
        if self.block_items:
            words += [("", "TYPE:ID=VALUE..."), ("", "at_TYPE=CLOCK...")]
        if self.changes:
            words = [pair for pair in words if pair[0] not in arch_fields()] + [("", "...")]
        if len(words) > _MANY:
            words = [pair for pair in words if pair[0] in self.positional] + [("", "FIELD=...")]
        return " ".join(word if name in self.required else f"[{word}]" for name, word in words)


def _signature(method: Callable[..., Any]) -> Signature:
    hints = get_type_hints(method)
    positional: dict[str, Kind] = {}
    named: dict[str, Kind] = {}
    required: set[str] = set()
    changes = False
    for name, parameter in list(inspect.signature(method).parameters.items())[1:]:
        if name == "stamps":
            named |= dict.fromkeys(STAMPS, number)
        elif parameter.kind is inspect.Parameter.VAR_KEYWORD:
            (fields,) = get_args(hints[name])
            named |= {key: kind for key, kind in _fields(fields).items() if key not in named}
            changes = True
        elif (kind := kind_of(hints[name])) is not None:
            named[name] = kind
            if parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD:
                positional[name] = kind
            if parameter.default is inspect.Parameter.empty:
                required.add(name)
    return Signature(positional, named, frozenset(required), changes)


def _fields(of: type, **special: Kind) -> dict[str, Kind]:
    """The fields of a dataclass that a word can give a value."""
    kinds = {name: kind_of(hint) for name, hint in get_type_hints(of).items()}
    return {name: kind for name, kind in kinds.items() if kind is not None} | special


@functools.cache
def arch_fields() -> Mapping[str, Kind]:
    """Fields of `ArchState`."""
    return _fields(ArchState)


@functools.cache
def settings() -> Mapping[str, Mapping[str, Kind]]:
    """Settings whose words are NAME=VALUE, with the fields that each has."""
    return {
        "profile": _fields(Profile),
        "parameters": _fields(Parameters),
        "time": _fields(TimeModel, tsc_adjust=integer),
        "arch": arch_fields(),
        "ctl": dict.fromkeys((row.name for row in CTL.fields), number),
    }


PLAIN_SETTINGS = ("spec", "section", "table", "example", "fabric", "code")
"""The other settings."""


@functools.cache
def events() -> Mapping[str, Signature]:
    """Every event by name."""
    ip = {"ip": number}
    returns = {"returns": text}
    found = {name: _signature(getattr(Processor, name)) for name in _METHODS}
    found |= {name: _signature(getattr(TraceUnit, name)) for name in HINTS}
    entry = found["vm_entry"]
    value = {"msr": msr, "value": number}
    write = Signature(value, {"ip": number, "next_ip": number}, frozenset(("msr", "value")))
    return found | {
        "vm_entry": replace(entry, named={**entry.named, **returns}),
        "enable": Signature(ip, ip),
        "disable": Signature(ip, ip),
        "ctl": Signature({}, settings()["ctl"]),
        "write": write,
        "wrmsr": write,
        "read": Signature(value, _register_fields(), frozenset(("msr",))),
        "state": Signature({}, _fields(State)),
        "vmcs": Signature(
            {}, _fields(VmxControls, tsc_offset=integer, entry_loads=loads, exit_loads=loads)
        ),
        "pebs": Signature(
            ip, {"four_bytes": truth, "output": truth}, frozenset(("ip",)), block_items=True
        ),
    }


def _register_fields() -> dict[str, Kind]:
    return {row.name: number for register in MSRS.values() for row in register.fields}


def profile_names() -> tuple[str, ...]:
    """The processors that `profile` can name."""
    return tuple(PROFILES)
