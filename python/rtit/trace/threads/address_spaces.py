"""Address spaces of one stream: whose code runs goes by what its PIP and VMCS packets say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rtit.errors import UsageError
from rtit.image import KERNEL_PID, Image

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rtit import _core


COLUMNS = ("space", "target_space")
"""Those of `MORE` that say in which space a row is."""

SpaceKey = int | tuple[int, int] | tuple[int, int, int]
"""CR3; CR3 and NR (1: a guest's; 0 if it is left out); CR3, NR and the VMCS pointer. Of CR3 the
bits 51 to 5 tell: a PIP has no others (section 33.4.2.7).
"""

Spaces = (
    Mapping[SpaceKey, Image]
    | Mapping[int, Image]
    | Mapping[tuple[int, int], Image]
    | Mapping[tuple[int, int, int], Image]
)
"""The code of an address space each; a key with a VMCS pointer goes before one without."""


def pid_of_space(number: int) -> int:
    """What stands for the process of the space with this number, counted from 0: no process has
    it, and -1 stands for the code that is in no space.
    """
    return -2 - number


def are_apart(pids: NDArray[Any]) -> NDArray[Any]:
    """Which of the processes of spaces (`Stream.pids`) stand for a space that is no process's of
    the recording: its kernel and its processes are told apart by address.
    """
    return pids < KERNEL_PID


def filled(column: _core.Column, rows: int) -> NDArray[Any]:
    """The spaces of so many rows: native code gives none where all are in the first."""
    import numpy as np

    return np.asarray(column) if len(column) or not rows else np.zeros(rows, np.uint32)


def native_spaces(
    spaces: Spaces | None,
) -> dict[tuple[int, int] | tuple[int, int, int], _core.Space] | None:
    """As native code has them, in their order. Raises UsageError for a key that cannot be, or that
    is there in two forms.
    """
    if not spaces:
        return None
    found = {_key(key): image.native for key, image in spaces.items()}
    if len(found) < len(spaces):
        raise UsageError("two of the spaces have the same CR3, NR and VMCS pointer")
    return found


def _key(key: SpaceKey) -> tuple[int, int] | tuple[int, int, int]:
    cr3, nr, *vmcs = (key, 0) if isinstance(key, int) else key
    fits = all(0 <= number < 1 << 64 for number in (cr3, *vmcs))
    if not fits or nr not in (0, 1) or len(vmcs) > 1:
        raise UsageError(f"{key!r} is no CR3, NR (0 or 1) and VMCS pointer")
    return (cr3, int(nr), vmcs[0]) if vmcs else (cr3, int(nr))
