"""Address filters, in the syntax of `perf record --filter`.

    filter|tracestop|stop <start> [/ <size>] [@ <file>]

Filters are separated by commas or white space. <start> is a file offset, a function, or `*` for the
whole file. <size> is a number of bytes, or a function: the range ends where this function ends.

A function name is mangled or demangled and surrounded by white space; a name that contains white
space needs quotation marks. It may be followed by #n (the n'th function of that name in order of
address) or #g, #G, #0 (the global one). The default file is the program. Each filter becomes one
address range of section 33.2.5.3.

For a whole system, <start> is an address, a function of the kernel, or `*` for all code of the
kernel, and there is no file (`parse_system_filters`).
"""

from __future__ import annotations

import difflib
import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from os import PathLike, fspath
from pathlib import Path

from rtit.errors import ImageError, UsageError
from rtit.image.debug_files import find_debug_file
from rtit.image.file_symbols import FileFunction, FileSymbols
from rtit.image.kernel.boot_image import Symbol
from rtit.perfdata.filters import AddressFilter
from rtit.text_escaping import name_to_text, similar_names_hint

MAX_FILTERS = 4

_SYNTAX = "filter|tracestop <start> [/ <size>] [@ <file>]"
_LIMIT = 1 << 64
_INDEX = re.compile(r"#(?:(?P<global>[gG])|(?P<number>[0-9]+))")
_NUMBER = re.compile(r"0[xX][0-9a-fA-F]+|[0-9]+")


def parse_filters(
    filters: str | Iterable[str],
    *,
    program: str | PathLike[str] | None = None,
    limit: int = MAX_FILTERS,
) -> list[AddressFilter]:
    """Return the filters of one or more --filter options, with symbols resolved to file offsets.

    `program` is the file of filters without a file. Raises UsageError for syntax errors, for
    missing or ambiguous functions (the message lists candidates), and for more than `limit` ranges;
    ImageError for a file that cannot be read.
    """
    texts = [filters] if isinstance(filters, str) else filters
    found = []
    for text in texts:
        found += _FilterParser(text, program).parse_filters()
    _check_number(found, limit)
    return found


def parse_system_filters(filters: Iterable[str], symbols: Sequence[Symbol]) -> list[AddressFilter]:
    """Return the filters of --filter options for a whole system.

    `symbols` are those of the kernel as linked, in order of address; empty if they are unknown.
    Raises UsageError as `parse_filters` does.
    """
    functions = KernelFunctions(symbols)
    found = []
    for text in filters:
        found += _SystemFilterParser(text, functions).parse_filters()
    _check_number(found, MAX_FILTERS)
    return found


def _check_number(filters: Sequence[AddressFilter], limit: int) -> None:
    if len(filters) > limit:
        raise UsageError(
            f"{len(filters)} address filters, but the processor supports only {limit} ranges"
        )


@dataclass(frozen=True, slots=True)
class _RangeEnd:
    """A number, or a function name and a selection: -1 any, 0 the global one, n the n'th."""

    number: int = 0
    name: str | None = None
    selection: int = -1


