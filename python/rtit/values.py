"""`dataclass` and its kin, for a package of hundreds of classes of which a program uses few.

The standard library's writes and compiles five functions a class when it is made, and loads
`inspect`. Here the initialiser is compiled when it is first needed, and the rest is closures. What
is made is a dataclass to everybody else: `dataclasses.fields`, `replace` and `asdict` take it, and
type checkers see the standard library's. There is no `order`, `unsafe_hash`, `InitVar`, and no
`init=False` of a class.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from operator import attrgetter
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

__all__ = ["KW_ONLY", "astuple", "dataclass", "field", "fields", "replace"]

_OURS = "__rtit_fields__"
_STANDARD = ("__dataclass_fields__", "__dataclass_params__")
_MISSING: Any = object()


class _Factory:
    """Stands for what a factory makes, as a default."""

    def __repr__(self) -> str:
        return "<factory>"


class _Field:
    """As `dataclasses.Field`."""

    __slots__ = (
        *("compare", "default", "default_factory", "init", "kw_only", "metadata", "name", "repr"),
        "type",
    )

    def __init__(
        self,
        *,
        default: Any = _MISSING,
        default_factory: Any = _MISSING,
        init: bool = True,
        repr: bool = True,  # noqa: A002 - as there
        compare: bool = True,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = self.type = ""
        self.kw_only = False
        self.default = default
        self.default_factory = default_factory
        self.init = init
        self.repr = repr
        self.compare = compare
        self.metadata = metadata or {}


class _Standard:
    """What the standard library keeps in a class under such a name, made when somebody asks."""

    def __init__(self, name: str, *, frozen: bool) -> None:
        self.name = name
        self.frozen = frozen

    def __get__(self, instance: object, owner: type) -> Any:
        import dataclasses

        members = []
        for each in getattr(owner, _OURS).values():
            given = {
                name: getattr(each, name)
                for name in ("default", "default_factory")
                if getattr(each, name) is not _MISSING
            }
            same = {name: getattr(each, name) for name in ("init", "repr", "compare", "kw_only")}
            whole = dataclasses.field(**given, **same, metadata=each.metadata)
            members.append((each.name, each.type, whole))
        made = dataclasses.make_dataclass("_", members, frozen=self.frozen)
        found = made.__dict__[self.name]
        setattr(owner, self.name, found)
        return found


class _Init:
    """`__init__`, compiled when it is first looked up."""

    def __init__(self, *, frozen: bool, slots: bool) -> None:
        self.frozen = frozen
        self.slots = slots
        self.home: type = object

    def __get__(self, instance: object, owner: type) -> Any:
        function = self.home.__dict__["__init__"]
        if function is self:
            function = _initialiser(self.home, frozen=self.frozen, slots=self.slots)
            setattr(self.home, "__init__", function)  # noqa: B010 - mypy: of an instance
        return function if instance is None else MethodType(function, instance)


def _initialiser(cls: type, *, frozen: bool, slots: bool) -> FunctionType:
    known: dict[str, Any] = {"_factory": _Factory(), "_set": object.__setattr__}
    placed, named, body = ["self"], list[str](), list[str]()
    for each in getattr(cls, _OURS).values():
        name, value = each.name, each.name
        if each.default_factory is not _MISSING:
            known[f"_make_{name}"] = each.default_factory
            default, value = "=_factory", f"_make_{name}()"
            if each.init:
                value += f" if {name} is _factory else {name}"
        elif each.default is not _MISSING:
            known[f"_default_{name}"] = each.default
            default = f"=_default_{name}"
            if not each.init:
                value = default[1:] if slots else ""
        else:
            default, value = "", name if each.init else ""
        if each.init:
            (named if each.kw_only else placed).append(name + default)
        if value:
            put = f"_set(self, {name!r}, {value})" if frozen else f"self.{name} = {value}"
            body.append(put)
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    parameters = ", ".join([*placed, *(["*", *named] if named else [])])
    lines = [f"def make({', '.join(known)}):", f" def __init__({parameters}):"]
    lines += [f"  {line}" for line in body or ["pass"]]
    lines.append(" return __init__")
    space: dict[str, Any] = {}
    # In its module's names, so that annotations can be evaluated; a module may have been unloaded.
    names = vars(sys.modules[cls.__module__]) if cls.__module__ in sys.modules else {}
    # Code, not text: of Ctrl-C in a text's execution Python dies at its end, though it was caught.
    exec(compile("\n".join(lines), "<rtit.values>", "exec"), names, space)
    function: FunctionType = space["make"](**known)
    function.__qualname__ = f"{cls.__qualname__}.__init__"
    types = {each.name: each.type for each in getattr(cls, _OURS).values() if each.init}
    function.__annotations__ = {**types, "return": None}
    return function


def _own_fields(cls: type, *, kw_only: bool) -> dict[str, _Field]:
    found: dict[str, _Field] = {}
    space = cls.__dict__
    for name, annotation in cls.__annotations__.items():
        if annotation == "KW_ONLY":
            kw_only = True
        elif not str(annotation).startswith(("ClassVar", "typing.ClassVar")):
            given = space.get(name, _MISSING)
            each = given if isinstance(given, _Field) else _Field(default=given)
            each.name, each.type, each.kw_only = name, annotation, kw_only
            found[name] = each
    return found


def _dataclass(
    cls: type | None = None,
    /,
    *,
    eq: bool = True,
    repr: bool = True,  # noqa: A002 - as there
    frozen: bool = False,
    slots: bool = False,
    kw_only: bool = False,
) -> Any:
    def made(cls: type) -> type:
        own = _own_fields(cls, kw_only=kw_only)
        known: dict[str, _Field] = {}
        for base in reversed(cls.__mro__[1:]):
            known.update(base.__dict__.get(_OURS, {}))
        known.update(own)
        init = _Init(frozen=frozen, slots=slots)
        added: dict[str, Any] = {"__init__": init, "__replace__": _replace}
        all_fields = known.values()
        added["__match_args__"] = tuple(
            each.name for each in all_fields if each.init and not each.kw_only
        )
        if repr:
            added["__repr__"] = _repr([each.name for each in all_fields if each.repr])
        if eq:
            values = _values([each.name for each in all_fields if each.compare])
            added["__eq__"] = _eq(values)
            added["__hash__"] = _hash(values) if frozen else None
        if frozen:
            added["__setattr__"], added["__delattr__"] = _set_no_more, _delete_no_more
            if slots:
                added["__getstate__"], added["__setstate__"] = _state, _set_state
        space = cls.__dict__
        # `__eq__` alone makes `__hash__` None
        has_hash = space.get("__hash__") is not None
        for name in added.keys() & space.keys():
            if name != "__hash__" or has_hash:
                del added[name]
        added |= {name: _Standard(name, frozen=frozen) for name in _STANDARD}
        added[_OURS] = known
        if slots:
            cls = _slotted(cls, known, added)
        else:
            for name, value in added.items():
                setattr(cls, name, value)
            for name, each in own.items():
                if each.default is not _MISSING:
                    setattr(cls, name, each.default)
                elif name in space:
                    delattr(cls, name)
        init.home = cls
        return cls

    return made if cls is None else made(cls)


def _slotted(cls: type, known: dict[str, _Field], added: dict[str, Any]) -> type:
    inherited = {name for base in cls.__mro__[1:-1] for name in base.__dict__.get("__slots__", ())}
    left_out = {*known, "__dict__", "__weakref__"}
    space = {name: value for name, value in cls.__dict__.items() if name not in left_out}
    names = tuple(name for name in known if name not in inherited)
    made = type(cls)(cls.__name__, cls.__bases__, {**space, **added, "__slots__": names})
    made.__qualname__ = cls.__qualname__
    return made


def _values(names: list[str]) -> Callable[[Any], Any]:
    """Of an object these attributes as a tuple."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda each: tuple(getattr(each, name) for name in names)


