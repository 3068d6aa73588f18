"""Our `dataclass` gives what that of the standard library gives, later."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import sys
import types
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest

import rtit.dataclass

SOURCE = '''
from __future__ import annotations
from dataclasses import KW_ONLY, field
from typing import ClassVar

@dataclass(slots=True{options})
class Base:
    """Two."""

    first: int
    many: list[int] = field(default_factory=list)

    def twice(self) -> int:
        return 2 * self.first

@dataclass(slots=True{options})
class Inner(Base):
    """Another."""

    last: str = field(default="x", repr=False, compare=False)

class Plain(Inner):
    __slots__ = ()

@dataclass(slots=True{options})
class Special:
    kind: ClassVar[int] = 5
    _: KW_ONLY
    only: int = 1
'''
OPTIONS = [
    "".join(f", {name}={value}" for name, value in given if value is not None)
    for given in product(
        [("frozen", None), ("frozen", True)],
        [("eq", None), ("eq", False)],
        [("repr", None), ("repr", False)],
        [("kw_only", None), ("kw_only", True)],
    )
]


def made(options: str, decorator: object, name: str) -> types.ModuleType:
    module = types.ModuleType(name)
    vars(module)["dataclass"] = decorator
    sys.modules[name] = module
    exec(SOURCE.format(options=options), vars(module))
    return module


@pytest.fixture(params=OPTIONS)
def both(request: pytest.FixtureRequest) -> tuple[types.ModuleType, types.ModuleType]:
    """The same classes by ours and by the standard library."""
    return (
        made(request.param, rtit.dataclass.dataclass, "made_later"),
        made(request.param, dataclasses.dataclass, "made_at_once"),
    )


def told(call: Callable[[], object]) -> object:
    """What it gives, or the error that it raises."""
    try:
        return call()
    except Exception as error:
        return type(error), str(error)


def asked(cls: Any, **given: object) -> list[object]:
    """Whatever one may ask of a class and of its objects."""
    one, two, first = cls(**given), cls(**given), next(iter(given))
    return [
        repr(one).split(" object at ")[0].replace(cls.__module__, ""),
        told(lambda: one == two),
        told(lambda: one == 5),
        told(lambda: hash(one) == hash(two)),
        told(lambda: setattr(one, first, 9)),
        told(lambda: setattr(one, "unknown", 9)),
        told(lambda: delattr(two, first)),
        [(each.name, each.kw_only, each.init) for each in dataclasses.fields(cls)],
        told(lambda: dataclasses.asdict(one)),
        told(lambda: dataclasses.asdict(dataclasses.replace(one))),
        told(lambda: dataclasses.asdict(pickle.loads(pickle.dumps(one)))),
        told(lambda: dataclasses.asdict(copy.deepcopy(one))),
        told(lambda: dataclasses.asdict(cls())),
        told(lambda: dataclasses.asdict(cls(3, [4]))),
        (cls.__match_args__, cls.__slots__, cls.__doc__, cls.__qualname__),
        str(inspect.signature(cls)),
        (cls.__hash__ is None, hasattr(one, "__dict__"), dataclasses.is_dataclass(cls)),
        str(cls.__dataclass_params__),
    ]


def all_of(module: Any) -> list[object]:
    """Of all classes, the derived ones first."""
    return [
        *(asked(cls, first=3, many=[4]) for cls in (module.Inner, module.Base, module.Plain)),
        asked(module.Special, only=7),
    ]


def test_it_is_the_same(both: tuple[types.ModuleType, types.ModuleType]) -> None:
    ours, theirs = both
    assert all_of(ours) == all_of(theirs)


@pytest.mark.parametrize("name", ["__eq__", "__repr__", "__hash__", "__setattr__", "__setstate__"])
def test_any_of_it_may_come_first(name: str) -> None:
    for cls in (
        made(", frozen=True", decorator, "made_first").Inner
        for decorator in (rtit.dataclass.dataclass, dataclasses.dataclass)
    ):
        assert inspect.isfunction(getattr(cls, name))
        assert cls(2) == cls(2)
        assert repr(cls(2)) == "Inner(first=2, many=[])"


def test_nothing_is_compiled_before_it_is_needed() -> None:
    cls = made(", frozen=True", rtit.dataclass.dataclass, "made_later").Inner
    kinds = [inspect.isfunction(vars(cls)[name]) for name in ("__init__", "__eq__")]
    cls(1)
    kinds += [inspect.isfunction(vars(cls)[name]) for name in ("__init__", "__eq__")]
    assert kinds == [False, False, True, False]
