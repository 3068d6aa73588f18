"""Programs that the ptrace back end refuses before it starts anything."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from rtit.capture.request import check_program, find_executable
from rtit.errors import RecordError, UsageError


def native() -> None:
    if sys.platform != "linux":
        pytest.skip("recording needs Linux")
    core = pytest.importorskip("rtit._core")
    if not hasattr(core, "Tracer"):
        pytest.skip("the native module has no tracer")


@pytest.mark.parametrize("argv", [[], "true", ["true", "a\0b"]], ids=repr)
def test_check_program_rejects_malformed_argv(argv: list[str]) -> None:
    native()
    with pytest.raises(UsageError):
        check_program(argv)


@pytest.mark.parametrize("env", [{"=": "1"}, {"A=B": "1"}, {"A": "1\0"}, {"A\0": "1"}], ids=repr)
def test_check_program_rejects_malformed_environment(env: dict[str, str]) -> None:
    native()
    with pytest.raises(UsageError, match="environment"):
        check_program(["/bin/true"], env=env)


def test_check_program_reports_exit_code_126_or_127(tmp_path: Path) -> None:
    native()
    plain = tmp_path / "plain"
    plain.write_text("no program\n")
    (tmp_path / "folder").mkdir()
    cases = {
        "no-such-program": 127,
        str(tmp_path / "nothing"): 127,
        str(plain): 126,
        str(tmp_path / "folder"): 126,
    }
    for program, exit_code in cases.items():
        with pytest.raises(RecordError) as caught:
            check_program([program])
        assert (caught.value.exit_code, program in str(caught.value)) == (exit_code, True)
    with pytest.raises(RecordError) as caught:
        check_program(["/bin/true"], cwd=tmp_path / "nowhere")
    assert caught.value.exit_code == 125


def test_program_is_searched_in_the_path_of_env(tmp_path: Path) -> None:
    native()
    program = tmp_path / "only-here"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    check_program(["only-here"], env={"PATH": f"/nowhere:{tmp_path}"})
    check_program(["./only-here"], cwd=tmp_path)
    with pytest.raises(RecordError):
        check_program(["only-here"], env={"PATH": "/nowhere"})


def test_find_executable_equals_shutil_which(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    for folder in (one, two):
        folder.mkdir()
    (one / "plain").write_text("")
    (one / "folder").mkdir()
    for each in (two / "plain", two / "folder", one / "first", two / "first", tmp_path / "here"):
        each.write_text("")
        each.chmod(0o700)
    monkeypatch.chdir(tmp_path)
    names = ("plain", "folder", "first", "here", "nowhere")
    for path in (f"{one}:{two}", f"{two}::{one}", "", ":", f"{tmp_path}/no:{one}", "one:two"):
        monkeypatch.setenv("PATH", path)
        for name in names:
            assert find_executable(name, path) == find_executable(name) == shutil.which(name), (
                path,
                name,
            )
    monkeypatch.delenv("PATH")
    assert find_executable("sh") == shutil.which("sh")
