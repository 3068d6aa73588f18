"""Number of examples that a property tries, and of combinations that a test tries.

Two Hypothesis profiles: `fast` (20 examples) is for everyday work, `full` (100) for
`make test-all`. `examples` sets another number for a property whose examples are slow or cheap.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import hypothesis
import pytest

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


def pairs_in_turn(first: Iterable[Any], second: Iterable[Any]) -> list[Any]:
    """Return all pairs, as parameters of a test.

    Each item of `first` has one pair in `make test`, with the items of `second` in turn; the other
    pairs are slow.
    """
    others = list(second)
    return [
        pytest.param(item, other, marks=[] if place == number % len(others) else pytest.mark.slow)
        for number, item in enumerate(first)
        for place, other in enumerate(others)
    ]
