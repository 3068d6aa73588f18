"""Makes recordings from raw PT with a list of mappings, and from logs of Griffin."""

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

from rtit.capture.store.recording_writer import replace_output_file
from rtit.cli import options, output
from rtit.cli.incomplete import EXIT_CODE
from rtit.errors import InputError, RecordError
from rtit.perfdata import TimeConversion, Writer
from rtit.perfdata.attr import config_mask
from rtit.perfdata.file_scan import check_not_truncated
from rtit.perfdata.griffin_log import CodePages, GriffinLog, read_griffin_log
from rtit.trace.recording.decoder_settings import Settings, check_settings, parse_cpu

_MAP = re.compile(r"([0-9a-f]+)-([0-9a-f]+) ([-r][-w][-x][-ps]) ([0-9a-f]+) \S+ \d+ +(/.*)")
_PROT = {"r": 1, "w": 2, "x": 4}
_PRIVATE = 2
_LONGEST_PATH = 4096
_BUS_MHZ = 100
_SHIFT = 22
_THREAD = 1
_MOST = 1 << 20


class _TimePackets(NamedTuple):
    """Which timing packets there are, and the last TSC."""

    tsc: int
    mtc: bool
    cyc: bool


def assemble_recording(arguments: argparse.Namespace) -> None:
    """Write the recording of --raw and --maps. Raises InputError, OSError, UsageError."""
    maps = list(_read_executable_maps(arguments.maps))
    processor = _processor_settings(arguments)
    raw = Path(arguments.raw)
    with raw.open("rb") as file:
        if not os.fstat(file.fileno()).st_size:
            raise InputError("the file contains no packets", source=str(raw), offset=0)
        # It is unmapped with the last view of it: an error has some, too.
        packets = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        view = memoryview(packets)
        seen = _scan_time_packets([view])
        with _open_recording_writer(arguments, processor, seen, ["--raw", str(raw)]) as writer:
            writer.comm(_THREAD, _THREAD, 0, raw.name[:15], by_exec=True)
            for start, size, offset, prot, path in maps:
                mapping = (start, size, offset, prot, _PRIVATE, 0, 0, 0, 0, path)
                writer.mmap2(_THREAD, _THREAD, 0, *mapping)
            writer.itrace_start(_THREAD, _THREAD, 0)
            writer.auxtrace(_THREAD, _THREAD, view, None, max(1, seen.tsc))
        check_not_truncated(packets, len(view), str(raw))
    output.print_line(f"{arguments.output}: thread {_THREAD}, {len(maps):,} mappings")


def assemble_griffin(arguments: argparse.Namespace) -> int:
    """Write the recording of a log; return 3 if the log is cut.

    Raises InputError, OSError, UsageError.
    """
    processor = _processor_settings(arguments)
    name = arguments.griffin
    with Path(name).open("rb") as file:
        if not os.fstat(file.fileno()).st_size:
            raise InputError("the file is empty", source=name, offset=0)
        # It is unmapped with the last view of it.
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        size = len(mapped)
        log = read_griffin_log(memoryview(mapped), name)
    seen = _scan_time_packets([part for tid in log.packets for part in log.thread_packets(tid)])
    with _open_recording_writer(arguments, processor, seen, ["--griffin", name]) as writer:
        _write_griffin_records(writer, log)
        for tid in log.packets:
            # A packet may begin in one part and end in the next, so they go in as one.
            with tempfile.TemporaryFile() as whole:
                whole.writelines(log.thread_packets(tid))
                whole.flush()
                if not whole.tell():
                    continue
                packets = memoryview(mmap.mmap(whole.fileno(), 0, access=mmap.ACCESS_READ))
                writer.auxtrace(tid, log.threads[tid], packets, None, max(1, seen.tsc))
    check_not_truncated(mapped, size, name)
    pages = sum(isinstance(each, CodePages) for each in log.memory_events)
    output.print_line(f"{arguments.output}: {len(log.packets):,} threads, {pages:,} ranges of code")
    if log.incomplete is None:
        return 0
    output.print_error("convert", f"{name} is incomplete: {log.incomplete}")
    return EXIT_CODE


