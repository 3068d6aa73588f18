"""`SpilledLines` returns the lines that were added, from memory and from a file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtit.views import spilled_lines
from rtit.views.spilled_lines import BoundedLines, SpilledLines

TEXTS = st.lists(st.text(max_size=6) | st.sampled_from(["\n", "\0", "\udc80"]), max_size=40)


@pytest.fixture(scope="module", autouse=True, params=[1 << 20, 32], ids=["memory", "file"])
def _memory_limit(request: pytest.FixtureRequest) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spilled_lines, "_MEMORY_BYTES", request.param)
        yield


@given(TEXTS)
def test_lines_equal_added_lines(texts: list[str]) -> None:
    found = SpilledLines()
    for number, text in enumerate(texts):
        assert len(found) == number
        found.append_line(text)
    assert list(found.lines_from_offset()) == texts


@given(st.lists(TEXTS, max_size=5), st.none() | st.integers(0, 5))
def test_bounded_lists_share_a_store(texts: list[list[str]], most: int | None) -> None:
    shared = SpilledLines()
    all_lines = []
    for each in texts:
        all_lines.append(lines := BoundedLines(shared, most))
        for text in each:
            lines.append_line(text)
    for _ in range(2):
        assert [list(lines) for lines in all_lines] == [each[:most] for each in texts]
    assert [len(lines) for lines in all_lines] == list(map(len, texts))
    assert len(shared) == sum(len(each[:most]) for each in texts)
