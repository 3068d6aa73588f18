"""Classes of `rtit.values` beside the same ones of the standard library."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import KW_ONLY
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtit import values


def classes(of: Any) -> dict[str, type]:
    """One of each kind that the package has, by `dataclass` and `field` of a module."""

    @of.dataclass(frozen=True, slots=True)
    class Frozen:
        WHAT: ClassVar[str] = "not a field"
        first: int
        second: str = "b"
        third: Mapping[int, int] = of.field(default_factory=dict, compare=False, repr=False)

        def __post_init__(self) -> None:
            if self.first < 0:
                raise ValueError(f"first is {self.first}")

    @of.dataclass(frozen=True, slots=True)
    class Derived(Frozen):
        fourth: float = 0.5

    @of.dataclass(slots=True)
    class Plain:
        first: int
        second: list[int] = of.field(default_factory=list)
        third: int = of.field(default=7, init=False)

    @of.dataclass(slots=True, eq=False, repr=False)
    class Bare:
        first: int = 1

    @of.dataclass(frozen=True, slots=True, kw_only=True)
    class Named:
        first: int
        second: int = 2

    @of.dataclass(frozen=True)
    class Unslotted:
        first: int = 1
        second: int = of.field(default=2, repr=False)
        _: KW_ONLY
        third: int = 3

    @of.dataclass
    class Empty:
        pass

    @of.dataclass(slots=True)
    class Own:
        first: int = 1

        def __repr__(self) -> str:
            return "own"

        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 5

    found = (Frozen, Derived, Plain, Bare, Named, Unslotted, Empty, Own)
    return {each.__name__: each for each in found}


OURS, STANDARD = classes(values), classes(dataclasses)
NAMES = list(OURS)


def outcome(work: Any) -> Any:
    """What it gives, or which exception it ends by."""
    try:
        return work()
    except Exception as error:  # whatever the other raises, too
        return type(error)


@pytest.mark.parametrize("name", NAMES)
def test_they_say_the_same_of_themselves(name: str) -> None:
    ours, standard = OURS[name], STANDARD[name]
    assert str(inspect.signature(ours)) == str(inspect.signature(standard))
    assert ours.__match_args__ == standard.__match_args__  # type: ignore[attr-defined]
    assert getattr(ours, "__slots__", None) == getattr(standard, "__slots__", None)
    assert (ours.__hash__ is None) == (standard.__hash__ is None)
    assert dataclasses.is_dataclass(ours)
    assert ours.__qualname__ == standard.__qualname__
    assert ours.__init__.__annotations__ == standard.__init__.__annotations__  # type: ignore[misc]
    about = ("name", "type", "init", "repr", "compare", "kw_only", "default", "default_factory")
    assert [[getattr(each, what) for what in about] for each in dataclasses.fields(ours)] == [
        [getattr(each, what) for what in about] for each in dataclasses.fields(standard)
    ]


ARGUMENTS = st.lists(st.integers(-1, 3), max_size=4)
BY_NAME = st.dictionaries(
    st.sampled_from(["first", "second", "third", "fourth"]), st.integers(-1, 3), max_size=3
)


@pytest.mark.parametrize("name", NAMES)
@given(ARGUMENTS, BY_NAME, ARGUMENTS, BY_NAME)
def test_they_do_the_same(
    name: str, placed: list[int], named: dict[str, int], other: list[int], changes: dict[str, int]
) -> None:
    def of(cls: type, replace: Any) -> Any:
        made = outcome(lambda: cls(*placed, **named))
        if isinstance(made, type):
            return made
        told = repr(made) if name != "Bare" else ""
        second = outcome(lambda: cls(*other))
        found = [told, made == second, made == 5, outcome(lambda: hash(made) == hash(second))]
        slots = dataclasses.fields(made)
        found += [getattr(made, each.name) for each in slots]
        new = outcome(lambda: replace(made, **changes))
        found.append(new if isinstance(new, type) else [getattr(new, each.name) for each in slots])
        found.append(outcome(lambda: setattr(made, "first", 9)))
        found.append(getattr(made, "first", None))
        found.append(outcome(lambda: delattr(made, "first")))
        return [*found, getattr(made, "first", None)]

    wanted = of(STANDARD[name], dataclasses.replace)
    assert of(OURS[name], values.replace) == wanted
    assert of(OURS[name], dataclasses.replace) == wanted


@values.dataclass(frozen=True, slots=True)
class Kept:
    first: int
    second: str


def test_they_travel_and_come_apart() -> None:
    kept = Kept(1, "b")
    assert pickle.loads(pickle.dumps(kept)) == kept
    assert values.astuple(kept) == dataclasses.astuple(kept) == (1, "b")
    assert dataclasses.asdict(kept) == {"first": 1, "second": "b"}
    assert [each.name for each in values.fields(kept)] == ["first", "second"]


@dataclasses.dataclass(frozen=True)
class More(Kept):
    WHAT: ClassVar[str] = "not a field"
    third: int = 3


def test_a_standard_one_may_come_of_ours() -> None:
    assert More(1, "b") == More(1, "b", 3)
    names = ["first", "second", "third"]
    assert [each.name for each in dataclasses.fields(More)] == names
    assert [each.name for each in values.fields(More)] == names
    more = More(1, "b", 4)
    assert pickle.loads(pickle.dumps(more)) == copy.copy(more) == copy.deepcopy(more) == more
    assert values.replace(more, first=2) == dataclasses.replace(more, first=2) == More(2, "b", 4)
    assert values.astuple(more) == (1, "b", 4)


@pytest.mark.skipif(sys.version_info < (3, 13), reason="copy.replace is of Python 3.13")
def test_a_copy_with_changes() -> None:
    assert copy.replace(Kept(1, "b"), first=2) == Kept(2, "b")  # type: ignore[attr-defined,unused-ignore]


def test_a_module_may_have_been_unloaded() -> None:
    script = """
import sys
from rtit.capture.window import Window
del sys.modules["rtit.capture.window"]
print(Window().start)
"""
    told = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert told.stdout == "None\n"
