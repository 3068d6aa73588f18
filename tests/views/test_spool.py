"""Lines for later: as they were, wherever they are kept."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtit.views import statistics
from rtit.views.statistics import Lines, Spool

TEXTS = st.lists(st.text(max_size=6) | st.sampled_from(["\n", "\0", "\udc80"]), max_size=40)


@pytest.fixture(scope="module", autouse=True, params=[1 << 24, 32], ids=["memory", "file"])
def _small_parts(request: pytest.FixtureRequest) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(statistics, "_PART", 8)
        patch.setattr(statistics, "_ROOM", request.param)
        yield


@given(TEXTS, st.integers(0, 50))
def test_lines_are_what_was_added(texts: list[str], first: int) -> None:
    found = Spool()
    for number, text in enumerate(texts):
        assert len(found) == number
        found.add(text)
    assert list(found.lines()) == texts
    assert list(found.lines(first)) == texts[first:]


@given(st.lists(TEXTS, max_size=5), st.none() | st.integers(0, 5))
def test_several_share_a_spool(texts: list[list[str]], most: int | None) -> None:
    shared = Spool()
    all_lines = []
    for each in texts:
        all_lines.append(lines := Lines(shared, most))
        for text in each:
            lines.add(text)
    for _ in range(2):
        assert [list(lines) for lines in all_lines] == [each[:most] for each in texts]
    assert [len(lines) for lines in all_lines] == list(map(len, texts))
    assert len(shared) == sum(len(each[:most]) for each in texts)
