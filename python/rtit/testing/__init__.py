"""rtit in tests: a pytest plugin (`pip install rtit[pytest]`), whose fixture `rtit` is a
`Programs`.
"""

from __future__ import annotations

from rtit.testing.baseline import Baselines
from rtit.testing.programs import Programs

__all__ = ["Baselines", "Programs"]
