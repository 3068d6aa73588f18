"""The scenarios that come with rtit."""

from __future__ import annotations

import os
from pathlib import Path

from rtit.errors import UsageError
from rtit.scenario.words import hint

LIBRARY = Path(__file__).parent / "library"
"""Their folder."""

SUFFIX = ".scenario"


def shipped() -> list[Path]:
    """Their files, by name."""
    return files_in(LIBRARY)


def files_in(folder: Path) -> list[Path]:
    """The scenario files of a folder, by name."""
    return sorted(folder.glob(f"*{SUFFIX}"))


def find(name: str) -> Path:
    """A file by its path, or a scenario that comes with rtit by its name. Raises UsageError."""
    path = Path(name)
    if path.exists() or path.suffix == SUFFIX or os.sep in name:
        return path
    if (found := LIBRARY / f"{name}{SUFFIX}").is_file():
        return found
    names = [each.stem for each in shipped()]
    raise UsageError(f"there is no file and no scenario {name!r}{hint(name, names)}")
