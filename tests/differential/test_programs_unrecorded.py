"""The test programs behave as expected without a recorder."""

from __future__ import annotations

import subprocess
import sys

import pytest

from programs.build import PROGRAMS, CannotBuildError, build

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="programs for Linux")


@pytest.mark.parametrize("name", PROGRAMS)
def test_unrecorded_program_has_expected_output_and_status(name: str) -> None:
    program = PROGRAMS[name]
    try:
        executable = build(name)
    except CannotBuildError as error:
        pytest.skip(str(error))
    with subprocess.Popen([executable, *program.arguments], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        if not program.ends:
            assert process.stdout.readline().decode() == program.stdout
            process.kill()
            return
        stdout = process.stdout.read().decode()
    if process.returncode in program.may_exit:
        pytest.skip(f"{name}: this machine cannot show the situation")
    assert stdout == program.stdout
    assert process.returncode == program.status
