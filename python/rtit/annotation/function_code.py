"""The code of one function: its ranges in the file, and its instructions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rtit.errors import InputError
from rtit.image import function_of_cold_part
from rtit.x86 import MAX_LENGTH, InstructionClass, decode

if TYPE_CHECKING:
    from rtit.image.file_symbols import FileFunction, FileSymbols
    from rtit.profile.tables import Binary


class CodeInstruction(NamedTuple):
    """An instruction: its offset in the file, bytes, class, and direct target (offset) if any."""

    offset: int
    code: bytes
    kind: InstructionClass
    target: int | None

    @property
    def end(self) -> int:
        """The offset of the next instruction in memory."""
        return self.offset + len(self.code)


def function_ranges(symbols: FileSymbols, function: FileFunction) -> list[tuple[int, int]]:
    """Return the file offsets of a function as half-open ranges, its entry first.

    The part that the compiler moved away from it (NAME.cold) is included, unless several functions
    of the file have this name.
    """
    offsets = {function.offset}
    if len({each.offset for each in symbols.functions if each.name == function.name}) == 1:
        for each in symbols.functions:
            if function_of_cold_part(each.name) == function.name:
                offsets.add(each.offset)
    starts, ends, owners = symbols.owned_range_columns
    is_owned = np.isin(symbols.offsets[owners], np.array([*offsets], np.uint64))
    ranges = zip(starts[is_owned].tolist(), ends[is_owned].tolist(), strict=True)
    return sorted(ranges, key=lambda each: (each[0] < function.offset, each[0]))


def read_instructions(
    binary: Binary, ranges: Sequence[tuple[int, int]]
) -> Iterator[CodeInstruction]:
    """Iterate over the instructions in ranges of a binary, whether they ran or not.

    An instruction that ran is never hidden by bytes before it that look like a longer instruction.
    A byte that is no instruction has the class OTHER.
    """
    for start, end in ranges:
        code = binary.space.read(0, start, end - start)
        low, high = np.searchsorted(binary.offset, [start, end]).tolist()
        cursor = start
        for executed in [*binary.offset[low:high].tolist(), start + len(code)]:
            while cursor < executed:
                found = _decode_at(binary, cursor, code[cursor - start :][:MAX_LENGTH])
                if found.end > executed:
                    found = CodeInstruction(cursor, found.code[:1], InstructionClass.OTHER, None)
                yield found
                cursor = found.end
            if executed < start + len(code):
                found = _decode_at(binary, executed, code[executed - start :][:MAX_LENGTH])
                yield found
                cursor = found.end


def _decode_at(binary: Binary, offset: int, code: bytes) -> CodeInstruction:
    address = binary.symbols.address(offset)
    try:
        found = decode(code, address, binary.symbols.elf.bits)
    except InputError:
        return CodeInstruction(offset, code[:1], InstructionClass.OTHER, None)
    target = None if found.target is None else found.target - address + offset
    if target is not None and target < 0:
        target = None  # data that looks like a branch
    return CodeInstruction(offset, code[: found.length], found.kind, target)
