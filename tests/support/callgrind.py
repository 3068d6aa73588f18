"""Reads the files that callgrind writes."""

from __future__ import annotations

import re
from collections import Counter


def inclusive_by_function(text: str) -> Counter[int]:
    """Return the inclusive costs that `callgrind_annotate` and KCachegrind show, by entry: the sums
    of the costs of all calls. Functions named function'2 are left out.
    """
    names: dict[str, str] = {}
    found: Counter[int] = Counter()
    called: int | None = None
    name = ""
    for line in text.splitlines():
        words = line.split()
        if match := re.match(r"c?fn=(\(\d+\))(.*)", line):
            name = names.setdefault(match[1], match[2])
        elif line.startswith("calls="):
            called = int(words[1], 16)
        elif line.startswith("0x") and called is not None:
            if not name.endswith("'2"):
                found[called] += int(words[2])
            called = None
    return found
