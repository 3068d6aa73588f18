"""Byte layouts, typed from the structs of Linux's perf_event.h and perf's own documents."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from rtit.perfdata import PerfData, TimeConversion, Writer, records
from rtit.perfdata.attr import Attr
from rtit.perfdata.aux import IntelPtInfo
from rtit.perfdata.records import Cursor, SampleId

CONFIG = 0x2601  # pt, mtc, tsc, branch


def writer(path: Path) -> Writer:
    return Writer(path, config=CONFIG, cpuid="GenuineIntel,6,94,3", cmdline=["rtit", "record"])


def record_of(tmp_path: Path, act: object) -> tuple[bytes, records.Record]:
    """Return the bytes that one call of a Writer added, and the record that the reader finds."""
    path = tmp_path / "perf.data"
    with writer(path) as out:
        out.flush()
        start = path.stat().st_size
        act(out)  # type: ignore[operator]
        out.flush()
        data = path.read_bytes()[start:]
        with PerfData(path) as file:
            return data, list(file.records())[-1]


def sample_id(pid: int, tid: int, time: int, event: int) -> bytes:
    """struct sample_id with TID, TIME and IDENTIFIER."""
    return struct.pack("<II", pid, tid) + struct.pack("<Q", time) + struct.pack("<Q", event)


def test_bytes_of_file_header(tmp_path: Path) -> None:
    path = tmp_path / "perf.data"
    writer(path).close()
    data = path.read_bytes()
    (magic, size, entry, attrs, attrs_size, start, length, _, _, flags, *more) = struct.unpack_from(
        "<8sQQQQQQQQ4Q", data
    )
    assert magic == b"PERFILE2"
    assert size == 104  # struct perf_file_header
    assert entry == 128 + 16  # perf_event_attr, perf_file_section
    assert attrs_size == 2 * entry
    assert start == attrs + attrs_size
    assert more == [0, 0, 0]
    # ARCH 6, NRCPUS 7, CPUDESC 8, CPUID 9, CMDLINE 11, EVENT_DESC 12, PMU_MAPPINGS 16, AUXTRACE 18
    assert flags == sum(1 << bit for bit in (6, 7, 8, 9, 11, 12, 16, 18))
    # The table of sections follows the data, and the first section follows the table.
    offset, _ = struct.unpack_from("<QQ", data, start + length)
    assert offset == start + length + 8 * 16
    assert data[offset : offset + 11] == b"\x40\0\0\0x86_64\0"


def test_bytes_of_attrs(tmp_path: Path) -> None:
    path = tmp_path / "perf.data"
    writer(path).close()
    data = path.read_bytes()
    attrs = struct.unpack_from("<Q", data, 24)[0]
    # type, size, config, sample_period, sample_type, read_format, flags
    pt = struct.unpack_from("<IIQQQQQ", data, attrs)
    sideband = struct.unpack_from("<IIQQQQQ", data, attrs + 144)
    # IP 1, TID 2, TIME 4, IDENTIFIER 1 << 16
    assert pt[:6] == (8, 128, CONFIG, 1, 0x10007, 0)
    assert sideband[:6] == (1, 128, 9, 1, 0x10007, 0)  # PERF_TYPE_SOFTWARE, COUNT_SW_DUMMY
    for flags in (pt[6], sideband[6]):
        assert flags >> 18 & 1  # sample_id_all
        assert flags >> 5 & 1  # exclude_kernel
    for bit in (8, 9, 13, 23, 24, 33):  # mmap, comm, task, mmap2, comm_exec, text_poke
        assert sideband[6] >> bit & 1
    ids = [struct.unpack_from("<QQ", data, attrs + i * 144 + 128) for i in range(2)]
    assert [struct.unpack_from("<Q", data, offset) for offset, _ in ids] == [(1,), (2,)]
    assert [size for _, size in ids] == [8, 8]


def test_bytes_of_auxtrace_info(tmp_path: Path) -> None:
    path = tmp_path / "perf.data"
    out = Writer(
        path,
        config=CONFIG,
        cpuid="",
        pmu_type=9,
        time=TimeConversion(31, 0x4000_0000, 77),
        tsc_ctc=(250, 2),
        max_nonturbo_ratio=30,
        filter="filter main @ ./a.out",
        cap_event_trace=True,
    )
    out.close()
    expected = struct.pack("<II", 1, 0) + struct.pack(
        "<17Q",
        *(9, 31, 0x4000_0000, 77, 1),  # pmu_type, time_shift, time_mult, time_zero, cap
        *(1 << 10, 1 << 11, 0, 0, 0),  # tsc, noretcomp, have_sched_switch, snapshot, per_cpu
        *(1 << 9, 0xF << 14, 250, 2, 1 << 1, 30),  # mtc, mtc_freq_bits, n, d, cyc, ratio
        21,  # length of the filter
    )
    expected += b"filter main @ ./a.out\0\0\0" + struct.pack("<Q", 1)
    with PerfData(path) as file:
        (record_offset,) = (r.offset for r in file.records() if r.name == "AUXTRACE_INFO")
        assert file.info is not None
        assert file.info.filter == "filter main @ ./a.out"
        assert file.info.max_nonturbo_ratio == 30
        assert file.info.cap_event_trace == 1
    data = path.read_bytes()[record_offset:]
    assert data[:8] == struct.pack("<IHH", 70, 0, 8 + len(expected))
    assert data[8 : 8 + len(expected)] == expected


def test_auxtrace_info_of_an_old_perf_has_fewer_words() -> None:
    words = struct.pack("<10Q", 6, 31, 5, 7, 1, 1 << 10, 1 << 11, 2, 0, 1)
    info = IntelPtInfo.decode(Cursor(memoryview(words), 0, "file", "AUXTRACE_INFO"))
    assert info == IntelPtInfo(6, 31, 5, 7, 1, 1 << 10, 1 << 11, 2, 0, 1)


def test_bytes_of_comm(tmp_path: Path) -> None:
    data, record = record_of(tmp_path, lambda out: out.comm(7, 8, 99, "sleep", by_exec=True))
    body = struct.pack("<II", 7, 8) + b"sleep\0\0\0" + sample_id(7, 8, 99, 2)
    # misc: PERF_RECORD_MISC_USER 2, PERF_RECORD_MISC_COMM_EXEC 1 << 13
    assert data == struct.pack("<IHH", 3, 0x2002, 8 + len(body)) + body
    assert isinstance(record, records.Comm)
    assert (record.pid, record.tid, record.comm, record.by_exec) == (7, 8, "sleep", True)
    assert record.sample_id == SampleId(pid=7, tid=8, time=99, id=2)


@pytest.mark.parametrize(("name", "size"), [("1234567", 8), ("12345678", 16), ("", 8)])
def test_strings_end_with_a_nul_and_fill_8_bytes(tmp_path: Path, name: str, size: int) -> None:
    data, record = record_of(tmp_path, lambda out: out.comm(7, 7, 1, name))
    assert data[16 : 16 + size] == name.encode().ljust(size, b"\0")
    assert len(data) == 16 + size + 24
    assert isinstance(record, records.Comm)
    assert record.comm == name


def test_bytes_of_mmap2_with_inode(tmp_path: Path) -> None:
    data, record = record_of(
        tmp_path,
        lambda out: out.mmap2(7, 8, 99, 0x401000, 0x2000, 0x1000, 5, 2, 8, 1, 4711, 3, "/bin/true"),
    )
    body = struct.pack("<II", 7, 8) + struct.pack("<QQQ", 0x401000, 0x2000, 0x1000)
    body += struct.pack("<IIQQ", 8, 1, 4711, 3) + struct.pack("<II", 5, 2)
    body += b"/bin/true\0\0\0\0\0\0\0" + sample_id(7, 8, 99, 2)
    assert data == struct.pack("<IHH", 10, 2, 8 + len(body)) + body
    assert isinstance(record, records.Mmap2)
    assert (record.address, record.length, record.pgoff) == (0x401000, 0x2000, 0x1000)
    assert (record.prot, record.flags, record.path) == (5, 2, "/bin/true")
    assert record.inode == (8, 1, 4711, 3)
    assert record.build_id is None


def test_bytes_of_mmap2_with_build_id(tmp_path: Path) -> None:
    build_id = bytes(range(1, 17))
    data, record = record_of(
        tmp_path, lambda out: out.mmap2(7, 8, 99, 0, 1, 0, 5, 2, 8, 1, 4711, 3, "/x", build_id)
    )
    # u8 build_id_size, u8 and u16 reserved, u8 build_id[20]; PERF_RECORD_MISC_MMAP_BUILD_ID 1 << 14
    assert data[:8] == struct.pack("<IHH", 10, 0x4002, len(data))
    assert data[40:64] == b"\x10\0\0\0" + build_id + bytes(4)
    assert isinstance(record, records.Mmap2)
    assert record.build_id == build_id
    assert record.inode is None


@pytest.mark.parametrize(("method", "number", "who"), [("fork", 7, (2, 4)), ("exit", 4, (1, 3))])
def test_bytes_of_fork_and_exit(
    tmp_path: Path, method: str, number: int, who: tuple[int, int]
) -> None:
    data, record = record_of(tmp_path, lambda out: getattr(out, method)(1, 2, 3, 4, 99))
    # pid, ppid, tid, ptid, time; the sample_id is that of the acting thread
    body = struct.pack("<IIII", 1, 2, 3, 4) + struct.pack("<Q", 99) + sample_id(*who, 99, 2)
    assert data == struct.pack("<IHH", number, 0, 8 + len(body)) + body
    assert isinstance(record, records.Fork | records.Exit)
    assert (record.pid, record.ppid, record.tid, record.ptid) == (1, 2, 3, 4)
    assert record.clock == record.time == 99


def test_bytes_of_itrace_start(tmp_path: Path) -> None:
    data, record = record_of(tmp_path, lambda out: out.itrace_start(7, 8, 99))
    body = struct.pack("<II", 7, 8) + sample_id(7, 8, 99, 1)
    assert data == struct.pack("<IHH", 12, 0, 40) + body
    assert isinstance(record, records.ItraceStart)


def test_bytes_of_aux(tmp_path: Path) -> None:
    data, record = record_of(tmp_path, lambda out: out.aux(7, 8, 99, 0x1000, 0x200, 1))
    body = struct.pack("<QQQ", 0x1000, 0x200, 1) + sample_id(7, 8, 99, 1)
    assert data == struct.pack("<IHH", 11, 0, 8 + len(body)) + body
    assert isinstance(record, records.Aux)
    assert record.flags == records.AuxFlag.TRUNCATED


def test_bytes_of_auxtrace(tmp_path: Path) -> None:
    data, record = record_of(
        tmp_path, lambda out: out.auxtrace(8, 7, b"\x02\x82" * 8, 0x30, 0x1234)
    )
    # u64 size, offset, reference; u32 idx, tid, cpu, reserved; the data is not in header.size
    body = struct.pack("<QQQIIII", 16, 0x30, 0x1234, 0, 8, 0xFFFFFFFF, 0)
    assert data == struct.pack("<IHH", 71, 0, 48) + body + b"\x02\x82" * 8
    assert isinstance(record, records.Auxtrace)
    assert (record.tid, record.cpu) == (8, -1)


def test_bytes_of_text_poke(tmp_path: Path) -> None:
    data, record = record_of(
        tmp_path, lambda out: out.text_poke(7, 8, 99, 0x7000, b"\x90\x90\xc3", b"\xcc\xcc\xcc")
    )
    # u64 addr, u16 old_len, u16 new_len, u8 bytes[old, then new], padding
    body = struct.pack("<QHH", 0x7000, 3, 3) + b"\xcc\xcc\xcc\x90\x90\xc3" + bytes(6)
    body += sample_id(7, 8, 99, 2)
    assert data == struct.pack("<IHH", 20, 2, 8 + len(body)) + body
    assert isinstance(record, records.TextPoke)
    assert (record.address, record.old, record.new) == (0x7000, b"\xcc" * 3, b"\x90\x90\xc3")


def test_long_code_is_split(tmp_path: Path) -> None:
    code = bytes(i * 7 & 0xFF for i in range(200_000))
    path = tmp_path / "perf.data"
    with writer(path) as out:
        out.text_poke(7, 8, 99, 0x7000, code)
        out.text_poke(7, 8, 100, 0x7000, code[::-1], code)
    with PerfData(path) as file:
        pokes = [r for r in file.records() if isinstance(r, records.TextPoke)]
    assert all(poke.size <= 0xFFFF and poke.size % 8 == 0 for poke in pokes)
    fresh = [poke for poke in pokes if poke.time == 99]
    later = [poke for poke in pokes if poke.time == 100]
    assert len(fresh) == 4
    assert b"".join(poke.new for poke in fresh) == code
    assert not any(poke.old for poke in fresh)
    assert b"".join(poke.new for poke in later) == code[::-1]
    assert b"".join(poke.old for poke in later) == code
    for group in (fresh, later):
        at = 0x7000
        for poke in group:
            assert poke.address == at
            at += len(poke.new)


@pytest.mark.parametrize("size", [64, 72, 80, 96, 104, 112, 120, 128, 136])
def test_attr_of_every_version_is_read(size: int) -> None:
    """PERF_ATTR_SIZE_VER0 to VER8."""
    data = struct.pack("<IIQQQQQ", 8, size, 0x2601, 1, 0x10087, 4, 1 << 18).ljust(size, b"\0")
    attr = Attr.decode(data)
    assert (attr.type, attr.size, attr.config, attr.sample_type) == (8, size, 0x2601, 0x10087)
    assert attr.sample_id_all
    assert attr.encode() == data


def test_attr_fields_are_where_perf_event_h_has_them() -> None:
    data = bytearray(136)
    fields = {  # offsets by the man page's struct, types by their widths
        "wakeup_events": (48, "I"),
        "bp_type": (52, "I"),
        "config1": (56, "Q"),
        "config2": (64, "Q"),
        "branch_sample_type": (72, "Q"),
        "sample_regs_user": (80, "Q"),
        "sample_stack_user": (88, "I"),
        "clockid": (92, "i"),
        "sample_regs_intr": (96, "Q"),
        "aux_watermark": (104, "I"),
        "sample_max_stack": (108, "H"),
        "aux_sample_size": (112, "I"),
        "sig_data": (120, "Q"),
        "config3": (128, "Q"),
    }
    for value, (offset, kind) in enumerate(fields.values(), 1):
        struct.pack_into("<" + kind, data, offset, value)
    attr = Attr.decode(bytes(data))
    assert [getattr(attr, name) for name in fields] == list(range(1, len(fields) + 1))
