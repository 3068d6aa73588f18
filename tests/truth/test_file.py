"""TruthFile with files built here by the definition of the format."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtit.errors import TruthError

core = pytest.importorskip("rtit._core", reason="the native module is not built")
if not hasattr(core, "TruthFile"):
    pytest.skip("this native module has no TruthFile", allow_module_level=True)

WORD = (1 << 64) - 1
K = 0x9E3779B97F4A7C15
HEADER = b"rtit-truth\0\0" + struct.pack("<I", 1)

# A run is (start, instructions); its instructions are four bytes each.
Run = tuple[int, int]


def mix(ip: int) -> int:
    x = (ip ^ ip >> 29) * 0xBF58476D1CE4E5B9 & WORD
    return x ^ x >> 32


def path_hash(ips: list[int]) -> int:
    value = 0
    for ip in ips:
        value = (value * K + mix(ip)) & WORD
    return value


def addresses(run: Run) -> list[int]:
    start, instructions = run
    return [start + 4 * i for i in range(instructions)]


def record(kind: int, payload: bytes) -> bytes:
    return struct.pack("<II", kind, len(payload)) + payload


def runs_record(tid: int, runs: list[Run]) -> bytes:
    rows = [
        struct.pack("<QIIQ", start, n, 0, path_hash(addresses((start, n)))) for start, n in runs
    ]
    return record(2, struct.pack("<II", tid, len(runs)) + b"".join(rows))


def end_record(tid: int, status: int, runs: list[Run]) -> bytes:
    ips = [ip for run in runs for ip in addresses(run)]
    return record(4, struct.pack("<IIQQ", tid, status, len(ips), path_hash(ips)))


Columns = tuple["array[int]", "array[int]", "array[int]"]


def columns(runs: list[Run]) -> Columns:
    return (
        array("Q", [start for start, _ in runs]),
        array("I", [n for _, n in runs]),
        array("Q", [path_hash(addresses(run)) for run in runs]),
    )


PATH = [(0x401000, 5), (0x402000, 1), (0x401000, 300), (0x403000, 7)]


@pytest.fixture
def one_thread(tmp_path: Path) -> Path:
    path = tmp_path / "one.truth"
    thread = record(1, struct.pack("<II", 8, 7))
    content = (
        thread + runs_record(8, PATH[:1]) + runs_record(8, PATH[1:]) + end_record(8, 256, PATH)
    )
    path.write_bytes(HEADER + content + record(5, b""))
    return path


def compare(path: Path, decoded: object, **options: Any) -> dict[str, Any]:
    result: dict[str, Any] = core.TruthFile(path).compare(8, decoded, **options)
    return result


def test_each_thread_is_compared(one_thread: Path) -> None:
    truth = core.TruthFile(one_thread)
    assert truth.threads() == [(8, 7, 313, 256, True)]
    assert truth.complete


def test_thread_without_end_record_is_incomplete(one_thread: Path) -> None:
    one_thread.write_bytes(one_thread.read_bytes()[:-40])
    truth = core.TruthFile(one_thread)
    assert truth.threads() == [(8, 7, 313, None, False)]
    assert not truth.complete


def test_thread_without_runs_equals_an_empty_path(one_thread: Path) -> None:
    truth = core.TruthFile(one_thread)
    assert truth.compare(9, columns([]))["identical"]
    assert not truth.compare(9, columns(PATH))["identical"]


def test_equal_paths_are_identical(one_thread: Path) -> None:
    counts = ("shortfall", "excess", "repeated", "unchecked")
    expected = {"instructions": 313, "runs": 4, **dict.fromkeys(counts, 0)}
    assert compare(one_thread, columns(PATH)) == {"identical": True, **expected}


def test_decoded_path_may_be_compared_in_chunks(one_thread: Path) -> None:
    def chunks() -> Iterator[Columns]:
        for run in PATH:
            yield columns([run])
            yield columns([])

    assert compare(one_thread, chunks())["identical"]
    assert not compare(one_thread, [columns(PATH[:2])])["identical"]


def test_decoded_path_may_be_numpy_arrays(one_thread: Path) -> None:
    numpy = pytest.importorskip("numpy")
    arrays = tuple(map(numpy.asarray, columns(PATH)))
    assert compare(one_thread, arrays)["identical"]


def test_first_difference_has_address_and_position(one_thread: Path) -> None:
    other = [*PATH[:2], (0x401004, 300), PATH[3]]
    result = compare(one_thread, columns(other))
    assert not result["identical"]
    assert result["instructions"] == 6
    assert (result["truth_index"], result["decoded_index"]) == (2, 2)
    assert result["truth"] == PATH[2]
    assert result["decoded"] == other[2]
    assert result["until"] is None
    assert "start" in result["reason"]


def test_hashed_paths_report_the_chunk_of_the_first_difference(tmp_path: Path) -> None:
    """One run may represent many that are not adjacent in memory."""
    joined = [PATH[:2], PATH[2:]]
    rows = b""
    for runs in joined:
        ips = [ip for run in runs for ip in addresses(run)]
        rows += struct.pack("<QIIQ", ips[0], len(ips), 0, path_hash(ips))
    thread = record(1, struct.pack("<II", 8, 7)) + record(2, struct.pack("<II", 8, 2) + rows)
    path = tmp_path / "hashes.truth"
    path.write_bytes(HEADER + thread + end_record(8, 256, PATH) + record(5, b""))
    assert compare(path, columns(PATH))["identical"]
    assert compare(path, columns([*PATH[:3], (0x403000, 3), (0x40300C, 4)]))["runs"] == 2
    result = compare(path, columns([*PATH[:3], (0x403004, 7)]))
    assert not result["identical"]
    assert (result["instructions"], result["until"]) == (6, 313)
    assert compare(path, columns([PATH[0], (0x402004, 1), *PATH[2:]]))["until"] == 6


def test_prefix_is_accepted_only_on_request(one_thread: Path) -> None:
    short = columns([*PATH[:2], (0x401000, 100)])
    assert not compare(one_thread, short)["identical"]
    result = compare(one_thread, short, prefix=True)
    assert result["identical"]
    assert (result["instructions"], result["unchecked"], result["shortfall"]) == (6, 100, 207)


def test_filter_and_stop_ranges_limit_the_path(one_thread: Path) -> None:
    inside = [PATH[0], PATH[2]]
    assert compare(one_thread, columns(inside), filters=[(0x401000, 0x401FFF)])["identical"]
    assert compare(one_thread, columns(PATH[:1]), stops=[(0x402000, 0x402000)])["identical"]
    assert not compare(one_thread, columns(PATH), stops=[(0x403000, 0x403000)])["identical"]


def test_exception_of_the_iterator_propagates(one_thread: Path) -> None:
    def chunks() -> Iterator[Columns]:
        yield columns(PATH[:1])
        raise LookupError

    with pytest.raises(LookupError):
        compare(one_thread, chunks())


def test_bad_columns_are_rejected(one_thread: Path) -> None:
    start, instructions, value = columns(PATH)
    with pytest.raises(ValueError, match="differ in length"):
        compare(one_thread, (start, instructions[:1], value))
    with pytest.raises(TypeError, match="column start"):
        compare(one_thread, (start.tobytes(), instructions, value))
    with pytest.raises(TypeError, match="column hash"):
        compare(one_thread, (start, instructions, [1, 2]))


def test_bad_file_error_names_the_offset(tmp_path: Path) -> None:
    path = tmp_path / "bad.truth"
    path.write_bytes(HEADER + record(1, struct.pack("<II", 8, 8)) + record(77, b""))
    truth = core.TruthFile(path)
    with pytest.raises(TruthError, match="77") as caught:
        truth.threads()
    assert caught.value.offset == 32
    assert caught.value.source == str(path)
    with pytest.raises(TruthError):
        truth.compare(8, columns([]))


def test_file_of_another_format_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "other"
    path.write_bytes(b"PERFILE2" + bytes(100))
    with pytest.raises(TruthError, match="PERFILE2"):
        core.TruthFile(path)
    with pytest.raises(FileNotFoundError):
        core.TruthFile(tmp_path / "absent")


PATHS = st.lists(
    st.tuples(st.integers(0, WORD - 0x1000).map(lambda ip: ip & ~3), st.integers(1, 40)),
    max_size=12,
)


def write(path: Path, runs: list[Run]) -> None:
    content = record(1, struct.pack("<II", 8, 8)) + runs_record(8, runs) + end_record(8, 0, runs)
    path.write_bytes(HEADER + content + record(5, b""))


@given(path=PATHS, data=st.data())
def test_any_sequential_cut_is_identical(
    tmp_path_factory: pytest.TempPathFactory, path: list[Run], data: st.DataObject
) -> None:
    file = tmp_path_factory.getbasetemp() / "cut.truth"
    write(file, path)
    cut: list[Run] = []
    for start, instructions in path:
        left = data.draw(st.integers(0, instructions))
        cut += [(start, left), (start + 4 * left, instructions - left)]
    result = compare(file, columns(cut))
    assert result["identical"]
    assert result["instructions"] == sum(n for _, n in path)


@given(path=PATHS.filter(bool), data=st.data())
def test_any_changed_address_is_found(
    tmp_path_factory: pytest.TempPathFactory, path: list[Run], data: st.DataObject
) -> None:
    file = tmp_path_factory.getbasetemp() / "other.truth"
    write(file, path)
    index = data.draw(st.integers(0, len(path) - 1))
    start, instructions = path[index]
    at = data.draw(st.integers(0, instructions - 1))
    wrong = [(start, at), (start + 4 * at + 2, 1), (start + 4 * (at + 1), instructions - at - 1)]
    result = compare(file, columns([*path[:index], *wrong, *path[index + 1 :]]))
    assert not result["identical"]
    assert result["instructions"] == sum(n for _, n in path[:index])


@given(content=st.binary(max_size=200), data=st.data())
def test_any_bytes_give_a_result_or_a_truth_error(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, data: st.DataObject
) -> None:
    thread = record(1, struct.pack("<II", 8, 8))
    good = bytearray(thread + runs_record(8, PATH) + end_record(8, 0, PATH) + record(5, b""))
    for _ in range(data.draw(st.integers(0, 3))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    file = tmp_path_factory.getbasetemp() / "any.truth"
    file.write_bytes(HEADER + data.draw(st.sampled_from([bytes(good), content, thread + content])))
    truth = core.TruthFile(file)
    answers: tuple[Callable[[], object], ...] = (
        truth.threads,
        lambda: truth.instructions(8),
        lambda: truth.compare(8, columns([]), prefix=True),
    )
    for answer in answers:
        try:
            answer()
        except TruthError as error:
            caught = error
        else:
            continue
        assert caught.offset is not None
        assert 16 <= caught.offset < file.stat().st_size
