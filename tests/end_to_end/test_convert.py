"""`rtit convert` converts a recording to raw PT and maps, and these to a recording."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

import rtit
from differential.oracles import perf
from rtit.cli.main import main
from rtit.packets import encode
from rtit.trace import Trace
from support.recordings import Recorder, require_backend

ProgramBuilder = Callable[[str], Path]


def executed_ips(data: Path) -> dict[int, list[int]]:
    with Trace(data) as trace:
        return {
            each.tid: [int(ip) for part in each.instructions() for ip in part.ip]
            for each in trace.threads
        }


def test_split_and_join_keep_path_and_times(
    program: ProgramBuilder, record: Recorder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    live = record([program("pointers")])
    folder, again = tmp_path / "split", tmp_path / "again.data"
    assert main(["convert", str(live.data), "--split", str(folder)]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    _, command = line.split(" bytes  ")
    words = shlex.split(command)
    assert words[:3] == ["rtit", "instructions", "--raw"]
    with Trace(live.data) as trace:
        (stream,) = trace.streams
        assert Path(words[3]).read_bytes() == stream.read()
        (pid,) = trace.mappings()
    maps = str(folder / f"{pid}.maps")
    settings = words[2 : words.index("--elf")]
    back = ["convert", *settings, "--maps", maps, "-o", str(again)]
    assert main(back) == 0
    (path,) = executed_ips(live.data).values()
    assert executed_ips(again) == {1: path}
    with Trace(live.data) as first, Trace(again) as second:
        times = [list(each.streams[0].blocks().columns()["time"]) for each in (first, second)]
        assert times[0] == times[1]
    try:
        theirs, errors = perf.instructions(again)
    except perf.PerfMissingError:
        return
    assert errors == []
    assert theirs == {1: path}


@pytest.mark.parametrize("filters", [[], ["filter main"]])
def test_printed_command_decodes_the_same_path(
    filters: list[str], program: ProgramBuilder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    require_backend("qemu")
    data = tmp_path / "perf.data"
    event = "intel_pt/noretcomp/u"
    rtit.record(
        [str(program("pointers"))], output=data, backend="qemu", event=event, filters=filters
    )
    assert main(["convert", str(data), "--split", str(tmp_path / "split")]) == 0
    _, command = capsys.readouterr().out.splitlines()[-1].split(" bytes  ")
    fields = ["--fields", "ip,sym"]
    assert main(["instructions", str(data), *fields]) == 0
    expected = capsys.readouterr().out
    assert expected.count("\n") > 10
    assert main([*shlex.split(command)[1:], *fields]) == 0
    assert capsys.readouterr().out == expected


def test_split_into_existing_files_is_an_error(
    program: ProgramBuilder, record: Recorder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    live = record([program("pointers")])
    folder = tmp_path / "split"
    assert main(["convert", str(live.data), "--split", str(folder)]) == 0
    before = {path: path.read_bytes() for path in folder.iterdir()}
    assert main(["convert", str(live.data), "--split", str(folder)]) == 1
    assert "exist" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_split_writes_a_file_for_each_cpu(traces: Path, tmp_path: Path) -> None:
    data = traces / "chromeos" / "cpu-wide.perf.data"
    assert main(["convert", str(data), "--split", str(tmp_path)]) == 0
    sizes = {path.name: path.stat().st_size for path in tmp_path.glob("*.pt")}
    assert sizes == {"cpu0.pt": 12240, "cpu3.pt": 137728}
    lines = (tmp_path / "3174.maps").read_text().splitlines()
    assert any(line.endswith("/lib64/libc-2.23.so") and " r-xp " in line for line in lines)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["x.data"], "a recording needs --split DIR, and no -o or --maps"),
        (["x.data", "--split", "d", "-o", "y"], "a recording needs --split DIR"),
        (["--raw", "x.pt"], "--raw needs --maps and -o, and no --split"),
        (["--raw", "x.pt", "--maps", "m", "-o", "y", "--split", "d"], "--raw needs --maps and -o"),
        (["--mtc-freq", "3", "--split", "d"], "and needs --raw FILE"),
    ],
)
def test_wrong_options_are_a_usage_error(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["convert", *words]) == 2
    assert message in capsys.readouterr().err


def test_impossible_frequencies_and_maps_are_errors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    raw, maps, made = tmp_path / "x.pt", tmp_path / "maps", tmp_path / "made"
    raw.write_bytes(encode("PSB") + encode("PSBEND"))
    maps.write_text("401000-402000 r-xp 00001000 08:01 7   /bin/x y\n7f00-7f00 rw-p 0 0:0 0\n")
    base = ["convert", "--raw", str(raw), "--maps", str(maps), "-o", str(made)]
    assert main([*base, "--mtc-freq", "16"]) == 2
    assert main([*base, "--nom-freq", "300"]) == 2
    assert not made.exists()
    assert main(base) == 0
    with Trace(made) as trace:
        ((mapping,),) = trace.mappings().values()
        assert (mapping.start, mapping.end, mapping.offset) == (0x401000, 0x402000, 0x1000)
        assert mapping.path == "/bin/x y"
    maps.write_text("402000-401000 r-xp 00001000 08:01 7 /bin/x\n")
    capsys.readouterr()
    assert main(base) == 1
    assert "an empty mapping" in capsys.readouterr().err
    for offset, path in ("1" + "0" * 16, "/bin/x"), ("0", "/" + "x" * 70_000):
        maps.write_text(f"401000-402000 r-xp {offset} 08:01 7 {path}\n")
        assert main(base) == 1
        said = capsys.readouterr().err
        assert "a mapping with an impossible offset or path" in said
        assert len(said) < 500
    # Offsets are in bytes, and nothing but a newline ends a line.
    first = os.fsencode("401000-402000 r-xp 0 08:01 7 /\r/\u00e4\u20ac\n")
    maps.write_bytes(first + b"402000-401000 r-xp 0 08:01 7 /bin/x\n")
    assert main(base) == 1
    assert f"offset {len(first):#x}" in capsys.readouterr().err
    maps.write_bytes(first)
    assert main(base) == 0
    with Trace(made) as trace:
        assert [each.path for (each,) in trace.mappings().values()] == ["/\r/\u00e4\u20ac"]
    raw.write_bytes(b"")
    maps.write_text("")
    assert main(base) == 1
    assert "no packet" in capsys.readouterr().err
