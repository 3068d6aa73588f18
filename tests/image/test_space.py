"""The native `Space`: bytes by address and time."""

from __future__ import annotations

import pytest

core = pytest.importorskip("rtit._core", reason="the native module is not built")


def test_written_code_replaces_mapped_code_at_its_time() -> None:
    space = core.Space()
    space.map(10, 0x1000, b"abcdefgh")
    space.poke(20, 0x1002, b"XY")
    assert space.read(19, 0x1000, 100) == b"abcdefgh"
    assert space.read(20, 0x1000, 4) == b"abXY"
    assert space.read(5, 0x1006, 2) == b"gh"
    assert space.changes == 2


def test_fork_and_parent_are_independent() -> None:
    parent = core.Space()
    parent.map(0, 0x1000, b"old!")
    child = parent.fork(5)
    parent.poke(6, 0x1000, b"P")
    child.poke(6, 0x1000, b"C")
    assert parent.read(9, 0x1000, 4) == b"Pld!"
    assert child.read(9, 0x1000, 4) == b"Cld!"


def test_exec_and_unmap_remove_code() -> None:
    space = core.Space()
    space.map(0, 0x1000, bytes(range(16)))
    space.unmap(5, 0x1004, 4)
    space.clear(8)
    assert space.read(5, 0x1000, 16) == bytes(range(4))
    assert space.read(5, 0x1008, 16) == bytes(range(8, 16))
    assert space.read(8, 0x1000, 16) == b""


def test_reused_pid_adopts_code() -> None:
    parent, space = core.Space(), core.Space()
    parent.map(0, 0x1000, b"parent")
    space.map(0, 0x1000, b"before")
    space.adopt(7, parent)
    assert space.read(6, 0x1000, 6) == b"before"
    assert space.read(7, 0x1000, 6) == b"parent"
    space.adopt(9, space)
    assert space.read(9, 0x1000, 6) == b"parent"


def test_code_is_shared_and_sliced() -> None:
    code = core.Code(bytes(range(100)))
    assert bytes(code.slice(10, 5)) == bytes(range(10, 15))
    assert (len(code), len(code.slice(100, 0))) == (100, 0)
    for offset, size in ((96, 5), (1 << 63, 1 << 63)):
        with pytest.raises(ValueError, match="of 100"):
            code.slice(offset, size)
    space = core.Space()
    space.map(0, 0x1000, code.slice(50, 4))
    assert space.read(0, 0x1000, 1 << 40) == bytes(range(50, 54))


@pytest.mark.parametrize("bad", ["text", 7, None])
def test_code_that_is_not_bytes_raises_type_error(bad: object) -> None:
    with pytest.raises(TypeError):
        core.Space().map(0, 0, bad)


def test_cpp_name_is_demangled() -> None:
    assert core.demangle("_ZN3foo3barEi") == "foo::bar"
    assert core.demangle("main") == "main"
