"""Recordings made of what others wrote: bare PT with a list of maps, logs of Griffin."""

from __future__ import annotations

import argparse
import mmap
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from rtit.capture.file import output_file
from rtit.cli import out
from rtit.cli.bare_values import numbers
from rtit.cli.gaps import EXIT_CODE
from rtit.cli.selecting import processor
from rtit.errors import InputError, RecordError
from rtit.perfdata import TimeConversion, Writer
from rtit.perfdata.attr import config_mask
from rtit.perfdata.griffin import Log, Pages, read_log
from rtit.perfdata.scan import check_size
from rtit.trace.settings import Settings, checked, cpu_named

_MAP = re.compile(r"([0-9a-f]+)-([0-9a-f]+) ([-r][-w][-x][-ps]) ([0-9a-f]+) \S+ \d+ +(/.*)")
_PROT = {"r": 1, "w": 2, "x": 4}
_PRIVATE = 2
_LONGEST_PATH = 4096
_BUS_MHZ = 100
_SHIFT = 22
_THREAD = 1
_MOST = 1 << 20


class _Seen(NamedTuple):
    """Which packets of time there are, and the last TSC."""

    tsc: int
    mtc: bool
    cyc: bool


def join(arguments: argparse.Namespace) -> None:
    """Write the recording that --raw and --maps are. Raises InputError, OSError, UsageError."""
    maps = list(_maps(arguments.maps))
    known = _known(arguments)
    raw = Path(arguments.raw)
    with raw.open("rb") as file:
        if not os.fstat(file.fileno()).st_size:
            raise InputError("there is no packet in it", source=str(raw), offset=0)
        # It is unmapped with the last view of it: an error has some, too.
        packets = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        view = memoryview(packets)
        seen = _look([view])
        with _writer(arguments, known, seen, ["--raw", str(raw)]) as writer:
            writer.comm(_THREAD, _THREAD, 0, raw.name[:15], by_exec=True)
            for start, size, offset, prot, path in maps:
                place = (start, size, offset, prot, _PRIVATE, 0, 0, 0, 0)
                writer.mmap2(_THREAD, _THREAD, 0, *place, path)
            writer.itrace_start(_THREAD, _THREAD, 0)
            writer.auxtrace(_THREAD, _THREAD, view, None, max(1, seen.tsc))
        check_size(packets, len(view), str(raw))
    out.line(f"{arguments.output}: thread {_THREAD}, {len(maps):,} mappings")


def join_griffin(arguments: argparse.Namespace) -> int:
    """Write the recording that a log is; 3 if that is cut. Raises InputError, OSError,
    UsageError.
    """
    known = _known(arguments)
    name = arguments.griffin
    with Path(name).open("rb") as file:
        if not os.fstat(file.fileno()).st_size:
            raise InputError("the file is empty", source=name, offset=0)
        # It is unmapped with the last view of it.
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        size = len(mapped)
        log = read_log(memoryview(mapped), name)
    seen = _look([part for tid in log.packets for part in log.stream(tid)])
    with _writer(arguments, known, seen, ["--griffin", name]) as writer:
        _tell(writer, log)
        for tid in log.packets:
            # A packet may begin in one part and end in the next, so they go in as one.
            with tempfile.TemporaryFile() as whole:
                whole.writelines(log.stream(tid))
                whole.flush()
                if not whole.tell():
                    continue
                packets = memoryview(mmap.mmap(whole.fileno(), 0, access=mmap.ACCESS_READ))
                writer.auxtrace(tid, log.threads[tid], packets, None, max(1, seen.tsc))
    check_size(mapped, size, name)
    pages = sum(isinstance(each, Pages) for each in log.told)
    out.line(f"{arguments.output}: {len(log.packets):,} threads, {pages:,} stretches of code")
    if log.incomplete is None:
        return 0
    out.complain("convert", f"{name} is incomplete: {log.incomplete}")
    return EXIT_CODE