class _FilterParser:
    def __init__(self, text: str, program: str | PathLike[str] | None) -> None:
        self._text = text
        self._position = 0
        self._program = program

    def parse_filters(self) -> list[AddressFilter]:
        found = []
        self._skip_characters(" ,\t\n")
        while self._position < len(self._text):
            found.append(self._parse_filter())
            self._skip_characters(" ,\t\n")
        if not found:
            raise self._syntax_error("no filter given")
        return found

    def _parse_filter(self) -> AddressFilter:
        action = self._read_word(" \t\n,")
        if action == "start":
            raise UsageError(
                "Intel PT does not support 'start', only address ranges: use 'filter' with the "
                "range to trace, or --start-at"
            )
        if action not in ("filter", "stop", "tracestop"):
            hint = difflib.get_close_matches(action, ["filter", "tracestop", "stop"], n=1)
            raise self._syntax_error(
                f"unknown action {action!r}" + (f" (did you mean {hint[0]!r}?)" if hint else "")
            )
        start = self._parse_range_end()
        size: _RangeEnd | None = None
        if self._accept_character("/"):
            size = self._parse_range_end()
        file = self._read_word(" ,\t\n") if self._accept_character("@") else None
        if action == "stop" and size is None:
            raise self._syntax_error(
                "Intel PT does not support 'stop' at a single address: give a size"
            )
        path = self._resolve_path(file)
        offset, length = self._resolve_range(start, size, path)
        if length <= 0 or offset + length > _LIMIT:
            raise self._syntax_error(
                f"a range from {offset:#x} of size {length:#x} is not a valid address range"
            )
        return self._make_filter(
            AddressFilter("filter" if action == "filter" else "stop", path, offset, length), start
        )

    def _make_filter(self, found: AddressFilter, _start: _RangeEnd) -> AddressFilter:
        return found

    def _parse_range_end(self) -> _RangeEnd:
        self._skip_characters(" \t\n")
        number = _NUMBER.match(self._text, self._position)
        if number is not None:
            self._position = number.end()
            return _RangeEnd(number=self._parse_number(number[0]))
        if self._accept_character('"'):
            name = self._read_word('"')
            if not self._accept_character('"'):
                raise self._syntax_error("a quotation mark is missing")
        else:
            name, hash_, rest = self._read_word(" \t\n").partition("#")
            if name in ("", "/", "@"):
                raise self._syntax_error("expected a number or the name of a function")
            if hash_:
                self._position -= len(rest) + 1
        self._skip_characters(" \t\n")
        if not self._text.startswith("#", self._position):
            return _RangeEnd(name=name)
        index = _INDEX.match(self._text, self._position)
        if index is None:
            raise self._syntax_error(
                "# must be followed by a number, or by g for the global function"
            )
        self._position = index.end()
        return _RangeEnd(name=name, selection=0 if index["global"] else int(index["number"]))

    def _parse_number(self, text: str) -> int:
        # Like strtoull: a leading 0x means hexadecimal, another leading 0 octal.
        base = 16 if text[:2] in ("0x", "0X") else 8 if text[0] == "0" else 10
        try:
            value = int(text, base)
        except ValueError:
            raise self._syntax_error(f"{text!r} is not a number: a leading 0 means octal") from None
        if value >= _LIMIT:
            raise self._syntax_error(f"{text} does not fit in 64 bits")
        return value

    def _resolve_path(self, file: str | None) -> str:
        if file is None and self._program is None:
            raise self._syntax_error(
                "a file name is missing: this filter can select only user code"
            )
        path = file if file is not None else fspath(self._program or "")
        real = Path(path).resolve()
        if not real.is_file():
            raise self._syntax_error(f"{path} is not a file")
        if re.search(r"[\s,]", str(real)):
            raise self._syntax_error(f"{real}: file names in filters cannot have blanks or commas")
        return str(real)

    def _resolve_range(
        self, start: _RangeEnd, size: _RangeEnd | None, path: str
    ) -> tuple[int, int]:
        from rtit._core import ElfFile

        if start.name is None and (size is None or size.name is None):
            return self._resolve_numbers(start, size)
        if start.name == "*":
            return 0, Path(path).stat().st_size
        elf = ElfFile(path)
        symbols = FileSymbols(elf, find_debug_file(elf, path, None))
        return self._resolve_names(start, size, symbols, path)

    def _resolve_numbers(self, start: _RangeEnd, size: _RangeEnd | None) -> tuple[int, int]:
        if size is None:
            raise self._syntax_error("a range that begins with a number needs a size")
        return start.number, size.number

    def _resolve_names(
        self,
        start: _RangeEnd,
        size: _RangeEnd | None,
        symbols: FileSymbols | KernelFunctions,
        path: str,
    ) -> tuple[int, int]:
        length = None if size is None else size.number
        offset = start.number
        if start.name is not None:
            function = _resolve_symbol(symbols, start, path)
            offset = function.offset
            length = function.size if size is None else length
        if size is not None and size.name is not None:
            last = _resolve_symbol(symbols, size, path)
            if last.offset + last.size <= offset:
                first = start.name or f"offset {start.number:#x}"
                raise self._syntax_error(
                    f"{size.name} ({last.offset:#x}) ends before {first} begins"
                )
            length = last.offset + last.size - offset
        return offset, length or 0

    def _skip_characters(self, characters: str) -> None:
        while self._position < len(self._text) and self._text[self._position] in characters:
            self._position += 1

    def _accept_character(self, character: str) -> bool:
        self._skip_characters(" \t\n")
        found = self._text.startswith(character, self._position)
        self._position += found
        return found

    def _read_word(self, ends: str) -> str:
        self._skip_characters(" \t\n")
        start = self._position
        while self._position < len(self._text) and self._text[self._position] not in ends:
            self._position += 1
        if start == self._position:
            raise self._syntax_error("the filter is incomplete")
        return self._text[start : self._position]

    def _syntax_error(self, message: str) -> UsageError:
        return UsageError(
            f"filter {self._text!r}, character {self._position}: {message}; syntax: {_SYNTAX}"
        )


