"""Says how much code has no name, and what helps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from rtit.image import has_file, is_named_by_address

_MIN_SHARE = 0.1
_JIT_OPTIONS = (
    "start node with --perf-basic-prof, Java with -XX:+UnlockDiagnosticVMOptions "
    "-XX:+DumpPerfMapAtExit, Python 3.12 with -X perf"
)


def describe_missing_names(functions: Mapping[tuple[str, str], int]) -> str | None:
    """Return one sentence if more than a tenth of the instructions ran in code without a name.

    `functions` counts instructions by (function, module). A function that is named by file and
    address has no name of its own.
    """
    unnamed: Counter[str] = Counter()
    for (name, module), count in functions.items():
        if not name or is_named_by_address(name, module):
            unnamed[module] += count
    total, without = sum(functions.values()), unnamed.total()
    if without <= _MIN_SHARE * total:
        return None
    module, _ = unnamed.most_common(1)[0]
    if has_file(module):
        remedy = f"{module}: install its debug symbols, or use --debuginfod"
    else:
        remedy = f"memory without a file: for JIT code {_JIT_OPTIONS}"
    most = "most of them " if len(unnamed) > 1 else ""
    return f"{without / total:.0%} of the instructions have no function name, {most}in {remedy}"