def _tell(writer: Writer, log: Log) -> None:
    for each in log.told:
        if isinstance(each, Pages):
            place = (each.address, len(each.data), 0, _PROT["r"] | _PROT["x"], _PRIVATE)
            writer.mmap2(each.pid, each.pid, 0, *place, 0, 0, 0, 0, "//anon")
            writer.text_poke(each.pid, each.pid, 0, each.address, bytes(each.data))
        else:
            writer.fork(each.pid, each.ppid, each.tid, each.ptid, 0)
    for pid, name in log.names.items():
        writer.comm(pid, pid, 0, name)
    for tid, pid in log.threads.items():
        writer.itrace_start(pid, tid, 0)


class _Known(NamedTuple):
    """What the options tell of the processor."""

    mtc_freq: int
    ratio: int
    tsc_ctc: tuple[int, int]
    cpuid: str


def _known(arguments: argparse.Namespace) -> _Known:
    mtc_freq, ratio, (eax, ebx) = numbers(arguments)
    checked(Settings(mtc_freq=mtc_freq, tsc_ctc=(ebx, eax), max_nonturbo_ratio=ratio))
    model = processor(arguments)
    cpu = cpu_named(model) if model is not None else ()
    cpuid = ",".join(["GenuineIntel", *map(str, cpu)]) if cpu else ""
    return _Known(mtc_freq, ratio, (ebx, eax), cpuid)


@contextmanager
def _writer(
    arguments: argparse.Namespace, known: _Known, seen: _Seen, command: Sequence[str]
) -> Iterator[Writer]:
    """With an attr that fits what was seen of the packets. Of a recording that cannot be written
    whole nothing stays, and one that was there does.
    """
    config = config_mask("pt") | config_mask("branch")
    for term, there in (("tsc", seen.tsc), ("mtc", seen.mtc), ("cyc", seen.cyc)):
        config |= config_mask(term) if there else 0
    config |= config_mask("noretcomp") if arguments.noretcomp else 0
    mhz = known.ratio * _BUS_MHZ or 1000
    try:
        with (
            output_file(Path(arguments.output)),
            Writer(
                arguments.output,
                config=config | known.mtc_freq << 14,
                cpuid=known.cpuid,
                cmdline=["rtit", "convert", *command],
                time=TimeConversion(_SHIFT, (1000 << _SHIFT) // mhz, 0),
                tsc_ctc=known.tsc_ctc,
                max_nonturbo_ratio=known.ratio,
            ) as writer,
        ):
            yield writer
    except RecordError as error:
        error.exit_code = 1  # no program ran
        raise


def _look(whole: Sequence[memoryview]) -> _Seen:
    import numpy as np

    from rtit.trace.packets import KINDS
    from rtit.trace.packets import packets as columns

    tsc, mtc, cyc = (KINDS.index(name) for name in ("TSC", "MTC", "CYC"))
    seen = _Seen(0, mtc=False, cyc=False)
    parts = (view[at : at + _MOST] for view in whole for at in range(0, len(view), _MOST))
    for part in columns(parts):
        times = part.payload[part.kind == tsc]
        last = int(times[-1]) if len(times) else seen.tsc
        has_mtc, has_cyc = (bool(np.any(part.kind == kind)) for kind in (mtc, cyc))
        seen = _Seen(last, mtc=seen.mtc or has_mtc, cyc=seen.cyc or has_cyc)
        del part
    return seen


def _maps(name: str) -> Iterator[tuple[int, int, int, int, str]]:
    """start, size, offset, prot and path of the files that may run. Raises InputError."""
    with Path(name).open("rb") as file:
        offset = 0
        for line in file:
            found = _MAP.fullmatch(os.fsdecode(line.rstrip(b"\n")))
            if found is not None and "x" in found[3]:
                start, end, place = (int(found[number], 16) for number in (1, 2, 4))
                message = ""
                if not start < end < 1 << 64:
                    message = "a mapping without bytes"
                elif place >= 1 << 64 or len(os.fsencode(found[5])) > _LONGEST_PATH:
                    message = "a mapping of a file that cannot be"
                if message:
                    raise InputError(message, source=name, offset=offset, value=found[0][:100])
                prot = sum(_PROT.get(letter, 0) for letter in found[3])
                yield start, end - start, place, prot, found[5]
            offset += len(line)
