"""What a program executes, counted while it runs and without a trace: `rtit.stat(argv)`.

`run.py` runs it, `tally.py` reads what the plugin counted, `profile.py` makes counts by binary of
it, `spread.py` compares runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rtit.lazy import exports

if TYPE_CHECKING:
    from rtit.counting.run import Counted, Counting, chosen, stat
    from rtit.counting.spread import Spread

__all__ = ["Counted", "Counting", "Spread", "chosen", "stat"]

__getattr__ = exports(__name__, {"run": "Counted Counting chosen stat", "spread": "Spread"})
