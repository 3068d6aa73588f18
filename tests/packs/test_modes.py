"""A pack gives the results of the recording in every recording mode."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rtit.cli.main import main
from rtit.image import mapped_files as image_files

ProgramBuilder = Callable[[str], Path]
MODES = {
    "two CPUs": ["--cpus", "2"],
    "a snapshot": ["--snapshot=64K"],
    "cycles": ["-e", "intel_pt/cyc=1,mtc_period=0,noretcomp/u"],
    "a filter": ["--filter", "filter main @ {program}"],
    "a size": ["--max-size", "16K"],
}
READERS = (
    *(["info"], ["report"], ["packets"], ["blocks"], ["branches"], ["edges"], ["events"]),
    *(["instructions", "--fields", "tid,time,ip,sym,asm"], ["stat", "--per", "function"]),
)


@pytest.mark.parametrize("mode", MODES)
def test_pack_of_each_mode_equals_its_recording(
    mode: str,
    program: ProgramBuilder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    path, data, pack = program("fork"), str(tmp_path / "perf.data"), str(tmp_path / "pack")
    options = [each.format(program=path) for each in MODES[mode]]
    main(["record", "-q", "--backend", "ptrace", "-o", data, *options, "--", str(path)])
    capfd.readouterr()

    def decoded(file: str) -> list[tuple[int, str, str]]:
        found = []
        for verb in READERS:
            code = main([verb[0], file, *verb[1:]])
            said = capfd.readouterr()
            found.append((code, said.out.replace(file, "F"), said.err.replace(file, "F")))
        return found

    before = decoded(data)
    assert main(["pack", data, "-o", pack]) == 0
    opened = image_files._open_candidate_file

    def only_packed(recorded: str, real: str, kept: object) -> object:
        assert "rtit-pack-" in real
        return opened(recorded, real, kept)  # type: ignore[arg-type]

    monkeypatch.setattr(image_files, "_open_candidate_file", only_packed)
    capfd.readouterr()
    assert decoded(pack) == before
    assert any(out for _, out, _ in before)