def _eq(values: Callable[[Any], Any]) -> Callable[[Any, object], bool]:
    def same(self: Any, other: object) -> bool:
        if other.__class__ is not self.__class__:
            return NotImplemented  # type: ignore[no-any-return]
        equal: bool = values(self) == values(other)
        return equal

    return same


def _hash(values: Callable[[Any], Any]) -> Callable[[Any], int]:
    return lambda self: hash(values(self))


def _repr(names: list[str]) -> Callable[[Any], str]:
    def shown(self: Any) -> str:
        told = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"{self.__class__.__qualname__}({told})"

    return shown


def _set_no_more(self: object, name: str, value: object) -> None:
    from dataclasses import FrozenInstanceError

    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _delete_no_more(self: object, name: str) -> None:
    from dataclasses import FrozenInstanceError

    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _known(of: Any) -> Mapping[str, Any]:
    """The fields by name, also those of a class of the standard library that comes of ours."""
    cls = of if isinstance(of, type) else of.__class__
    if _OURS in cls.__dict__:
        ours: Mapping[str, Any] = cls.__dict__[_OURS]
        return ours
    import dataclasses

    return {each.name: each for each in dataclasses.fields(cls)}


def _state(self: Any) -> list[Any]:
    """What is pickled."""
    return [getattr(self, name) for name in _known(self)]


def _set_state(self: Any, state: list[Any]) -> None:
    for name, value in zip(_known(self), state, strict=True):
        object.__setattr__(self, name, value)


def _fields(of: Any) -> tuple[_Field, ...]:
    return tuple(_known(of).values())


def _replace(of: Any, /, **changes: Any) -> Any:
    for each in _known(of).values():
        if not each.init:
            if each.name in changes:
                wrong = TypeError if sys.version_info >= (3, 13) else ValueError
                raise wrong(f"field {each.name} is declared with init=False")
        elif each.name not in changes:
            changes[each.name] = getattr(of, each.name)
    return of.__class__(**changes)


def _astuple(of: Any) -> tuple[Any, ...]:
    """Of plain values: what is in them stays as it is."""
    return tuple(getattr(of, name) for name in _known(of))


if TYPE_CHECKING:
    from dataclasses import KW_ONLY, astuple, dataclass, field, fields, replace
else:
    KW_ONLY = "KW_ONLY"
    astuple, dataclass, field, fields, replace = _astuple, _dataclass, _Field, _fields, _replace


def hexadecimal_repr(*names: str) -> Callable[[Any], str]:
    """A `__repr__` for a dataclass: numbers of the fields `names` are in hexadecimal."""

    def text(self: Any) -> str:
        values = ((row.name, getattr(self, row.name)) for row in fields(self))
        shown = (f"{name}={_hexadecimal(it) if name in names else repr(it)}" for name, it in values)
        return f"{type(self).__qualname__}({', '.join(shown)})"

    return text


def _hexadecimal(value: Any) -> str:
    if type(value) is tuple:
        inner = ", ".join(map(_hexadecimal, value))
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    return f"{value:#x}" if isinstance(value, int) else repr(value)
