"""Number of examples that a property tries.

Two Hypothesis profiles: `fast` (20 examples) is for everyday work, `full` (100) for
`make test-all`. `examples` sets another number for a property whose examples are slow or cheap.
"""

from __future__ import annotations

from typing import Any

import hypothesis

FAST, FULL = 20, 100


def register_profiles() -> None:
    """Register the profiles and load `fast`; `pytest --hypothesis-profile=full` loads the other."""
    for name, number in (("full", FULL), ("fast", FAST)):
        hypothesis.settings.register_profile(
            name,
            max_examples=number,
            # A busy machine is no reason to fail.
            deadline=None,
            suppress_health_check=[hypothesis.HealthCheck.too_slow],
        )
    hypothesis.settings.load_profile("fast")


def examples(full: int, **settings: Any) -> hypothesis.settings:
    """Return settings for `full` examples, or for the same share of them as the profile tries."""
    number = -(-full * hypothesis.settings().max_examples // FULL)
    return hypothesis.settings(max_examples=number, **settings)
