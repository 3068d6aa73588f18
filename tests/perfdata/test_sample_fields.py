"""The variable fields of a SAMPLE, typed from perf_event_open(2), in each combination."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtit.perfdata import PerfData, SampleType
from rtit.perfdata.attr import Attr
from rtit.perfdata.samples import aux_data, raw_data, sample_field

REGS_USER, REGS_INTR = 0b1011, 0b1_0000_0001
# in the order of the manual: bytes of each field, for an attr with these masks
PARTS = {
    SampleType.READ: struct.pack("<Q2Q4Q", 2, 10, 11, 1, 2, 3, 4),
    SampleType.CALLCHAIN: struct.pack("<Q2Q", 2, 0x1000, 0x2000),
    SampleType.RAW: struct.pack("<I", 12) + b"raw data 12.",
    SampleType.BRANCH_STACK: struct.pack("<Q3Q", 1, 1, 2, 3),
    SampleType.REGS_USER: struct.pack("<Q3Q", 2, 1, 2, 3),
    SampleType.STACK_USER: struct.pack("<Q", 16) + b"stack of 16 byte" + struct.pack("<Q", 9),
    SampleType.WEIGHT: struct.pack("<Q", 5),
    SampleType.DATA_SRC: struct.pack("<Q", 6),
    SampleType.TRANSACTION: struct.pack("<Q", 7),
    SampleType.REGS_INTR: struct.pack("<Q2Q", 2, 1, 2),
    SampleType.PHYS_ADDR: struct.pack("<Q", 8),
    SampleType.CGROUP: struct.pack("<Q", 9),
    SampleType.DATA_PAGE_SIZE: struct.pack("<Q", 4096),
    SampleType.CODE_PAGE_SIZE: struct.pack("<Q", 4096),
    SampleType.AUX: struct.pack("<Q", 8) + b"aux data",
}
# GROUP, ENABLED, RUNNING, ID
READ_FORMAT = 8 | 1 | 2 | 4


def attr(kinds: int, **more: int) -> Attr:
    return Attr(
        1,
        sample_type=kinds,
        read_format=READ_FORMAT,
        sample_regs_user=REGS_USER,
        sample_regs_intr=REGS_INTR,
        **more,
    )


@given(st.sets(st.sampled_from(list(PARTS))), st.binary(max_size=16))
def test_each_variable_field_is_found(kinds: set[SampleType], following: bytes) -> None:
    body = memoryview(b"".join(data for kind, data in PARTS.items() if kind in kinds) + following)
    event = attr(sum(kinds))
    for kind, data in PARTS.items():
        found = sample_field(event, kind, body)
        assert (None if found is None else bytes(found)) == (data if kind in kinds else None)
    aux, raw = aux_data(event, body), raw_data(event, body)
    assert (aux is None) == (SampleType.AUX not in kinds)
    assert aux is None or bytes(aux) == b"aux data"
    assert raw is None or bytes(raw) == b"raw data 12."


@pytest.mark.parametrize(
    ("kind", "more", "data"),
    [
        # one event alone: value; with its id and the number of lost samples
        (SampleType.READ, {"read_format": 0}, struct.pack("<Q", 1)),
        (SampleType.READ, {"read_format": 4 | 16}, struct.pack("<3Q", 1, 2, 3)),
        (SampleType.READ, {"read_format": 8 | 16}, struct.pack("<Q4Q", 2, 1, 2, 3, 4)),
        # with hw_idx; with a word of counters for each branch
        (
            SampleType.BRANCH_STACK,
            {"branch_sample_type": 1 << 17},
            struct.pack("<2Q3Q", 1, 0, 1, 2, 3),
        ),
        (
            SampleType.BRANCH_STACK,
            {"branch_sample_type": 1 << 19},
            struct.pack("<Q3QQ", 1, 1, 2, 3, 4),
        ),
        # PERF_SAMPLE_REGS_ABI_NONE; an empty stack
        (SampleType.REGS_USER, {}, struct.pack("<Q", 0)),
        (SampleType.REGS_INTR, {}, struct.pack("<Q", 0)),
        (SampleType.STACK_USER, {}, struct.pack("<Q", 0)),
        (SampleType.WEIGHT_STRUCT, {}, struct.pack("<Q", 0)),
    ],
)
def test_special_variable_fields_are_found(
    kind: SampleType, more: dict[str, int], data: bytes
) -> None:
    values = {"read_format": 0, **more}
    event = Attr(
        1, sample_type=kind | SampleType.AUX, sample_regs_user=3, sample_regs_intr=3, **values
    )
    assert bytes(aux_data(event, memoryview(data + PARTS[SampleType.AUX])) or b"") == b"aux data"


@given(st.sets(st.sampled_from(list(PARTS)), min_size=1), st.binary(max_size=200))
def test_arbitrary_sample_body_is_safe(kinds: set[SampleType], body: bytes) -> None:
    """Sizes in it are not trusted."""
    event = attr(sum(kinds), branch_sample_type=1 << 17 | 1 << 19)
    for kind in SampleType:
        found = sample_field(event, kind, memoryview(body))
        assert found is None or len(found) <= len(body)


def test_empty_aux_sample_is_none() -> None:
    assert aux_data(attr(SampleType.AUX), memoryview(struct.pack("<Q", 0))) is None


def test_file_without_aux_samples_has_empty_aux_data(tmp_path: Path) -> None:
    from rtit.perfdata import Writer

    path = tmp_path / "perf.data"
    Writer(path, config=0x2401, cpuid="").close()
    with PerfData(path) as data:
        assert not data.has_aux_samples
        assert data.aux_samples() == {}
