"""Mappings and code of a process agree at every time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtit.image import Images

pytest.importorskip("rtit._core", reason="the native module is not built")

PAGE = 4096
PAGES = 12

_mapping = st.tuples(
    st.just("mmap"),
    st.integers(0, PAGES - 1),
    st.integers(1, 4),
    st.integers(0, 4),
    st.sampled_from("ab?-"),  # two files, one that is missing, anonymous memory
)
_event = st.one_of(_mapping, st.tuples(st.just("exec")), st.tuples(st.just("fork")))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("files")
    for name in "ab":
        pages = [name.encode() + bytes([number]) * (PAGE - 1) for number in range(8)]
        (folder / name).write_bytes(b"".join(pages))
    return {**{name: str(folder / name) for name in "ab?"}, "-": "//anon"}


@given(events=st.lists(_event, max_size=12), ask=st.integers(0, 130))
def test_image_bytes_agree_with_mappings(
    files: dict[str, str], events: list[tuple[object, ...]], ask: int
) -> None:
    """A page-by-page model of the process, replayed up to the time of the question."""
    images = Images()
    model: dict[int, tuple[str, int]] = {}
    touched: set[int] = set()
    early = False
    last_life = True
    for number, event in enumerate(events):
        time = 10 * (number + 1)
        early = early or time > ask
        if event[0] == "mmap":
            _, page, count, offset, name = event
            page, count, offset = (int(str(number)) for number in (page, count, offset))
            images.mmap(time, 1, 1, page * PAGE, count * PAGE, offset * PAGE, files[str(name)])
            for index in range(count):
                fresh = page + index not in touched
                touched.add(page + index)
                if (not early or fresh) and last_life:
                    model[page + index] = (str(name), offset + index)
        elif event[0] == "exec":
            images.exec(time, 1, 1)
            last_life = last_life and time <= ask
            if last_life:
                model.clear()
                touched.clear()
        else:
            images.fork(time, 2, 1, 2, 1)
    space = images.image(1).native
    for page in range(PAGES + 4):
        name, offset = model.get(page, ("?", 0))
        expected = name.encode() + bytes([offset]) if name in "ab" else b""
        assert space.read(ask, page * PAGE, 2) == expected
    shown = [each for each in images.mappings(1) if each.since <= ask < each.until]
    for each in shown:
        assert not any(
            each is not other and each.start < other.end and other.start < each.end
            for other in shown
        )
        for at in range(each.start, each.end, PAGE):
            if at // PAGE in model and each.path != "//anon":
                name, offset = model[at // PAGE]
                assert (each.path, each.offset + at - each.start) == (files[name], offset * PAGE)
