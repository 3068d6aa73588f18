"""Writing of perf.data while a program runs.

A file starts with the header. Records follow. Each flush and each chunk of AUX data updates the
size of the records in the header, so if the recorder is killed the file is valid up to the last
flush. `Writer.close` appends the feature sections. Features that a reader needs are also written
at the start, as HEADER_FEATURE records.

`Writer` encodes records; `OutputFile` buffers and writes bytes.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import IntEnum
from pathlib import Path
from typing import Self

from rtit.errors import RecordError
from rtit.perfdata import features, records
from rtit.perfdata.attr import Attr, AttrFlag, SampleType, config_mask, format_config
from rtit.perfdata.aux import INTEL_PT, IntelPtInfo
from rtit.perfdata.clock import TimeConversion
from rtit.perfdata.features import Event, Feature
from rtit.perfdata.file_scan import (
    DATA_SIZE_OFFSET,
    FILE_HEADER,
    FLAGS_OFFSET,
    MAGIC,
    SECTION_ENTRY,
)
from rtit.perfdata.records import ExitStatus, Misc, pack_exit_status, pack_instructions
from rtit.perfdata.samples import SampleLayout

_BUFFER_SIZE = 1 << 18


def rotate_recording(path: str | os.PathLike[str]) -> None:
    """Rename an existing recording NAME to NAME.old. An older NAME.old is lost.

    A symbolic link is renamed too, even if it is broken, so its target is never overwritten.
    Devices and pipes stay. Raises RecordError if the file cannot be renamed.
    """
    name = Path(path)
    if name.is_dir():
        raise RecordError(f"cannot write {name}: it is a directory")
    if not needs_rotation(name):
        return
    try:
        name.replace(f"{name}.old")
    except OSError as error:
        raise RecordError(f"cannot rename {name} to {name}.old: {error.strerror}") from error


def needs_rotation(path: Path) -> bool:
    """Return whether `rotate_recording` renames the path: a file or a symbolic link."""
    return path.is_file() or (path.is_symlink() and not path.exists())


class OutputFile:
    """A new file, written through a buffer. Each OSError is raised as a RecordError.

    `failed` is True once bytes were lost, by an error or an interrupt: later bytes would be at
    wrong offsets.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self._buffer = bytearray()
        self._written = 0
        self._fd = -1
        self.failed = False
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise self._write_error(error) from error

    @property
    def offset(self) -> int:
        """Bytes appended so far."""
        return self._written + len(self._buffer)

    def disk_space(self) -> tuple[int, int] | None:
        """Return the bytes that this user can still write to the file's disk, and the disk's size.

        None for a device or pipe, or if the file system does not report it.
        """
        if not stat.S_ISREG(os.fstat(self._fd).st_mode):
            return None
        found = os.fstatvfs(self._fd)
        free, size = (blocks * found.f_frsize for blocks in (found.f_bavail, found.f_blocks))
        return (free, size) if size else None

    @property
    def closed(self) -> bool:
        """Whether the file is closed."""
        return self._fd < 0

    def append(self, *parts: bytes | bytearray | memoryview) -> None:
        """Append all parts; if an exception interrupts this, set `failed`."""
        try:
            for part in parts:
                if len(part) < _BUFFER_SIZE:
                    self._buffer += part
                else:
                    self.flush()
                    self._write_at(memoryview(part), self._written)
                    self._written += len(part)
            if len(self._buffer) >= _BUFFER_SIZE:
                self.flush()
        except BaseException:
            self.failed = True
            raise

    def flush(self) -> None:
        """Write the buffer to the file; these bytes survive a kill of this process."""
        if self._buffer:
            pending, self._buffer = self._buffer, bytearray()
            try:
                self._write_at(memoryview(pending), self._written)
            except BaseException:
                self.failed = True
                raise
            self._written += len(pending)

    def overwrite(self, offset: int, data: bytes) -> None:
        """Overwrite bytes that were flushed."""
        self._write_at(memoryview(data), offset)

    def close(self) -> None:
        """Flush and close; nothing happens the second time."""
        if self.closed:
            return
        try:
            if not self.failed:
                self.flush()
        finally:
            fd, self._fd = self._fd, -1
            try:
                os.close(fd)
            except OSError as error:
                raise self._write_error(error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write_at(self, data: memoryview, offset: int) -> None:
        try:
            while data:
                size = os.pwrite(self._fd, data, offset)
                data = data[size:]
                offset += size
        except OSError as error:
            raise self._write_error(error) from error

    def _write_error(self, error: OSError) -> RecordError:
        return RecordError(f"cannot write {self.path}: {error.strerror}")


MODEL_TIME = TimeConversion(shift=10, mult=1024, zero=0)
"""The perf clock of modelled recordings: 1 ns is 1 TSC tick."""

_PT_ID, _SIDEBAND_ID = 1, 2
_SOFTWARE, _DUMMY = 1, 9
_COMMON_FLAGS = (
    AttrFlag.SAMPLE_ID_ALL | AttrFlag.EXCLUDE_KERNEL | AttrFlag.EXCLUDE_HV | AttrFlag.EXCLUDE_GUEST
)
_SIDEBAND_FLAGS = (
    AttrFlag.MMAP
    | AttrFlag.MMAP2
    | AttrFlag.COMM
    | AttrFlag.COMM_EXEC
    | AttrFlag.TASK
    | AttrFlag.TEXT_POKE
)
_SAMPLE_TYPE = SampleType.IP | SampleType.TID | SampleType.TIME | SampleType.IDENTIFIER
_ALIGNMENT = 8
KERNEL_PID = -1
"""The process id in records of kernel mappings."""


class SwitchRecords(IntEnum):
    """The records of context switches that a file has: `have_sched_switch` of `IntelPtInfo`."""

    NONE = 0
    THREADS = 2
    CPU_WIDE = 3


class Writer:
    """Writes a perf.data file with one Intel PT event.

    The file has one AUX buffer for each thread (cpu -1) or, with `switches`, for each CPU.

    * `path` is overwritten; see `rotate_recording`.
    * `config` is attr.config: IA32_RTIT_CTL bits in the layout of the intel_pt PMU; `pmu_type` is
      attr.type.
    * `time` converts between TSC and the `time` arguments (ns of the perf clock); `tsc_ctc` is
      (EBX, EAX) of CPUID.15H; `max_nonturbo_ratio` the ratio of TSC to bus clock; `mtc_freq_bits`
      the mask of mtc_period in `config`.
    * `filter` is perf's filter expression, `cpuid` as perf writes it (GenuineIntel,6,94,3),
      `cmdline` that of the recorder.
    * `snapshot`: the file has the last packets of ring buffers, so the chunks of a thread can
      overlap or have gaps between them.
    * `switches`: the records of context switches in the file, SWITCH of the traced threads or
      SWITCH_CPU_WIDE of all threads.
    * `user` and `kernel`: whether user code and kernel code were traced.
    * `facts` are rtit's own data about the recording; see `features.format_facts`.

    A context manager; leaving it closes the file. Raises RecordError, in one sentence, if the file
    cannot be written, and ValueError for values that no file can hold.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        config: int,
        cpuid: str,
        cmdline: Sequence[str] = (),
        pmu_type: int = 8,
        time: TimeConversion = MODEL_TIME,
        tsc_ctc: tuple[int, int] = (80, 2),
        max_nonturbo_ratio: int = 10,
        mtc_freq_bits: int = config_mask("mtc_period"),
        filter: str | None = None,  # noqa: A002 - perf's name for it
        cap_event_trace: bool = False,
        snapshot: bool = False,
        switches: SwitchRecords = SwitchRecords.NONE,
        user: bool = True,
        kernel: bool = False,
        facts: Mapping[str, str] | None = None,
    ) -> None:
        self.time = time
        self.switches = switches
        common = _COMMON_FLAGS & ~AttrFlag.EXCLUDE_KERNEL if kernel else _COMMON_FLAGS
        per_cpu = switches is not SwitchRecords.NONE
        sample_type = _SAMPLE_TYPE | (SampleType.CPU if per_cpu else 0)
        self._cpus: dict[int, int] = {}
        pt = Attr(
            type=pmu_type,
            config=config,
            sample_period=1,
            sample_type=sample_type,
            flags=common
            | AttrFlag.DISABLED
            | AttrFlag.ENABLE_ON_EXEC
            | (AttrFlag(0) if user else AttrFlag.EXCLUDE_USER),
        )
        sideband = Attr(
            type=_SOFTWARE,
            config=_DUMMY,
            sample_period=1,
            sample_type=sample_type,
            flags=common | _SIDEBAND_FLAGS | (AttrFlag.CONTEXT_SWITCH if per_cpu else AttrFlag(0)),
        )
        modifier = "" if user and kernel else "u" * user + "k" * kernel
        self._events = [
            Event(pt, (_PT_ID,), f"intel_pt/{format_config(config)}/{modifier}"),
            Event(sideband, (_SIDEBAND_ID,), "dummy:" + ("" if kernel else "u")),
        ]
        self._layout = SampleLayout(sideband)
        self._facts = dict(facts or {})
        self._cpuid = cpuid
        self._cmdline = list(cmdline)
        self._index: list[int] = []
        self.pt_bytes = 0
        """Bytes of all chunks, with padding."""
        self._buffers: dict[tuple[int, int], tuple[int, int]] = {}
        self._info = IntelPtInfo(
            pmu_type=pmu_type,
            time_shift=time.shift,
            time_mult=time.mult,
            time_zero=time.zero,
            cap_user_time_zero=1,
            tsc_bit=config_mask("tsc"),
            noretcomp_bit=config_mask("noretcomp"),
            have_sched_switch=switches,
            snapshot_mode=int(snapshot),
            per_cpu_mmaps=int(per_cpu),
            mtc_bit=config_mask("mtc"),
            mtc_freq_bits=mtc_freq_bits,
            tsc_ctc_n=tsc_ctc[0],
            tsc_ctc_d=tsc_ctc[1],
            cyc_bit=config_mask("cyc"),
            max_nonturbo_ratio=max_nonturbo_ratio,
            filter=filter or None,
            cap_event_trace=int(cap_event_trace),
        )
        initial_features = self._file_features()
        self._file = OutputFile(path)
        try:
            self._write_header()
            for number, data in initial_features.items():
                if len(data) < records.MAX_RECORD_SIZE // 2:
                    self._append_record(records.HeaderFeature, int(number), tail=data)
            self._info_offset = self._file.offset
            self._append_record(records.AuxtraceInfo, INTEL_PT, 0, tail=self._info.encode())
            self.flush()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def path(self) -> str:
        """The path of the file."""
        return self._file.path

    @property
    def size(self) -> int:
        """Bytes written so far."""
        return self._file.offset

    def disk_space(self) -> tuple[int, int] | None:
        """Return the same as `OutputFile.disk_space`."""
        return self._file.disk_space()

    def replace_filter(self, expression: str) -> None:
        """Write another filter expression, of the same length."""
        before = len(self._info.filter or "")
        if len(expression) != before:
            raise ValueError(f"a filter of {before} characters cannot become {expression!r}")
        self._info = replace(self._info, filter=expression)
        record = records.encode(records.AuxtraceInfo, INTEL_PT, 0, tail=self._info.encode())
        self._file.overwrite(self._info_offset, record)

    # Sideband records. Times are ns of the perf clock and do not decrease within a thread.

    def comm(self, pid: int, tid: int, time: int, name: str, by_exec: bool = False) -> None:
        """Write COMM: the thread has this name from now on."""
        misc = Misc.USER | (Misc.COMM_EXEC if by_exec else 0)
        self._write_sideband_record(
            records.Comm, pid, tid, time, pid, tid, tail=os.fsencode(name), misc=misc
        )

    def mmap2(
        self,
        pid: int,
        tid: int,
        time: int,
        address: int,
        size: int,
        pgoff: int,
        prot: int,
        flags: int,
        major: int,
        minor: int,
        inode: int,
        generation: int,
        path: str,
        build_id: bytes | None = None,
    ) -> None:
        """Write MMAP2: `size` bytes of a file, from byte `pgoff` on, were mapped at `address`.

        A `build_id` (at most 20 bytes) replaces device and inode in the record.
        """
        misc = Misc.USER
        if build_id:
            identity = records.Mmap2.pack_build_id(build_id)
            misc |= Misc.MMAP_BUILD_ID
        else:
            identity = records.Mmap2.pack_inode(major, minor, inode, generation)
        values = (pid, tid, address, size, pgoff, identity, prot, flags)
        self._write_sideband_record(
            records.Mmap2, pid, tid, time, *values, tail=os.fsencode(path), misc=misc
        )

    def fork(self, pid: int, ppid: int, tid: int, ptid: int, time: int) -> None:
        """Write FORK: thread `ptid` of `ppid` created thread `tid` of process `pid`."""
        self._write_sideband_record(records.Fork, ppid, ptid, time, pid, ppid, tid, ptid, time)

    def exit(
        self,
        pid: int,
        ppid: int,
        tid: int,
        ptid: int,
        time: int,
        exit_status: ExitStatus | None = None,
        instructions: int | None = None,
    ) -> None:
        """Write EXIT: thread `tid` of process `pid` ended.

        `exit_status` and the number of its traced `instructions` are recorded if they are known.
        """
        values = (pid, ppid, tid, ptid, time)
        tail = pack_exit_status(exit_status) if exit_status is not None else b""
        if instructions is not None:
            tail += pack_instructions(instructions)
        self._write_sideband_record(records.Exit, pid, tid, time, *values, tail=tail)

    def itrace_start(self, pid: int, tid: int, time: int, cpu: int | None = None) -> None:
        """Write ITRACE_START: tracing of the thread began, on its last CPU if `cpu` is None."""
        sample_id = self._sample_id(pid, tid, time, _PT_ID, cpu)
        self._append_record(records.ItraceStart, pid, tid, sample_id=sample_id)

    def switch(
        self, cpu: int, time: int, before: tuple[int, int], after: tuple[int, int], back: int = 0
    ) -> None:
        """Write the records of a switch from thread `before` (pid, tid) to `after`; (0, 0): idle.

        `before` was switched out at `time`, `after` was switched in `back` ns later.
        """
        wide = self.switches is SwitchRecords.CPU_WIDE
        for pid, tid, other, misc, when in (
            (*before, after, Misc.SWITCH_OUT, time),
            (*after, before, 0, time + back),
        ):
            sample_id = self._sample_id(pid, tid, when, _SIDEBAND_ID, cpu)
            if wide:
                self._append_record(records.SwitchCpuWide, *other, misc=misc, sample_id=sample_id)
            elif tid:
                self._append_record(records.Switch, misc=misc, sample_id=sample_id)
        self._cpus[after[1]] = cpu

    def aux(self, pid: int, tid: int, time: int, offset: int, size: int, flags: int = 0) -> None:
        """Write AUX: the thread produced `size` bytes at `offset` of its stream.

        `flags` are `records.AuxFlag`.
        """
        sample_id = self._sample_id(pid, tid, time, _PT_ID)
        self._append_record(records.Aux, offset, size, flags, sample_id=sample_id)

    def text_poke(
        self, pid: int, tid: int, time: int, address: int, new_bytes: bytes, old_bytes: bytes = b""
    ) -> None:
        """Write TEXT_POKE: `new_bytes` is at `address` of the process from now on, without a file.

        `old_bytes`, if given, was there before and is as long as `new_bytes`. Code that does not
        fit one record is split. Stock perf ignores these records because their cpumode is user.
        """
        if old_bytes and len(old_bytes) != len(new_bytes):
            raise ValueError(f"{len(old_bytes)} old bytes for {len(new_bytes)} new ones")
        fixed = records.RECORD_HEADER.size + records.TextPoke.layout.fixed.size
        room = records.MAX_RECORD_SIZE - fixed - self._layout.id_size - (_ALIGNMENT - 1)
        step = room // 2 if old_bytes else room
        for start in range(0, len(new_bytes), step):
            was, now = old_bytes[start : start + step], new_bytes[start : start + step]
            values = (address + start, len(was), len(now))
            self._write_sideband_record(
                records.TextPoke, pid, tid, time, *values, tail=was + now, misc=Misc.USER
            )

    def kernel_mmap(self, address: int, size: int, pgoff: int, path: str, time: int = 0) -> None:
        """Write MMAP: kernel code was mapped at `time`; 0: it was there from the beginning."""
        values = (KERNEL_PID, 0, address, size, pgoff)
        self._append_record(
            records.Mmap,
            *values,
            tail=path.encode(),
            misc=Misc.KERNEL,
            sample_id=self._sample_id(KERNEL_PID, 0, time, _SIDEBAND_ID),
        )

    def kernel_text_poke(self, time: int, address: int, new_bytes: bytes) -> None:
        """Write TEXT_POKE: kernel code at `address` is `new_bytes` from `time` on."""
        fixed = records.RECORD_HEADER.size + records.TextPoke.layout.fixed.size
        room = records.MAX_RECORD_SIZE - fixed - self._layout.id_size - (_ALIGNMENT - 1)
        for start in range(0, len(new_bytes), room):
            new = new_bytes[start : start + room]
            self._write_sideband_record(
                records.TextPoke,
                0,
                0,
                time,
                *(address + start, 0, len(new)),
                tail=new,
                misc=Misc.KERNEL,
            )

    # AUX data

    def auxtrace(
        self,
        tid: int,
        pid: int,
        data: bytes | bytearray | memoryview,
        offset: int | None,
        reference_tsc: int,
        cpu: int = -1,
    ) -> None:
        """Write AUXTRACE: a chunk of the packets of a thread or, with `tid` -1, of a CPU.

        No packet may start in one chunk and end in the next. A length that is not a multiple of 8
        is padded with PAD packets. `offset` is that in the stream; None: after the last chunk and
        its padding. `reference_tsc` is the TSC, not 0, at a time after all packets of the chunk:
        its high byte completes the 56 bits of TSC packets. `pid` is not recorded: perf takes it
        from COMM, FORK or MMAP2.
        """
        if not 0 < reference_tsc < 1 << 64:
            raise ValueError(f"reference TSC {reference_tsc}, not 1..2**64-1")
        view = memoryview(data)
        if not view.nbytes:
            return
        view = view.cast("B")
        padding = -len(view) % _ALIGNMENT
        buffer = (cpu, tid)
        index, expected = self._buffers.get(buffer, (len(self._buffers), 0))
        start = expected if offset is None else offset
        values = (len(view) + padding, start, reference_tsc, index, tid, cpu, 0)
        record_offset = self._file.offset
        self._append_record(records.Auxtrace, *values, data=(view, bytes(padding)))
        self._index.append(record_offset)
        self._buffers[buffer] = (index, start + len(view) + padding)
        self.pt_bytes += len(view) + padding
        self.flush()

    # The file

    def flush(self) -> None:
        """Write all records so far, so that they can be read even if this process is killed."""
        self._check_is_writable()
        self._file.flush()
        size = self._file.offset - self._data_offset
        self._file.overwrite(DATA_SIZE_OFFSET, struct.pack("<Q", size))

    def close(
        self,
        build_ids: Mapping[str, bytes] | None = None,
        facts: Mapping[str, str] | None = None,
    ) -> None:
        """Write the features and close the file. A second call does nothing.

        `build_ids` is path -> build id of the recorded files; `facts` are added to the earlier
        ones. After an error the file stays as the last flush left it.
        """
        if self._file.closed:
            return
        with self._file:
            if self._file.failed:
                return
            self.flush()
            self._facts.update(facts or {})
            found = self._file_features() | {
                Feature.AUXTRACE: features.pack_auxtrace_index(self._index)
            }
            if build_ids:
                found[Feature.BUILD_ID] = features.pack_build_ids(build_ids)
            sections = sorted(found.items())
            offset = self._file.offset + len(sections) * SECTION_ENTRY.size
            for _, data in sections:
                self._file.append(SECTION_ENTRY.pack(offset, len(data)))
                offset += len(data)
            self._file.append(*(data for _, data in sections))
            self._file.flush()
            bits = sum(1 << number for number, _ in sections)
            self._file.overwrite(FLAGS_OFFSET, struct.pack("<Q", bits))

    # Private

    def _write_header(self) -> None:
        ids = b"".join(struct.pack(f"<{len(e.ids)}Q", *e.ids) for e in self._events)
        entry_size = self._events[0].attr.size + SECTION_ENTRY.size
        attrs_offset = FILE_HEADER.size + len(ids)
        attrs = bytearray()
        offset = FILE_HEADER.size
        for event in self._events:
            attrs += event.attr.encode() + SECTION_ENTRY.pack(offset, 8 * len(event.ids))
            offset += 8 * len(event.ids)
        self._data_offset = attrs_offset + len(attrs)
        sections = (attrs_offset, len(attrs), self._data_offset, 0, 0, 0)
        header = FILE_HEADER.pack(MAGIC, FILE_HEADER.size, entry_size, *sections, 0, 0, 0, 0)
        self._file.append(header + ids + attrs)

    def _file_features(self) -> dict[Feature, bytes]:
        """Return the features that do not depend on the records. The facts can change."""
        cpus = os.cpu_count() or 1
        return {
            Feature.ARCH: features.pack_string("x86_64"),
            Feature.NRCPUS: features.pack_cpus(cpus, cpus),
            Feature.CPUDESC: features.pack_string(features.format_facts(self._facts)),
            Feature.CPUID: features.pack_string(self._cpuid),
            Feature.CMDLINE: features.pack_strings(self._cmdline),
            Feature.EVENT_DESC: features.pack_events(self._events),
            Feature.PMU_MAPPINGS: features.pack_pmus(
                {_SOFTWARE: "software", self._events[0].attr.type: "intel_pt"}
            ),
        }

    def _sample_id(
        self, pid: int, tid: int, time: int, identifier: int, cpu: int | None = None
    ) -> bytes:
        on = self._cpus.get(tid, 0) if cpu is None else cpu
        return self._layout.write_id(pid=pid, tid=tid, time=time, id=identifier, cpu=on)

    def _write_sideband_record(
        self,
        cls: type[records.Record],
        pid: int,
        tid: int,
        time: int,
        *values: object,
        tail: bytes = b"",
        misc: int = 0,
    ) -> None:
        sample_id = self._sample_id(pid, tid, time, _SIDEBAND_ID)
        self._append_record(cls, *values, tail=tail, misc=misc, sample_id=sample_id)

    def _append_record(
        self,
        cls: type[records.Record],
        *values: object,
        tail: bytes = b"",
        misc: int = 0,
        sample_id: bytes = b"",
        data: Sequence[bytes | memoryview] = (),
    ) -> None:
        """Write a record, and the `data` after it that its size does not count."""
        self._check_is_writable()
        try:
            record = records.encode(cls, *values, tail=tail, misc=misc, sample_id=sample_id)
        except struct.error as error:
            raise ValueError(f"{cls.layout.name}: {error}") from error
        self._file.append(record, *data)

    def _check_is_writable(self) -> None:
        if self._file.closed or self._file.failed:
            raise RecordError(f"{self._file.path} is closed or damaged: it takes no more records")
