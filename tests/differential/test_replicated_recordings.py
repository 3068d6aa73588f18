"""Other decoders read every copy in the long recordings of the benchmarks."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from differential.oracles import libipt, perf, raw

COPIES = 3


@pytest.fixture
def replicate() -> ModuleType:
    path = Path(__file__).resolve().parents[2] / "bench" / "replicate.py"
    spec = importlib.util.spec_from_file_location("bench_replicate", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_oracles_decode_every_copy(traces: Path, tmp_path: Path, replicate: ModuleType) -> None:
    recording = traces / "hase" / "control_flow-skylake.perf.data"
    elf = traces / "hase" / "control_flow.elf"
    text = (traces / "hase" / "control_flow-skylake.ips.txt").read_text()
    known = [int(line, 16) for line in text.split()]
    (trace,) = raw.auxtrace(recording)
    long = replicate.from_psb(trace.data) * COPIES
    output = tmp_path / "long.data"
    replicate.perf_data(recording, long, output)
    assert b"".join(trace.data for trace in raw.auxtrace(output)).rstrip(b"\0") == long.rstrip(
        b"\0"
    )
    try:
        recorded = "/home/joerg/git/angr/hase/tests/bin/control_flow/control_flow"
        ips, errors = perf.instructions(output, {recorded: elf})
        assert (list(ips.values()), errors) == ([known * COPIES], [])
        assert libipt.decode(long, raw.code_sections(elf), (6, 94, 3)).ips == known * COPIES
    except (perf.PerfMissingError, libipt.LibiptMissingError) as error:
        pytest.skip(str(error))


def test_number_of_copies_reaches_the_size(replicate: ModuleType) -> None:
    stream = b"lost" + replicate.PSB + bytes(4)
    assert replicate.from_psb(stream) == stream[4:]
    assert [replicate.copies_needed(stream, size) for size in (0, 1, 20, 21, 40)] == [1, 1, 1, 2, 2]
    with pytest.raises(ValueError, match="no PSB"):
        replicate.from_psb(bytes(100))
