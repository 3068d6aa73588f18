"""The program in docs/howto/emulator.md runs, and decodes what ran."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

GUIDE = (Path(__file__).parents[2] / "docs" / "howto" / "emulator.md").read_text()
PROGRAM = GUIDE.partition("```python\n")[2].partition("```")[0]


def test_example_program_of_emulator_guide_runs() -> None:
    pytest.importorskip("unicorn", reason="unicorn is not installed (pip install unicorn)")
    pytest.importorskip("rtit._core", reason="the native module is not built")
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False
    )
    assert ended.stderr == ""
    # mov; 10 times call and loop; 11 times odd, 6 of them with its nop; lea, call, syscall.
    assert ended.stdout.startswith(f"{1 + 20 + 11 * 3 + 6 + 3} instructions, ")
