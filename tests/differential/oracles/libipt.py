"""libipt as an oracle: `decode`, `path`, `system_path`, `blocks`, `packets`; `measure` to compare
speed.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from struct import iter_unpack, pack
from typing import Literal

from differential.oracles.raw import CodeChange, Section
from programs.build import CACHE, CannotBuildError, compiled

INSTRUCTION, BLOCK, EVENT, ERROR, PACKET = 1, 2, 3, 4, 5
NO_IP = (1 << 64) - 1
FIRST_PAGE_TABLE = 1 << 30
"""In recordings of whole systems, the process with this id has the page table in page 0."""
KERNEL_SPACE = (1 << 32) - 1


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# Names of enum pt_error_code, enum pt_event_type and enum pt_packet_type of intel-pt.h, by value.
ERRORS = _names(
    "ok internal invalid nosync bad_opc bad_packet bad_context eos bad_query nomem "
    "bad_config noip ip_suppressed nomap bad_insn no_time no_cbr bad_image bad_lock "
    "not_supported retstack_empty bad_retcomp bad_status_update no_enable event_ignored "
    "overflow bad_file bad_cpu"
)
EVENTS = _names(
    "enabled disabled async_disabled async_branch paging async_paging overflow exec_mode "
    "tsx stop vmcs async_vmcs exstop mwait pwre pwrx ptwrite tick cbr mnt"
)
PACKETS = _names(
    "invalid unknown pad psb psbend fup tip tip.pge tip.pgd tnt.8 tnt.64 mode pip vmcs cbr "
    "tsc tma mtc cyc stop ovf mnt exstop mwait pwre pwrx ptw"
)


class LibiptMissingError(Exception):
    """libipt or a compiler is not installed here."""


@dataclass(frozen=True)
class Timing:
    """What libipt needs to know of time: MTCFreq, the nominal ratio, CPUID.15H."""

    mtc_freq: int
    nom_freq: int
    eax: int
    ebx: int


@dataclass(frozen=True)
class Item:
    """One record of the harness; `detail`, `value` and `extra` are documented in ipt_run.c."""

    kind: int
    detail: int
    value: int
    extra: int


@dataclass
class Decoded:
    """`ips` in order of execution; events (name, ip or None); errors (name, stream offset, ip)."""

    ips: list[int] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    events: list[tuple[str, int | None]] = field(default_factory=list)
    errors: list[tuple[str, int, int]] = field(default_factory=list)


@dataclass(frozen=True)
class Measure:
    """One repetition: its CPU seconds, and the requested items (`items`) that it decoded."""

    seconds: float
    instructions: int
    items: int
    errors: int


def harness(directory: Path = CACHE) -> Path:
    """Builds the harness. Raises LibiptMissingError."""
    return compiled_with_libipt("ipt_run", directory)


def compiled_with_libipt(name: str, directory: Path = CACHE) -> Path:
    """Builds a program of this folder. Raises LibiptMissingError."""
    source = Path(__file__).with_name(f"{name}.c")
    try:
        return compiled(
            name,
            [str(source)],
            language="c",
            flags=["-O2", "-Wall", "-Wextra"],
            libraries=["-lipt"],
            directory=directory,
        )
    except CannotBuildError as error:
        absent = ("compiler", "intel-pt.h: No such file", "cannot find -lipt")
        if any(sign in str(error) for sign in absent):
            raise LibiptMissingError("libipt (package libipt-dev) is not installed") from error
        raise


def decode(
    trace: bytes,
    sections: Sequence[Section],
    cpu: tuple[int, int, int] | None = None,
    timing: Timing | None = None,
    filter_range: tuple[int, int] | None = None,
) -> Decoded:
    """Every instruction of a PT stream, by pt_insn. `cpu` is family, model, stepping."""
    result = Decoded()
    for item in _items(
        "instructions", trace, sections, cpu, timing=timing, filter_range=filter_range
    ):
        if item.kind == INSTRUCTION:
            result.ips.append(item.value)
            result.times.append(item.extra)
        elif item.kind == EVENT:
            result.events.append((EVENTS[item.detail], None if item.value == NO_IP else item.value))
        elif item.kind == ERROR:
            result.errors.append((ERRORS[item.detail], item.value, item.extra))
    return result


def path(
    trace: bytes, sections: Sequence[Section], cpu: tuple[int, int, int] | None = None
) -> tuple[int, int, int]:
    """Instructions, truth-file hash over their addresses, and errors of a PT stream, by pt_insn."""
    instructions, chain, errors = _run_on("path", trace, sections, _cpu(cpu)).split()
    return int(instructions), int(chain), int(errors)


def system_path(trace: bytes, changes: Sequence[CodeChange]) -> tuple[int, int, int, str]:
    """As `path`, of the stream of a whole system, with the first errors as text.

    Its code is that of `changes`, sorted by time, by the page table in CR3.
    """
    with (
        tempfile.NamedTemporaryFile(suffix=".pt") as stream,
        tempfile.NamedTemporaryFile(suffix=".code") as code,
    ):
        stream.write(trace)
        stream.flush()
        for change in changes:
            space = KERNEL_SPACE if change.pid is None else change.pid - FIRST_PAGE_TABLE
            code.write(pack("<QQQQ", change.time, space, change.address, len(change.code)))
            code.write(change.code)
        code.flush()
        command = [str(compiled_with_libipt("ipt_system")), stream.name, code.name]
        result = subprocess.run(command, capture_output=True, text=True, check=True)
    instructions, chain, errors = map(int, result.stdout.split())
    return instructions, chain, errors, result.stderr


def blocks(
    trace: bytes, sections: Sequence[Section], cpu: tuple[int, int, int] | None = None
) -> list[Item]:
    """The blocks, events and errors of a PT stream, by pt_blk."""
    return list(_items("blocks", trace, sections, cpu))


def packets(trace: bytes, cpu: tuple[int, int, int] | None = None) -> list[tuple[int, str, int]]:
    """Packets (offset, name, size); one named 'error.NAME' of size 0 where libipt finds none."""
    return [
        (item.value, PACKETS[item.detail], item.extra)
        if item.kind == PACKET
        else (item.value, f"error.{ERRORS[item.detail]}", 0)
        for item in _items("packets", trace, (), cpu)
    ]


def measure(
    trace: Path,
    sections: Sequence[Section],
    repetitions: int,
    cpu: tuple[int, int, int] | None = None,
    what: Literal["blocks", "instructions", "packets"] = "blocks",
) -> list[Measure]:
    """Decodes a file of raw PT, with the section cache, `repetitions` times."""
    options = ["-n", str(repetitions), *_cpu(cpu)]
    output = _run(f"measure-{what}", trace, sections, options).decode()
    rows = [line.split() for line in output.splitlines()]
    return [Measure(float(row[0]), int(row[1]), int(row[2]), int(row[3])) for row in rows]


def _items(
    mode: str,
    trace: bytes,
    sections: Sequence[Section],
    cpu: tuple[int, int, int] | None,
    *,
    timing: Timing | None = None,
    filter_range: tuple[int, int] | None = None,
) -> Iterator[Item]:
    options = _cpu(cpu)
    if timing is not None:
        values = (timing.mtc_freq, timing.nom_freq, timing.eax, timing.ebx)
        options += ["-t", *map(str, values)]
    if filter_range is not None:
        options += ["-f", *map(str, filter_range)]
    for row in iter_unpack("<IIQQ", _run_on(mode, trace, sections, options)):
        yield Item(*row)


def _cpu(cpu: tuple[int, int, int] | None) -> list[str]:
    return [] if cpu is None else ["-c", *map(str, cpu)]


def _run_on(mode: str, trace: bytes, sections: Sequence[Section], options: list[str]) -> bytes:
    with tempfile.NamedTemporaryFile(suffix=".pt") as file:
        file.write(trace)
        file.flush()
        return _run(mode, Path(file.name), sections, options)


def _run(mode: str, trace: Path, sections: Sequence[Section], options: list[str]) -> bytes:
    command = [str(harness()), mode, str(trace), *options]
    for section in sections:
        numbers = map(str, (section.offset, section.size, section.address))
        command += ["-s", str(section.path), *numbers]
    result = subprocess.run(command, capture_output=True, check=False)
    if result.returncode:
        raise RuntimeError(f"{mode}: {result.stderr.decode(errors='replace').strip()}")
    return result.stdout
