"""Common start of the cases in `test_edges.py` and `test_edges_of_context.py`."""

from __future__ import annotations

from typing import Any

import pytest

BEGIN = "enable 0x1000\n    ...\n"
USER = f"ctl User BranchEn\n{BEGIN}"
CYCLES = f"ctl User BranchEn CYCEn\n{BEGIN}"
KERNEL = f"arch cpl=0\nctl OS User BranchEn\n{BEGIN}"


def case(name: str, text: str, *rows: str) -> Any:
    marks = [pytest.mark.spec(*rows)] if rows else []
    return pytest.param(text, id=name, marks=marks)


def not_taken(count: int) -> str:
    """Return `count` not-taken conditional branches from 0x1000 on."""
    ips = range(0x1000, 0x1000 + 2 * count, 2)
    return "".join(f"conditional {ip:#x} {ip + 2:#x} 0x1010 False\n" for ip in ips)
