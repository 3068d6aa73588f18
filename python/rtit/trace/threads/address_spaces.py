"""The address spaces of a stream, and how they are numbered.

A stream can execute code of several address spaces: of processes that share a CPU, of the kernel,
of virtual machines. The decoder follows PIP and VMCS packets and the scheduling intervals, and
numbers the spaces: 0 is `Stream.image`, the others are `Stream.other_spaces`, from 1.

Spaces that belong to no process of the recording have negative pseudo process ids, so that each
space has one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rtit.errors import UsageError
from rtit.image import KERNEL_PID, Image

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rtit import _core


SPACE_COLUMNS = ("space", "target_space")
"""The columns with the number of an address space."""

SpaceKey = int | tuple[int, int] | tuple[int, int, int]
"""CR3; or CR3 and NR (1 in a guest, else 0); or CR3, NR and the VMCS pointer. Only bits 51 to 5 of
CR3 count, since a PIP has no others (section 33.4.2.7).
"""

Spaces = (
    Mapping[SpaceKey, Image]
    | Mapping[int, Image]
    | Mapping[tuple[int, int], Image]
    | Mapping[tuple[int, int, int], Image]
)
"""The code of each address space. A key with a VMCS pointer takes precedence over one without."""


def space_pid(index: int) -> int:
    """The pseudo process id of the space at this index of `spaces`; -1 is the code in no space."""
    return -2 - index


def has_no_process(pids: NDArray[Any]) -> NDArray[Any]:
    """Which of these `Stream.space_pids` belong to no process of the recording.

    In a space of a process, addresses decide between the code of the kernel and of the process.
    """
    return pids < KERNEL_PID


def column_or_zeros(column: _core.Column, rows: int, dtype: str = "u4") -> NDArray[Any]:
    """Return the space or CR3 of each row. The native column is empty if all are 0."""
    import numpy as np

    return np.asarray(column) if len(column) or not rows else np.zeros(rows, dtype)


def native_spaces(
    spaces: Spaces | None,
) -> dict[tuple[int, int] | tuple[int, int, int], _core.Space] | None:
    """Return the spaces for the native decoder, in the same order.

    Raises UsageError for an invalid key, and for two forms of the same key.
    """
    if not spaces:
        return None
    found = {_native_space_key(key): image.native for key, image in spaces.items()}
    if len(found) < len(spaces):
        raise UsageError("two of the spaces have the same CR3, NR and VMCS pointer")
    return found


def _native_space_key(key: SpaceKey) -> tuple[int, int] | tuple[int, int, int]:
    cr3, nr, *vmcs = (key, 0) if isinstance(key, int) else key
    fits = all(0 <= number < 1 << 64 for number in (cr3, *vmcs))
    if not fits or nr not in (0, 1) or len(vmcs) > 1:
        raise UsageError(f"{key!r} is no CR3, NR (0 or 1) and VMCS pointer")
    return (cr3, int(nr), vmcs[0]) if vmcs else (cr3, int(nr))
