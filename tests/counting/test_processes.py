"""`rtit stat --per process` and `--per test`: each process has its own row and name."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import rtit
from rtit.cli.main import main
from rtit.counting.process_labels import process_label, test_label
from support.recordings import require_backend

ProgramBuilder = Callable[[str], Path]
test_label.__test__ = False  # type: ignore[attr-defined]  # no test of pytest


@pytest.mark.parametrize(
    ("argv", "label", "is_test"),
    [
        (["/x/deps/crate-0123456789abcdef", "--exact", "a::b", "--nocapture"], "crate a::b", True),
        (["/x/crate-0123456789abcdef", "a::b", "--exact", "--ignored"], "crate a::b", True),
        (["./crate-0123456789abcdef", "--exact", "a", "b"], "crate --exact a b", False),
        (["./crate-0123456789abcdef-x", "a b"], "crate-0123456789abcdef-x 'a b'", False),
        (["ls"], "ls", False),
        ([], "unknown", False),
    ],
)
def test_processes_have_the_names_of_their_tests(
    argv: list[str], label: str, is_test: bool
) -> None:
    assert process_label(argv) == label
    assert (test_label(argv) is not None) == is_test


RUNNER = """
for test in small::one large::two; do
    {binary} --exact $test --nocapture || exit
done
"""
"""Starts a process for each test as cargo-nextest does."""


@pytest.fixture
def runner(program: ProgramBuilder, tmp_path: Path) -> list[str]:
    require_backend("qemu")
    binary = tmp_path / "crate-0123456789abcdef"
    shutil.copy(program("pointers"), binary)
    script = tmp_path / "nextest.sh"
    script.write_text(RUNNER.format(binary=binary))
    return ["/bin/sh", str(script)]


def test_each_test_process_counts_as_if_it_ran_alone(runner: list[str], tmp_path: Path) -> None:
    found = rtit.stat(runner).stat
    binary = str(tmp_path / "crate-0123456789abcdef")
    alone = {
        f"crate {name}": rtit.stat([binary, "--exact", name, "--nocapture"], backend="ptrace")
        for name in ("small::one", "large::two")
    }
    assert found.tests == {name: each.stat.counts["instructions"] for name, each in alone.items()}
    assert found.processes.total() == found.counts["instructions"]
    assert {*found.processes} == {*found.tests, f"sh {runner[1]}"}


def test_forked_process_has_the_name_of_its_parent(program: ProgramBuilder) -> None:
    require_backend("qemu")
    name = str(program("fork"))
    found = rtit.stat([name]).stat
    assert found.counts["processes"] > 1
    assert found.processes == {process_label([name]): found.counts["instructions"]}


def test_program_before_an_exec_has_a_row_of_its_own() -> None:
    require_backend("qemu")
    found = rtit.stat(["/usr/bin/env", "-i", "/bin/true", "x"]).stat
    alone = rtit.stat(["/bin/true", "x"], env={}).stat
    assert found.counts["processes"] == 1
    assert found.processes["true x"] == alone.counts["instructions"]
    assert found.processes.total() == found.counts["instructions"]


def test_limit_applies_to_each_test(
    runner: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    stored = tmp_path / "counts.json"
    assert main(["stat", "--json", "-o", str(stored), "--", *runner]) == 0
    counts = json.loads(stored.read_text())
    against = ["stat", "--per", "test", "--baseline", str(stored), "--fail-above", "0%"]
    assert main([*against, "--", *runner]) == 0
    said = capfd.readouterr().err
    for name, count in counts["tests"].items():
        assert any(line.split()[::2] == [f"{count:,}", "crate"] for line in said.splitlines())
        assert name in said
    # A change of the runner itself is no failure.
    counts["counts"]["instructions"] -= 1
    stored.write_text(json.dumps(counts))
    assert main([*against, "--", *runner]) == 0
    counts["tests"]["crate small::one"] -= 1
    stored.write_text(json.dumps(counts))
    assert main([*against, "--", *runner]) == 1
    said = capfd.readouterr().err
    assert "+1  crate small::one: " in said
    assert "rtit stat: crate small::one: " in said
    assert main([*against, "--format", "markdown", "--", *runner]) == 1
    said = capfd.readouterr().err
    assert "Tests that exceed the limit of 0.0000%: 1." in said
    assert "| `crate small::one` | " in said


def test_processes_need_a_program(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stat", "--per", "test", "-i", "x.data"]) == 2
    assert "--per test needs a program" in capsys.readouterr().err
    assert main(["stat", "--per", "process", "--function", "f", "--", "/bin/true"]) == 2
    assert "--per process counts whole processes" in capsys.readouterr().err
    assert main(["stat", "--per", "test", "--backend", "ptrace", "--", "/bin/true"]) == 2
    assert "--per test needs QEMU" in capsys.readouterr().err


def test_tests_of_a_rust_harness_have_a_row_each(tmp_path: Path) -> None:
    """The binary is what `cargo test` builds; the arguments are those of cargo-nextest."""
    require_backend("qemu")
    rustc = shutil.which("rustc")
    if rustc is None:
        pytest.skip("rustc is not installed")
    source = tmp_path / "counted.rs"
    source.write_text(
        "fn sum(n: u64) -> u64 { (0..n).map(std::hint::black_box).sum() }\n"
        "mod inner { #[test] fn small() { assert_eq!(super::sum(10), 45); } }\n"
        "#[test] fn large() { assert_eq!(sum(100_000), 4_999_950_000); }\n"
    )
    binary = tmp_path / "counted-0123456789abcdef"
    subprocess.run([rustc, "--test", "-o", str(binary), str(source)], check=True)
    tests = ["inner::small", "large"]
    words = " && ".join(f"{binary} --exact {name} --nocapture" for name in tests)
    counted = rtit.stat(["/bin/sh", "-c", words])
    assert counted.exit_code == 0
    assert {*counted.stat.tests} == {f"counted {name}" for name in tests}
    difference = counted.stat.tests["counted large"] - counted.stat.tests["counted inner::small"]
    assert difference > 100_000


MANIFEST = '[package]\nname = "counted"\nversion = "0.1.0"\nedition = "2021"\n[workspace]\n'


@pytest.mark.slow
def test_tests_of_cargo_nextest_have_a_row_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_backend("qemu")
    if shutil.which("cargo") is None or shutil.which("cargo-nextest") is None:
        pytest.skip("cargo-nextest is not installed")
    (tmp_path / "src").mkdir()
    (tmp_path / "Cargo.toml").write_text(MANIFEST)
    tests = "".join(f"#[test] fn {name}() {{ assert_eq!(1 + 1, 2); }}\n" for name in "ab")
    (tmp_path / "src" / "lib.rs").write_text(f"mod inner {{ {tests} }}")
    monkeypatch.setenv("CARGO_TARGET_DIR", str(tmp_path / "target"))
    monkeypatch.chdir(tmp_path)
    words = ["cargo", "nextest", "run", "--offline"]
    subprocess.run([*words, "--no-run"], check=True)
    counted = rtit.stat(words)
    assert counted.exit_code == 0
    assert {*counted.stat.tests} == {"counted inner::a", "counted inner::b"}