def _write_griffin_records(writer: Writer, log: GriffinLog) -> None:
    for each in log.memory_events:
        if isinstance(each, CodePages):
            mapping = (each.address, len(each.data), 0, _PROT["r"] | _PROT["x"], _PRIVATE)
            writer.mmap2(each.pid, each.pid, 0, *mapping, 0, 0, 0, 0, "//anon")
            writer.text_poke(each.pid, each.pid, 0, each.address, bytes(each.data))
        else:
            writer.fork(each.pid, each.ppid, each.tid, each.ptid, 0)
    for pid, name in log.names.items():
        writer.comm(pid, pid, 0, name)
    for tid, pid in log.threads.items():
        writer.itrace_start(pid, tid, 0)


class _ProcessorSettings(NamedTuple):
    """Settings of the processor from the options."""

    mtc_freq: int
    ratio: int
    tsc_ctc: tuple[int, int]
    cpuid: str


def _processor_settings(arguments: argparse.Namespace) -> _ProcessorSettings:
    mtc_freq, ratio, (eax, ebx) = options.parse_timing_numbers(arguments)
    check_settings(Settings(mtc_freq=mtc_freq, tsc_ctc=(ebx, eax), max_nonturbo_ratio=ratio))
    model = arguments.cpu_model
    cpu = parse_cpu(model) if model is not None else ()
    cpuid = ",".join(["GenuineIntel", *map(str, cpu)]) if cpu else ""
    return _ProcessorSettings(mtc_freq, ratio, (ebx, eax), cpuid)


@contextmanager
def _open_recording_writer(
    arguments: argparse.Namespace,
    processor: _ProcessorSettings,
    seen: _TimePackets,
    command: Sequence[str],
) -> Iterator[Writer]:
    """Open a recording with an attr that fits the packets.

    An existing file stays as it is until the recording is complete.
    """
    config = config_mask("pt") | config_mask("branch")
    for term, there in (("tsc", seen.tsc), ("mtc", seen.mtc), ("cyc", seen.cyc)):
        config |= config_mask(term) if there else 0
    config |= config_mask("noretcomp") if arguments.noretcomp else 0
    mhz = processor.ratio * _BUS_MHZ or 1000
    try:
        with (
            replace_output_file(Path(arguments.output)),
            Writer(
                arguments.output,
                config=config | processor.mtc_freq << 14,
                cpuid=processor.cpuid,
                cmdline=["rtit", "convert", *command],
                time=TimeConversion(_SHIFT, (1000 << _SHIFT) // mhz, 0),
                tsc_ctc=processor.tsc_ctc,
                max_nonturbo_ratio=processor.ratio,
            ) as writer,
        ):
            yield writer
    except RecordError as error:
        error.exit_code = 1  # no program ran
        raise


def _scan_time_packets(whole: Sequence[memoryview]) -> _TimePackets:
    import numpy as np

    from rtit.trace.tables.packets import PACKET_KINDS
    from rtit.trace.tables.packets import packet_batches as columns

    tsc, mtc, cyc = (PACKET_KINDS.index(name) for name in ("TSC", "MTC", "CYC"))
    seen = _TimePackets(0, mtc=False, cyc=False)
    parts = (view[at : at + _MOST] for view in whole for at in range(0, len(view), _MOST))
    for part in columns(parts):
        times = part.payload[part.kind == tsc]
        last = int(times[-1]) if len(times) else seen.tsc
        has_mtc, has_cyc = (bool(np.any(part.kind == kind)) for kind in (mtc, cyc))
        seen = _TimePackets(last, mtc=seen.mtc or has_mtc, cyc=seen.cyc or has_cyc)
        del part
    return seen


def _read_executable_maps(name: str) -> Iterator[tuple[int, int, int, int, str]]:
    """Yield start, size, offset, prot and path of executable files. Raises InputError."""
    with Path(name).open("rb") as file:
        offset = 0
        for line in file:
            found = _MAP.fullmatch(os.fsdecode(line.rstrip(b"\n")))
            if found is not None and "x" in found[3]:
                start, end, file_offset = (int(found[number], 16) for number in (1, 2, 4))
                message = ""
                if not start < end < 1 << 64:
                    message = "an empty mapping"
                elif file_offset >= 1 << 64 or len(os.fsencode(found[5])) > _LONGEST_PATH:
                    message = "a mapping with an impossible offset or path"
                if message:
                    raise InputError(message, source=name, offset=offset, value=found[0][:100])
                prot = sum(_PROT.get(letter, 0) for letter in found[3])
                yield start, end - start, file_offset, prot, found[5]
            offset += len(line)
