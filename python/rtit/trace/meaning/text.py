"""Happenings as a line of text, and as JSON."""

from __future__ import annotations

from dataclasses import fields

from rtit.trace.meaning.values import Happening

_PLACE = frozenset({"time", "offset", "row"})
_STATES = frozenset({"state", "last", "deepest"})
_HEXADECIMAL = frozenset(
    {"at", "to", "ip", "after", "cr2", "cr3", "pointer", "value", "payload", "qualification"}
)


def describe(happening: Happening) -> str:
    """What happened and what is known of it, as `name=value`, without the time and the place."""
    words = [str(getattr(happening, "name", happening.what))]
    for field in fields(happening):
        value = getattr(happening, field.name)
        if field.name in _PLACE or field.name == "name" or value is None or value is False:
            continue
        words.append(_word(field.name, value))
    return " ".join(words)


def as_json(happening: Happening) -> dict[str, object]:
    """A dict for `json.dumps`: `event` is its name, the rest as in its class; what is not known is
    null.
    """
    found = {field.name: getattr(happening, field.name) for field in fields(happening)}
    return {"event": happening.what, **found}


def _word(name: str, value: object) -> str:
    if value is True:
        return name
    if isinstance(value, dict):
        return " ".join(f"{key.replace(' ', '_')}={each:#x}" for key, each in value.items())
    if isinstance(value, tuple):
        return f"{name}={','.join(map(str, value)) or 'none'}".replace(" ", "_")
    if isinstance(value, int) and name in _STATES:
        return f"{name}=C{(value + 1) & 0xF}"
    if isinstance(value, int) and name in _HEXADECIMAL:
        return f"{name}={value:#x}"
    return f"{name}={value}".replace(" ", "_")
