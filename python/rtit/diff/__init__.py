"""Two recordings, compared: where their paths part, and what ran more often in one.

`diff` compares; `compare.py` goes along two threads at once, `counts.py` compares how often, and
`tree.py` within whom.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rtit.lazy import exports

if TYPE_CHECKING:
    from rtit.diff.difference import Difference
    from rtit.diff.whole import assert_same_path, diff

__all__ = ["Difference", "assert_same_path", "diff"]

__getattr__ = exports(__name__, {"difference": "Difference", "whole": "assert_same_path diff"})
