"""Code bytes by address over time, and names for addresses.

`Image` is what a user puts together; `Images` turns sideband (mappings, forks, execs, written code)
into one a process; `Symbols` names addresses as of a time; `FileSymbols` is what one ELF file says.
Bytes that are not known for sure (a missing or changed file) are left out and reported as a
`Problem`.
"""

from __future__ import annotations

from rtit.image.file_symbols import FileSymbols, Function
from rtit.image.files import Files, Headers, Kept, Problem, Segment, Unusable, read_headers
from rtit.image.image import Image, Regions
from rtit.image.images import Images
from rtit.image.kernel import (
    GUEST,
    KERNEL,
    Kernel,
    KernelFiles,
    guest_pid,
    machine_of,
    process_in_guest,
)
from rtit.image.mappings import UPPER, Mapping, guest_path, has_file
from rtit.image.symbols import Location, Symbols

__all__ = [
    "GUEST",
    "KERNEL",
    "UPPER",
    "FileSymbols",
    "Files",
    "Function",
    "Headers",
    "Image",
    "Images",
    "Kept",
    "Kernel",
    "KernelFiles",
    "Location",
    "Mapping",
    "Problem",
    "Regions",
    "Segment",
    "Symbols",
    "Unusable",
    "guest_path",
    "guest_pid",
    "has_file",
    "machine_of",
    "process_in_guest",
    "read_headers",
]
