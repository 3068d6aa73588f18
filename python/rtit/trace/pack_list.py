"""What a pack says is in it: `rtit-pack.json`, of which nothing is believed."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, get_args

from rtit.image.guest_processes import GuestProcess
from rtit.image.kept import Kept, Key, Kind, Problem
from rtit.image.mappings import UPPER
from rtit.readable import as_name, json_text, json_value

LIST = "rtit-pack.json"
FORMAT = 1
RECORDING, FILES = "recording/", "files/"
KERNEL, JIT = "kernel/", "jit/"
GUEST = re.compile(r"guest(?:-([0-9]{1,10}))?/", re.ASCII)
OF_RECORDING = re.compile(r"recording/(?:\w[\w.-]{0,99}/)?\w[\w.-]{0,99}", re.ASCII)
OF_MORE = re.compile(
    r"(?:kernel|guest(?:-[0-9]{1,10})?)/"
    r"(?:kcore|kallsyms|vmlinux|listed|modules/[\w-]{1,100}\.ko(?:\.(?:gz|xz|zst))?)"
    r"|jit/[0-9]{1,4}/(?:jit-[0-9]{1,10}\.dump|perf-[0-9]{1,10}\.map)",
    re.ASCII,
)
_PLAIN = re.compile(r"files/[0-9]{1,7}")
_KINDS = frozenset(get_args(Kind))


@dataclass(frozen=True, slots=True)
class Contents:
    """What a pack says is in it. `recording` are the members that the recording is, `folder` if
    that is a directory; `modified`: when it was (seconds since 1970); the `files` name members.
    `more` are members of kernels and of code that programs made, with what they were called;
    `problems` what was wrong with others of these, by KERNEL, what GUEST matches, and JIT;
    `guest_processes` are those that were named.
    """

    recording: tuple[str, ...]
    folder: bool
    modified: float
    files: dict[Key, Kept] = field(default_factory=dict)
    more: dict[str, str] = field(default_factory=dict)
    problems: dict[str, tuple[Problem, ...]] = field(default_factory=dict)
    guest_processes: tuple[GuestProcess, ...] = ()

    def encode(self) -> bytes:
        """As JSON."""
        rows = [
            {
                "path": path,
                "build_id": build_id,
                "name": kept.name,
                "file": kept.file,
                "debug": kept.debug,
                "problem": None
                if kept.problem is None
                else [kept.problem.kind, kept.problem.message, kept.problem.value],
            }
            for (path, build_id), kept in self.files.items()
        ]
        said = {
            "format": FORMAT,
            "recording": self.recording,
            "folder": self.folder,
            "modified": self.modified,
            "files": rows,
            "more": self.more,
            "problems": {
                whose: [[each.kind, each.path, each.message, each.value] for each in told]
                for whose, told in self.problems.items()
            },
            "guest_processes": [
                [each.cr3, each.vmcs, each.machine, each.rows] for each in self.guest_processes
            ],
        }
        return json_text(said, indent=1).encode()

    @classmethod
    def decode(cls, data: bytes) -> Contents:
        """Back from JSON. Raises ValueError for anything else."""
        said = json_value(data)
        version = _of(dict, said).get("format")
        if version != FORMAT:
            raise ValueError(f"its format is {version!r}, and {FORMAT} is known")
        recording = tuple(_name(OF_RECORDING, each) for each in _of(list, said["recording"]))
        if not recording:
            raise ValueError("there is no recording in it")
        files = dict(_row(each) for each in _of(list, said["files"]))
        modified = float(_of((int, float), said["modified"]))
        more = {
            _name(OF_MORE, member): _of(str, name)
            for member, name in _of(dict, said.get("more", {})).items()
        }
        problems = {
            _of(str, whose): tuple(_problem(*_of(list, each)) for each in _of(list, told))
            for whose, told in _of(dict, said.get("problems", {})).items()
        }
        processes = tuple(map(_process, _of(list, said.get("guest_processes", []))))
        if len({each.key for each in processes}) < len(processes):
            raise ValueError("two processes of guests have one CR3")
        folder = _of(bool, said["folder"])
        return cls(recording, folder, modified, files, more, problems, processes)


def _row(said: Any) -> tuple[Key, Kept]:
    row = _of(dict, said)
    path, build_id = _of(str, row["path"]), _of(str, row["build_id"])
    file, debug = (_name(_PLAIN, row[key]) if row[key] else None for key in ("file", "debug"))
    problem = None
    if row["problem"] is not None:
        kind, message, value = _of(list, row["problem"])
        problem = _problem(kind, path, message, value)
    return (path, build_id), Kept(_of(str, row["name"]), file, debug, problem)


def _process(said: Any) -> GuestProcess:
    cr3, vmcs, machine, rows = _of(list, said)
    places = []
    for each in _of(list, rows):
        start, end, offset, path = _of(list, each)
        if not 0 <= _of(int, start) < _of(int, end) <= UPPER or not 0 <= _of(int, offset) < UPPER:
            raise ValueError(f"no mapping: {str(each)[:80]}")
        places.append((start, end, offset, _of(str, path)))
    for number in (cr3, machine, 0 if vmcs is None else vmcs):
        if not 0 <= _of(int, number) < 1 << 64:
            raise ValueError(f"no CR3, VMCS pointer or process: {number}")
    return GuestProcess(cr3, vmcs, machine, tuple(places))


def _problem(kind: Any, path: Any, message: Any, value: Any) -> Problem:
    if kind not in _KINDS:
        raise ValueError(f"no kind of problem: {kind!r}")
    value = None if value is None else _of((str, int), value)
    return Problem(kind, _of(str, path), _of(str, message), value)


def _of(kind: Any, value: Any) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"its list has {str(value)[:40]!r} where it must not")
    return as_name(value) if isinstance(value, str) else value


def _name(form: re.Pattern[str], value: Any) -> str:
    if not isinstance(value, str) or form.fullmatch(value) is None:
        raise ValueError(f"its list names {str(value)[:80]!r}")
    return value