class KernelFunctions:
    """The functions of a kernel, as linked: `FileSymbols` with addresses in place of offsets.

    kallsyms has no sizes, so that a function reaches to the next symbol.
    """

    def __init__(self, symbols: Sequence[Symbol]) -> None:
        self._functions: list[FileFunction] = []
        start = end = 0
        for address, kind, name in reversed(symbols):
            if address != start:
                start, end = address, start
            binding = _CODE_BINDINGS.get(kind)
            if binding is not None and address >= _KERNEL_START:
                size = max(end - address, 1)
                self._functions.append(FileFunction(name, address, size, address, binding))
        self._functions.reverse()

    def find_by_name(self, name: str) -> list[FileFunction]:
        """Return the functions of this name, in order of address."""
        return [each for each in self._functions if each.name == name]

    def find_function(self, address: int) -> FileFunction | None:
        """Return the function at an address; None if there is none."""
        index = bisect_right(self._functions, address, key=lambda each: each.offset) - 1
        return self._functions[index] if index >= 0 else None

    @property
    def names(self) -> list[str]:
        """All names, some of them several times."""
        return [each.name for each in self._functions]

    @property
    def extent(self) -> tuple[int, int]:
        """The first address of the functions, and the number of bytes to their end."""
        first, last = self._functions[0], self._functions[-1]
        return first.offset, last.offset + last.size - first.offset

    def __bool__(self) -> bool:
        return bool(self._functions)


_KERNEL_START = 1 << 63
"""Symbols below it are offsets in the memory of each processor."""
_CODE_BINDINGS = {"T": "g", "t": "l", "W": "w", "w": "w"}
"""Type in kallsyms -> `FileFunction.binding`."""
_KERNEL = "the kernel"


class _SystemFilterParser(_FilterParser):
    def __init__(self, text: str, functions: KernelFunctions) -> None:
        super().__init__(text, None)
        self._functions = functions

    def _make_filter(self, found: AddressFilter, start: _RangeEnd) -> AddressFilter:
        return replace(found, is_linked=start.name is not None)

    def _resolve_path(self, file: str | None) -> str:
        if file is not None:
            raise self._syntax_error(
                "filters of a whole system have no file: name a function of the kernel or an "
                "address"
            )
        return ""

    def _resolve_range(
        self, start: _RangeEnd, size: _RangeEnd | None, _path: str
    ) -> tuple[int, int]:
        if start.name is None:
            if size is not None and size.name is not None:
                raise self._syntax_error("a range that begins with an address needs a size")
            return self._resolve_numbers(start, size)
        if not self._functions:
            raise self._syntax_error(_UNKNOWN_FUNCTIONS)
        if start.name == "*":
            return self._functions.extent
        return self._resolve_names(start, size, self._functions, _KERNEL)


_UNKNOWN_FUNCTIONS = (
    "functions of the kernel are unknown: rtit reads them from a bzImage after -kernel that has BTF"
)


def _resolve_symbol(
    symbols: FileSymbols | KernelFunctions, end: _RangeEnd, path: str
) -> FileFunction:
    name = name_to_text(end.name or "")
    try:
        found = symbols.find_by_name(name)
    except ImageError as error:
        raise UsageError(f"functions of {path} cannot be read: {error}") from error
    if end.selection == 0:
        found = [each for each in found if each.binding == "g"]
    elif end.selection > 0:
        found = found[end.selection - 1 : end.selection]
    if len(found) == 1:
        return found[0]
    if found:
        rows = [
            f"#{number} {each.offset:#x} {_BINDINGS.get(each.binding, 'local')} {each.name}"
            f"{_previous_function_name(symbols, each)}"
            for number, each in enumerate(found, 1)
        ]
        raise UsageError(
            f"{path} has {len(found)} functions named {name!r}: append #n to choose the n'th, "
            "or #g for the global one",
            hint="\n".join(rows),
        )
    wanted = {-1: "function", 0: "global function"}.get(
        end.selection, f"function number {end.selection}"
    )
    hint = similar_names_hint(name, symbols.names)
    if re.search(r"[@/]", name) and "@plt" not in name:
        hint += "; put white space around names"
    raise UsageError(f"{path} has no {wanted} named {name!r}{hint}")


_BINDINGS = {"g": "global", "w": "weak"}


def _previous_function_name(symbols: FileSymbols | KernelFunctions, function: FileFunction) -> str:
    """Return the name of the preceding function, to distinguish functions of one name."""
    before = symbols.find_function(function.offset - 1) if function.offset else None
    return f" (after {before.name})" if before is not None else ""
