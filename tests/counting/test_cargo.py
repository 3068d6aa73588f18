"""As docs/howto/performance-in-ci.md has it: the runner of `cargo test`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import rtit
from support.recordings import require_backend

MANIFEST = '[package]\nname = "counted"\nversion = "0.1.0"\nedition = "2021"\n[workspace]\n'
SOURCE = """
#[inline(never)]
fn sum(count: u64) -> u64 { let mut all = 0; for number in 0..count { all += number; } all }

#[test]
fn adds() { assert_eq!(sum(1000), EXPECTED); }
"""


@pytest.mark.parametrize(("expected", "code"), [(499_500, 0), (1, 101)])
def test_cargo_tests_under_stat_pass_or_fail_as_natively(
    tmp_path: Path, expected: int, code: int
) -> None:
    """The tests pass or fail as without rtit, and their instructions are counted."""
    require_backend("qemu")
    cargo = shutil.which("cargo")
    if cargo is None:
        pytest.skip("cargo is not installed")
    (tmp_path / "src").mkdir()
    (tmp_path / "Cargo.toml").write_text(MANIFEST)
    (tmp_path / "src" / "lib.rs").write_text(SOURCE.replace("EXPECTED", str(expected)))
    counts = tmp_path / "counts.json"
    runner = f"{sys.executable} -m rtit stat --json -o {counts} --"
    environment = {
        **os.environ,
        "CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER": runner,
        "CARGO_TARGET_DIR": str(tmp_path / "target"),
        "PYTHONPATH": str(Path(rtit.__file__).parent.parent),
    }
    command = [cargo, "test", "--offline", "--quiet", "--lib"]
    ended = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == code, ended.stderr
    assert ("1 passed" in ended.stdout) == (code == 0)
    found = json.loads(counts.read_text())
    [most] = [count for name, count in found["functions"].items() if "counted::sum" in name]
    # Without optimization each iteration of the loop is tens of instructions.
    assert found["counts"]["instructions"] > most > 10 * 1000
