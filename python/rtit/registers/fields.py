"""Registers as tables of bit-fields: decoding and encoding derive from one row per field."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

Access = Literal["rw", "ignored"]


@dataclass(frozen=True, slots=True)
class Field:
    """One row of a register table: bits `high`:`low`, both inclusive, bit 0 least significant.

    `capability` names the attribute of `Profile` that must be true (MSR fields: otherwise the field
    is reserved) or whose value the field reports (CPUID fields). `encodings` names the attribute
    with the bitmap of legal encodings; `legal` lists legal values where the chapter fixes them.
    `limit` names the attribute that bounds the field's high bit (exclusive). `access` "ignored":
    what software writes there has no effect and does not fault. `reset` is the value after cold
    reset. `values` says what single encodings mean.
    """

    name: str
    high: int
    low: int
    source: str
    meaning: str = ""
    capability: str | None = None
    encodings: str | None = None
    legal: tuple[int, ...] | None = None
    limit: str | None = None
    access: Access = "rw"
    reset: int = 0
    values: Mapping[int, str] = field(default_factory=dict, compare=False)

    @property
    def width(self) -> int:
        """Number of bits."""
        return self.high - self.low + 1

    @property
    def mask(self) -> int:
        """The field's bits, in place."""
        return ((1 << self.width) - 1) << self.low

    @property
    def bits(self) -> str:
        """The position as the chapter writes it: `13` or `17:14`."""
        return str(self.low) if self.high == self.low else f"{self.high}:{self.low}"

    def extract_field(self, value: int) -> int:
        """Return the field of a register value, shifted down to bit 0."""
        return (value & self.mask) >> self.low

    def replace_field(self, value: int, content: int) -> int:
        """Return `value` with the field replaced. Raises ValueError if `content` does not fit."""
        if content < 0 or content >> self.width:
            raise ValueError(f"{self.name} has {self.width} bits: {content:#x} does not fit")
        return (value & ~self.mask) | (content << self.low)


class DecodedRegister(Mapping[str, int]):
    """The fields of one register value: attributes and items by name; `int()` gives it back.

    Reserved bits belong to no field but stay in `int(decoded)`.
    """

    __slots__ = ("_register", "_value")

    def __init__(self, register: Register, value: int) -> None:
        self._register = register
        self._value = value

    def __getattr__(self, name: str) -> int:
        try:
            return self._register[name].extract_field(self._value)
        except KeyError:
            raise AttributeError(f"{self._register.name} has no field {name}") from None

    def __getitem__(self, name: str) -> int:
        return self._register[name].extract_field(self._value)

    def __iter__(self) -> Iterator[str]:
        return (row.name for row in self._register.fields)

    def __len__(self) -> int:
        return len(self._register.fields)

    def __int__(self) -> int:
        return self._value

    __index__ = __int__

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value:#x}" for name, value in self.items() if value)
        return f"{self._register.name}({shown})"


@dataclass(frozen=True, slots=True)
class Register:
    """A register of `width` bits made of `fields`; bits that no field covers are reserved.

    `address` is the MSR address, or None for CPUID outputs and memory formats. `capability` names
    the attribute of `Profile` without which any access faults. ValueError at construction if two
    fields overlap.
    """

    name: str
    source: str
    fields: tuple[Field, ...]
    address: int | None = None
    width: int = 64
    capability: str | None = None
    _rows: dict[str, Field] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        seen = 0
        for row in self.fields:
            if seen & row.mask or row.high >= self.width or row.high < row.low:
                raise ValueError(f"{self.name}.{row.name}: bits {row.bits} overlap or lie outside")
            seen |= row.mask
        object.__setattr__(self, "_rows", {row.name: row for row in self.fields})

    def __getitem__(self, name: str) -> Field:
        """Return the field `name`. Raises KeyError."""
        return self._rows[name]

    @property
    def reserved_mask(self) -> int:
        """Bits that belong to no field."""
        return (1 << self.width) - 1 - sum(row.mask for row in self.fields)

    @property
    def reset(self) -> int:
        """The value after cold reset."""
        return self.encode()

    def decode(self, value: int) -> DecodedRegister:
        """Return the fields of `value`. Raises ValueError if it has more than `width` bits."""
        if value < 0 or value >> self.width:
            raise ValueError(f"{self.name} has {self.width} bits: {value:#x} does not fit")
        return DecodedRegister(self, value)

    def encode(self, **contents: int) -> int:
        """Return a value with these fields; the others have their reset value.

        Raises ValueError for an unknown name or a content that does not fit its field.
        """
        value = sum(row.reset << row.low for row in self.fields)
        return self.replace(value, **contents)

    def replace(self, value: int, **contents: int) -> int:
        """Return `value` with the named fields replaced; raises as `encode`."""
        for name, content in contents.items():
            if name not in self._rows:
                known = ", ".join(self._rows)
                raise ValueError(f"{self.name} has no field {name}; it has {known}")
            value = self._rows[name].replace_field(value, content)
        return value


def hexadecimal_repr(*names: str) -> Callable[[Any], str]:
    """Return a `__repr__` for a dataclass that shows `names`, or all fields, in hexadecimal."""

    def hexadecimal_text(self: Any) -> str:
        values = ((row.name, getattr(self, row.name)) for row in fields(self))
        shown = (
            f"{name}={_format_hexadecimal(it) if name in (names or (name,)) else repr(it)}"
            for name, it in values
        )
        return f"{type(self).__qualname__}({', '.join(shown)})"

    return hexadecimal_text


def _format_hexadecimal(value: Any) -> str:
    if type(value) is tuple:
        inner = ", ".join(map(_format_hexadecimal, value))
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    return f"{value:#x}" if isinstance(value, int) else repr(value)
