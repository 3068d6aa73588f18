"""rtit in tests: a pytest plugin (`pip install rtit[pytest]`), whose fixture `rtit` is a
`Programs`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rtit.lazy import exports

if TYPE_CHECKING:
    from rtit.testing.baseline import Baselines
    from rtit.testing.programs import Programs

__all__ = ["Baselines", "Programs"]

__getattr__ = exports(__name__, {"baseline": "Baselines", "programs": "Programs"})
