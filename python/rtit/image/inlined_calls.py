"""The functions of the code of a file: from its symbols, and inlined ones from its DWARF."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rtit.image.source_lines import address_windows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rtit.image.file_symbols import FileSymbols


class Frame(NamedTuple):
    """A function and a line that runs in it; the file is "" and lines are 0 if unknown.

    `first_line` is the line of the function.
    """

    function: str
    file: str
    first_line: int
    line: int


class InlinedCalls:
    """The inlined calls of a file with code at some addresses.

    `innermost` is the number of the innermost call at each address; -1 for none.
    """

    def __init__(self, symbols: FileSymbols, offsets: NDArray[np.uint64]) -> None:
        self.innermost = np.full(len(offsets), -1, np.int32)
        addresses = symbols.addresses(offsets)
        found = symbols.native.inlined_calls(address_windows(addresses))
        symbols.has_incomplete_lines |= found["is_incomplete"]
        order = np.argsort(addresses, kind="stable")
        bounds = (np.asarray(column) for column in (found["start"], found["end"]))
        begins, ends = (np.searchsorted(addresses, each, sorter=order) for each in bounds)
        call = np.asarray(found["call"])
        # inner calls are after outer ones
        for row in np.flatnonzero(begins < ends).tolist():
            self.innermost[order[begins[row] : ends[row]]] = call[row]
        self._files, self._names = found["files"], found["names"]
        self._parent, self._function = memoryview(found["parent"]), memoryview(found["function"])
        self._call_file = memoryview(found["call_file"])
        self._call_line = memoryview(found["call_line"])
        self._first_file = memoryview(found["first_file"])
        self._first_line = memoryview(found["first_line"])

    @property
    def parents(self) -> NDArray[np.uint32]:
        """The call that each call is in, which has a smaller number; 2**32-1 for none."""
        return np.asarray(self._parent)

    def name_and_file(self, call: int) -> tuple[str, str]:
        """Return the symbol of the function of a call, and its source file; "" if unknown."""
        function = self._function[call]
        return self._names[function], self._file(self._first_file[function])

    def frames(self, call: int, file: str, line: int) -> tuple[list[Frame], str, int]:
        """Return the inlined functions at a line in the code of a call, the innermost first, then
        file and line of the outermost call.
        """
        frames = []
        while 0 <= call < len(self._parent):
            function = self._function[call]
            inner_file = self._file(self._first_file[function]) or file
            frames.append(
                Frame(self._names[function], inner_file, self._first_line[function], line)
            )
            file, line = self._file(self._call_file[call]), self._call_line[call]
            call = self._parent[call]
        return frames, file, line

    def _file(self, number: int) -> str:
        return self._files[number] if number < len(self._files) else ""


class FunctionIndex:
    """Finds functions of a binary by offset."""

    def __init__(self, symbols: FileSymbols) -> None:
        self._starts, self._ends, self._owners = symbols.owned_range_columns

    def find_functions(self, offsets: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return the index in `FileSymbols.functions` for each offset; -1 for none."""
        none = np.full(len(offsets), -1)
        if not len(self._starts):
            return none
        at = np.searchsorted(self._starts, offsets, "right") - 1
        safe = np.maximum(at, 0)
        inside = (at >= 0) & (offsets < self._ends[safe])
        return np.where(inside, self._owners[safe].astype(np.int64), none)
