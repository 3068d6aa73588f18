"""Which code ran: lines, branches both ways, blocks, of programs as they are.

`coverage` puts recordings together; `text.py`, `lcov.py`, `cobertura.py`, `drcov.py` and `afl.py`
write a format each.
"""

from __future__ import annotations

from rtit.coverage.gather import Coverage, coverage
from rtit.coverage.lines import Branch, Function, Source, sources

__all__ = ["Branch", "Coverage", "Function", "Source", "coverage", "sources"]
