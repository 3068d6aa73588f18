"""`dataclass` of the standard library, whose methods are compiled when the first of them is needed.

Compiling them takes most of the time of an import, and of the many classes that a verb loads it
makes objects of a few. What is unusual is left to the standard library at once.
"""

from __future__ import annotations

TYPE_CHECKING = False  # the typing module alone would take longer to load than what is won
if TYPE_CHECKING:
    from collections.abc import Callable
    from dataclasses import dataclass as dataclass  # noqa: PLC0414 - handed on
else:
    _OPTIONS = {"eq", "frozen", "kw_only", "repr", "slots"}
    _UNUSUAL = ("ClassVar", "InitVar", "KW_ONLY", "typing.", "dataclasses.")
    # those that objects are made with, and the rest
    _FIRST = ("__init__", "__dataclass_fields__", "__match_args__", "__replace__")
    _FROZEN = ("__setattr__", "__delattr__", "__getstate__", "__setstate__")
    _LATER = ("__dataclass_params__", "__repr__", "__eq__", "__hash__")

    def dataclass(**options: bool) -> Callable[[type], type]:
        """As `dataclasses.dataclass`. With slots, which the class has at once, all else is made
        when it is asked for, by the class or by an object.
        """

        def decorate(cls: type) -> type:
            if options.get("slots") and options.keys() <= _OPTIONS and _is_usual(cls):
                return _lazy(cls, options)
            from dataclasses import dataclass as at_once

            return at_once(**options)(cls)

        return decorate

    def _is_usual(cls: type) -> bool:
        """Whether each annotation is a field with a slot, and the class defines nothing itself that
        decides what it is given.
        """
        annotations = vars(cls).get("__annotations__", {}).values()
        own = (*_FROZEN, "__eq__", "__hash__", "__slots__")
        return (
            all(isinstance(each, str) and not each.startswith(_UNUSUAL) for each in annotations)
            and vars(cls).keys().isdisjoint(own)
            and all("__slots__" in vars(base) for base in cls.__mro__[1:-1])
        )

    def _lazy(cls: type, options: dict[str, bool]) -> type:
        contents = dict(vars(cls))
        for name in ("__dict__", "__weakref__"):
            contents.pop(name, None)
        fields = contents.get("__annotations__", {})
        others = {name: value for name, value in contents.items() if name not in fields}
        inherited = {name for base in cls.__mro__[1:-1] for name in vars(base)["__slots__"]}
        others["__slots__"] = tuple(name for name in fields if name not in inherited)
        made = type(cls)(cls.__name__, cls.__bases__, others)
        frozen, eq = options.get("frozen", False), options.get("eq", True)
        without = {"__repr__"} if not options.get("repr", True) else set()
        without |= set() if eq else {"__eq__"}
        without |= set() if eq and frozen else {"__hash__"}

        def complete(names: list[str], **fewer: bool) -> None:
            from dataclasses import dataclass as at_once

            # of a copy each time, so that two threads do no harm to each other
            fresh = type(cls)(cls.__name__, cls.__bases__, contents)
            whole = at_once(**{**options, **fewer})(fresh)
            for name in names:
                if name in vars(whole):
                    setattr(made, name, vars(whole)[name])
                elif isinstance(vars(made).get(name), _Later):
                    delattr(made, name)

        first = [name for name in (*_FIRST, *(_FROZEN if frozen else ())) if name not in others]
        later = [name for name in _LATER if name not in others and name not in without]
        for name in first:
            setattr(made, name, _Later(made, name, lambda: complete(first, repr=False, eq=False)))
        for name in later:
            setattr(made, name, _Later(made, name, lambda: complete(later)))
        if eq and not frozen:
            made.__hash__ = None
        return made

    class _Later:
        """Stands for an attribute of a class until it is asked for."""

        __slots__ = ("_complete", "_name", "_of")

        def __init__(self, of: type, name: str, complete: Callable[[], None]) -> None:
            self._of, self._name, self._complete = of, name, complete

        def __get__(self, instance: object, owner: type) -> object:
            if vars(self._of).get(self._name) is self:
                self._complete()
            found = vars(self._of).get(self._name, self)
            if found is self:  # it has none
                return getattr(super(self._of, owner if instance is None else instance), self._name)
            get = getattr(type(found), "__get__", None)
            return found if get is None else get(found, instance, owner)
